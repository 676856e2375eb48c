/* SPDX-License-Identifier: Apache-2.0
 *
 * librlscope_cupti.so: entry points, and the thread that starts, feeds and leaves. See rlscope_cupti.h.
 */
#define _GNU_SOURCE
#include "cupti_helper.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TICK_NS 100000000u           /* how often CUPTI is asked for what it has */
#define STATUS_NS 500000000u
#define UNHEARD_NS 1000000000u       /* nobody has listened for so long: we leave */
#define PATIENCE_MS 10000u
#define FINALIZE_NS 3000000000u      /* wait so long for a call in whose exit CUPTI can be finalized */
#define OBSERVE_NS 500000000u        /* of these, see so long who makes calls */
#define TRIALS 6                     /* so often stand still to see whether the others do, too, */
#define TRIAL_NS 5000000u            /* for so long, which is longer than finalizing takes, */
#define BETWEEN_TRIALS_NS 20000000u  /* and so far apart */
#define GRAPHS_VERSION 24            /* of CUPTI, CUDA 12.6: before, finalizing broke graphs */
#define AT_EXIT_NS 2000000000u       /* a program that ends waits no longer for its last records */
#define EARLY_NS 10000000000u        /* what was running when we came may have started before */
#define STACK_BYTES (1u << 20)

struct rlscope_gpu_status rlscope_gpu_state = {
    .magic = RLSCOPE_GPU_MAGIC,
    .version = RLSCOPE_GPU_VERSION,
    .size = sizeof(struct rlscope_gpu_status),
};

/*
 * What is probed. Assembly, so that nothing stands before the first instruction, which is one that the kernel emulates:
 * a push. No 5-byte nop: kernels from 6.18 on make a call of it that ends every process forked later which gets there.
 * The bytes behind the return keep a linker from folding the functions into one.
 */
#if defined(__x86_64__)
#define BEGINNING "push %rbp\npop %rbp\n"
static const uint8_t beginning[] = {0x55, 0x5d};
#elif defined(__aarch64__)
#define BEGINNING "nop\n"
static const uint8_t beginning[] = {0x1f, 0x20, 0x03, 0xd5};
#else
#error "rlscope_cupti: this architecture needs its first instruction here"
#endif
#define ENTRY(symbol, after)                                                                                           \
    __asm__(".pushsection .text\n"                                                                                     \
            ".p2align 5\n"                                                                                             \
            ".globl " #symbol "\n"                                                                                     \
            ".type " #symbol ", %function\n" #symbol ":\n"                                                             \
            ".cfi_startproc\n" BEGINNING "ret\n.byte " after "\n"                                                            \
            ".cfi_endproc\n"                                                                                           \
            ".size " #symbol ", .-" #symbol "\n"                                                                       \
            ".popsection\n")
ENTRY(rlscope_gpu_records, "1, 0, 0, 0");
ENTRY(rlscope_gpu_name, "2, 0, 0, 0");
ENTRY(rlscope_gpu_status, "3, 0, 0, 0");

/* -- the thread --------------------------------------------------------------------------------------------------- */

enum { THREAD_NONE, THREAD_RUNS };
static uint32_t thread_state;  /* whoever changes it from none to runs starts the thread */
static uint32_t wakes;         /* futex: changes when there is something to do */
static uint32_t stop_wanted, exit_wanted, exit_done, again_wanted;
static uint32_t options, patience_ms;
static uint8_t activated;      /* CUPTI was started by the thread that starts ours */
static void *subscriber;
static int64_t clock_shift;

enum { FINALIZE_NO, FINALIZE_WANTED, FINALIZE_RUNS, FINALIZE_NEAR, FINALIZE_DONE };
static uint32_t finalizing;
/* What follows is changed by whoever makes it FINALIZE_RUNS, and by the library's thread while it is FINALIZE_NEAR. */
static uint32_t trials;      /* passed */
static uint32_t near;        /* calls of the runtime are heard of as well */
static uint64_t next_trial;

static const uint32_t kinds[] = {
    CU_KIND_CONCURRENT_KERNEL, CU_KIND_MEMCPY, CU_KIND_MEMCPY2, CU_KIND_MEMSET,
};
#define KINDS (sizeof kinds / sizeof *kinds)

