/* SPDX-License-Identifier: Apache-2.0
 *
 * What the two halves of the simulated CUPTI share.
 */
#ifndef SIMCUPTI_STATE_H
#define SIMCUPTI_STATE_H

#include <pthread.h>

#include "simcuda_gpu.h"
#include "simcupti.h"

#define HIDDEN __attribute__((visibility("hidden")))

extern HIDDEN struct simcupti {
    pthread_mutex_t lock;
    int begun;
    uint64_t kinds; /* bit: kind enabled */
    cu_clock clock;
    int64_t buffers, records, dropped, dropped_ever;
    /* settings; read and written without the lock */
    int64_t zero, reversed, future, nameless, unknown, drop, broken, unordered, version;
} simcupti;

HIDDEN void simcupti_begin(void);
HIDDEN int simcupti_failure(const char *name);
/* What CUPTI's clock is ahead of CLOCK_MONOTONIC. The lock is held. */
HIDDEN int64_t simcupti_shift(void);
HIDDEN void simcupti_item(const struct simcuda_item *item);
HIDDEN void simcupti_call(const struct simcupti_api *call); /* times of CLOCK_MONOTONIC */
HIDDEN void simcupti_stop_worker(void);
/* The lock is held. */
HIDDEN void simcupti_forget_buffers(void);

#endif
