/* SPDX-License-Identifier: Apache-2.0
 *
 * Which thread launched what, and when: CUPTI's records of the GPU's work do not say. The driver's functions that give
 * the GPU work call back at their entry and at their exit; a call of the runtime has the correlation id of the driver
 * call that it makes, so these are enough, whether the runtime is a shared library, linked in, or not used.
 *
 * The same for functions that wait for the GPU. CUPTI has records of these, too, but while that kind is enabled, and
 * after it, every call of the driver takes 0.1 us longer, and programs make hundreds of them per launch.
 *
 * Each thread puts its launches into a ring of its own, and only the helper's thread takes them out: nobody waits.
 */
#define _GNU_SOURCE
#include "cupti_helper.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_THREADS 256
#define RING 8192 /* entries; a power of two */
#define MAX_FUNCTION 2048
#define NO_STREAM UINT32_MAX

struct launch {
    uint64_t start_ns, end_ns;
    uint32_t correlation;
    uint32_t detail; /* as in `details`; above them the context's id */
};

enum { RING_FREE, RING_OWNED, RING_LEFT }; /* left: its thread has ended */

struct ring {
    uint32_t state, thread;
    uint32_t depth;                                   /* of the calls that its owner is in, as far as we hear of them */
    uint32_t calls;                                   /* that the owner has made while all calls were heard of */
    uint64_t session;                                 /* of the owner's last launch */
    uint64_t put __attribute__((aligned(64)));        /* changed by the owner */
    uint64_t taken __attribute__((aligned(64)));      /* changed by the helper's thread */
    struct launch entries[RING];
};

static struct ring *rings[MAX_THREADS];
static __thread struct ring *own;
static __thread int refused; /* there were too many threads */
static pthread_key_t exit_key;
static int has_exit_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* By CUPTI's number of a function: enum rlscope_gpu_launch, or that a wait of CUpti_ActivitySynchronizationType; 0: not
 * of interest. */
#define WAIT 0x10u
static uint8_t details[MAX_FUNCTION];
static uint64_t session, since_ns;
static uint32_t graphs; /* since launches_enable */

static uint8_t detail_of(const char *name)
{
    static const struct {
        const char *prefix;
        uint8_t detail;
    } prefixes[] = {
        {"cuLaunch", RLSCOPE_GPU_LAUNCH_KERNEL},
        {"cuGraphLaunch", RLSCOPE_GPU_LAUNCH_GRAPH},
        {"cuMemcpy", RLSCOPE_GPU_LAUNCH_COPY},
        {"cuMemset", RLSCOPE_GPU_LAUNCH_SET},
        {"cuEventSynchronize", WAIT | 1},
        {"cuStreamSynchronize", WAIT | 3},
        {"cuCtxSynchronize", WAIT | 4},
    };

    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (!strncmp(name, prefixes[i].prefix, strlen(prefixes[i].prefix)))
            return strcmp(name, "cuLaunchHostFunc") && strcmp(name, "cuLaunchHostFunc_ptsz") ? prefixes[i].detail : 0;
    return 0;
}

static void thread_exits(void *ring)
{
    store_release(((struct ring *)ring)->state, RING_LEFT);
    own = NULL;
}

static void initialise(void)
{
    has_exit_key = !pthread_key_create(&exit_key, thread_exits);
}

int launches_enable(void *subscriber)
{
    int enabled = 0;

    pthread_once(&once, initialise);
    launches_discard(); /* what is left of last time */
    store(since_ns, now_ns());
    store(graphs, 0);
    __atomic_fetch_add(&session, 1, __ATOMIC_RELAXED);
    for (uint32_t function = 1; function < MAX_FUNCTION; function++) {
        const char *name = NULL;
        /* Numbers that no function has, and those beyond the last, are errors: not counted. */
        if (cupti.cuptiGetCallbackName(CU_DOMAIN_DRIVER, function, &name) != CU_OK || !name)
            continue;
        store(details[function], detail_of(name));
        if (details[function] && CUPTI(cuptiEnableCallback, 1, subscriber, CU_DOMAIN_DRIVER, function) == CU_OK)
            enabled++;
        else
            store(details[function], 0);
    }
    return enabled > 0;
}

