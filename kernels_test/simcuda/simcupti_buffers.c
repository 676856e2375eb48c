/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated CUPTI's records, and the buffers that they go into.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "simcupti_state.h"
#include "simcupti_ids.h"
#include "simcuda_call.h"

#define WORKER_NS 1000000
#define MINUTE_NS 60000000000
#define UNKNOWN_KIND 200
#define UNKNOWN_SIZE 24

#define KERNEL_SIZE (SIMCUPTI_MAJOR == 12 ? SIMCUPTI_KERNEL_12 : SIMCUPTI_KERNEL_13)
#define MEMCPY_SIZE (SIMCUPTI_MAJOR == 12 ? SIMCUPTI_MEMCPY_12 : SIMCUPTI_MEMCPY_13)
#define SYNC_SIZE (SIMCUPTI_MAJOR == 12 ? SIMCUPTI_SYNC_12 : SIMCUPTI_SYNC_13)
#define LARGEST SIMCUPTI_KERNEL_13

#define MAY_FAIL()                                                                                                     \
    do {                                                                                                               \
        int told = simcupti_failure(__func__);                                                                         \
        if (told)                                                                                                      \
            return told;                                                                                               \
        simcupti_begin();                                                                                              \
    } while (0)

struct buffer {
    struct buffer *next;
    uint8_t *memory;
    size_t size, used, most; /* most: records that may go in, 0: as many as fit */
    size_t records;
    int64_t last_end; /* CLOCK_MONOTONIC */
};

static struct buffer *current, *full;
static cu_request request;
static cu_complete complete;
static int64_t kernels_written;
static pthread_t worker;
static int worker_runs, worker_stops;

static int64_t setting(const int64_t *place)
{
    return __atomic_load_n(place, __ATOMIC_RELAXED);
}

/* Whether this is an n-th one. */
static int due(const int64_t *place, int64_t number)
{
    int64_t every = setting(place);

    return every && number % every == 0;
}

int64_t simcupti_shift(void)
{
    struct timespec real;
    int64_t before = simcuda_now();
    int64_t now;

    if (simcupti.clock) {
        now = (int64_t)simcupti.clock();
    } else {
        clock_gettime(CLOCK_REALTIME, &real);
        now = (int64_t)real.tv_sec * 1000000000 + real.tv_nsec;
    }
    /* Two looks at one clock are the same clock. */
    return now >= before && now <= simcuda_now() ? 0 : now - before;
}

static size_t size_of(const uint8_t *record)
{
    uint32_t kind;

    memcpy(&kind, record, sizeof kind);
    switch (kind) {
    case CU_KIND_CONCURRENT_KERNEL:
        return KERNEL_SIZE;
    case CU_KIND_MEMCPY:
        return MEMCPY_SIZE;
    case CU_KIND_MEMSET:
        return SIMCUPTI_MEMSET;
    case CU_KIND_SYNCHRONIZATION:
        return SYNC_SIZE;
    case SIMCUPTI_KIND_DRIVER:
    case SIMCUPTI_KIND_RUNTIME:
        return sizeof(struct simcupti_api);
    default:
        return UNKNOWN_SIZE;
    }
}

/* -- handing buffers over ----------------------------------------------------------------------------------------- */

/* Times of what is not over yet are not known. */
static void clear_unfinished(struct buffer *buffer, int64_t latest)
{
    for (size_t at = 0; at < buffer->used; at += size_of(buffer->memory + at)) {
        uint32_t kind;
        struct cu_kernel *kernel = (void *)(buffer->memory + at);
        memcpy(&kind, kernel, sizeof kind);
        if (kind == CU_KIND_CONCURRENT_KERNEL && (int64_t)kernel->end > latest &&
            (int64_t)kernel->end < latest + MINUTE_NS / 2)
            kernel->start = kernel->end = 0;
    }
}

static void turn_around(struct buffer *buffer)
{
    uint8_t *copy = malloc(buffer->used + 1);
    size_t to = buffer->used;

    for (size_t at = 0, size; at < buffer->used; at += size) {
        size = size_of(buffer->memory + at);
        to -= size;
        memcpy(copy + to, buffer->memory + at, size);
    }
    memcpy(buffer->memory, copy, buffer->used);
    free(copy);
}

/* Hands over full buffers, and the current one too if `all`; without `forced` only those that lie in the past. */
static void hand_over(int all, int forced)
{
    struct buffer *list = NULL, **end = &list, **place;
    cu_complete to;
    int64_t now = simcuda_now(), shift;

    pthread_mutex_lock(&simcupti.lock);
    if (all && current && current->used && (forced || current->last_end <= now)) {
        current->next = full;
        full = current;
        current = NULL;
    }
    for (place = &full; *place;) {
        struct buffer *buffer = *place;
        if (!forced && buffer->last_end > now) {
            place = &buffer->next;
            continue;
        }
        *place = buffer->next;
        buffer->next = NULL;
        *end = buffer;
        end = &buffer->next;
        simcupti.buffers--;
    }
    shift = simcupti_shift();
    to = complete;
    pthread_mutex_unlock(&simcupti.lock);
    while (list) {
        struct buffer *buffer = list;
        list = buffer->next;
        if (buffer->last_end > now)
            clear_unfinished(buffer, now + shift);
        if (setting(&simcupti.unordered))
            turn_around(buffer);
        to(NULL, 0, buffer->memory, buffer->size, buffer->used);
        free(buffer);
    }
}

