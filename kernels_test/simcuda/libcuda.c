/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated driver, libcuda.so.1. What it does and does not do: simcuda.h.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "simcuda_call.h"
#include "simcuda_gpu.h"

struct CUmod_st {
    int unused;
};

static int initialised;

/* A call, from its entry on: its stamp, then its time. */
static void enter(uint32_t function)
{
    int64_t now = simcuda_now(); /* before anything else */

    simcuda_count(function);
    simcuda_note(now, SIMCUDA_ENTER, function);
    simcuda_begin(SIMCUDA_DRIVER, function);
    simcuda_spin_until(now + simcuda_ns(function));
}

static CUresult leave(uint32_t function, CUresult result)
{
    if (!initialised && function != SIMCUDA_cuInit)
        result = CUDA_ERROR_NOT_INITIALIZED;
    simcuda_end(SIMCUDA_DRIVER, function, result);
    simcuda_note(simcuda_now(), SIMCUDA_LEAVE, function);
    return result;
}

static CUresult counted(uint32_t function)
{
    CUresult result = initialised ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;

    simcuda_count(function);
    simcuda_begin(SIMCUDA_DRIVER, function);
    simcuda_end(SIMCUDA_DRIVER, function, result);
    return result;
}

/* Whether the call is to do its work: it was not told to fail, and its arguments are right. */
static int go(uint32_t function, CUresult *result)
{
    int error = simcuda_error(function);

    if (error)
        *result = error;
    return initialised && !*result;
}

static CUresult make(void **handle, size_t size)
{
    void *object = handle && initialised ? calloc(1, size) : NULL;

    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    *handle = object;
    return object ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* As the driver does: a library that CUDA_INJECTION64_PATH names is loaded and called once, before anything is launched. */
static void inject(void)
{
    const char *path = getenv("CUDA_INJECTION64_PATH");
    void *library = path && *path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    int (*initialize)(void) = NULL;

    if (library)
        *(void **)&initialize = dlsym(library, "InitializeInjection");
    if (initialize)
        initialize();
}

CUresult cuInit(unsigned int Flags)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, inject);
    enter(SIMCUDA_cuInit);
    if (!Flags)
        initialised = 1;
    return leave(SIMCUDA_cuInit, Flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
}

CUresult cuDriverGetVersion(int *version) /* not counted: only tools ask */
{
    *version = 13000;
    return CUDA_SUCCESS;
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
    CUresult result = CUDA_SUCCESS;

    enter(SIMCUDA_cuCtxSynchronize);
    if (go(SIMCUDA_cuCtxSynchronize, &result))
        simcuda_synchronize(SIMCUDA_SYNC_CONTEXT, NULL, NULL);
    return leave(SIMCUDA_cuCtxSynchronize, result);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    enter(SIMCUDA_cuModuleLoadData);
    return leave(SIMCUDA_cuModuleLoadData, image ? make((void **)module, sizeof **module) : CUDA_ERROR_INVALID_VALUE);
}

static CUresult launch(uint32_t function, CUstream stream, CUfunction f, unsigned int grid_x, unsigned int grid_y,
                       unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z)
{
    CUresult result = CUDA_SUCCESS;

    if (!f)
        result = CUDA_ERROR_INVALID_HANDLE;
    else if (!(grid_x && grid_y && grid_z && block_x && block_y && block_z))
        result = CUDA_ERROR_INVALID_VALUE;
    if (go(function, &result))
        simcuda_launch(f, stream);
    return result;
}

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                        unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                        unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra)
{
    enter(SIMCUDA_cuLaunchKernel);
    return leave(SIMCUDA_cuLaunchKernel, launch(SIMCUDA_cuLaunchKernel, hStream, f, gridDimX, gridDimY, gridDimZ,
                                 blockDimX, blockDimY, blockDimZ));
}

CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                             unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                             unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra)
{
    CUstream stream = hStream ? hStream : (CUstream)2;

    enter(SIMCUDA_cuLaunchKernel_ptsz);
    return leave(SIMCUDA_cuLaunchKernel_ptsz, launch(SIMCUDA_cuLaunchKernel_ptsz, stream, f, gridDimX, gridDimY,
                                                     gridDimZ, blockDimX, blockDimY, blockDimZ));
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra)
{
    enter(SIMCUDA_cuLaunchKernelEx);
    return leave(SIMCUDA_cuLaunchKernelEx,
                 config ? launch(SIMCUDA_cuLaunchKernelEx, config->hStream, f, config->gridDimX, config->gridDimY,
                                 config->gridDimZ, config->blockDimX, config->blockDimY, config->blockDimZ)
                        : CUDA_ERROR_INVALID_VALUE);
}

static void *address(CUdeviceptr pointer)
{
    return (void *)(uintptr_t)pointer;
}

static CUresult copy(uint32_t function, uint32_t direction, void *to, const void *from, size_t size, CUstream stream)
{
    CUresult result = size && !(to && from) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;

    if (go(function, &result) && size) {
        memcpy(to, from, size);
        simcuda_copy(direction, size, stream);
    }
    return result;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream)
{
    uint32_t function = SIMCUDA_cuMemcpyHtoDAsync_v2;

    enter(function);
    return leave(function, copy(function, SIMCUDA_HTOD, address(dstDevice), srcHost, ByteCount, hStream));
}

