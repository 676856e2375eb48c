/* SPDX-License-Identifier: Apache-2.0
 *
 * Which thread launched what, and when: CUPTI's records of the GPU's work do not say. The driver's functions that give
 * the GPU work call back at their entry and at their exit; a call of the runtime has the correlation id of the driver
 * call that it makes, so these are enough, whether the runtime is a shared library, linked in, or not used.
 *
 * Each thread puts its launches into a ring of its own, and only the helper's thread takes them out: nobody waits.
 */
#define _GNU_SOURCE
#include "cupti_helper.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_THREADS 256
#define RING 8192 /* entries; a power of two */
#define MAX_FUNCTION 2048
#define LONGEST_NS 60000000000u /* no launch takes longer */

struct launch {
    uint64_t start_ns, end_ns;
    uint32_t correlation, detail;
};

enum { RING_FREE, RING_OWNED, RING_LEFT }; /* left: its thread has ended */

struct ring {
    uint32_t state, thread;
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

/* By CUPTI's number of a function: enum rlscope_gpu_launch, 0: not of interest. */
static uint8_t details[MAX_FUNCTION];
static uint64_t session;
static uint32_t threads;

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
    store(threads, 0);
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
            ring->state = RING_OWNED;
            ring->thread = (uint32_t)syscall(SYS_gettid);
            if (!exchange(rings[i], NULL, ring)) {
                munmap(ring, sizeof *ring);
                i--; /* somebody else's now; look whether it is free */
                continue;
            }
        } else if (exchange(ring->state, RING_FREE, RING_OWNED)) {
            store(ring->thread, (uint32_t)syscall(SYS_gettid));
        } else {
            continue;
        }
        if (has_exit_key)
            pthread_setspecific(exit_key, ring);
        return ring;
    }
    return NULL;
}

static void put(const struct launch *launch)
{
    struct ring *ring = own;

    if (!ring) {
        if (!refused)
            ring = own = get_ring();
        refused = !ring;
        if (!ring) {
            count(lost_launches);
            return;
        }
    }
    if (ring->session != load(session)) {
        ring->session = load(session);
        __atomic_fetch_add(&threads, 1, __ATOMIC_RELAXED);
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
    uint8_t detail = function < MAX_FUNCTION ? load(details[function]) : 0;

    if (!detail)
        return;
    if (data->site == CU_SITE_ENTER) {
        *data->own = now_ns();
        return;
    }
    if (data->result && *(const int *)data->result) {
        count(failed_launches);
        return;
    }
    struct launch launch = {*data->own, now_ns(), data->correlation, detail};
    /* If it was entered before we came, the word holds nothing of ours. */
    if (launch.start_ns > launch.end_ns || launch.end_ns - launch.start_ns > LONGEST_NS)
        launch.start_ns = launch.end_ns;
    put(&launch);
}

static void drain(struct ring *ring)
{
    uint32_t state = load_acquire(ring->state);
    uint64_t until = load_acquire(ring->put);
    struct rlscope_gpu_record record = {.kind = RLSCOPE_GPU_LAUNCH, .thread = load(ring->thread)};

    for (uint64_t at = ring->taken; at < until; at++) {
        const struct launch *launch = &ring->entries[at % RING];
        record.start_ns = launch->start_ns;
        record.end_ns = launch->end_ns;
        record.correlation = launch->correlation;
        record.detail = (uint8_t)launch->detail;
        records_add(&record);
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

uint32_t launches_threads(void)
{
    return load(threads);
}

void launches_after_fork(void)
{
    /* The other threads are gone; whoever launches here gets a ring anew. */
    memset(rings, 0, sizeof rings);
    if (own && has_exit_key)
        pthread_setspecific(exit_key, NULL);
    own = NULL;
}
