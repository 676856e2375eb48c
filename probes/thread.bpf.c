/* SPDX-License-Identifier: Apache-2.0
 *
 * BCC treats the functions of one file as programs, so the profiler joins this file, texts.bpf.c, programs.bpf.c,
 * sampling.bpf.c and scheduler.bpf.c, in this order, and compiles them, with
 *   -DEVENT_RING_PAGES, -DTEXT_RING_PAGES, -DSAMPLE_RING_PAGES  sizes of the rings, in pages, powers of two
 *   -DMARKER_DEPTH_OFFSET, -DMARKER_NAMES_OFFSET  where a thread's marker record keeps depth and names
 *   -DRLS_SESSION                                 if the kernel knows uprobe sessions
 *   -DRLS_KERNEL_TYPES                            if it knows its own types (BTF)
 *   -DRLS_PID_NAMESPACE, -DRLS_PID_NAMESPACE_DEVICE  see pids.h
 *
 * Per-thread state: the stack of followed calls, who holds the interpreter, and the one function that sends events.
 *
 * A thread's category is that of its innermost followed call. A call into the category the thread is already in is not
 * followed (only the outermost call of a category counts), so the stack holds category changes, not calls.
 * A followed call remembers the stack pointer at its entry. Stacks grow down: whenever the thread is seen at a higher
 * stack pointer than a followed call's, that call is gone, whether its return was seen or not (C++ exception, longjmp).
 */
#include <uapi/linux/ptrace.h>
#include "abi.h"
#include "cookie.h"
#include "pids.h"

#define RLS_MAX_FRAMES 32
#define RLS_MAX_THREADS 16384
#define RLS_SILENT_SITES 16384

struct frame {
    u64 sp;
    u32 site;
    u8 category;
    u8 operation; /* the call is an operation (--marker): its end is sent when the frame goes */
    u8 held;      /* thread.held before the call: a callback into Python restores it */
    u8 turn;      /* of the site when the call came: see `turns` */
};

struct thread {
    u32 pid;         /* as the profiler numbers it, and so is its thread */
    u32 tid;
    u32 depth;
    u32 silent;      /* hits since the last event that made none */
    u8 held;         /* the thread holds the interpreter: outside followed calls it runs Python */
    u8 sent;         /* category last sent */
    u8 first;        /* nothing sent yet */
    u8 ops_known;    /* the stack of open operations at attach was sent, or there was none */
    u8 python;       /* it has held the interpreter before */
    u64 saved_held;  /* held before each open PyGILState_Ensure, one bit each */
#ifndef RLS_SESSION
    u64 returns_sp;  /* stack pointer of the outermost call that is to return to a probe */
    u64 returns;     /* such calls, as many as the kernel keeps */
#endif
    /* What drop_frames last took away. Kept here because the verifier follows values on the stack, not in maps. */
    u32 dropped;
    u32 dropped_healed;     /* of these, calls whose return was never seen */
    u32 dropped_operations; /* of these, calls that were operations */
    u32 dropped_site;       /* of the outermost */
    struct frame frames[RLS_MAX_FRAMES];
};

struct target {
    u64 pointer_guard; /* with which glibc hides the addresses in a jmp_buf */
    u8 is_python;
    u8 assume_held; /* a thread first seen at a boundary call is taken to run Python */
    u8 unused[6];
};

/*
 * The helpers by names of our own: at each use of its names for them BCC reads all of the kernel's symbols to see whether
 * there is such a helper, which takes a tenth of a second.
 */
static long (*read_user)(void *to, u32 size, const void *from) = (void *)BPF_FUNC_probe_read_user;
static long (*read_user_str)(void *to, u32 size, const void *from) = (void *)BPF_FUNC_probe_read_user_str;

