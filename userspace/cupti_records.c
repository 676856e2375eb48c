/* SPDX-License-Identifier: Apache-2.0
 *
 * The buffers that CUPTI fills, and what is made of the records in them.
 *
 * A buffer is free, lent to CUPTI, or ready to be read. The program's threads and CUPTI's only move buffers between
 * these states; reading, names and batches belong to the helper's thread alone.
 */
#define _GNU_SOURCE
#include "cupti_helper.h"

#include <string.h>
#include <sys/mman.h>

#define BUFFERS 32
#define BUFFER_BYTES (1u << 20)
#define FUTURE_NS 1000000000u /* beyond now: no clock is that wrong */

enum { BUFFER_FREE, BUFFER_TAKEN, BUFFER_LENT, BUFFER_READY };
static struct {
    uint32_t state;
    uint8_t *memory;
    size_t valid;
} buffers[BUFFERS];
static int expecting;
static uint64_t earliest;

/* -- names -------------------------------------------------------------------------------------------------------- */

#define NAMES 32768
#define SLOTS (2 * NAMES) /* a power of two */
#define SLAB_BYTES (256u * 1024)
#define SLABS 64

struct name {
    uint64_t hash;
    uint32_t length;
    char text[];
};
static struct name **names; /* by id - 1 */
static uint32_t *slots;     /* ids by hash; 0: free */
static uint32_t name_count;
static uint8_t *slabs[SLABS];
static size_t slab_used = SLAB_BYTES;
static uint32_t slab_count;

/* CUPTI gives the same address for the same kernel; it is believed for the length of one buffer. */
#define RECENT 1024
static struct {
    const char *address;
    uint32_t id;
} recent[RECENT];

static void *map(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return memory == MAP_FAILED ? NULL : memory;
}

static struct name *new_name(size_t length)
{
    size_t size = (sizeof(struct name) + length + 1 + 7) & ~(size_t)7;

    if (slab_used + size > SLAB_BYTES) {
        if (slab_count == SLABS || !(slabs[slab_count] = map(SLAB_BYTES)))
            return NULL;
        slab_count++;
        slab_used = 0;
    }
    slab_used += size;
    return (struct name *)(slabs[slab_count - 1] + slab_used - size);
}

