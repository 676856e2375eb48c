/* SPDX-License-Identifier: Apache-2.0
 *
 * The stopwatch of the known-truth programs: each thread keeps a log of when it entered and left a category.
 *
 * A boundary function calls truth_enter() as its first action and truth_leave() as its last, so that whatever a
 * profiler's probe costs at the function's entry and exit lies outside of what the log says.
 */
#ifndef TRUTH_CLOCK_H
#define TRUTH_CLOCK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum truth_category { /* numbered as enum rls_category in probes/abi.h */
    TRUTH_PYTHON = 0,
    TRUTH_SIMULATOR = 1,
    TRUTH_BACKEND = 2,
    TRUTH_OTHER = 4,
};

enum truth_kind {
    TRUTH_ENTER = 1,  /* value: the category entered */
    TRUTH_LEAVE = 2,  /* value: 0 */
    TRUTH_UNWIND = 3, /* value: the depth that is left of the stack of categories */
};

struct truth_stamp {
    int64_t time_ns; /* CLOCK_MONOTONIC */
    uint32_t kind;
    uint32_t value;
};

#define TRUTH_API __attribute__((visibility("default")))

TRUTH_API int64_t truth_now(void);
TRUTH_API void truth_enter(uint32_t category);
TRUTH_API void truth_leave(void);
TRUTH_API uint32_t truth_depth(void);
TRUTH_API void truth_unwind(uint32_t depth); /* frames above `depth` ended by an exception or a longjmp */
TRUTH_API void truth_spin(int64_t ns);       /* keeps the CPU busy; the category is the one entered last */

/* Reading the logs; only while no other thread writes. */
TRUTH_API uint32_t truth_threads(void);
TRUTH_API int32_t truth_thread_tid(uint32_t thread);
TRUTH_API uint64_t truth_thread_size(uint32_t thread);
TRUTH_API uint64_t truth_thread_copy(uint32_t thread, struct truth_stamp *out, uint64_t capacity);
TRUTH_API int64_t truth_requested_ns(uint32_t category); /* sum of all spins asked for in the category */

#ifdef __cplusplus
}
#endif
#endif
