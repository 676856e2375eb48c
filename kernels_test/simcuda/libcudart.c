/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated runtime: libcudart.so.13 and, compiled with -DSIMCUDA_STATIC, libcudart_static.a. Linked into a program
 * its functions have no names that anybody could look for, so then only the driver's calls are stamped.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "simcuda_call.h"

#ifdef SIMCUDA_STATIC
#define STAMPED 0
#else
#define STAMPED 1
#endif

#define DRIVER_FUNCTIONS(X)                                                                                            \
    X(cuInit)                                                                                                          \
    X(cuCtxGetDevice)                                                                                                  \
    X(cuCtxSynchronize)                                                                                                \
    X(cuLaunchKernel)                                                                                                  \
    X(cuLaunchKernelEx)                                                                                                \
    X(cuMemcpyHtoDAsync_v2)                                                                                            \
    X(cuMemcpyDtoHAsync_v2)                                                                                            \
    X(cuMemAlloc_v2)                                                                                                   \
    X(cuMemFree_v2)                                                                                                    \
    X(cuStreamCreate)                                                                                                  \
    X(cuStreamSynchronize)                                                                                             \
    X(cuEventCreate)                                                                                                   \
    X(cuEventRecord)                                                                                                   \
    X(cuGraphLaunch)                                                                                                   \
    X(simcuda_begin)                                                                                                   \
    X(simcuda_end)                                                                                                     \
    X(simcuda_count)                                                                                                   \
    X(simcuda_note)                                                                                                    \
    X(simcuda_ns)

#define POINTER(name) __typeof__(&name) name;
static struct {
    DRIVER_FUNCTIONS(POINTER)
} driver;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static cudaError_t usable = cudaErrorInsufficientDriver;
static __thread cudaError_t last_error;

/* The first call finds the driver. */
static void find_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    int missing = 0;

    if (!library)
        return;
#define FIND(name) missing += !(driver.name = (__typeof__(driver.name))dlsym(library, #name));
    DRIVER_FUNCTIONS(FIND)
    if (!missing)
        usable = driver.cuInit(0) ? cudaErrorInsufficientDriver : cudaSuccess;
}

/* The first half of a call: what comes before the driver's part. */
static cudaError_t enter(uint32_t function)
{
    int64_t now = simcuda_now(); /* before anything else */

    pthread_once(&once, find_driver);
    if (usable)
        return usable;
    if (STAMPED) {
        driver.simcuda_count(function);
        driver.simcuda_note(now, SIMCUDA_ENTER, function);
    }
    driver.simcuda_begin(SIMCUDA_RUNTIME, function);
    simcuda_spin_until(now + driver.simcuda_ns(function) / 2);
    return cudaSuccess;
}

/* The second half. Error numbers of the driver and of the runtime are the same. */
static cudaError_t leave(uint32_t function, cudaError_t result)
{
    if (result)
        last_error = result;
    if (usable)
        return result;
    simcuda_spin_until(simcuda_now() + driver.simcuda_ns(function) / 2);
    driver.simcuda_end(SIMCUDA_RUNTIME, function, result);
    if (STAMPED)
        driver.simcuda_note(simcuda_now(), SIMCUDA_LEAVE, function);
    return result;
}

cudaError_t cudaLaunchKernel(const void *func, dim3 gridDim, dim3 blockDim, void **args, size_t sharedMem,
                             cudaStream_t stream)
{
    cudaError_t result = enter(SIMCUDA_cudaLaunchKernel);

    if (!result)
        result = driver.cuLaunchKernel((CUfunction)func, gridDim.x, gridDim.y, gridDim.z, blockDim.x, blockDim.y,
                                       blockDim.z, (unsigned int)sharedMem, stream, args, NULL);
    return leave(SIMCUDA_cudaLaunchKernel, result);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *func, void **args)
{
    cudaError_t result = enter(SIMCUDA_cudaLaunchKernelExC);

    if (!result && !config)
        result = cudaErrorInvalidValue;
    if (!result) {
        CUlaunchConfig passed = {
            config->gridDim.x,  config->gridDim.y,  config->gridDim.z,
            config->blockDim.x, config->blockDim.y, config->blockDim.z,
            (unsigned int)config->dynamicSmemBytes, config->stream, NULL, 0,
        };
        result = driver.cuLaunchKernelEx(&passed, (CUfunction)func, args, NULL);
    }
    return leave(SIMCUDA_cudaLaunchKernelExC, result);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    cudaError_t result = enter(SIMCUDA_cudaMemcpyAsync);

    if (!result) {
        if (kind == cudaMemcpyHostToDevice)
            result = driver.cuMemcpyHtoDAsync_v2((uintptr_t)dst, src, count, stream);
        else if (kind == cudaMemcpyDeviceToHost)
            result = driver.cuMemcpyDtoHAsync_v2(dst, (uintptr_t)src, count, stream);
        else
            result = cudaErrorNotSupported;
    }
    return leave(SIMCUDA_cudaMemcpyAsync, result);
}

cudaError_t cudaMalloc(void **devPtr, size_t size)
{
    cudaError_t result = enter(SIMCUDA_cudaMalloc);
    CUdeviceptr pointer = 0;

    if (!result)
        result = devPtr ? driver.cuMemAlloc_v2(&pointer, size) : cudaErrorInvalidValue;
    if (devPtr)
        *devPtr = (void *)(uintptr_t)pointer;
    return leave(SIMCUDA_cudaMalloc, result);
}

cudaError_t cudaFree(void *devPtr)
{
    cudaError_t result = enter(SIMCUDA_cudaFree);

    if (!result)
        result = driver.cuMemFree_v2((uintptr_t)devPtr);
    return leave(SIMCUDA_cudaFree, result);
}

cudaError_t cudaStreamCreate(cudaStream_t *pStream)
{
    cudaError_t result = enter(SIMCUDA_cudaStreamCreate);

    if (!result)
        result = driver.cuStreamCreate(pStream, 0);
    return leave(SIMCUDA_cudaStreamCreate, result);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    cudaError_t result = enter(SIMCUDA_cudaStreamSynchronize);

    if (!result)
        result = driver.cuStreamSynchronize(stream);
    return leave(SIMCUDA_cudaStreamSynchronize, result);
}

cudaError_t cudaDeviceSynchronize(void)
{
    cudaError_t result = enter(SIMCUDA_cudaDeviceSynchronize);

    if (!result)
        result = driver.cuCtxSynchronize();
    return leave(SIMCUDA_cudaDeviceSynchronize, result);
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    cudaError_t result = enter(SIMCUDA_cudaEventCreate);

    if (!result)
        result = driver.cuEventCreate(event, 0);
    return leave(SIMCUDA_cudaEventCreate, result);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    cudaError_t result = enter(SIMCUDA_cudaEventRecord);

    if (!result)
        result = driver.cuEventRecord(event, stream);
    return leave(SIMCUDA_cudaEventRecord, result);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream)
{
    cudaError_t result = enter(SIMCUDA_cudaGraphLaunch);

    if (!result)
        result = driver.cuGraphLaunch(graphExec, stream);
    return leave(SIMCUDA_cudaGraphLaunch, result);
}

cudaError_t cudaGetDevice(int *device)
{
    pthread_once(&once, find_driver);
    if (usable)
        return last_error = usable;
    if (STAMPED)
        driver.simcuda_count(SIMCUDA_cudaGetDevice);
    return driver.cuCtxGetDevice(device);
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t result = last_error;

    pthread_once(&once, find_driver);
    if (!usable && STAMPED)
        driver.simcuda_count(SIMCUDA_cudaGetLastError);
    last_error = cudaSuccess;
    return result;
}
