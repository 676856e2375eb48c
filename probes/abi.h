/* SPDX-License-Identifier: Apache-2.0
 *
 * The one definition of what the BPF programs write and what the profiler reads.
 * rlscope_ebpf/model/events.py mirrors it; tests/unit/test_abi.py compiles this file and compares the two.
 */
#ifndef RLSCOPE_ABI_H
#define RLSCOPE_ABI_H

/* Where a thread's wall time goes. Exactly one holds at any instant. */
enum rls_category {
    RLS_CAT_PYTHON = 0,
    RLS_CAT_SIMULATOR = 1,
    RLS_CAT_BACKEND = 2,
    RLS_CAT_CUDA_API = 3,
    RLS_CAT_OTHER = 4,
    RLS_CAT_COUNT = 5,
};

/* What an event says. */
enum rls_event_kind {
    RLS_EV_CALL = 1,         /* the thread's category changed because a call was entered */
    RLS_EV_RETURN = 2,       /* the thread's category changed because a call returned (or was found gone) */
    RLS_EV_GIL_RELEASE = 3,  /* python -> other: the thread gave up the interpreter */
    RLS_EV_GIL_ACQUIRE = 4,  /* other -> python: the thread holds the interpreter again */
    RLS_EV_OP_BEGIN = 5,     /* arg: 64-bit hash of the name */
    RLS_EV_OP_END = 6,       /* arg: how many operations ended at once, 0 or 1: one */
    RLS_EV_PHASE = 7,        /* arg: hash of the name */
    RLS_EV_PROGRESS = 8,     /* arg: step; a second record RLS_EV_PROGRESS_TOTAL follows when total != 0 */
    RLS_EV_PROGRESS_TOTAL = 9,
    RLS_EV_METADATA = 10,    /* arg: hash of the key; site: low 32 bits of the hash of "key\0value" */
    RLS_EV_OFF_CPU = 11,     /* arg: RLS_OFF_*: the task's state, and what it called the kernel for */
    RLS_EV_ON_CPU = 12,
    RLS_EV_THREAD_EXIT = 13,
    RLS_EV_WAKEUP = 14,      /* a thread that slept waits for a CPU from now on */
};

/* rls_event.arg of OFF_CPU */
#define RLS_OFF_STATE 0xffULL         /* 0: preempted, still runnable; else bits of the task's state: 1 S, 2 D, … */
#define RLS_OFF_CALL_SHIFT 16         /* 16 bits: number of the system call it is in, and 1; 0: in none, or not known */
#define RLS_OFF_ARG0_ZERO (1ULL << 32) /* the system call's first argument is 0 */
#define RLS_OFF_ARG1_ZERO (1ULL << 33) /* its second one is */

/* rls_event.flags */
#define RLS_F_HEALED 0x01   /* RETURN: the return was never seen; the frame was found dead by its stack pointer.
                               GIL_ACQUIRE: no probe; the thread was found running Python */
#define RLS_F_FIRST 0x02    /* the first event of this thread, or one of no probe: `from` was assumed, not followed */
#define RLS_F_PYTHON 0x04   /* markers: called by the Python module. CALL: made by Python, also if it released the
                               interpreter on its way (then `from` is other) */

/* One record of the events ring. 32 bytes: with the ring's own 8-byte header every record takes 40. */
struct rls_event {
    unsigned long long time_ns; /* CLOCK_MONOTONIC */
    unsigned int pid;           /* process (tgid), as the pid namespace of the profiler numbers it */
    unsigned int tid;           /* thread, likewise */
    unsigned int site;          /* probe id, or 0 */
    unsigned char kind;         /* enum rls_event_kind */
    unsigned char category;     /* enum rls_category from this moment on */
    unsigned char from;         /* enum rls_category until this moment */
    unsigned char flags;        /* RLS_F_* */
    unsigned long long arg;     /* by kind; for CALL, RETURN and GIL_*: low 32 bits: probe hits of this thread since
                                   its previous event that made no event of their own */
};

/* One record of the texts ring: a name is sent once. */
#define RLS_TEXT_MAX 128        /* 127 bytes and the terminating zero */
enum rls_text_kind {
    RLS_TEXT_NAME = 1,      /* key: hash; text: an operation or phase name, or a metadata key */
    RLS_TEXT_VALUE = 2,     /* key: the event's `site` (hash of key and value); text: the metadata value */
    RLS_TEXT_OPEN_OPS = 3,  /* a thread's stack of open operations, read at its first event */
    RLS_TEXT_NAME_AT = 4,   /* a name that is not in memory, where no program can read it; text: its address */
    RLS_TEXT_VALUE_AT = 5,  /* the same of a metadata value */
};
#define RLS_OPEN_OPS_MAX 16 /* text then holds up to 16 user-space pointers to names, outermost first */
struct rls_text {
    unsigned long long time_ns;
    unsigned long long key;     /* OPEN_OPS: depth of the stack, which may exceed RLS_OPEN_OPS_MAX */
    unsigned int pid;
    unsigned int tid;
    unsigned int kind;          /* enum rls_text_kind */
    unsigned int length;        /* bytes of text used, without the zero */
    char text[RLS_TEXT_MAX];
};

/* One record of the samples ring: where a thread was. */
enum rls_sample_kind {
    RLS_SAMPLE_CLOCK = 0, /* when the clock ticked */
    RLS_SAMPLE_OFF = 1,   /* when it went off its CPU; the event that says so has the same time */
};
#define RLS_SAMPLE_WORDS 127    /* with the rest 1,048 bytes; nearly all return addresses that matter lie within */
struct rls_sample {
    unsigned long long time_ns;
    unsigned long long ip;      /* in user space: where it was, or whence it entered the kernel; 0: not known */
    unsigned int pid;
    unsigned int tid;
    unsigned int words;         /* of the stack that could be read */
    unsigned int kind;          /* enum rls_sample_kind */
    unsigned long long stack[RLS_SAMPLE_WORDS]; /* the top of it, last pushed first */
};

#endif
