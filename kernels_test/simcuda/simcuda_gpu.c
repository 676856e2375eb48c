/* SPDX-License-Identifier: Apache-2.0
 *
 * The timeline of the simulated GPU and the correlation of calls. Part of libcuda.so.1; see simcuda.h.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "simcuda_call.h"
#include "simcuda_gpu.h"
#include "simcuda_shared.h"

#define MAX_KERNELS 256
#define MAX_DEPTH 8
#define BYTES_PER_NS 16
#define FIRST_STREAM 13 /* as in CUPTI's records of real programs */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUstream_st default_stream = {7, 0}, per_thread_stream = {8, 0};
static int64_t last_end;
static uint32_t streams = FIRST_STREAM, graphs = 1;
static int64_t kernel_ns = 2000, latency_ns = 1000, copy_ns = 500, set_ns = 500;
static int64_t enqueued[SIMCUDA_WORK_KINDS], total_ns[SIMCUDA_WORK_KINDS];
static struct {
    const void *function;
    const struct name {
        const struct name *before; /* kept: records may point to it */
        char text[];
    } *name;
    int64_t ns;
} kernels[MAX_KERNELS];
static int kernel_count;

static uint32_t next_correlation = 1;
static const struct simcuda_profiler *profiler;
static __thread struct {
    int depth;
    uint32_t correlation;
    uint64_t own[MAX_DEPTH];
} current;

/* -- calls -------------------------------------------------------------------------------------------------------- */

void simcuda_set_profiler(const struct simcuda_profiler *given)
{
    __atomic_store_n(&profiler, given, __ATOMIC_RELEASE);
}

static void tell(uint32_t domain, uint32_t function, const int *result)
{
    const struct simcuda_profiler *told = __atomic_load_n(&profiler, __ATOMIC_ACQUIRE);

    if (told && current.depth < MAX_DEPTH)
        told->api(domain, function, result, current.correlation, &current.own[current.depth]);
}

void simcuda_begin(uint32_t domain, uint32_t function)
{
    if (!current.depth)
        current.correlation = __atomic_fetch_add(&next_correlation, 1, __ATOMIC_RELAXED);
    if (current.depth < MAX_DEPTH)
        current.own[current.depth] = 0;
    tell(domain, function, NULL);
    current.depth++;
}

void simcuda_end(uint32_t domain, uint32_t function, int result)
{
    current.depth--;
    tell(domain, function, &result);
}

/* -- settings ----------------------------------------------------------------------------------------------------- */

int simcuda_set_gpu(const char *setting, int64_t value)
{
    int result = 0;

    pthread_mutex_lock(&lock);
    if (value < 0)
        result = -1;
    else if (!strcmp(setting, "kernel"))
        kernel_ns = value;
    else if (!strcmp(setting, "latency"))
        latency_ns = value;
    else if (!strcmp(setting, "copy"))
        copy_ns = value;
    else if (!strcmp(setting, "set"))
        set_ns = value;
    else if (!strcmp(setting, "correlation"))
        __atomic_store_n(&next_correlation, (uint32_t)value, __ATOMIC_RELAXED);
    else
        result = -1;
    pthread_mutex_unlock(&lock);
    return result;
}