static void *work(void *nothing)
{
    struct timespec pause = {0, WORKER_NS};

    while (!__atomic_load_n(&worker_stops, __ATOMIC_ACQUIRE)) {
        nanosleep(&pause, NULL);
        hand_over(0, 0);
    }
    return nothing;
}

void simcupti_stop_worker(void)
{
    int runs;

    pthread_mutex_lock(&simcupti.lock);
    runs = worker_runs;
    worker_runs = 0;
    pthread_mutex_unlock(&simcupti.lock);
    if (runs) {
        __atomic_store_n(&worker_stops, 1, __ATOMIC_RELEASE);
        pthread_join(worker, NULL);
    }
}

void simcupti_forget_buffers(void)
{
    struct buffer *buffer;

    if (current) {
        current->next = full;
        full = current;
    }
    while ((buffer = full)) {
        full = buffer->next;
        free(buffer); /* the memory is the user's, who never gets it back */
    }
    current = NULL;
    request = NULL;
    complete = NULL;
    simcupti.clock = NULL;
    simcupti.kinds = 0;
    simcupti.buffers = 0;
    simcupti.dropped = 0;
}

/* -- records ------------------------------------------------------------------------------------------------------ */

/* Room for a record; a null pointer, and counted, if there is none. The lock is held. */
static uint8_t *reserve(size_t size, int64_t end)
{
    uint8_t *place;

    if (current && (current->size - current->used < size || (current->most && current->records >= current->most))) {
        current->next = full;
        full = current;
        current = NULL;
    }
    if (!current && request) {
        uint8_t *memory = NULL;
        size_t bytes = 0, most = 0;
        request(&memory, &bytes, &most);
        if (memory && bytes >= LARGEST) {
            current = calloc(1, sizeof *current);
            current->memory = memory;
            current->size = bytes;
            current->most = most;
            simcupti.buffers++;
        }
    }
    if (!current || due(&simcupti.drop, simcupti.records + simcupti.dropped_ever + 1)) {
        simcupti.dropped++;
        simcupti.dropped_ever++;
        return NULL;
    }
    place = current->memory + current->used;
    current->used += size;
    current->records++;
    if (end > current->last_end)
        current->last_end = end;
    simcupti.records++;
    memset(place, 0, size);
    return place;
}

static void write_kernel(const struct simcuda_item *item, uint64_t start, uint64_t end)
{
    int64_t number = kernels_written + 1;
    int unknown = due(&simcupti.unknown, number);
    uint8_t *place = reserve(unknown ? UNKNOWN_SIZE : KERNEL_SIZE, item->end);
    struct cu_kernel record = {
        .kind = CU_KIND_CONCURRENT_KERNEL,
        .registers = 32,
        .start = start,
        .end = end,
        .completed = end,
        .device = SIMCUDA_DEVICE,
        .context = SIMCUDA_CONTEXT,
        .stream = item->stream,
        .grid = {1, 1, 1},
        .block = {32, 1, 1},
        .correlation = item->correlation,
        .name = item->name,
        .graph_node = item->node,
        .graph = item->graph,
    };

    if (!place)
        return;
    kernels_written++;
    if (unknown) {
        memcpy(place, &(uint32_t){UNKNOWN_KIND}, sizeof(uint32_t));
        return;
    }
    if (due(&simcupti.zero, number))
        record.start = record.end = 0;
    if (due(&simcupti.reversed, number)) {
        record.start = end + 1;
        record.end = start;
    }
    if (due(&simcupti.future, number))
        record.end += MINUTE_NS;
    if (due(&simcupti.nameless, number))
        record.name = NULL;
    memcpy(place, &record, sizeof record);
}

static void write_other(const struct simcuda_item *item, uint64_t start, uint64_t end)
{
    uint8_t *place;

    if (item->kind == SIMCUDA_COPY && (place = reserve(MEMCPY_SIZE, item->end))) {
        struct cu_memcpy record = {
            .kind = CU_KIND_MEMCPY, .copy = (uint8_t)item->detail, .bytes = item->bytes, .start = start, .end = end,
            .device = SIMCUDA_DEVICE, .context = SIMCUDA_CONTEXT, .stream = item->stream,
            .correlation = item->correlation,
        };
        memcpy(place, &record, sizeof record);
    }
    if (item->kind == SIMCUDA_SET && (place = reserve(SIMCUPTI_MEMSET, item->end))) {
        struct cu_memset record = {
            .kind = CU_KIND_MEMSET, .bytes = item->bytes, .start = start, .end = end, .device = SIMCUDA_DEVICE,
            .context = SIMCUDA_CONTEXT, .stream = item->stream, .correlation = item->correlation,
        };
        memcpy(place, &record, sizeof record);
    }
    if (item->kind == SIMCUDA_SYNC && (place = reserve(SYNC_SIZE, item->end))) {
        struct cu_synchronization record = {
            .kind = CU_KIND_SYNCHRONIZATION, .type = item->detail, .start = start, .end = end,
            .correlation = item->correlation, .context = SIMCUDA_CONTEXT, .stream = item->stream,
        };
        memcpy(place, &record, sizeof record);
    }
}