BPF_RINGBUF_OUTPUT(events, EVENT_RING_PAGES);
BPF_RINGBUF_OUTPUT(texts, TEXT_RING_PAGES);
BPF_TABLE("hash", u32, struct thread, threads, RLS_MAX_THREADS); /* by the kernel's own number */
BPF_TABLE("hash", u32, struct target, targets, 4096);
BPF_TABLE("array", int, u32, settings, RLS_SET_COUNT);
/* By process: low half: how often the dynamic linker has mapped something; high half: stacks made to switch to. */
BPF_TABLE("hash", u32, u64, loads, 4096);
/* The same as of the profiler's last look; gone where no return probe is allowed. */
BPF_TABLE("hash", u32, u64, looks, 4096);
BPF_TABLE("percpu_array", int, u64, counters, RLS_N_COUNTERS);
/* By probe id, as far as there is room: hits that sent no event. */
BPF_TABLE("percpu_array", int, u64, silent_hits, RLS_SILENT_SITES);
/* By probe id, as far as there is room: 0; one more once the site is to be taken off, and again one more once it is. While
 * it is odd no new call is followed from there, but those that have begun still are. */
BPF_TABLE("array", int, u32, turns, RLS_SILENT_SITES);
BPF_TABLE("array", int, struct thread, zero_thread, 1); /* never written: what a new thread starts from */

static __always_inline void count(int which, u64 by)
{
    u64 *value = counters.lookup(&which);
    if (value)
        *value += by;
}

static __always_inline u8 turn_of(u32 site)
{
    int index = site;
    u32 *turn = turns.lookup(&index);
    return turn ? *turn : 0;
}

static __always_inline void keep_silent(struct thread *t, u32 site)
{
    int index = site;
    u64 *value = silent_hits.lookup(&index);
    if (value)
        *value += 1;
    t->silent++;
}

/*
 * Whether the return of a call that is being entered may be probed. A program that switches stacks does not survive it, so
 * from the moment on at which a process has mapped new code none is set until the profiler has looked at that code. Only a
 * session can be told so at an entry; with the other methods it goes by which probes are attached.
 *
 * They, on the other hand, cannot be told which returns are not needed, and the kernel keeps no more than 64 of a thread.
 */
#define RLS_KERNEL_RETURNS 64
static __always_inline int return_is_probed(struct thread *t, u64 sp)
{
#ifdef RLS_SESSION
    u32 pid = t->pid;
    u64 *now = loads.lookup(&pid), *seen = looks.lookup(&pid);
    return now && seen && *now == *seen;
#else
    if (!t->returns || sp >= t->returns_sp) {
        t->returns = 0;
        t->returns_sp = sp;
    }
    if (t->returns >= RLS_KERNEL_RETURNS)
        return 0;
    t->returns++;
    return 1;
#endif
}

static __always_inline u8 base_category(struct thread *t)
{
    if (t->held)
        return RLS_CAT_PYTHON;
    int index = RLS_SET_NO_GIL;
    u32 *no_gil = settings.lookup(&index);
    return no_gil && *no_gil && t->python ? RLS_CAT_PYTHON : RLS_CAT_OTHER;
}

static __always_inline void hold(struct thread *t)
{
    t->held = 1;
    t->python = 1;
}

/* The verifier must see the bound, and the compiler must not reason it away. */
static __always_inline struct frame *frame_at(struct thread *t, u32 depth)
{
    u64 index = depth;
    asm volatile("%0 &= %1" : "+r"(index) : "i"(RLS_MAX_FRAMES - 1));
    return &t->frames[index];
}

static __always_inline u8 current_category(struct thread *t)
{
    u32 depth = t->depth;
    if (depth == 0)
        return base_category(t);
    u8 category = frame_at(t, depth - 1)->category;
    return category == RLS_CAT_PYTHON ? base_category(t) : category;
}

