/* SPDX-License-Identifier: Apache-2.0
 *
 * A simulated NVML, libnvidia-ml.so.1, as far as nvidia-ml-py asks it about utilisation. What it says is set by the
 * environment: SIMNVML="devices=2,utilization=97" (at first one device, 97 %); the second device reports one percent
 * less than the first, and so on. It has no process on any of them but SIMNVML's "user".
 *
 * With SIMCUDA_SHARED, and unless "utilization" is set, it tells of the one device that processes share, as the real one
 * does: of the last whole period (SIMNVML's "period_ms", at first 200), in how much of it a kernel was running. It looks
 * by the tick (SIMCUDA_TICK_NS), and a tick in which anything ran, however short, counts whole.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "simcuda_shared.h"

#define API __attribute__((visibility("default")))

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

struct utilization {
    unsigned int gpu, memory;
};

struct process {
    unsigned int pid;
    unsigned long long used_memory;
    unsigned int gpu_instance, compute_instance;
};

struct process_sample {
    unsigned int pid;
    unsigned long long time_us;
    unsigned int kernels, memory, encoder, decoder; /* percent */
};

static unsigned int setting(const char *name, unsigned int otherwise)
{
    const char *at = getenv("SIMNVML");
    size_t length = strlen(name);

    for (; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (!strncmp(at, name, length) && at[length] == '=')
            return (unsigned int)strtoul(at + length + 1, NULL, 10);
    }
    return otherwise;
}

static unsigned int devices(void)
{
    return setting("devices", 1);
}

/* NULL: what is said is set by the environment. */
static struct simcuda_shared *told_of(void)
{
    return setting("utilization", ~0u) == ~0u ? simcuda_shared_device() : NULL;
}

/* The ticks of the last whole period; returns when it ended, in us. */
static unsigned long long last_period(int64_t *first, int64_t *last)
{
    int64_t length = setting("period_ms", 200) * (int64_t)1000000 / SIMCUDA_TICK_NS;
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    *last = (now.tv_sec * (int64_t)1000000000 + now.tv_nsec) / SIMCUDA_TICK_NS / length * length;
    *first = *last - length;
    return (unsigned long long)(*last * (SIMCUDA_TICK_NS / 1000));
}

API int nvmlInitWithFlags(unsigned int flags)
{
    return SUCCESS;
}

API int nvmlInit_v2(void)
{
    return SUCCESS;
}

API int nvmlShutdown(void)
{
    return SUCCESS;
}

API const char *nvmlErrorString(int result)
{
    return result ? "simulated error" : "Success";
}

API int nvmlDeviceGetCount_v2(unsigned int *count)
{
    *count = devices();
    return SUCCESS;
}

/* A handle is the device's number and one. */
API int nvmlDeviceGetHandleByIndex_v2(unsigned int index, uintptr_t *device)
{
    if (index >= devices())
        return INVALID_ARGUMENT;
    *device = index + 1;
    return SUCCESS;
}

API int nvmlDeviceGetName(uintptr_t device, char *name, unsigned int length)
{
    snprintf(name, length, "Simulated GPU");
    return SUCCESS;
}

API int nvmlDeviceGetUUID(uintptr_t device, char *uuid, unsigned int length)
{
    snprintf(uuid, length, "GPU-%08x-0000-0000-0000-000000000000", (unsigned int)device - 1);
    return SUCCESS;
}

API int nvmlDeviceGetUtilizationRates(uintptr_t device, struct utilization *utilization)
{
    struct simcuda_shared *shared = told_of();
    int64_t first, last;

    utilization->gpu = setting("utilization", 97) - ((unsigned int)device - 1);
    utilization->memory = 0;
    if (shared) {
        last_period(&first, &last);
        utilization->gpu = simcuda_shared_percent(shared, first, last, -1);
    }
    return SUCCESS;
}

API int nvmlDeviceGetProcessUtilization(uintptr_t device, struct process_sample *samples, unsigned int *count,
                                        unsigned long long last_seen_us)
{
    struct simcuda_shared *shared = told_of();
    unsigned int room = *count, processes;
    unsigned long long ended_us;
    int64_t first, last;

    if (!shared)
        return NOT_SUPPORTED;
    ended_us = last_period(&first, &last);
    *count = processes = __atomic_load_n(&shared->processes, __ATOMIC_ACQUIRE);
    if (!processes || ended_us <= last_seen_us)
        return NOT_FOUND;
    if (!samples || room < processes)
        return INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < processes; i++)
        samples[i] = (struct process_sample){
            .pid = (unsigned int)shared->pids[i],
            .time_us = ended_us,
            .kernels = simcuda_shared_percent(shared, first, last, (int)i),
        };
    return SUCCESS;
}

API int nvmlDeviceGetComputeRunningProcesses_v3(uintptr_t device, unsigned int *count, struct process *processes)
{
    unsigned int user = setting("user", 0), room = *count;
    struct simcuda_shared *shared = told_of();

    if (shared) {
        *count = __atomic_load_n(&shared->processes, __ATOMIC_ACQUIRE);
        if (*count && (room < *count || !processes))
            return INSUFFICIENT_SIZE;
        for (unsigned int i = 0; i < *count; i++)
            processes[i] = (struct process){.pid = (unsigned int)shared->pids[i]};
        return SUCCESS;
    }
    *count = user != 0;
    if (!user)
        return SUCCESS;
    if (!room || !processes)
        return INSUFFICIENT_SIZE;
    processes[0] = (struct process){.pid = user};
    return SUCCESS;
}