void simcupti_call(const struct simcupti_api *call)
{
    pthread_mutex_lock(&simcupti.lock);
    if (simcupti.kinds & 1ull << call->kind) {
        struct simcupti_api *place = (void *)reserve(sizeof *place, (int64_t)call->end);
        uint64_t shift = (uint64_t)simcupti_shift();
        if (place) {
            *place = *call;
            place->start += shift;
            place->end += shift;
        }
    }
    pthread_mutex_unlock(&simcupti.lock);
}

void simcupti_item(const struct simcuda_item *item)
{
    static const uint8_t kinds[SIMCUDA_WORK_KINDS] = {
        [SIMCUDA_KERNEL] = CU_KIND_CONCURRENT_KERNEL,
        [SIMCUDA_COPY] = CU_KIND_MEMCPY,
        [SIMCUDA_SET] = CU_KIND_MEMSET,
        [SIMCUDA_SYNC] = CU_KIND_SYNCHRONIZATION,
    };

    pthread_mutex_lock(&simcupti.lock);
    if (simcupti.kinds & 1ull << kinds[item->kind]) {
        int64_t shift = simcupti_shift();
        uint64_t start = (uint64_t)(item->start + shift), end = (uint64_t)(item->end + shift);
        if (item->kind == SIMCUDA_KERNEL)
            write_kernel(item, start, end);
        else
            write_other(item, start, end);
    }
    pthread_mutex_unlock(&simcupti.lock);
}

/* -- interface ---------------------------------------------------------------------------------------------------- */

int cuptiActivityRegisterCallbacks(cu_request given_request, cu_complete given_complete)
{
    MAY_FAIL();
    if (!given_request || !given_complete)
        return CU_INVALID_PARAMETER;
    pthread_mutex_lock(&simcupti.lock);
    request = given_request;
    complete = given_complete;
    pthread_mutex_unlock(&simcupti.lock);
    return CU_OK;
}

int cuptiActivityRegisterTimestampCallback(cu_clock clock)
{
    MAY_FAIL();
    if (!clock)
        return CU_INVALID_PARAMETER;
    pthread_mutex_lock(&simcupti.lock);
    simcupti.clock = clock;
    pthread_mutex_unlock(&simcupti.lock);
    return CU_OK;
}

int cuptiActivityEnable(uint32_t kind)
{
    MAY_FAIL();
    if (!kind || kind > CU_KIND_GRAPH_TRACE)
        return CU_INVALID_KIND;
    pthread_mutex_lock(&simcupti.lock);
    simcupti.kinds |= 1ull << kind;
    if (!worker_runs) {
        __atomic_store_n(&worker_stops, 0, __ATOMIC_RELEASE);
        worker_runs = !pthread_create(&worker, NULL, work, NULL);
    }
    pthread_mutex_unlock(&simcupti.lock);
    return CU_OK;
}

int cuptiActivityDisable(uint32_t kind)
{
    MAY_FAIL();
    if (!kind || kind > CU_KIND_GRAPH_TRACE)
        return CU_INVALID_KIND;
    pthread_mutex_lock(&simcupti.lock);
    simcupti.kinds &= ~(1ull << kind);
    pthread_mutex_unlock(&simcupti.lock);
    return CU_OK;
}

int cuptiActivityFlushAll(uint32_t flag)
{
    MAY_FAIL();
    if (!complete)
        return CU_NOT_INITIALIZED;
    hand_over(1, flag == CU_FLUSH_FORCED);
    return CU_OK;
}

int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, void **record)
{
    size_t at = *record ? (size_t)((uint8_t *)*record - buffer) : 0;
    int64_t broken = setting(&simcupti.broken);
    int told = simcupti_failure(__func__);

    if (told)
        return told;
    if (*record)
        at += size_of(*record);
    if (at >= valid)
        return CU_MAX_LIMIT_REACHED;
    if (broken) {
        int64_t number = 1;
        for (size_t before = 0; before < at; before += size_of(buffer + before))
            number++;
        if (number >= broken)
            return CU_INVALID_KIND;
    }
    *record = buffer + at;
    return CU_OK;
}

int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped)
{
    MAY_FAIL();
    (void)context, (void)stream;
    pthread_mutex_lock(&simcupti.lock);
    *dropped = (size_t)simcupti.dropped;
    simcupti.dropped = 0;
    pthread_mutex_unlock(&simcupti.lock);
    return CU_OK;
}