void launches_disable(void *subscriber)
{
    for (uint32_t function = 1; function < MAX_FUNCTION; function++)
        if (details[function]) {
            store(details[function], 0);
            CUPTI(cuptiEnableCallback, 0, subscriber, CU_DOMAIN_DRIVER, function);
        }
}

static struct ring *get_ring(void)
{
    for (int i = 0; i < MAX_THREADS; i++) {
        struct ring *ring = load_acquire(rings[i]);
        if (!ring) {
            ring = mmap(NULL, sizeof *ring, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (ring == MAP_FAILED)
                return NULL;
            ring->thread = (uint32_t)syscall(SYS_gettid);
            ring->state = RING_OWNED;
            if (!exchange(rings[i], NULL, ring)) {
                munmap(ring, sizeof *ring);
                i--; /* somebody else's now; look whether it is free */
                continue;
            }
        } else if (exchange(ring->state, RING_FREE, RING_OWNED)) {
            store(ring->thread, (uint32_t)syscall(SYS_gettid));
            store(ring->depth, 0);
            store(ring->calls, 0);
        } else {
            continue;
        }
        if (has_exit_key)
            pthread_setspecific(exit_key, ring);
        return ring;
    }
    return NULL;
}

/* The calling thread's ring; null: there are too many threads. */
static struct ring *ring_of_thread(void)
{
    if (!own && !refused) {
        own = get_ring();
        refused = !own;
    }
    return own;
}

static void put(const struct launch *launch)
{
    struct ring *ring = ring_of_thread();

    if (!ring) {
        count(lost_launches);
        return;
    }
    if (ring->session != load(session)) {
        store(ring->session, load(session));
        store(refused, 0);
    }
    uint64_t at = ring->put; /* nobody else changes it */
    uint64_t waiting = at - load_acquire(ring->taken);
    if (waiting >= RING) {
        count(lost_launches);
        return;
    }
    ring->entries[at % RING] = *launch;
    store_release(ring->put, at + 1);
    if (waiting == RING / 2)
        helper_wake();
}

void launches_callback(uint32_t function, const struct cu_callback_data *data)
{
    uint32_t detail = function < MAX_FUNCTION ? load(details[function]) : 0;

    if (!detail)
        return;
    if (data->site == CU_SITE_ENTER) {
        *data->own = now_ns();
        return;
    }
    if (detail == RLSCOPE_GPU_LAUNCH_GRAPH && !load(graphs))
        store(graphs, 1);
    if (data->result && *(const int *)data->result) {
        if (!(detail & WAIT))
            count(failed_launches);
        return;
    }
    struct launch launch = {*data->own, now_ns(), data->correlation, detail | data->context_id << 8};
    /* If it was entered before we came, the word holds nothing of ours. */
    if (launch.start_ns > launch.end_ns || launch.start_ns < load(since_ns))
        launch.start_ns = launch.end_ns;
    put(&launch);
}

/* -- a moment in which nothing else is under way ------------------------------------------------------------------ */

#define PROVEN_CALLS 100 /* a thread that made fewer may make its next one at any time */
static uint32_t overlaps;

void launches_observe(void)
{
    store(overlaps, 0);
    for (int i = 0; i < MAX_THREADS; i++) {
        struct ring *ring = load_acquire(rings[i]);
        if (!ring)
            break;
        store(ring->depth, 0);
        store(ring->calls, 0);
    }
}

/* Of two threads that come into calls at the same time, at least one sees the other. */
static int another_is_in_a_call(void)
{
    for (int i = 0; i < MAX_THREADS; i++) {
        struct ring *ring = load_acquire(rings[i]);
        if (!ring)
            break;
        if (ring != own && __atomic_load_n(&ring->depth, __ATOMIC_SEQ_CST) && load(ring->state) == RING_OWNED)
            return 1;
    }
    return 0;
}

int launches_observed(const struct cu_callback_data *data)
{
    struct ring *ring = ring_of_thread();

    if (!ring)
        return 0;
    uint32_t depth = load(ring->depth);
    if (data->site == CU_SITE_ENTER) {
        __atomic_store_n(&ring->depth, depth + 1, __ATOMIC_SEQ_CST);
        if (!depth) {
            store(ring->calls, load(ring->calls) + 1);
            if (!load(overlaps) && another_is_in_a_call())
                store(overlaps, 1);
        }
        return 0;
    }
    if (!depth) /* entered before we looked */
        return 0;
    store_release(ring->depth, depth - 1);
    return depth == 1;
}

/* Whether the thread waits in the kernel. */
static int sleeps(uint32_t thread)
{
    char path[64], text[512], *name;
    ssize_t length;
    int file;

    snprintf(path, sizeof path, "/proc/self/task/%u/stat", thread);
    file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 1; /* it has ended */
    length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0)
        return 1;
    text[length] = '\0';
    name = strrchr(text, ')');
    return name && name[1] == ' ' && name[2] == 'S';
}