void helper_wake(void)
{
    __atomic_fetch_add(&wakes, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &wakes, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void wait_until(const uint32_t *place, uint32_t while_value, uint64_t time)
{
    uint64_t now = now_ns(), left = time > now ? time - now : 0;
    struct timespec timeout = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};

    if (left)
        syscall(SYS_futex, place, FUTEX_WAIT_PRIVATE, while_value, &timeout, NULL, 0);
}

/* Whether somebody probes rlscope_gpu_records: a probe changes the first bytes of the function. */
static int somebody_listens(void)
{
    const volatile uint8_t *text = (const volatile uint8_t *)rlscope_gpu_records;

    for (size_t i = 0; i < sizeof beginning; i++)
        if (text[i] != beginning[i])
            return 1;
    return 0;
}

static void tell_state(void)
{
    store(rlscope_gpu_state.updated_ns, now_ns());
    rlscope_gpu_status(&rlscope_gpu_state, sizeof rlscope_gpu_state);
}

static void set_state(enum rlscope_gpu_state_number state)
{
    store_release(rlscope_gpu_state.state, state);
    tell_state();
}

/* -- CUPTI's callbacks -------------------------------------------------------------------------------------------- */

static void last_fetch(void);

/* Whether the other threads, which sleep now, do nothing while this one stands still in a call. */
static int others_wait_for_us(uint64_t calls_before)
{
    struct timespec left = {0, TRIAL_NS};
    uint64_t calls;

    while (nanosleep(&left, &left) && errno == EINTR)
        ;
    return launches_others(&calls) == OTHERS_SLEEP && calls == calls_before;
}

/* CUPTI is finalized while all is enabled: after a graph was launched with its kinds disabled, it is not safe any more.
 * What it still holds is read before, since the names are its own. */
static void finalize_now(void)
{
    last_fetch();
    CUPTI(cuptiFinalize);
    records_end();
    records_release(1);
}

/* At the end of an outermost call. First only the driver's calls are heard of, to see whether this will come to a good
 * end. The runtime's, in whose exit it is done then, are not switched on and off otherwise: a thread that is in one
 * meanwhile keeps its correlation id for all that it does later, and PyTorch's profiler stumbles over that.
 *
 * No other thread may be in a call, or come into one before we are done. That holds if
 * there is none, or if the others only work for this one (PyTorch's autograd engine), and do nothing while it does not. */
static void finalize_here(void)
{
    uint32_t next = FINALIZE_WANTED;
    uint64_t calls;

    if (now_ns() < load(next_trial) || !exchange(finalizing, FINALIZE_WANTED, FINALIZE_RUNS))
        return;
    switch (launches_others(&calls)) {
    case OTHERS_NONE:
        next = near ? FINALIZE_DONE : FINALIZE_NEAR;
        break;
    case OTHERS_SLEEP:
        if (launches_of_graphs() || !others_wait_for_us(calls))
            next = FINALIZE_NO;
        else if (near)
            next = FINALIZE_DONE; /* they have stood still just now, and still do */
        else if (++trials == TRIALS - 1)
            next = FINALIZE_NEAR;
        store(next_trial, now_ns() + BETWEEN_TRIALS_NS);
        break;
    case OTHERS_BUSY:
        break;
    default:
        next = FINALIZE_NO;
    }
    if (next == FINALIZE_DONE)
        finalize_now();
    store_release(finalizing, next);
    if (next != FINALIZE_WANTED)
        helper_wake();
}

static void callback(void *user, uint32_t domain, uint32_t function, const void *data)
{
    int saved = errno;

    (void)user;
    if (domain == CU_DOMAIN_DRIVER)
        launches_callback(function, data);
    if (load_acquire(finalizing) != FINALIZE_NO && launches_observed(data))
        finalize_here();
    errno = saved;
}

static uint64_t our_clock(void)
{
    return now_ns();
}

/* -- arriving ----------------------------------------------------------------------------------------------------- */

/* What CLOCK_MONOTONIC is ahead of CUPTI's clock: of several looks, the one that took least. */
static void calibrate(void)
{
    uint64_t best = UINT64_MAX;

    for (int i = 0; i < 5; i++) {
        uint64_t theirs = 0, before = now_ns();
        if (CUPTI(cuptiGetTimestamp, &theirs) != CU_OK)
            return;
        uint64_t took = now_ns() - before;
        if (took < best) {
            best = took;
            clock_shift = (int64_t)(before + took / 2 - theirs);
        }
    }
}

static void choose_clock(void)
{
    clock_shift = 0;
    if (cupti.cuptiActivityRegisterTimestampCallback &&
        CUPTI(cuptiActivityRegisterTimestampCallback, our_clock) == CU_OK) {
        store(rlscope_gpu_state.clock, RLSCOPE_GPU_CLOCK_OURS);
        return;
    }
    store(rlscope_gpu_state.clock, RLSCOPE_GPU_CLOCK_CALIBRATED);
    calibrate();
}

static int known_version(void)
{
    uint32_t version = 0;

    if (CUPTI(cuptiGetVersion, &version) != CU_OK)
        return 0;
    store(rlscope_gpu_state.cupti_version, version);
    /* 18 is CUDA 12.0; from 13 on it is the version of CUDA. Layouts of later ones have not been looked at. */
    return (version >= 18 && version < 100) || (version >= 130000 && version < 140000);
}

static void disable(void)
{
    launches_disable(subscriber);
    for (size_t i = 0; i < KINDS; i++)
        CUPTI(cuptiActivityDisable, kinds[i]);
}

/* Takes CUPTI into use. Returns the state that follows from it. */
static enum rlscope_gpu_state_number activate(void)
{
    int result;

    if (!cupti_open())
        return RLSCOPE_GPU_NO_LIBRARY;
    if (!known_version())
        return RLSCOPE_GPU_WRONG_VERSION;
    store_release(finalizing, FINALIZE_NO);
    result = CUPTI(cuptiSubscribe, &subscriber, callback, NULL);
    if (result == CU_MULTIPLE_SUBSCRIBERS)
        return RLSCOPE_GPU_FOREIGN;
    if (result != CU_OK)
        return RLSCOPE_GPU_FAILED;
    choose_clock();
    records_begin(now_ns() - EARLY_NS);
    result = CUPTI(cuptiActivityRegisterCallbacks, records_request, records_complete);
    /* Launches last: what is launched meanwhile shows as a kernel of before we came, not as a launch of which nothing
     * came. Of the kinds only kernels must work. */
    if (result == CU_OK)
        result = CUPTI(cuptiActivityEnable, kinds[0]);
    for (size_t i = 1; result == CU_OK && i < KINDS; i++)
        CUPTI(cuptiActivityEnable, kinds[i]);
    if (result == CU_OK && !launches_enable(subscriber))
        result = CU_NOT_SUPPORTED;
    if (result == CU_OK) {
        store(rlscope_gpu_state.starts, load(rlscope_gpu_state.starts) + 1);
        return RLSCOPE_GPU_ACTIVE;
    }
    uint32_t error = load(rlscope_gpu_state.error), call = load(rlscope_gpu_state.failed_call);
    disable();
    CUPTI(cuptiUnsubscribe, subscriber);
    records_end();
    store(rlscope_gpu_state.error, error); /* the first is the one to tell */
    store(rlscope_gpu_state.failed_call, call);
    return RLSCOPE_GPU_FAILED;
}

/* -- staying and leaving ------------------------------------------------------------------------------------------ */

static void drain(int leaving)
{
    launches_drain();
    records_drain(clock_shift, leaving);
    records_hand_out();
}

static void fetch(uint32_t flush)
{
    CUPTI(cuptiActivityFlushAll, flush);
    if (load(rlscope_gpu_state.clock) == RLSCOPE_GPU_CLOCK_CALIBRATED)
        calibrate();
}

static void drain_or_discard(void)
{
    if (somebody_listens()) {
        drain(0);
    } else {
        launches_discard();
        records_discard();
    }
}

/* First what is complete, then the rest, which has no times. */
static void last_fetch(void)
{
    fetch(0);
    if (somebody_listens())
        drain(0);
    fetch(CU_FLUSH_FORCED);
    if (somebody_listens())
        drain(1);
}

/* Until nobody listens any more, or we are told to stop. */
static void stay(uint64_t until_heard)
{
    uint64_t next_fetch = 0, next_status = 0, heard = until_heard;
    int listened = 0, ever = 0;

    while (!load_acquire(stop_wanted) && !load_acquire(exit_wanted)) {
        uint32_t seen = load_acquire(wakes);
        uint64_t now = now_ns();
        int listens = somebody_listens();

        store(rlscope_gpu_state.listening, (uint32_t)listens);
        if (listens) {
            heard = now + UNHEARD_NS;
            ever = 1;
            if (!listened) {
                tell_state();
                records_tell_names();
            }
        } else if (now >= heard) {
            break;
        }
        listened = listens;
        if (now >= next_fetch) {
            if (ever) /* before, what is kept is kept in buffers that are full */
                fetch(0);
            next_fetch = now + TICK_NS;
        }
        if (listens) {
            drain(0);
        } else if (ever) { /* before anybody came, it was kept */
            launches_discard();
            records_discard();
        }
        if (now >= next_status) {
            tell_state();
            next_status = now + STATUS_NS;
        }
        wait_until(&wakes, seen, next_fetch);
    }
}

/* Whether CUPTI was finalized, at a moment in which that does no harm. */
static int finalize(void)
{
    uint64_t begin = now_ns(), until = begin + FINALIZE_NS, next_fetch = begin + TICK_NS;

    if (load(options) & RLSCOPE_GPU_KEEP || !cupti.cuptiFinalize ||
        (launches_of_graphs() && load(rlscope_gpu_state.cupti_version) < GRAPHS_VERSION))
        return 0;
    trials = near = 0;
    store(next_trial, begin + OBSERVE_NS);
    launches_observe();
    store_release(finalizing, FINALIZE_WANTED);
    CUPTI(cuptiEnableDomain, 1, subscriber, CU_DOMAIN_DRIVER);
    for (;;) {
        uint32_t seen = load_acquire(wakes);
        uint32_t found = load_acquire(finalizing);
        int enough = now_ns() >= until || load_acquire(exit_wanted) || load_acquire(again_wanted);
        if (found == FINALIZE_DONE)
            break;
        if (found == FINALIZE_NO || (enough && exchange(finalizing, FINALIZE_WANTED, FINALIZE_NO))) {
            if (near)
                CUPTI(cuptiEnableDomain, 0, subscriber, CU_DOMAIN_RUNTIME);
            CUPTI(cuptiEnableDomain, 0, subscriber, CU_DOMAIN_DRIVER);
            return 0;
        }
        if (found == FINALIZE_NEAR) {
            near = 1;
            CUPTI(cuptiEnableDomain, 1, subscriber, CU_DOMAIN_RUNTIME);
            store(next_trial, now_ns() + BETWEEN_TRIALS_NS); /* calls that are under way now are over by then */
            store_release(finalizing, FINALIZE_WANTED);
        }
        if (now_ns() >= next_fetch && exchange(finalizing, FINALIZE_WANTED, FINALIZE_RUNS)) {
            fetch(0);
            drain_or_discard();
            store_release(finalizing, FINALIZE_WANTED);
            next_fetch = now_ns() + TICK_NS;
        }
        wait_until(&wakes, seen, enough ? now_ns() + TICK_NS / 100 : next_fetch); /* enough: somebody is at it */
    }
    store_release(finalizing, FINALIZE_NO);
    store(rlscope_gpu_state.finalized, load(rlscope_gpu_state.finalized) + 1);
    return 1;
}

static void leave(void)
{
    set_state(RLSCOPE_GPU_LEAVING);
    fetch(0);
    drain_or_discard();
    if (finalize())
        return;
    disable();
    last_fetch();
    CUPTI(cuptiUnsubscribe, subscriber);
    records_end();
    records_release(0);
}

/* True if somebody does before the time is over, and nobody wants us to end. */
static int wait_for_listener(uint64_t until)
{
    while (!somebody_listens()) {
        uint32_t seen = load_acquire(wakes);
        uint64_t now = now_ns();
        if (now >= until || load_acquire(stop_wanted) || load_acquire(exit_wanted))
            return 0;
        wait_until(&wakes, seen, now + TICK_NS / 5 < until ? now + TICK_NS / 5 : until);
    }
    return 1;
}

static void run_once(void)
{
    enum rlscope_gpu_state_number state = RLSCOPE_GPU_DORMANT;
    uint64_t heard = now_ns() + load(patience_ms) * (uint64_t)1000000;

    if (activated)
        state = RLSCOPE_GPU_ACTIVE;
    else if (wait_for_listener(heard))
        state = activate();
    set_state(state);
    if (state == RLSCOPE_GPU_ACTIVE) {
        stay(heard);
        if (load_acquire(exit_wanted)) { /* the program ends: whatever CUPTI holds ends with it */
            last_fetch();
            records_end();
        } else {
            leave();
        }
        state = RLSCOPE_GPU_DORMANT;
    }
    activated = 0;
    store(rlscope_gpu_state.listening, 0);
    set_state(state);
}

static void *run(void *nothing)
{
    for (;;) {
        run_once();
        store_release(exit_done, 1);
        syscall(SYS_futex, &exit_done, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
        __atomic_store_n(&thread_state, THREAD_NONE, __ATOMIC_SEQ_CST);
        /* Was it started again while it was leaving, and has nobody else seen to that by now? */
        if (!exchange(again_wanted, 1, 0) || load_acquire(exit_wanted) ||
            !exchange(thread_state, THREAD_NONE, THREAD_RUNS))
            return nothing;
        store_release(stop_wanted, 0);
        store_release(exit_done, 0);
        set_state(RLSCOPE_GPU_STARTING);
    }
}

/* Detached, and without the program's signals; those that a fault of the thread itself would raise stay as they are. */
static int start_thread(void)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGABRT, SIGSYS};
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    int error;

    if (pthread_attr_init(&attributes))
        return 0;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    error = pthread_create(&thread, &attributes, run, NULL);
    if (!error)
        pthread_setname_np(thread, "rlscope-gpu");
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return !error;
}

