/* SPDX-License-Identifier: Apache-2.0
 *
 * A simulated GPU that several processes share: a file in memory which each of them maps, named by SIMCUDA_SHARED.
 *
 * What is true of it
 *
 * - It does one thing at a time. Whatever is enqueued, by whichever process and on whichever stream, starts after
 *   everything that was enqueued before it by anybody. So the time in which it works is the sum of all durations,
 *   exactly, and a process's is the sum of its own.
 * - For NVML it keeps in which ticks (SIMCUDA_TICK_NS) which process had a kernel running, however short.
 * - The file begins as zeros: an empty file is made by whoever wants a new device, and removed by the same.
 */
#ifndef SIMCUDA_SHARED_H
#define SIMCUDA_SHARED_H

#include <pthread.h>
#include <stdint.h>

#define SIMCUDA_TICK_NS 10000000
#define SIMCUDA_TICKS 16384 /* a power of two; so far back, and ahead, it is known what ran */
#define SIMCUDA_PROCESSES 64

struct simcuda_shared_work {
    int64_t kernels, activities; /* activities: copies and sets, too */
    int64_t busy_ns, first_start, last_end;
    int64_t gap_ns; /* the longest time between two activities */
};

struct simcuda_shared {
    uint32_t ready; /* 1 once the lock has been made */
    uint32_t processes;
    pthread_mutex_t lock;
    struct simcuda_shared_work all, of[SIMCUDA_PROCESSES];
    int32_t pids[SIMCUDA_PROCESSES];
    struct {
        int64_t number;
        uint64_t running; /* bit: index of a process */
    } ticks[SIMCUDA_TICKS];
};

/* NULL: there is none. What is wrong with the file ends the program: it must not become a wrong truth. */
struct simcuda_shared *simcuda_shared_device(void);
/* When it starts; `earliest` is what the stream and the call allow. */
int64_t simcuda_shared_append(struct simcuda_shared *device, int64_t earliest, int64_t duration, int is_kernel);
/* Percent of the ticks from `first` to before `last` in which a kernel was running; index of a process, or -1: any. */
unsigned int simcuda_shared_percent(struct simcuda_shared *device, int64_t first, int64_t last, int process);

#endif