static uint64_t hash_of(const char *text, size_t length)
{
    uint64_t hash = 0xcbf29ce484222325u ^ length, word = 0;

    for (; length >= 8; text += 8, length -= 8) {
        memcpy(&word, text, 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 32;
    }
    word = 0;
    memcpy(&word, text, length);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
}

/* The id of a name, 0 if there are too many. */
static uint32_t intern(const char *text)
{
    size_t length = strnlen(text, RLSCOPE_GPU_NAME_MAX + 1);
    int cut = length > RLSCOPE_GPU_NAME_MAX;
    uint32_t at;
    struct name *name;

    if (!names && !(names = map(NAMES * sizeof *names)))
        return 0;
    if (!slots && !(slots = map(SLOTS * sizeof *slots)))
        return 0;
    length -= (size_t)cut;
    uint64_t hash = hash_of(text, length);
    for (at = (uint32_t)hash % SLOTS; slots[at]; at = (at + 1) % SLOTS) {
        name = names[slots[at] - 1];
        if (name->hash == hash && name->length == length && !memcmp(name->text, text, length))
            return slots[at];
    }
    if (name_count == NAMES || !(name = new_name(length))) {
        count(lost_names);
        return 0;
    }
    name->hash = hash;
    name->length = (uint32_t)length;
    memcpy(name->text, text, length);
    name->text[length] = '\0';
    names[name_count++] = name;
    slots[at] = name_count;
    count(names);
    if (cut)
        count(cut_names);
    rlscope_gpu_name(name_count, name->text, name->length);
    return name_count;
}

static uint32_t name_id(const char *address)
{
    size_t slot = ((uintptr_t)address >> 4) % RECENT;

    if (!address) {
        count(nameless);
        return 0;
    }
    if (recent[slot].address != address) {
        recent[slot].id = intern(address);
        recent[slot].address = address;
    }
    return recent[slot].id;
}

void records_tell_names(void)
{
    for (uint32_t i = 0; i < name_count; i++)
        rlscope_gpu_name(i + 1, names[i]->text, names[i]->length);
}

/* -- batches ------------------------------------------------------------------------------------------------------ */

static struct rlscope_gpu_record batch[RLSCOPE_GPU_BATCH];
static uint32_t batched;
static uint64_t handed_out;

void records_hand_out(void)
{
    if (!batched)
        return;
    rlscope_gpu_records(batch, batched, handed_out);
    handed_out += batched;
    count_many(records, batched);
    count(batches);
    batched = 0;
}

void records_add(const struct rlscope_gpu_record *record)
{
    batch[batched++] = *record;
    if (batched == RLSCOPE_GPU_BATCH)
        records_hand_out();
}

/* -- activity records --------------------------------------------------------------------------------------------- */

/* What holds while one buffer is read. */
struct reading {
    uint64_t shift, latest;
    int leaving;
};

/* Adds the record if its times can be true; counts them if not. */
static int add_timed(struct rlscope_gpu_record *record, const struct reading *reading)
{
    if (!record->start_ns || !record->end_ns) {
        if (reading->leaving)
            count(unfinished);
        else
            count(zero_time);
        return 0;
    }
    record->start_ns += reading->shift;
    record->end_ns += reading->shift;
    if (record->end_ns < record->start_ns) {
        count(reversed_time);
        return 0;
    }
    if (record->start_ns < earliest || record->end_ns > reading->latest) {
        count(out_of_range);
        return 0;
    }
    records_add(record);
    return 1;
}

#define COMMON(from)                                                                                                   \
    .start_ns = (from)->start, .end_ns = (from)->end, .correlation = (from)->correlation, .context = (from)->context,  \
    .stream = (from)->stream
#define ON_DEVICE(from) COMMON(from), .device = (from)->device, .graph = (from)->graph
#define COPY(from) .kind = RLSCOPE_GPU_COPY, .detail = (from)->copy, .bytes = (from)->bytes
#define IN_GRAPH(from) ON_DEVICE(from), .graph_node = (from)->graph_node

static void add_kernel(const struct cu_kernel *kernel, const struct reading *reading)
{
    struct rlscope_gpu_record record = {IN_GRAPH(kernel), .kind = RLSCOPE_GPU_KERNEL};

    record.name = name_id(kernel->name);
    if (add_timed(&record, reading)) {
        count(kernels);
        if (record.graph_node)
            count(graph_kernels);
    }
}

static void add(const void *activity, const struct reading *reading)
{
    switch (*(const uint32_t *)activity) {
    case CU_KIND_CONCURRENT_KERNEL:
        add_kernel(activity, reading);
        break;
    case CU_KIND_MEMCPY: {
        const struct cu_memcpy *copy = activity;
        struct rlscope_gpu_record record = {IN_GRAPH(copy), COPY(copy)};
        if (add_timed(&record, reading))
            count(copies);
        break;
    }
    case CU_KIND_MEMCPY2: {
        const struct cu_memcpy2 *copy = activity;
        struct rlscope_gpu_record record = {IN_GRAPH(copy), COPY(copy)};
        if (add_timed(&record, reading))
            count(copies);
        break;
    }
    case CU_KIND_MEMSET: {
        const struct cu_memset *set = activity;
        struct rlscope_gpu_record record = {IN_GRAPH(set), .kind = RLSCOPE_GPU_SET, .bytes = set->bytes};
        if (add_timed(&record, reading))
            count(sets);
        break;
    }
    case CU_KIND_SYNCHRONIZATION: {
        const struct cu_synchronization *sync = activity;
        struct rlscope_gpu_record record = {COMMON(sync), .kind = RLSCOPE_GPU_SYNC, .detail = (uint8_t)sync->type};
        if (add_timed(&record, reading))
            count(syncs);
        break;
    }
    case CU_KIND_GRAPH_TRACE: {
        const struct cu_graph_trace *graph = activity;
        struct rlscope_gpu_record record = {ON_DEVICE(graph), .kind = RLSCOPE_GPU_GRAPH};
        if (add_timed(&record, reading))
            count(graphs);
        break;
    }
    default:
        count(unknown_kind);
    }
}

static void read_buffer(uint8_t *memory, size_t valid, const struct reading *reading)
{
    void *activity = NULL;
    int result;

    memset(recent, 0, sizeof recent);
    while ((result = cupti.cuptiActivityGetNextRecord(memory, valid, &activity)) == CU_OK)
        add(activity, reading);
    if (result != CU_MAX_LIMIT_REACHED) {
        count(broken);
        cupti_result(CALL_cuptiActivityGetNextRecord, result);
    }
}

void records_drain(int64_t shift, int leaving)
{
    struct reading reading = {.shift = (uint64_t)shift, .leaving = leaving};
    size_t dropped = 0;

    for (int i = 0; i < BUFFERS; i++)
        if (exchange(buffers[i].state, BUFFER_READY, BUFFER_TAKEN)) {
            reading.latest = now_ns() + FUTURE_NS; /* of each: reading those before may have taken long */
            read_buffer(buffers[i].memory, buffers[i].valid, &reading);
            store_release(buffers[i].state, BUFFER_FREE);
            launches_drain(); /* what the threads put down meanwhile: their rings are short */
        }
    if (CUPTI(cuptiActivityGetNumDroppedRecords, NULL, 0, &dropped) == CU_OK)
        count_many(dropped, dropped);
}

/* -- buffers ------------------------------------------------------------------------------------------------------ */

void records_request(uint8_t **buffer, size_t *size, size_t *most)
{
    *buffer = NULL;
    *size = 0;
    *most = 0;
    for (int i = 0; i < BUFFERS && load_acquire(expecting); i++) {
        if (!exchange(buffers[i].state, BUFFER_FREE, BUFFER_TAKEN))
            continue;
        if (!buffers[i].memory && !(buffers[i].memory = map(BUFFER_BYTES))) {
            store_release(buffers[i].state, BUFFER_FREE);
            break;
        }
        store_release(buffers[i].state, BUFFER_LENT);
        *buffer = buffers[i].memory;
        *size = BUFFER_BYTES;
        return;
    }
    count(no_buffer);
}

void records_complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    (void)context, (void)stream, (void)size;
    for (int i = 0; i < BUFFERS; i++) {
        if (load_acquire(buffers[i].state) != BUFFER_LENT || buffers[i].memory != buffer)
            continue;
        if (valid && load_acquire(expecting)) {
            buffers[i].valid = valid;
            store_release(buffers[i].state, BUFFER_READY);
            helper_wake();
        } else {
            if (valid)
                count(late);
            store_release(buffers[i].state, BUFFER_FREE);
        }
        return;
    }
}

void records_begin(uint64_t since)
{
    earliest = since;
    store_release(expecting, 1);
}

void records_discard(void)
{
    for (int i = 0; i < BUFFERS; i++)
        if (exchange(buffers[i].state, BUFFER_READY, BUFFER_TAKEN)) {
            count(late);
            store_release(buffers[i].state, BUFFER_FREE);
        }
}

void records_end(void)
{
    store_release(expecting, 0);
    records_discard();
    batched = 0;
}

void records_release(int all)
{
    for (int i = 0; i < BUFFERS; i++) {
        int mine = exchange(buffers[i].state, BUFFER_FREE, BUFFER_TAKEN);
        if (!mine && all)
            mine = exchange(buffers[i].state, BUFFER_LENT, BUFFER_TAKEN);
        if (!mine)
            continue;
        if (buffers[i].memory)
            munmap(buffers[i].memory, BUFFER_BYTES);
        buffers[i].memory = NULL;
        store_release(buffers[i].state, BUFFER_FREE);
    }
}
