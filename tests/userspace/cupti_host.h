/* SPDX-License-Identifier: Apache-2.0
 *
 * A program that uses the simulated GPU and listens to the CUPTI helper in itself, as a profiler does from outside: the
 * first byte of each probed function is made a breakpoint, whose handler takes the arguments and skips what stood there.
 */
#ifndef CUPTI_HOST_H
#define CUPTI_HOST_H

#include <stdio.h>
#include <stdlib.h>

#include "cupti_helper.h"
#include "simcuda.h"

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            host_print_state();                                                                                        \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define CUDA(call) CHECK((call) == CUDA_SUCCESS)

/* Everything that was heard. Only the helper's thread writes; look when it is dormant. */
#define HOST_RECORDS (1u << 20)
#define HOST_NAMES 32769
struct host_name {
    uint32_t told, length;
    char text[RLSCOPE_GPU_NAME_MAX + 1];
};
extern struct host_heard {
    uint64_t records, batches, missed, names, statuses;
    uint32_t largest_batch;
    struct rlscope_gpu_record record[HOST_RECORDS];
    struct host_name name[HOST_NAMES];
} *heard;

void host_prepare(void);
void host_listen(int on);
void host_forget(void);
uint64_t host_heard_of(uint8_t kind, uint64_t *total_ns);
/* Waits until the helper is in the state; the program fails if it takes half a minute. */
void host_await(uint32_t state);
void host_start(uint32_t flags);
void host_stop(void);
void host_pause(uint64_t ns);
void host_print_state(void);
/* The simulated CUPTI's settings and counts, in whichever libcupti the helper opened. */
int64_t host_cupti(const char *name);
void host_misbehave(const char *name, int64_t value);
/* Nothing of ours is left in CUPTI. */
void host_check_clean(void);
#define COUNTER(name) load(rlscope_gpu_state.counters.name)

#endif
