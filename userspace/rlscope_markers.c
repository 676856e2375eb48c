/* SPDX-License-Identifier: Apache-2.0
 *
 * The marker library: see rlscope_markers.h for what it promises.
 *
 * There is no lock anywhere. Shared structures only grow, by compare-and-swap, so that a fork or a signal finds them
 * whole at any instant. Memory comes from mmap, not malloc: an allocator that is itself being profiled, or is held by
 * a thread that a fork left behind, does not matter.
 */
#define _GNU_SOURCE
#include "rlscope_markers.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

_Static_assert(sizeof(void *) == 8, "the registry's layout has 8-byte pointers");
_Static_assert(sizeof(struct rlscope_thread_record) == 576, "documented layout");
_Static_assert(offsetof(struct rlscope_thread_record, depth) == 12, "documented layout");
_Static_assert(offsetof(struct rlscope_thread_record, names) == 64, "documented layout");
_Static_assert(offsetof(struct rlscope_registry, truncated_names) == 48, "documented layout");
_Static_assert(offsetof(struct rlscope_registry, chunks) == 144, "documented layout");
_Static_assert(offsetof(struct rlscope_registry, metadata) == 240, "documented layout");
_Static_assert(sizeof(struct rlscope_registry) == 760, "documented layout");

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define body __attribute__((visibility("hidden"), used, noinline))
#define exported __attribute__((visibility("default"), noinline))

#define load(place) __atomic_load_n(&(place), __ATOMIC_RELAXED)
#define store(place, value) __atomic_store_n(&(place), (value), __ATOMIC_RELAXED)
#define load_acquire(place) __atomic_load_n(&(place), __ATOMIC_ACQUIRE)
#define count(place) ((void)__atomic_fetch_add(&(place), 1, __ATOMIC_RELAXED))
#define publish(place, expected, value) \
    __atomic_compare_exchange_n(&(place), &(expected), (value), 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)

/*
 * Entry points. Written as assembly so that no compiler option (CET, profiling, sanitizers, stack protection) puts
 * anything before the nop, and aligned so that the five bytes lie in one page and one cache line. The bodies are
 * hidden, so the jumps can be bound to nothing else.
 */
#if defined(__x86_64__)
#define NOP ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n"
#define JUMP "jmp "
#elif defined(__aarch64__)
#define NOP "nop\n"
#define JUMP "b "
#else
#error "rlscope_markers: this architecture needs its nop and its jump here"
#endif

#define STRING(x) #x
/* `after` keeps functions of the same body different, whatever a linker that folds identical code may think. */
#define ENTRY(symbol, target, after)                                      \
    __asm__(".pushsection .text\n"                                        \
            ".p2align 5\n"                                                \
            ".globl " STRING(symbol) "\n"                                 \
            ".type " STRING(symbol) ", %function\n"                       \
            STRING(symbol) ":\n"                                          \
            ".cfi_startproc\n" NOP JUMP STRING(target) "\n" after "\n"    \
            ".cfi_endproc\n"                                              \
            ".size " STRING(symbol) ", .-" STRING(symbol) "\n"            \
            ".popsection\n")

ENTRY(rlscope_operation_begin, rlscope_operation_begin_body, "");
ENTRY(rlscope_operation_begin_python, rlscope_operation_begin_body, ".byte 0xcc");
ENTRY(rlscope_operation_end, rlscope_operation_end_body, "");
ENTRY(rlscope_operation_end_python, rlscope_operation_end_body, ".byte 0xcc");
ENTRY(rlscope_phase, rlscope_phase_body, "");
ENTRY(rlscope_progress, rlscope_progress_body, "");
ENTRY(rlscope_metadata, rlscope_metadata_body, "");
ENTRY(rlscope_process_name, rlscope_process_name_body, "");

/* The entry point of rlscope_metadata itself, nop included, but never somebody else's function of that name. */
__asm__(".globl rlscope_metadata_here\n"
        ".hidden rlscope_metadata_here\n"
        ".set rlscope_metadata_here, rlscope_metadata\n");
extern void rlscope_metadata_here(const char *key, const char *value) __attribute__((visibility("hidden")));

static struct rlscope_registry registry = {
    .magic = RLSCOPE_MARKERS_MAGIC,
    .version = RLSCOPE_MARKERS_VERSION,
    .size = sizeof(struct rlscope_registry),
    .record_size = sizeof(struct rlscope_thread_record),
    .names_offset = offsetof(struct rlscope_thread_record, names),
    .max_depth = RLSCOPE_MAX_DEPTH,
    .name_max = RLSCOPE_NAME_MAX,
    .first_chunk = RLSCOPE_FIRST_CHUNK,
    .chunk_count = RLSCOPE_CHUNKS,
};
extern struct rlscope_registry rlscope_markers_registry __attribute__((alias("registry"), visibility("default")));

