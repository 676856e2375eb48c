/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated driver, libcuda.so.1. What it does and does not do: simcuda.h.
 */
#include <stdlib.h>
#include <string.h>

#include "simcuda_call.h"

struct CUmod_st {
    int unused;
};
struct CUstream_st {
    int unused;
};
struct CUevent_st {
    int recorded;
};
struct CUgraph_st {
    int unused;
};
struct CUgraphExec_st {
    int unused;
};

static int initialised;

/* A call, from its entry on: its stamp, then its time. */
static void enter(uint32_t function)
{
    int64_t now = simcuda_now(); /* before anything else */

    simcuda_count(function);
    simcuda_note(now, SIMCUDA_ENTER, function);
    simcuda_spin_until(now + simcuda_ns(function));
}

static CUresult leave(uint32_t function, CUresult result)
{
    if (!initialised && function != SIMCUDA_cuInit)
        result = CUDA_ERROR_NOT_INITIALIZED;
    simcuda_note(simcuda_now(), SIMCUDA_LEAVE, function);
    return result;
}

static CUresult counted(uint32_t function)
{
    simcuda_count(function);
    return initialised ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult make(void *handle, size_t size)
{
    void *object = handle && initialised ? calloc(1, size) : NULL;

    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    *(void **)handle = object;
    return object ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuInit(unsigned int Flags)
{
    enter(SIMCUDA_cuInit);
    if (!Flags)
        initialised = 1;
    return leave(SIMCUDA_cuInit, Flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    CUresult result = counted(SIMCUDA_cuCtxGetDevice);

    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    *device = 0;
    return result;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
    CUresult result = counted(SIMCUDA_cuDevicePrimaryCtxGetState);

    if (dev || !flags || !active)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = 0;
    *active = 1;
    return result;
}

CUresult cuCtxSynchronize(void)
{
    enter(SIMCUDA_cuCtxSynchronize);
    return leave(SIMCUDA_cuCtxSynchronize, CUDA_SUCCESS);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    enter(SIMCUDA_cuModuleLoadData);
    return leave(SIMCUDA_cuModuleLoadData, image ? make(module, sizeof **module) : CUDA_ERROR_INVALID_VALUE);
}

static CUresult check_launch(CUfunction f, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                             unsigned int block_x, unsigned int block_y, unsigned int block_z)
{
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    return grid_x && grid_y && grid_z && block_x && block_y && block_z ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                        unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                        unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra)
{
    enter(SIMCUDA_cuLaunchKernel);
    return leave(SIMCUDA_cuLaunchKernel,
                 check_launch(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ));
}

CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                             unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                             unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra)
{
    enter(SIMCUDA_cuLaunchKernel_ptsz);
    return leave(SIMCUDA_cuLaunchKernel_ptsz,
                 check_launch(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ));
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra)
{
    enter(SIMCUDA_cuLaunchKernelEx);
    return leave(SIMCUDA_cuLaunchKernelEx,
                 config ? check_launch(f, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                                       config->blockDimY, config->blockDimZ)
                        : CUDA_ERROR_INVALID_VALUE);
}

static void *address(CUdeviceptr pointer)
{
    return (void *)(uintptr_t)pointer;
}

static CUresult copy(void *to, const void *from, size_t size)
{
    if (size && !(to && from))
        return CUDA_ERROR_INVALID_VALUE;
    if (size)
        memcpy(to, from, size);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream)
{
    enter(SIMCUDA_cuMemcpyHtoDAsync_v2);
    return leave(SIMCUDA_cuMemcpyHtoDAsync_v2, copy(address(dstDevice), srcHost, ByteCount));
}

CUresult cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
{
    enter(SIMCUDA_cuMemcpyDtoHAsync_v2);
    return leave(SIMCUDA_cuMemcpyDtoHAsync_v2, copy(dstHost, address(srcDevice), ByteCount));
}

CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream)
{
    enter(SIMCUDA_cuMemsetD8Async);
    if (dstDevice)
        memset(address(dstDevice), uc, N);
    return leave(SIMCUDA_cuMemsetD8Async, dstDevice || !N ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;

    enter(SIMCUDA_cuMemAlloc_v2);
    if (dptr && bytesize) {
        *dptr = initialised ? (uintptr_t)malloc(bytesize) : 0;
        result = *dptr ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    return leave(SIMCUDA_cuMemAlloc_v2, result);
}

CUresult cuMemFree_v2(CUdeviceptr dptr)
{
    enter(SIMCUDA_cuMemFree_v2);
    free(address(dptr));
    return leave(SIMCUDA_cuMemFree_v2, CUDA_SUCCESS);
}

CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags)
{
    enter(SIMCUDA_cuStreamCreate);
    return leave(SIMCUDA_cuStreamCreate, make(phStream, sizeof **phStream));
}

CUresult cuStreamSynchronize(CUstream hStream)
{
    enter(SIMCUDA_cuStreamSynchronize);
    return leave(SIMCUDA_cuStreamSynchronize, CUDA_SUCCESS);
}

CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
    enter(SIMCUDA_cuEventCreate);
    return leave(SIMCUDA_cuEventCreate, make(phEvent, sizeof **phEvent));
}

CUresult cuEventRecord(CUevent hEvent, CUstream hStream)
{
    enter(SIMCUDA_cuEventRecord);
    if (hEvent)
        hEvent->recorded = 1;
    return leave(SIMCUDA_cuEventRecord, hEvent ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuEventSynchronize(CUevent hEvent)
{
    enter(SIMCUDA_cuEventSynchronize);
    return leave(SIMCUDA_cuEventSynchronize, hEvent ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuGraphCreate(CUgraph *phGraph, unsigned int flags)
{
    CUresult result = counted(SIMCUDA_cuGraphCreate);

    return result ? result : make(phGraph, sizeof **phGraph);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags)
{
    enter(SIMCUDA_cuGraphInstantiateWithFlags);
    return leave(SIMCUDA_cuGraphInstantiateWithFlags,
                 hGraph ? make(phGraphExec, sizeof **phGraphExec) : CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream)
{
    enter(SIMCUDA_cuGraphLaunch);
    return leave(SIMCUDA_cuGraphLaunch, hGraphExec ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}
