/* SPDX-License-Identifier: Apache-2.0
 *
 * For gpu_costs.py: what CUPTI calls back, doing as little as the GPU helper does; the time of calls; and cuptiFinalize
 * in the exit of a call.
 */
#define _GNU_SOURCE
#include "cupti_abi.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define BUFFER_BYTES (1u << 20)
#define KEPT 64

static int (*next_record)(uint8_t *buffer, size_t valid, void **record);
static int (*flush_all)(uint32_t flag);
static int (*finalize)(void);
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *kept[KEPT];
static int kept_count;
static volatile uint64_t records;

uint64_t costs_clock(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void costs_use(void *next_record_of, void *flush_all_of, void *finalize_of)
{
    *(void **)&next_record = next_record_of;
    *(void **)&flush_all = flush_all_of;
    *(void **)&finalize = finalize_of;
}

uint64_t costs_records(void)
{
    return records;
}

void costs_request(uint8_t **buffer, size_t *size, size_t *most)
{
    pthread_mutex_lock(&lock);
    *buffer = kept_count ? kept[--kept_count] : NULL;
    pthread_mutex_unlock(&lock);
    if (!*buffer)
        *buffer = aligned_alloc(64, BUFFER_BYTES);
    *size = *buffer ? BUFFER_BYTES : 0;
    *most = 0;
}

void costs_complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    void *record = NULL;

    (void)context, (void)stream, (void)size;
    while (valid && !next_record(buffer, valid, &record))
        __sync_fetch_and_add(&records, 1);
    pthread_mutex_lock(&lock);
    if (kept_count < KEPT)
        kept[kept_count++] = buffer;
    else
        free(buffer);
    pthread_mutex_unlock(&lock);
}

static int finalizing; /* 1: wanted, 2: done */
static __thread int depth;

__thread uint64_t costs_took[1024];

void costs_called(void *user, uint32_t domain, uint32_t function, const void *data)
{
    static __thread unsigned at;
    const struct cu_callback_data *call = data;

    (void)user, (void)domain, (void)function;
    if (__atomic_load_n(&finalizing, __ATOMIC_ACQUIRE) == 1) {
        if (call->site == CU_SITE_ENTER) {
            depth++;
        } else if (depth && !--depth) {
            finalize();
            __atomic_store_n(&finalizing, 2, __ATOMIC_RELEASE);
        }
    } else if (call->site == CU_SITE_ENTER) {
        *call->own = costs_clock();
    } else {
        costs_took[at++ % 1024] = costs_clock() - *call->own;
    }
}

void costs_want_finalize(void)
{
    __atomic_store_n(&finalizing, 1, __ATOMIC_RELEASE);
}

/* Whether it was done. */
int costs_finalized(void)
{
    return __atomic_exchange_n(&finalizing, 0, __ATOMIC_ACQ_REL) == 2;
}

static volatile int flushing;
static pthread_t flusher;

static void *flush(void *nothing)
{
    while (flushing) {
        flush_all(0);
        usleep(100000);
    }
    return nothing;
}

void costs_flush(int on)
{
    if (on == flushing)
        return;
    flushing = on;
    if (on)
        pthread_create(&flusher, NULL, flush, NULL);
    else
        pthread_join(flusher, NULL);
}

/* Whether the GPU helper believes that somebody listens: `records` begins with something else then, that does as little. */
int costs_listen(uint8_t *function, int on)
{
    static const uint8_t usual[] = {0x55, 0x5d}, other[] = {0x90, 0x90};
    uintptr_t page = (uintptr_t)function & ~(uintptr_t)4095;

    if (mprotect((void *)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC))
        return -1;
    memcpy(function, on ? other : usual, sizeof usual);
    return mprotect((void *)page, 8192, PROT_READ | PROT_EXEC);
}

/* ns per call of a function of CUDA's with these arguments; the least of several rounds. */
double costs_time(int (*function)(void *, void *, void *), void *a, void *b, void *c, int count)
{
    double best = 1e9;

    for (int round = 0; round < 9; round++) {
        uint64_t begin = costs_clock();
        for (int i = 0; i < count; i++)
            function(a, b, c);
        double each = (double)(costs_clock() - begin) / count;
        if (each < best)
            best = each;
    }
    return best;
}