enum launches_others launches_others(uint64_t *calls)
{
    enum launches_others found = OTHERS_NONE;

    *calls = 0;
    for (int i = 0; i < MAX_THREADS; i++) {
        struct ring *ring = load_acquire(rings[i]);
        if (!ring)
            break;
        if (ring == own || load_acquire(ring->state) != RING_OWNED)
            continue;
        uint32_t made = load(ring->calls);
        if (!made && load(ring->session) != load(session))
            continue;
        *calls += made;
        if (made < PROVEN_CALLS || load(overlaps))
            found = OTHERS_INDEPENDENT;
        else if (found != OTHERS_INDEPENDENT && (__atomic_load_n(&ring->depth, __ATOMIC_SEQ_CST) || !sleeps(load(ring->thread))))
            found = OTHERS_BUSY;
        else if (found == OTHERS_NONE)
            found = OTHERS_SLEEP;
    }
    return found;
}

static void drain(struct ring *ring)
{
    uint32_t state = load_acquire(ring->state);
    uint64_t until = load_acquire(ring->put);
    struct rlscope_gpu_record record = {.thread = load(ring->thread)};

    for (uint64_t at = ring->taken; at < until; at++) {
        const struct launch *launch = &ring->entries[at % RING];
        uint32_t wait = launch->detail & WAIT;
        record.start_ns = launch->start_ns;
        record.end_ns = launch->end_ns;
        record.correlation = launch->correlation;
        record.kind = wait ? RLSCOPE_GPU_SYNC : RLSCOPE_GPU_LAUNCH;
        record.detail = (uint8_t)(launch->detail & ~WAIT);
        record.context = wait ? launch->detail >> 8 : 0;
        record.stream = wait ? NO_STREAM : 0;
        records_add(&record);
        if (wait)
            count(syncs);
        else
            count(launches);
    }
    store_release(ring->taken, until);
    if (state == RING_LEFT) /* nothing was put in after that */
        store_release(ring->state, RING_FREE);
}

void launches_drain(void)
{
    for (int i = 0; i < MAX_THREADS; i++) {
        struct ring *ring = load_acquire(rings[i]);
        if (!ring)
            break; /* they are filled from the first on */
        if (load_acquire(ring->state) != RING_FREE)
            drain(ring);
    }
}

void launches_discard(void)
{
    for (int i = 0; i < MAX_THREADS; i++) {
        struct ring *ring = load_acquire(rings[i]);
        if (!ring)
            break;
        uint32_t state = load_acquire(ring->state);
        store_release(ring->taken, load_acquire(ring->put));
        if (state == RING_LEFT)
            store_release(ring->state, RING_FREE);
    }
}

int launches_of_graphs(void)
{
    return (int)load(graphs);
}

void launches_after_fork(void)
{
    /* The other threads are gone; whoever launches here gets a ring anew. */
    memset(rings, 0, sizeof rings);
    if (own && has_exit_key)
        pthread_setspecific(exit_key, NULL);
    own = NULL;
}
