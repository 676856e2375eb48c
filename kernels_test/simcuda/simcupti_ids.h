/* SPDX-License-Identifier: Apache-2.0
 *
 * CUPTI's ids of the simulated functions, and the sizes of its records; those that differ, for CUDA 12.1 and 13.0.
 */
#ifndef SIMCUPTI_IDS_H
#define SIMCUPTI_IDS_H

#define SIMCUPTI_DRIVER_IDS(X)                                                                                         \
    X(cuInit, 1)                                                                                                       \
    X(cuCtxGetDevice, 16)                                                                                              \
    X(cuCtxSynchronize, 17)                                                                                            \
    X(cuModuleLoadData, 19)                                                                                            \
    X(cuEventCreate, 118)                                                                                              \
    X(cuEventRecord, 119)                                                                                              \
    X(cuEventSynchronize, 121)                                                                                         \
    X(cuStreamCreate, 124)                                                                                             \
    X(cuStreamSynchronize, 126)                                                                                        \
    X(cuMemsetD8Async, 216)                                                                                            \
    X(cuMemAlloc_v2, 243)                                                                                              \
    X(cuMemFree_v2, 245)                                                                                               \
    X(cuMemcpyHtoDAsync_v2, 277)                                                                                       \
    X(cuMemcpyDtoHAsync_v2, 279)                                                                                       \
    X(cuMemcpyDtoDAsync_v2, 281)                                                                                       \
    X(cuStreamWaitEvent, 295)                                                                                          \
    X(cuLaunchKernel, 307)                                                                                             \
    X(cuDevicePrimaryCtxGetState, 392)                                                                                 \
    X(cuLaunchKernel_ptsz, 442)                                                                                        \
    X(cuGraphCreate, 501)                                                                                              \
    X(cuGraphLaunch, 514)                                                                                              \
    X(cuGraphInstantiateWithFlags, 643)                                                                                \
    X(cuLaunchKernelEx, 652)                                                                                           \
    X(cuGraphAddKernelNode_v2, 689)

/* name, version in CUPTI's name of it, id */
#define SIMCUPTI_RUNTIME_IDS(X)                                                                                        \
    X(cudaMalloc, 3020, 20)                                                                                            \
    X(cudaFree, 3020, 22)                                                                                              \
    X(cudaMemcpyAsync, 3020, 41)                                                                                       \
    X(cudaStreamCreate, 3020, 129)                                                                                     \
    X(cudaStreamSynchronize, 3020, 131)                                                                                \
    X(cudaEventCreate, 3020, 133)                                                                                      \
    X(cudaEventRecord, 3020, 135)                                                                                      \
    X(cudaDeviceSynchronize, 3020, 165)                                                                                \
    X(cudaLaunchKernel, 7000, 211)                                                                                     \
    X(cudaGraphLaunch, 10000, 311)                                                                                     \
    X(cudaLaunchKernelExC, 11060, 430)

#define SIMCUPTI_KERNEL_12 208
#define SIMCUPTI_KERNEL_13 216
#define SIMCUPTI_MEMCPY_12 88
#define SIMCUPTI_MEMCPY_13 96
#define SIMCUPTI_MEMSET 88
#define SIMCUPTI_SYNC_12 40
#define SIMCUPTI_SYNC_13 56

#endif
