/* SPDX-License-Identifier: Apache-2.0
 *
 * What every simulated function does at its entry and at its exit.
 */
#ifndef SIMCUDA_CALL_H
#define SIMCUDA_CALL_H

#include <stdint.h>
#include <time.h>

#include "simcuda.h"

/* Functions that take time and are stamped. */
#define SIMCUDA_WORKING(X)                                                                                             \
    X(cuInit)                                                                                                          \
    X(cuCtxSynchronize)                                                                                                \
    X(cuModuleLoadData)                                                                                                \
    X(cuLaunchKernel)                                                                                                  \
    X(cuLaunchKernel_ptsz)                                                                                             \
    X(cuLaunchKernelEx)                                                                                                \
    X(cuMemcpyHtoDAsync_v2)                                                                                            \
    X(cuMemcpyDtoHAsync_v2)                                                                                            \
    X(cuMemcpyDtoDAsync_v2)                                                                                            \
    X(cuMemsetD8Async)                                                                                                 \
    X(cuMemAlloc_v2)                                                                                                   \
    X(cuMemFree_v2)                                                                                                    \
    X(cuStreamCreate)                                                                                                  \
    X(cuStreamSynchronize)                                                                                             \
    X(cuStreamWaitEvent)                                                                                               \
    X(cuEventCreate)                                                                                                   \
    X(cuEventRecord)                                                                                                   \
    X(cuEventSynchronize)                                                                                              \
    X(cuGraphInstantiateWithFlags)                                                                                     \
    X(cuGraphLaunch)                                                                                                   \
    X(cudaLaunchKernel)                                                                                                \
    X(cudaLaunchKernelExC)                                                                                             \
    X(cudaMemcpyAsync)                                                                                                 \
    X(cudaMalloc)                                                                                                      \
    X(cudaFree)                                                                                                        \
    X(cudaStreamCreate)                                                                                                \
    X(cudaStreamSynchronize)                                                                                           \
    X(cudaDeviceSynchronize)                                                                                           \
    X(cudaEventCreate)                                                                                                 \
    X(cudaEventRecord)                                                                                                 \
    X(cudaGraphLaunch)

/* Functions that are only counted. */
#define SIMCUDA_TRIVIAL(X)                                                                                             \
    X(cuCtxGetDevice)                                                                                                  \
    X(cuDevicePrimaryCtxGetState)                                                                                      \
    X(cuGraphAddKernelNode_v2)                                                                                         \
    X(cuGraphCreate)                                                                                                   \
    X(cudaGetDevice)                                                                                                   \
    X(cudaGetLastError)

#define SIMCUDA_ENUM(name) SIMCUDA_##name,
enum simcuda_function {
    SIMCUDA_WORKING(SIMCUDA_ENUM) SIMCUDA_TRIVIAL_FIRST,
    SIMCUDA_BEFORE_TRIVIAL = SIMCUDA_TRIVIAL_FIRST - 1,
    SIMCUDA_TRIVIAL(SIMCUDA_ENUM) SIMCUDA_FUNCTIONS
};

/* Counts a call. */
SIMCUDA_API void simcuda_count(uint32_t function);
/* Puts a stamp into the thread's log. */
SIMCUDA_API void simcuda_note(int64_t time_ns, uint32_t kind, uint32_t function);
/* The time set for a function. */
SIMCUDA_API int64_t simcuda_ns(uint32_t function);

/* The error that a function was told to fail with, or 0. */
SIMCUDA_API int simcuda_error(uint32_t function);

/* A call as a profiler in the process sees it. Every call of the driver begins and ends here, and those of the runtime,
 * also of a runtime linked into a program, that take time. */
enum simcuda_domain { SIMCUDA_DRIVER = 1, SIMCUDA_RUNTIME = 2 };
SIMCUDA_API void simcuda_begin(uint32_t domain, uint32_t function);
SIMCUDA_API void simcuda_end(uint32_t domain, uint32_t function, int result);

static inline int64_t simcuda_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline void simcuda_spin_until(int64_t end)
{
    while (simcuda_now() < end)
        ;
}

#endif