/* The thread that runs now. A new one starts with `held` as given. 0 if the process is not a target. */
static __always_inline struct thread *current_thread(u32 *tid_out, int held)
{
    u32 key = (u32)bpf_get_current_pid_tgid();
    struct thread *t = threads.lookup(&key);
    if (t) {
        *tid_out = t->tid;
        return t;
    }
    u64 ids = current_ids();
    u32 pid = ids >> 32;
    *tid_out = (u32)ids;
    struct target *target = targets.lookup(&pid);
    if (!target)
        return 0;
    /* A program can be preempted, so nothing that another thread on this CPU could reach is used as scratch memory. */
    int zero = 0;
    struct thread *blank = zero_thread.lookup(&zero);
    if (!blank)
        return 0;
    threads.update(&key, blank);
    t = threads.lookup(&key);
    if (!t) {
        count(RLS_N_LOST_THREADS, 1);
        return 0;
    }
    t->held = held >= 0 ? held : target->assume_held;
    t->python = t->held;
    t->sent = t->held ? RLS_CAT_PYTHON : RLS_CAT_OTHER;
    t->first = 1;
    t->tid = (u32)ids;
    t->pid = pid;
    return t;
}

static __always_inline void put(struct thread *t, u32 tid, u64 now, u8 kind, u32 site, u8 flags, u64 arg, u8 category,
                                u8 from)
{
    count(RLS_N_SENT, 1);
    struct rls_event *e = events.ringbuf_reserve(sizeof(struct rls_event));
    if (!e) {
        count(RLS_N_LOST_EVENTS, 1);
        return;
    }
    e->time_ns = now;
    e->pid = t->pid;
    e->tid = tid;
    e->site = site;
    e->kind = kind;
    e->category = category;
    e->from = from;
    e->flags = flags;
    e->arg = arg;
    events.ringbuf_submit(e, BPF_RB_NO_WAKEUP);
}

static __always_inline void send(struct thread *t, u32 tid, u64 now, u8 kind, u32 site, u8 flags, u64 arg)
{
    u8 category = current_category(t);
    u8 from = t->sent;
    if (t->first) {
        flags |= RLS_F_FIRST;
        t->first = 0;
    }
    t->sent = category;
    put(t, tid, now, kind, site, flags, arg, category, from);
}

/* Sends the change of category, if there was one; otherwise the hit stays silent. */
static __always_inline void send_change(struct thread *t, u32 tid, u64 now, u8 kind, u32 site, u8 flags)
{
    if (current_category(t) == t->sent) {
        keep_silent(t, site);
        return;
    }
    u64 silent = t->silent;
    t->silent = 0;
    send(t, tid, now, kind, site, flags, silent);
}

#define RLS_KEEP_NONE 0xff
#define RLS_KEEP_CALLS 0xfe

/* Whether a followed call is gone once site `site` is hit at stack pointer `sp`. Of those at `sp` itself, one of category
 * `keep` goes on; an operation goes on unless its own function is entered again. One whose site has been taken off is
 * taken for gone wherever the hit is: if it is not, the rest of a long call is lost; if it is, all time from then on would
 * be its own. */
static __always_inline int is_gone(struct frame *f, u64 sp, u8 keep, u32 site)
{
    if ((u8)(turn_of(f->site) - f->turn) > 1)
        return 1;
    if (f->sp != sp || keep == RLS_KEEP_NONE)
        return f->sp <= sp;
    if (f->operation)
        return f->site == site;
    return keep != RLS_KEEP_CALLS && f->category != keep;
}

/* Takes away the followed calls that are gone, and sends the end of the operations among them. */
static __always_inline void drop_frames(struct thread *t, u32 tid, u64 now, u64 sp, u8 keep, u32 site)
{
    t->dropped = 0;
    t->dropped_healed = 0;
    t->dropped_operations = 0;
#pragma clang loop unroll(disable)
    for (int i = 0; i < RLS_MAX_FRAMES; i++) {
        u32 depth = t->depth;
        if (depth == 0)
            break;
        struct frame *f = frame_at(t, depth - 1);
        if (!is_gone(f, sp, keep, site))
            break;
        t->depth = depth - 1;
        t->dropped++;
        t->dropped_healed += f->sp < sp;
        t->dropped_operations += f->operation;
        t->dropped_site = f->site;
        if (f->category == RLS_CAT_PYTHON && !f->operation)
            t->held = f->held;
    }
    if (t->dropped_healed)
        count(RLS_N_HEALED, t->dropped_healed);
    if (t->dropped_operations)
        put(t, tid, now, RLS_EV_OP_END, t->dropped_site, 0, t->dropped_operations, t->sent, t->sent);
}
