/* SPDX-License-Identifier: Apache-2.0
 *
 * The attach cookie: what a program must know of the site that fired. rlscope_ebpf/capture/cookie.py makes it.
 */
#ifndef RLSCOPE_COOKIE_H
#define RLSCOPE_COOKIE_H

#define RLS_COOKIE_SITE(c) ((unsigned int)((c)&0xffffff))      /* bits 0..23: probe id */
#define RLS_COOKIE_CATEGORY(c) ((unsigned char)(((c) >> 24) & 0xf)) /* bits 24..27: category entered */
#define RLS_COOKIE_CLASS(c) ((unsigned int)(((c) >> 28) & 0x3))  /* bits 28..29: enum rls_site_class */
#define RLS_COOKIE_PUSHED(c) ((unsigned int)(((c) >> 36) & 0xf))  /* bits 36..39: words pushed since the entry */
#define RLS_COOKIE_ACTION(c) ((unsigned int)(((c) >> 40) & 0xff)) /* bits 40..47: enum rls_action */
#define RLS_COOKIE_GROUP(c) ((unsigned int)(((c) >> 48) & 0x7))   /* bits 48..50: enum rls_group */

#define RLS_COOKIE_FROM_PYTHON (1ULL << 32) /* only the interpreter calls this function */
#define RLS_COOKIE_REENTRY (1ULL << 33)     /* native code calls into Python: counts only inside native code */
#define RLS_COOKIE_OPERATION (1ULL << 34)   /* the call itself is an operation (--marker) */
#define RLS_COOKIE_RETURNS (1ULL << 35)     /* the return is wanted, too */

/* What a hit means. */
enum rls_action {
    RLS_ACT_CALL = 0,         /* entry of a followed function; its return, where a return probe is set, ends it */
    RLS_ACT_EXIT = 1,         /* a `ret` of a followed function that C++ exceptions may leave: a return probe there would
                                 make the unwinder abort the target */
    RLS_ACT_CATCH = 2,        /* __cxa_begin_catch: every call below the catching function is gone */
    RLS_ACT_GIL_RELEASE = 3,  /* PyEval_SaveThread */
    RLS_ACT_GIL_ACQUIRE = 4,  /* PyEval_RestoreThread: what counts is its return */
    RLS_ACT_GIL_ENSURE = 5,   /* PyGILState_Ensure: what counts is its return */
    RLS_ACT_GIL_UNENSURE = 6, /* PyGILState_Release */
    RLS_ACT_OP_BEGIN = 7,
    RLS_ACT_OP_END = 8,
    RLS_ACT_PHASE = 9,
    RLS_ACT_PROGRESS = 10,
    RLS_ACT_METADATA = 11,
    RLS_ACT_LONGJMP = 12,     /* longjmp of glibc: every call below the function that called setjmp is gone */
    RLS_ACT_LOADED = 13,      /* the dynamic linker has mapped something, none of which has run yet */
    RLS_ACT_SWITCHES = 14,    /* the process makes a stack to switch to */
};

enum rls_site_class {
    RLS_CLASS_NOP5 = 0,
    RLS_CLASS_EMULATED = 1,
    RLS_CLASS_STEPPED = 2,
    RLS_CLASS_COUNT = 3,
};

/* Sites that are attached and shed together. */
enum rls_group {
    RLS_GROUP_MARKER = 0,
    RLS_GROUP_CUDA = 1,
    RLS_GROUP_BOUNDARY = 2,
    RLS_GROUP_REENTRY = 3,
    RLS_GROUP_GIL = 4,
    RLS_GROUP_CATCH = 5,
    RLS_GROUP_GATE = 6,
    RLS_GROUP_COUNT = 7,
};

/* Indices of the settings array, which the profiler writes. */
enum rls_setting {
    RLS_SET_NO_GIL = 0, /* the interpreter lock is not probed (any more): who has held it counts as holding it */
    RLS_SET_SAMPLES = 1, /* enum rls_sampling */
    RLS_SET_COUNT = 2,
};

enum rls_sampling {
    RLS_SAMPLING_OFF = 0,
    RLS_SAMPLING_FOLLOWED = 1, /* followed threads that go off their CPU are looked at, too */
    RLS_SAMPLING_ALL = 2,      /* and threads are followed once they are seen at work */
};

/* Indices of the counters array (per CPU). rlscope_ebpf/capture/counters.py names them. */
enum rls_counter {
    RLS_N_SENT = 0,          /* events the programs wanted to send */
    RLS_N_LOST_EVENTS = 1,   /* of these, those the full events ring refused */
    RLS_N_LOST_TEXTS = 2,
    RLS_N_LOST_THREADS = 3,  /* the map of threads was full */
    RLS_N_HEALED = 4,
    RLS_N_NOT_FOLLOWED = 5,  /* calls too deep, or made while no return probe was allowed */
    RLS_N_CUT_NAMES = 6,
    RLS_N_SWITCHES = 7,      /* scheduler events of followed threads */
    RLS_N_SAMPLES = 8,       /* looks of the sampling clock at followed processes */
    RLS_N_LOST_SAMPLES = 9,  /* of these, those the full samples ring refused */
    RLS_N_SAMPLED_NS = 10,   /* time that these looks took, without the interrupt around them */
    RLS_N_RETURNS = 11,      /* hits of return probes, by group */
    RLS_N_HITS = RLS_N_RETURNS + RLS_GROUP_COUNT, /* hits of other sites, by group and site class */
    RLS_N_COUNTERS = RLS_N_HITS + RLS_GROUP_COUNT * RLS_CLASS_COUNT,
};

#endif