static void program_ends(void)
{
    uint64_t until = now_ns() + AT_EXIT_NS;

    if (load_acquire(thread_state) != THREAD_RUNS)
        return;
    store_release(exit_wanted, 1);
    helper_wake();
    while (!load_acquire(exit_done) && now_ns() < until)
        wait_until(&exit_done, 0, until);
}

static void child_after_fork(void)
{
    /* CUDA cannot be used here, and the thread is not here. */
    store_release(thread_state, THREAD_NONE);
    store(rlscope_gpu_state.state, RLSCOPE_GPU_DORMANT);
    store(rlscope_gpu_state.listening, 0);
    store(rlscope_gpu_state.pid, (uint32_t)getpid());
    store_release(again_wanted, 0);
    store_release(finalizing, FINALIZE_NO);
    launches_after_fork();
    records_end();
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void first_start(void)
{
    pthread_atfork(NULL, NULL, child_after_fork);
    atexit(program_ends);
}

uint32_t rlscope_gpu_start(uint32_t flags, uint32_t patience)
{
    int saved = errno;
    enum rlscope_gpu_state_number state = RLSCOPE_GPU_STARTING;

    pthread_once(&once, first_start);
    for (int tries = 0; !exchange(thread_state, THREAD_NONE, THREAD_RUNS); tries++) {
        uint32_t before = load_acquire(rlscope_gpu_state.state);
        if (before == RLSCOPE_GPU_LEAVING) { /* the thread itself will see to it, unless it does not look any more */
            store(options, flags);
            store(patience_ms, patience ? patience : PATIENCE_MS);
            __atomic_store_n(&again_wanted, 1, __ATOMIC_SEQ_CST);
            if (__atomic_load_n(&thread_state, __ATOMIC_SEQ_CST) == THREAD_RUNS) {
                helper_wake();
                errno = saved;
                return before;
            }
            continue;
        }
        int ended = before == RLSCOPE_GPU_DORMANT || before >= RLSCOPE_GPU_FOREIGN;
        if (!ended || tries == 1000) {
            errno = saved;
            return before;
        }
        sched_yield(); /* the thread before is at its last instructions */
    }
    store_release(again_wanted, 0);
    store(rlscope_gpu_state.pid, (uint32_t)getpid());
    store(options, flags);
    store(patience_ms, patience ? patience : PATIENCE_MS);
    store_release(stop_wanted, 0);
    store_release(exit_done, 0);
    store_release(rlscope_gpu_state.state, state);
    if (flags & RLSCOPE_GPU_AT_ONCE)
        state = activate();
    activated = state == RLSCOPE_GPU_ACTIVE;
    if (activated)
        store_release(rlscope_gpu_state.state, state);
    if (state == RLSCOPE_GPU_STARTING || state == RLSCOPE_GPU_ACTIVE) {
        if (start_thread()) {
            errno = saved;
            return state;
        }
        if (activated) {
            disable();
            CUPTI(cuptiUnsubscribe, subscriber);
            records_end();
        }
        state = RLSCOPE_GPU_FAILED;
    }
    store_release(thread_state, THREAD_NONE);
    set_state(state);
    errno = saved;
    return state;
}

uint32_t rlscope_gpu_stop(void)
{
    if (load_acquire(thread_state) == THREAD_RUNS) {
        store_release(again_wanted, 0);
        store_release(stop_wanted, 1);
        helper_wake();
    }
    return load_acquire(rlscope_gpu_state.state);
}

/* Called while CUDA is initialised: nothing has been launched yet, and nothing shall be missed. */
int InitializeInjection(void)
{
    rlscope_gpu_start(RLSCOPE_GPU_AT_ONCE, 0);
    return 1;
}
