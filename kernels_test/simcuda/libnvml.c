/* SPDX-License-Identifier: Apache-2.0
 *
 * A simulated NVML, libnvidia-ml.so.1, as far as nvidia-ml-py asks it about utilisation. What it says is set by the
 * environment: SIMNVML="devices=2,utilization=97" (at first one device, 97 %); the second device reports one percent
 * less than the first, and so on. It has no process on any of them but SIMNVML's "user".
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

struct utilization {
    unsigned int gpu, memory;
};

struct process {
    unsigned int pid;
    unsigned long long used_memory;
    unsigned int gpu_instance, compute_instance;
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
    utilization->gpu = setting("utilization", 97) - ((unsigned int)device - 1);
    utilization->memory = 0;
    return SUCCESS;
}

API int nvmlDeviceGetComputeRunningProcesses_v3(uintptr_t device, unsigned int *count, struct process *processes)
{
    unsigned int user = setting("user", 0), room = *count;

    *count = user != 0;
    if (!user)
        return SUCCESS;
    if (!room || !processes)
        return INSUFFICIENT_SIZE;
    processes[0] = (struct process){.pid = user};
    return SUCCESS;
}
