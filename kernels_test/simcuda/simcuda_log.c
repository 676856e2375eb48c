/* SPDX-License-Identifier: Apache-2.0
 *
 * The settings of the simulated functions and the log of each thread. Part of libcuda.so.1.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "simcuda_call.h"

#define CHUNK_STAMPS 16384

struct chunk {
    struct chunk *next;
    uint32_t used;
    struct simcuda_stamp stamps[CHUNK_STAMPS];
};

struct thread_log {
    struct thread_log *next;
    int32_t tid;
    struct chunk *first, *last;
};

#define NAME(name) [SIMCUDA_##name] = #name,
static const char *const names[SIMCUDA_FUNCTIONS] = {SIMCUDA_WORKING(NAME) SIMCUDA_TRIVIAL(NAME)};

static int64_t busy_ns[SIMCUDA_FUNCTIONS], calls[SIMCUDA_FUNCTIONS];
static int errors[SIMCUDA_FUNCTIONS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct thread_log *logs, **logs_end = &logs;
static __thread struct thread_log *own;

static int find_function(const char *name)
{
    for (int i = 0; i < SIMCUDA_FUNCTIONS; i++)
        if (!strcmp(names[i], name))
            return i;
    return -1;
}

int simcuda_set_ns(const char *name, int64_t ns)
{
    int function = find_function(name);

    if (function < 0 || function >= SIMCUDA_TRIVIAL_FIRST || ns < 0)
        return -1;
    __atomic_store_n(&busy_ns[function], ns, __ATOMIC_RELAXED);
    return 0;
}

int64_t simcuda_ns(uint32_t function)
{
    return __atomic_load_n(&busy_ns[function], __ATOMIC_RELAXED);
}

int simcuda_fail(const char *name, int error)
{
    int function = find_function(name);

    if (function < 0)
        return -1;
    __atomic_store_n(&errors[function], error, __ATOMIC_RELAXED);
    return 0;
}

int simcuda_error(uint32_t function)
{
    return __atomic_load_n(&errors[function], __ATOMIC_RELAXED);
}

int64_t simcuda_calls(const char *name)
{
    int function = find_function(name);

    return function < 0 ? -1 : __atomic_load_n(&calls[function], __ATOMIC_RELAXED);
}

void simcuda_count(uint32_t function)
{
    __atomic_fetch_add(&calls[function], 1, __ATOMIC_RELAXED);
}

const char *simcuda_name(uint32_t function)
{
    return function < SIMCUDA_FUNCTIONS ? names[function] : NULL;
}

__attribute__((constructor)) static void read_environment(void)
{
    const char *given = getenv("SIMCUDA_NS");
    char *copy = given ? strdup(given) : NULL, *rest = copy, *item;

    while (copy && (item = strsep(&rest, ","))) {
        char *end, *equals = strchr(item, '=');
        if (!*item)
            continue;
        if (equals)
            *equals++ = '\0';
        int64_t ns = equals ? strtoll(equals, &end, 10) : -1;
        if (!equals || end == equals || *end || simcuda_set_ns(item, ns)) {
            fprintf(stderr, "simcuda: SIMCUDA_NS: \"%s\" is not NAME=NS with a function that takes time.\n", item);
            abort(); /* a typing error must not become a wrong truth */
        }
    }
    free(copy);
}

static void *touched(size_t size)
{
    void *memory = malloc(size);

    if (!memory)
        abort();
    memset(memory, 0, size); /* page faults happen here, not in the middle of a call */
    return memory;
}

static struct chunk *reserve(void)
{
    if (!own) {
        struct thread_log *log = touched(sizeof *log);

        log->tid = (int32_t)syscall(SYS_gettid);
        log->first = log->last = touched(sizeof *log->first);
        pthread_mutex_lock(&lock);
        *logs_end = log;
        logs_end = &log->next;
        pthread_mutex_unlock(&lock);
        own = log;
    }
    if (own->last->used == CHUNK_STAMPS) {
        own->last->next = touched(sizeof *own->last);
        own->last = own->last->next;
    }
    return own->last;
}

void simcuda_note(int64_t time_ns, uint32_t kind, uint32_t function)
{
    struct chunk *chunk = reserve();

    chunk->stamps[chunk->used++] = (struct simcuda_stamp){time_ns, kind, function};
}

static struct thread_log *find_thread(uint32_t thread)
{
    struct thread_log *log = logs;

    while (log && thread--)
        log = log->next;
    if (!log)
        abort();
    return log;
}

uint32_t simcuda_threads(void)
{
    uint32_t count = 0;

    for (struct thread_log *log = logs; log; log = log->next)
        count++;
    return count;
}

int32_t simcuda_thread_tid(uint32_t thread)
{
    return find_thread(thread)->tid;
}

uint64_t simcuda_thread_size(uint32_t thread)
{
    uint64_t size = 0;

    for (struct chunk *chunk = find_thread(thread)->first; chunk; chunk = chunk->next)
        size += chunk->used;
    return size;
}

uint64_t simcuda_thread_copy(uint32_t thread, struct simcuda_stamp *out, uint64_t capacity)
{
    uint64_t copied = 0;

    for (struct chunk *chunk = find_thread(thread)->first; chunk; chunk = chunk->next) {
        uint64_t n = chunk->used < capacity - copied ? chunk->used : capacity - copied;

        memcpy(out + copied, chunk->stamps, n * sizeof *out);
        copied += n;
    }
    return copied;
}
