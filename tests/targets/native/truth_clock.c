/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "truth_clock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CHUNK_STAMPS 16384
#define STACK_DEPTH 1024
#define CATEGORIES 5

struct chunk {
    struct chunk *next;
    uint32_t used;
    struct truth_stamp stamps[CHUNK_STAMPS];
};

struct thread_log {
    struct thread_log *next;
    int32_t tid;
    struct chunk *first, *last;
    int64_t requested_ns[CATEGORIES];
    uint32_t depth;
    uint8_t stack[STACK_DEPTH];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct thread_log *logs, **logs_end = &logs; /* logs outlive their threads */
static __thread struct thread_log *own;

int64_t truth_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void *touched(size_t size)
{
    void *memory = malloc(size);

    if (!memory)
        abort();
    memset(memory, 0, size); /* page faults happen here, not in the middle of a measured stretch */
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

static void store(struct chunk *chunk, int64_t time_ns, uint32_t kind, uint32_t value)
{
    chunk->stamps[chunk->used++] = (struct truth_stamp){time_ns, kind, value};
}

void truth_enter(uint32_t category)
{
    int64_t now = truth_now(); /* before anything else */

    store(reserve(), now, TRUTH_ENTER, category);
    if (own->depth >= STACK_DEPTH)
        abort();
    own->stack[own->depth++] = (uint8_t)category;
}

void truth_leave(void)
{
    struct chunk *chunk = reserve();

    if (!own->depth)
        abort();
    own->depth--;
    store(chunk, truth_now(), TRUTH_LEAVE, 0); /* after everything else */
}

uint32_t truth_depth(void)
{
    reserve();
    return own->depth;
}

void truth_unwind(uint32_t depth)
{
    struct chunk *chunk = reserve();

    if (depth > own->depth)
        abort();
    own->depth = depth;
    store(chunk, truth_now(), TRUTH_UNWIND, depth);
}

void truth_spin(int64_t ns)
{
    int64_t end = truth_now() + ns;

    reserve();
    own->requested_ns[own->depth ? own->stack[own->depth - 1] : TRUTH_OTHER] += ns;
    while (truth_now() < end)
        ;
}

static struct thread_log *find(uint32_t thread)
{
    struct thread_log *log = logs;

    while (log && thread--)
        log = log->next;
    if (!log)
        abort();
    return log;
}

uint32_t truth_threads(void)
{
    uint32_t count = 0;

    for (struct thread_log *log = logs; log; log = log->next)
        count++;
    return count;
}

int32_t truth_thread_tid(uint32_t thread)
{
    return find(thread)->tid;
}

uint64_t truth_thread_size(uint32_t thread)
{
    uint64_t size = 0;

    for (struct chunk *chunk = find(thread)->first; chunk; chunk = chunk->next)
        size += chunk->used;
    return size;
}

uint64_t truth_thread_copy(uint32_t thread, struct truth_stamp *out, uint64_t capacity)
{
    uint64_t copied = 0;

    for (struct chunk *chunk = find(thread)->first; chunk; chunk = chunk->next) {
        uint64_t n = chunk->used < capacity - copied ? chunk->used : capacity - copied;

        memcpy(out + copied, chunk->stamps, n * sizeof *out);
        copied += n;
    }
    return copied;
}

int64_t truth_requested_ns(uint32_t category)
{
    int64_t sum = 0;

    for (struct thread_log *log = logs; log; log = log->next)
        sum += log->requested_ns[category % CATEGORIES];
    return sum;
}