/* A null pointer if the kernel refuses. Markers leave errno alone. */
static void *map_memory(size_t size)
{
    int saved = errno;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        count(registry.failed_mappings);
        memory = NULL;
    }
    errno = saved;
    return memory;
}

static void unmap_memory(void *memory, size_t size)
{
    int saved = errno;
    munmap(memory, size);
    errno = saved;
}

/* ---- names ---- */

struct name {
    uint64_t hash;
    uint32_t length;
    char text[];
};

#define SLAB_BYTES (64 * 1024)
struct slab {
    uint64_t used;
    char memory[SLAB_BYTES - sizeof(uint64_t)];
};

/* Open addressing, at most half full. Pages that no name fell on are never touched. */
#define TABLE_SLOTS (2 * RLSCOPE_NAMES_MAX)
static struct name *table[TABLE_SLOTS];
static struct slab *current_slab;

static const char too_many_names[] = "(too many names)";
static const char no_memory[] = "(no memory)";

static struct name *allocate_name(size_t length)
{
    size_t size = (sizeof(struct name) + length + 1 + 7) & ~(size_t)7;
    for (;;) {
        struct slab *slab = load_acquire(current_slab);
        if (slab) {
            uint64_t used = load(slab->used);
            while (used + size <= sizeof(slab->memory)) {
                if (__atomic_compare_exchange_n(&slab->used, &used, used + size, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
                    return (struct name *)(slab->memory + used);
            }
        }
        struct slab *fresh = map_memory(sizeof(struct slab));
        if (!fresh)
            return NULL;
        if (!publish(current_slab, slab, fresh))
            unmap_memory(fresh, sizeof(struct slab));
    }
}

static uint64_t hash_bytes(const char *text, size_t length)
{
    uint64_t hash = 0xcbf29ce484222325u ^ length;
    for (; length >= 8; text += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, text, 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 32;
    }
    uint64_t word = 0;
    memcpy(&word, text, length);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
}

/* Bytes of the name that are kept: at most RLSCOPE_NAME_MAX, whole characters. */
static size_t kept_length(const char *text)
{
    size_t length = strnlen(text, RLSCOPE_NAME_MAX + 1);
    if (length <= RLSCOPE_NAME_MAX)
        return length;
    count(registry.truncated_names);
    /* A character has up to three continuation bytes (10xxxxxx); more of them is no UTF-8, and cut anywhere. */
    for (size_t end = RLSCOPE_NAME_MAX; end >= RLSCOPE_NAME_MAX - 3; end--) {
        if (((unsigned char)text[end] & 0xc0) != 0x80)
            return end;
    }
    return RLSCOPE_NAME_MAX;
}

static __attribute__((noinline)) const char *intern(const char *text)
{
    size_t length = kept_length(text);
    uint64_t hash = hash_bytes(text, length);
    struct name *made = NULL;
    for (uint64_t slot = hash;; slot++) {
        struct name **place = &table[slot % TABLE_SLOTS];
        struct name *found = load_acquire(*place);
        if (!found) {
            if (!made) {
                /* The slots left over by this limit are what ends the search for a name that is not there. */
                if (load(registry.names) >= RLSCOPE_NAMES_MAX) {
                    count(registry.dropped_names);
                    return too_many_names;
                }
                made = allocate_name(length);
                if (!made)
                    return no_memory;
                made->hash = hash;
                made->length = (uint32_t)length;
                memcpy(made->text, text, length);
                made->text[length] = '\0';
            }
            if (publish(*place, found, made)) {
                count(registry.names);
                return made->text;
            }
            /* Another thread took the slot, perhaps for the same name; then this copy stays unused. */
        }
        if (found->hash == hash && found->length == length && memcmp(found->text, text, length) == 0)
            return found->text;
    }
}

/* ---- threads ---- */

/* What a thread's recent name arguments were interned as, by their address. */
#define CACHE_SLOTS 64
struct cached_name {
    const char *argument;
    const char *interned;
};

#define FREE_NONE 0u
#define NO_RECORD ((struct rlscope_thread_record *)1) /* this thread could not get one */

static __thread struct rlscope_thread_record *own_record;
static pthread_key_t exit_key;
static int has_exit_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static struct rlscope_thread_record *record_at(uint32_t index, struct rlscope_thread_record ***chunk_out, size_t *size_out)
{
    uint32_t scaled = index / RLSCOPE_FIRST_CHUNK + 1;
    unsigned chunk = 31u - (unsigned)__builtin_clz(scaled);
    if (chunk >= RLSCOPE_CHUNKS)
        return NULL;
    size_t size = (size_t)RLSCOPE_FIRST_CHUNK << chunk;
    struct rlscope_thread_record *records = load_acquire(registry.chunks[chunk]);
    if (!records && chunk_out) {
        *chunk_out = &registry.chunks[chunk];
        *size_out = size;
        return NULL;
    }
    return records ? records + (index - (size - RLSCOPE_FIRST_CHUNK)) : NULL;
}

/* The head of the free list holds a number that grows with every change, so an old head is never mistaken for a new. */
static uint64_t next_head(uint64_t head, uint32_t index_plus_one)
{
    return ((head >> 32) + 1) << 32 | index_plus_one;
}

static struct rlscope_thread_record *pop_free(void)
{
    uint64_t head = load_acquire(registry.free_records);
    while ((uint32_t)head != FREE_NONE) {
        struct rlscope_thread_record *record = record_at((uint32_t)head - 1, NULL, NULL);
        if (publish(registry.free_records, head, next_head(head, load(record->next_free))))
            return record;
    }
    return NULL;
}

static void push_free(struct rlscope_thread_record *record)
{
    uint64_t head = load_acquire(registry.free_records);
    do {
        store(record->next_free, (uint32_t)head);
    } while (!publish(registry.free_records, head, next_head(head, record->index + 1)));
}

static struct rlscope_thread_record *new_record(void)
{
    uint32_t index = load_acquire(registry.records);
    for (;;) {
        struct rlscope_thread_record **chunk = NULL;
        size_t size = 0;
        struct rlscope_thread_record *record = record_at(index, &chunk, &size);
        if (!record) {
            if (!chunk)
                return NULL;
            size_t records_bytes = size * sizeof(struct rlscope_thread_record);
            size_t bytes = records_bytes + size * CACHE_SLOTS * sizeof(struct cached_name);
            struct rlscope_thread_record *fresh = map_memory(bytes), *expected = NULL;
            if (!fresh)
                return NULL;
            if (!publish(*chunk, expected, fresh))
                unmap_memory(fresh, bytes);
            continue;
        }
        if (publish(registry.records, index, index + 1)) {
            /* The caches of a chunk's records lie behind the records. */
            unsigned k = 31u - (unsigned)__builtin_clz(index / RLSCOPE_FIRST_CHUNK + 1);
            size = (size_t)RLSCOPE_FIRST_CHUNK << k;
            struct rlscope_thread_record *first = load(registry.chunks[k]);
            store(record->index, index);
            record->cache = (struct cached_name *)(first + size) + (size_t)(record - first) * CACHE_SLOTS;
            return record;
        }
    }
}

/* `changes` becomes odd. It grows even if a signal handler interrupts a change, whose own changes stay odd inside. */
static inline void begin_change(struct rlscope_thread_record *record)
{
    store(record->changes, (load(record->changes) + 1) | 1);
    atomic_thread_fence(memory_order_release);
    atomic_signal_fence(memory_order_seq_cst);
}

static inline void end_change(struct rlscope_thread_record *record)
{
    atomic_signal_fence(memory_order_seq_cst);
    __atomic_store_n(&record->changes, (load(record->changes) | 1) + 1, __ATOMIC_RELEASE);
}

static void set_owner(struct rlscope_thread_record *record, uint32_t tid, uint64_t generation)
{
    begin_change(record);
    store(record->tid, tid);
    store(record->depth, 0);
    store(record->generation, generation);
    end_change(record);
}

static void thread_exits(void *argument)
{
    struct rlscope_thread_record *record = argument;
    own_record = NULL;
    set_owner(record, 0, load(record->generation));
    push_free(record);
}

/* The child has one thread. Threads that were using records, or were in the middle of getting one, are gone. */
static void child_after_fork(void)
{
    struct rlscope_thread_record *own = own_record == NO_RECORD ? NULL : own_record;
    int saved = errno;
    store(registry.pid, (uint32_t)getpid());
    store(registry.free_records, next_head(load(registry.free_records), FREE_NONE));
    for (uint32_t index = load(registry.records); index-- > 0;) {
        struct rlscope_thread_record *record = record_at(index, NULL, NULL);
        if (record == own) {
            begin_change(own);
            store(own->tid, (uint32_t)syscall(SYS_gettid));
            end_change(own);
            continue;
        }
        store(record->index, index);
        if (!record->cache) /* its thread had its number, but had not come further */
            continue;
        set_owner(record, 0, load(record->generation));
        push_free(record);
    }
    own_record = own; /* a thread that got no record may try again here */
    errno = saved;
}

static void initialise(void)
{
    has_exit_key = pthread_key_create(&exit_key, thread_exits) == 0;
    pthread_atfork(NULL, NULL, child_after_fork);
    store(registry.pid, (uint32_t)getpid());
}

static __attribute__((constructor)) void library_loaded(void)
{
    int saved = errno;
    pthread_once(&once, initialise);
    errno = saved;
}

static __attribute__((noinline)) struct rlscope_thread_record *get_record(void)
{
    if (own_record == NO_RECORD)
        return NULL;
    int saved = errno;
    pthread_once(&once, initialise); /* another library's constructor may mark before ours has run */
    struct rlscope_thread_record *record = pop_free();
    if (!record)
        record = new_record();
    if (record) {
        set_owner(record, (uint32_t)syscall(SYS_gettid), load(record->generation) + 1);
        if (has_exit_key)
            pthread_setspecific(exit_key, record);
        own_record = record;
    } else {
        count(registry.lost_threads);
        own_record = NO_RECORD;
    }
    errno = saved;
    return record;
}

static inline struct rlscope_thread_record *record_if_any(void)
{
    struct rlscope_thread_record *record = own_record;
    return likely((uintptr_t)record > (uintptr_t)NO_RECORD) ? record : NULL;
}

static inline const char *intern_cached(struct rlscope_thread_record *record, const char *name)
{
    struct cached_name *entry =
        (struct cached_name *)record->cache + ((uintptr_t)name * 0x9e3779b97f4a7c15u >> 58) % CACHE_SLOTS;
    /* The same address need not hold the same name, unless it is the address of one of our own copies. */
    if (likely(entry->argument == name)) {
        const char *interned = entry->interned;
        if (interned == name || strcmp(interned, name) == 0)
            return interned;
    }
    const char *interned = intern(name);
    entry->argument = NULL; /* a signal handler between the two stores must not see a mixed pair */
    atomic_signal_fence(memory_order_seq_cst);
    entry->interned = interned;
    atomic_signal_fence(memory_order_seq_cst);
    entry->argument = name;
    return interned;
}

/* ---- what the entry points jump to ---- */

body void rlscope_operation_begin_body(const char *name)
{
    struct rlscope_thread_record *record = record_if_any();
    if (unlikely(!record)) {
        record = get_record();
        if (!record)
            return;
    }
    const char *interned = intern_cached(record, name ? name : "");
    begin_change(record);
    uint32_t depth = load(record->depth);
    store(record->depth, depth + 1); /* first, so that a signal handler's operations use the slots above */
    atomic_signal_fence(memory_order_seq_cst);
    if (likely(depth < RLSCOPE_MAX_DEPTH))
        store(record->names[depth], interned);
    else
        count(registry.too_deep);
    end_change(record);
}

body void rlscope_operation_end_body(void)
{
    struct rlscope_thread_record *record = record_if_any();
    uint32_t depth = record ? load(record->depth) : 0;
    if (unlikely(depth == 0)) {
        count(registry.unbalanced_ends);
        return;
    }
    begin_change(record);
    store(record->depth, depth - 1);
    end_change(record);
}

body void rlscope_phase_body(const char *name)
{
    __atomic_store_n(&registry.phase, intern(name ? name : ""), __ATOMIC_RELEASE);
}

body void rlscope_progress_body(uint64_t step, uint64_t total)
{
    store(registry.progress_step, step);
    store(registry.progress_total, total);
    count(registry.progress_reports);
}

body void rlscope_metadata_body(const char *key, const char *value)
{
    const char *interned_key = intern(key ? key : "");
    const char *interned_value = intern(value ? value : "");
    for (unsigned i = 0; i < RLSCOPE_METADATA_MAX; i++) {
        struct rlscope_metadata_entry *entry = &registry.metadata[i];
        const char *found = load_acquire(entry->key);
        if (!found && publish(entry->key, found, interned_key))
            found = interned_key;
        if (found == interned_key) {
            __atomic_store_n(&entry->value, interned_value, __ATOMIC_RELEASE);
            return;
        }
    }
    count(registry.lost_metadata);
}

body void rlscope_process_name_body(const char *name)
{
    /* A probe reads both before anybody has: what has never been touched may not be in memory, and cannot be read there. */
    (void)(name && *(const volatile char *)name);
    rlscope_metadata_here(intern("process_name"), name);
}

/* ---- for language bindings ---- */

exported const char *rlscope_intern(const char *name)
{
    return intern(name ? name : "");
}

exported uint32_t rlscope_operation_depth(void)
{
    struct rlscope_thread_record *record = record_if_any();
    return record ? load(record->depth) : 0;
}

exported const char *rlscope_operation_name(uint32_t level)
{
    struct rlscope_thread_record *record = record_if_any();
    if (!record || level >= RLSCOPE_MAX_DEPTH || level >= load(record->depth))
        return NULL;
    return load(record->names[level]);
}