int simcuda_set_kernel(const void *function, const char *name, int64_t ns)
{
    int i = 0, result = -1;

    pthread_mutex_lock(&lock);
    while (i < kernel_count && kernels[i].function != function)
        i++;
    if (i < MAX_KERNELS) {
        struct name *made = malloc(sizeof *made + strlen(name) + 1);
        if (!made)
            abort();
        made->before = kernels[i].name;
        strcpy(made->text, name);
        kernels[i].function = function;
        kernels[i].name = made;
        kernels[i].ns = ns;
        kernel_count += i == kernel_count;
        result = 0;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

int64_t simcuda_enqueued(uint32_t kind, int64_t *total)
{
    int64_t count = -1;

    if (kind >= SIMCUDA_WORK_KINDS)
        return -1;
    pthread_mutex_lock(&lock);
    count = enqueued[kind];
    if (total)
        *total = total_ns[kind];
    pthread_mutex_unlock(&lock);
    return count;
}

int simcuda_device_work(int32_t pid, struct simcuda_device_work *out)
{
    struct simcuda_shared *shared = simcuda_shared_device();
    const struct simcuda_shared_work *found = NULL;

    if (!shared)
        return -1;
    if (!pid)
        found = &shared->all;
    for (uint32_t i = 0; pid && i < shared->processes; i++)
        if (shared->pids[i] == pid)
            found = &shared->of[i];
    memset(out, 0, sizeof *out);
    if (found)
        *out = (struct simcuda_device_work){found->kernels, found->activities, found->busy_ns, found->first_start,
                                            found->last_end, found->gap_ns};
    return 0;
}

__attribute__((constructor)) static void read_environment(void)
{
    const char *given = getenv("SIMCUDA_GPU");
    char *copy = given ? strdup(given) : NULL, *rest = copy, *item;

    while (copy && (item = strsep(&rest, ","))) {
        char *equals = strchr(item, '=');
        if (!*item)
            continue;
        if (equals)
            *equals++ = '\0';
        if (!equals || simcuda_set_gpu(item, strtoll(equals, NULL, 10))) {
            fprintf(stderr, "simcuda: SIMCUDA_GPU: \"%s\" is no setting of the timeline.\n", item);
            abort(); /* a typing error must not become a wrong truth */
        }
    }
    free(copy);
}

/* -- timeline ----------------------------------------------------------------------------------------------------- */

CUstream simcuda_stream(CUstream handle)
{
    if ((uintptr_t)handle == 2)
        return &per_thread_stream;
    return (uintptr_t)handle < 2 ? &default_stream : handle;
}

void simcuda_new_stream(CUstream stream)
{
    stream->id = __atomic_fetch_add(&streams, 1, __ATOMIC_RELAXED);
}

uint32_t simcuda_new_graph(void)
{
    return __atomic_fetch_add(&graphs, 1, __ATOMIC_RELAXED);
}

/* Puts the item at the end of its stream. The lock is held. */
static void append(struct simcuda_item *item, int64_t duration, CUstream stream)
{
    int64_t earliest = simcuda_now() + latency_ns;
    struct simcuda_shared *shared = simcuda_shared_device();

    item->correlation = current.correlation;
    item->stream = stream->id;
    item->start = stream->end > earliest ? stream->end : earliest;
    if (shared)
        item->start = simcuda_shared_append(shared, item->start, duration, item->kind == SIMCUDA_KERNEL);
    item->end = stream->end = item->start + duration;
    if (item->end > last_end)
        last_end = item->end;
    enqueued[item->kind]++;
    total_ns[item->kind] += duration;
}

static void report(const struct simcuda_item *item)
{
    const struct simcuda_profiler *told = __atomic_load_n(&profiler, __ATOMIC_ACQUIRE);

    if (told)
        told->item(item);
}

static void append_kernel(struct simcuda_item *item, const void *function, CUstream stream)
{
    int i = 0;

    while (i < kernel_count && kernels[i].function != function)
        i++;
    item->kind = SIMCUDA_KERNEL;
    item->name = i < kernel_count ? kernels[i].name->text : "simulated_kernel";
    append(item, i < kernel_count ? kernels[i].ns : kernel_ns, stream);
}

void simcuda_launch(const void *function, CUstream stream)
{
    struct simcuda_item item = {0};

    pthread_mutex_lock(&lock);
    append_kernel(&item, function, simcuda_stream(stream));
    pthread_mutex_unlock(&lock);
    report(&item);
}

void simcuda_launch_graph(CUgraphExec graph, CUstream stream)
{
    for (uint32_t i = 0; i < graph->count; i++) {
        struct simcuda_item item = {.graph = graph->id, .node = (uint64_t)graph->id << 32 | i};

        pthread_mutex_lock(&lock);
        append_kernel(&item, graph->kernels[i], simcuda_stream(stream));
        pthread_mutex_unlock(&lock);
        report(&item);
    }
}

static void transfer(uint32_t kind, uint32_t detail, uint64_t bytes, int64_t fixed, CUstream stream)
{
    struct simcuda_item item = {.kind = kind, .detail = detail, .bytes = bytes};

    pthread_mutex_lock(&lock);
    append(&item, fixed + (int64_t)(bytes / BYTES_PER_NS), simcuda_stream(stream));
    pthread_mutex_unlock(&lock);
    report(&item);
}

void simcuda_copy(uint32_t direction, uint64_t bytes, CUstream stream)
{
    transfer(SIMCUDA_COPY, direction, bytes, copy_ns, stream);
}

void simcuda_set(uint64_t bytes, CUstream stream)
{
    transfer(SIMCUDA_SET, 0, bytes, set_ns, stream);
}

void simcuda_record_event(CUevent event, CUstream stream)
{
    pthread_mutex_lock(&lock);
    event->end = simcuda_stream(stream)->end;
    pthread_mutex_unlock(&lock);
}

void simcuda_wait_event(CUevent event, CUstream stream)
{
    CUstream waiting = simcuda_stream(stream);

    pthread_mutex_lock(&lock);
    if (event->end > waiting->end)
        waiting->end = event->end;
    pthread_mutex_unlock(&lock);
}

#define SPIN_NS 100000

void simcuda_synchronize(uint32_t type, CUstream stream, CUevent event)
{
    struct simcuda_item item = {.kind = SIMCUDA_SYNC, .detail = type, .start = simcuda_now()};
    int64_t until;

    pthread_mutex_lock(&lock);
    until = event ? event->end : stream ? stream->end : last_end;
    pthread_mutex_unlock(&lock);
    if (until - simcuda_now() > 2 * SPIN_NS) {
        int64_t wake = until - SPIN_NS;
        struct timespec time = {wake / 1000000000, wake % 1000000000};

        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
    }
    simcuda_spin_until(until);
    item.correlation = current.correlation;
    item.stream = stream ? stream->id : SIMCUDA_EVERY_STREAM;
    item.end = simcuda_now();
    pthread_mutex_lock(&lock);
    enqueued[SIMCUDA_SYNC]++;
    total_ns[SIMCUDA_SYNC] += item.end - item.start;
    pthread_mutex_unlock(&lock);
    report(&item);
}