CUresult cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
{
    uint32_t function = SIMCUDA_cuMemcpyDtoHAsync_v2;

    enter(function);
    return leave(function, copy(function, SIMCUDA_DTOH, dstHost, address(srcDevice), ByteCount, hStream));
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
{
    uint32_t function = SIMCUDA_cuMemcpyDtoDAsync_v2;

    enter(function);
    return leave(function,
                 copy(function, SIMCUDA_DTOD, address(dstDevice), address(srcDevice), ByteCount, hStream));
}

CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream)
{
    CUresult result = dstDevice || !N ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;

    enter(SIMCUDA_cuMemsetD8Async);
    if (go(SIMCUDA_cuMemsetD8Async, &result) && N) {
        memset(address(dstDevice), uc, N);
        simcuda_set(N, hStream);
    }
    return leave(SIMCUDA_cuMemsetD8Async, result);
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    CUresult result = dptr && bytesize ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;

    enter(SIMCUDA_cuMemAlloc_v2);
    if (go(SIMCUDA_cuMemAlloc_v2, &result)) {
        *dptr = (uintptr_t)malloc(bytesize);
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
    CUresult result;

    enter(SIMCUDA_cuStreamCreate);
    result = make((void **)phStream, sizeof **phStream);
    if (!result)
        simcuda_new_stream(*phStream);
    return leave(SIMCUDA_cuStreamCreate, result);
}

CUresult cuStreamSynchronize(CUstream hStream)
{
    CUresult result = CUDA_SUCCESS;

    enter(SIMCUDA_cuStreamSynchronize);
    if (go(SIMCUDA_cuStreamSynchronize, &result))
        simcuda_synchronize(SIMCUDA_SYNC_STREAM, simcuda_stream(hStream), NULL);
    return leave(SIMCUDA_cuStreamSynchronize, result);
}

CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags)
{
    CUresult result = hEvent ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;

    enter(SIMCUDA_cuStreamWaitEvent);
    if (go(SIMCUDA_cuStreamWaitEvent, &result))
        simcuda_wait_event(hEvent, hStream);
    return leave(SIMCUDA_cuStreamWaitEvent, result);
}

CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
    enter(SIMCUDA_cuEventCreate);
    return leave(SIMCUDA_cuEventCreate, make((void **)phEvent, sizeof **phEvent));
}

CUresult cuEventRecord(CUevent hEvent, CUstream hStream)
{
    CUresult result = hEvent ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;

    enter(SIMCUDA_cuEventRecord);
    if (go(SIMCUDA_cuEventRecord, &result))
        simcuda_record_event(hEvent, hStream);
    return leave(SIMCUDA_cuEventRecord, result);
}

CUresult cuEventSynchronize(CUevent hEvent)
{
    CUresult result = hEvent ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;

    enter(SIMCUDA_cuEventSynchronize);
    if (go(SIMCUDA_cuEventSynchronize, &result))
        simcuda_synchronize(SIMCUDA_SYNC_EVENT, NULL, hEvent);
    return leave(SIMCUDA_cuEventSynchronize, result);
}

CUresult cuGraphCreate(CUgraph *phGraph, unsigned int flags)
{
    CUresult result = counted(SIMCUDA_cuGraphCreate);

    return result ? result : make((void **)phGraph, sizeof **phGraph);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                 size_t numDependencies, const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    CUresult result = counted(SIMCUDA_cuGraphAddKernelNode_v2);

    if (!result && !(phGraphNode && hGraph && nodeParams && nodeParams->func))
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result && hGraph->count == hGraph->capacity) {
        uint32_t capacity = 2 * hGraph->capacity + 8;
        const void **grown = realloc(hGraph->kernels, capacity * sizeof *grown);

        if (grown) {
            hGraph->kernels = grown;
            hGraph->capacity = capacity;
        } else {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (!result) {
        hGraph->kernels[hGraph->count++] = nodeParams->func;
        *phGraphNode = (CUgraphNode)(uintptr_t)hGraph->count;
    }
    return result;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags)
{
    CUresult result = hGraph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;

    enter(SIMCUDA_cuGraphInstantiateWithFlags);
    if (go(SIMCUDA_cuGraphInstantiateWithFlags, &result))
        result = make((void **)phGraphExec, sizeof **phGraphExec + hGraph->count * sizeof(void *));
    if (initialised && !result) {
        (*phGraphExec)->id = simcuda_new_graph();
        (*phGraphExec)->count = hGraph->count;
        if (hGraph->count)
            memcpy((*phGraphExec)->kernels, hGraph->kernels, hGraph->count * sizeof(void *));
    }
    return leave(SIMCUDA_cuGraphInstantiateWithFlags, result);
}

CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream)
{
    CUresult result = hGraphExec ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;

    enter(SIMCUDA_cuGraphLaunch);
    if (go(SIMCUDA_cuGraphLaunch, &result))
        simcuda_launch_graph(hGraphExec, hStream);
    return leave(SIMCUDA_cuGraphLaunch, result);
}
