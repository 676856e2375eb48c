/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of librlscope_cupti.so share.
 *
 * Threads: those of the program enter through CUPTI's callbacks (cupti_launches.c, and the two callbacks for buffers in
 * cupti_records.c), never wait there and take no lock. Everything else is done by one thread of the library's own.
 */
#ifndef RLSCOPE_CUPTI_HELPER_H
#define RLSCOPE_CUPTI_HELPER_H

#include <time.h>

#include "cupti_abi.h"
#include "rlscope_cupti.h"

#define load(place) __atomic_load_n(&(place), __ATOMIC_RELAXED)
#define load_acquire(place) __atomic_load_n(&(place), __ATOMIC_ACQUIRE)
#define store(place, value) __atomic_store_n(&(place), (value), __ATOMIC_RELAXED)
#define store_release(place, value) __atomic_store_n(&(place), (value), __ATOMIC_RELEASE)
/* True if `place` was `from`; it is `to` then. */
#define exchange(place, from, to)                                                                                      \
    __extension__({                                                                                                    \
        __typeof__(place) expected_ = (from);                                                                          \
        __atomic_compare_exchange_n(&(place), &expected_, (to), 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);                \
    })
#define count_many(counter, n)                                                                                         \
    ((void)__atomic_fetch_add(&rlscope_gpu_state.counters.counter, (uint64_t)(n), __ATOMIC_RELAXED))
#define count(counter) count_many(counter, 1)

static inline uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* -- cupti_library.c: CUPTI's functions, through which all calls go --------------------------------------------- */

struct cupti {
    void *handle; /* null: none */
#define CU_POINTER(name, arguments) int(*name) arguments;
    CU_REQUIRED(CU_POINTER) CU_OPTIONAL(CU_POINTER)
#undef CU_POINTER
};
extern struct cupti cupti;

enum cupti_call {
    CUPTI_CALL_NONE,
#define CU_NUMBER(name, arguments) CALL_##name,
    CU_REQUIRED(CU_NUMBER) CU_OPTIONAL(CU_NUMBER)
#undef CU_NUMBER
};

/* The result of a call; one that failed is counted. */
int cupti_result(enum cupti_call call, int result);
#define CUPTI(name, ...) cupti_result(CALL_##name, cupti.name(__VA_ARGS__))

/* Finds a libcupti, the one in the process first, and fills in `cupti`. True if it did. It is never closed again. */
int cupti_open(void);

/* -- cupti_launches.c ------------------------------------------------------------------------------------------- */

/* Enables a callback for every function that gives the GPU work. True if it could. */
int launches_enable(void *subscriber);
void launches_disable(void *subscriber);
/* CUPTI's callback. */
void launches_callback(uint32_t function, const struct cu_callback_data *data);
/* Hands out what the threads have put down. */
void launches_drain(void);
/* Throws that away. */
void launches_discard(void);
/* Whether a graph was launched since launches_enable. */
int launches_of_graphs(void);
void launches_after_fork(void);

/* For a moment in which no other thread does anything: from now on every call of the driver and of the runtime is told
 * to launches_observed, which is true at the end of an outermost one. */
void launches_observe(void);
int launches_observed(const struct cu_callback_data *data);
/* What the other threads do that launched, or called anything since launches_observe; `calls`: how many they made. */
enum launches_others {
    OTHERS_NONE,        /* there are none */
    OTHERS_SLEEP,       /* they wait in the kernel, in no call */
    OTHERS_BUSY,        /* not now */
    OTHERS_INDEPENDENT, /* one was in a call while another was, or makes too few to know when it makes its next */
};
enum launches_others launches_others(uint64_t *calls);

/* -- cupti_records.c -------------------------------------------------------------------------------------------- */

/* Callbacks of CUPTI's. */
void records_request(uint8_t **buffer, size_t *size, size_t *records);
void records_complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);

/* Before CUPTI is told of the callbacks. Times before `since` are not accepted. */
void records_begin(uint64_t since);
/* Nothing more is expected: what comes is thrown away. */
void records_end(void);
/* Hands out all buffers that CUPTI has given back. `shift` is what CLOCK_MONOTONIC is ahead of CUPTI's clock;
 * `leaving`: a record without times was not over yet. */
void records_drain(int64_t shift, int leaving);
/* Throws them away, and counts the buffers. */
void records_discard(void);
/* Adds one record to the current batch; hands the batch out when it is full, or now. */
void records_add(const struct rlscope_gpu_record *record);
void records_hand_out(void);
/* Tells all names again. */
void records_tell_names(void);
/* Gives memory back. `all`: also that of buffers that CUPTI still has. */
void records_release(int all);

/* -- rlscope_cupti.c -------------------------------------------------------------------------------------------- */

/* Wakes the library's thread; may be called from any. */
void helper_wake(void);

#endif
