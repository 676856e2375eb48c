/* SPDX-License-Identifier: Apache-2.0
 *
 * A simulated CUDA for machines without a GPU: libcuda.so.1 (driver), libcudart.so.13 (runtime, shared) and
 * libcudart_static.a (runtime, linked into a program). Names, signatures and numbers are those of CUDA 13.
 *
 * What is true of it
 *
 * - A call that does work keeps its thread busy for the time set for it and notes when it began and ended, so a program
 *   knows exactly how long it spent in which call. Getters take no time and note nothing but how often they were called.
 * - A runtime call makes one driver call, half way through its own time. The runtime finds the driver with dlopen and
 *   dlsym when it is first used.
 * - Device memory is host memory. Copies and sets are done at once, in the calling thread.
 * - The GPU is a timeline (simcuda_gpu.c). Whatever is enqueued starts at max(now + latency, end of the stream's
 *   previous item, ends of the events the stream waits for) and takes the time set for it: both are known at once and
 *   never change. Kernels are opaque addresses and do nothing. Streams do not wait for the default stream.
 *   Synchronising waits until the last end. Each process has a GPU of its own, unless SIMCUDA_SHARED names a file: then
 *   all that name it share one (simcuda_shared.h), which does one thing at a time.
 * - Every outermost call has a correlation id, which the calls it makes and what they enqueue share, as in CUDA.
 * - libcupti.so.12 and .13 (simcupti.h) watch calls and timeline, and can be told to misbehave.
 */
#ifndef SIMCUDA_H
#define SIMCUDA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SIMCUDA_API __attribute__((visibility("default")))

/* -- driver ------------------------------------------------------------------------------------------------------- */

typedef int CUresult; /* an enumeration in CUDA; same size */
#define CUDA_SUCCESS 0
#define CUDA_ERROR_INVALID_VALUE 1
#define CUDA_ERROR_OUT_OF_MEMORY 2
#define CUDA_ERROR_NOT_INITIALIZED 3
#define CUDA_ERROR_INVALID_HANDLE 400
#define CUDA_ERROR_NOT_SUPPORTED 801

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction; /* any address but 0 */
typedef struct CUstream_st *CUstream; /* 0, 1, 2: the default streams */
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUgraphNode_st *CUgraphNode;

typedef struct CUDA_KERNEL_NODE_PARAMS_st {
    CUfunction func;
    unsigned int gridDimX, gridDimY, gridDimZ;
    unsigned int blockDimX, blockDimY, blockDimZ;
    unsigned int sharedMemBytes;
    void **kernelParams;
    void **extra;
    void *kern; /* ignored */
    void *ctx;  /* ignored */
} CUDA_KERNEL_NODE_PARAMS;

typedef struct CUlaunchConfig_st {
    unsigned int gridDimX, gridDimY, gridDimZ;
    unsigned int blockDimX, blockDimY, blockDimZ;
    unsigned int sharedMemBytes;
    CUstream hStream;
    void *attrs; /* CUlaunchAttribute; ignored */
    unsigned int numAttrs;
} CUlaunchConfig;

SIMCUDA_API CUresult cuInit(unsigned int Flags);
SIMCUDA_API CUresult cuDriverGetVersion(int *version);
SIMCUDA_API CUresult cuCtxGetDevice(CUdevice *device);
SIMCUDA_API CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active);
SIMCUDA_API CUresult cuCtxSynchronize(void);
SIMCUDA_API CUresult cuModuleLoadData(CUmodule *module, const void *image);
SIMCUDA_API CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                                    unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                                    unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra);
SIMCUDA_API CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                         unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                                         unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                                         void **kernelParams, void **extra);
SIMCUDA_API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra);
SIMCUDA_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount,
                                          CUstream hStream);
SIMCUDA_API CUresult cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream);
SIMCUDA_API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                                          CUstream hStream);
SIMCUDA_API CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream);
SIMCUDA_API CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize);
SIMCUDA_API CUresult cuMemFree_v2(CUdeviceptr dptr);
SIMCUDA_API CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags);
SIMCUDA_API CUresult cuStreamSynchronize(CUstream hStream);
SIMCUDA_API CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags);
SIMCUDA_API CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags);
SIMCUDA_API CUresult cuEventRecord(CUevent hEvent, CUstream hStream);
SIMCUDA_API CUresult cuEventSynchronize(CUevent hEvent);
SIMCUDA_API CUresult cuGraphCreate(CUgraph *phGraph, unsigned int flags);
/* The nodes of a graph run one after another, in the order in which they were added. */
SIMCUDA_API CUresult cuGraphAddKernelNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                             size_t numDependencies, const CUDA_KERNEL_NODE_PARAMS *nodeParams);
SIMCUDA_API CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags);
SIMCUDA_API CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream);

/* -- runtime ------------------------------------------------------------------------------------------------------ */

typedef int cudaError_t;
#define cudaSuccess 0
#define cudaErrorInvalidValue 1
#define cudaErrorInsufficientDriver 35
#define cudaErrorNotSupported 801

typedef CUstream cudaStream_t;
typedef CUevent cudaEvent_t;
typedef CUgraphExec cudaGraphExec_t;
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
typedef struct dim3 {
    unsigned int x, y, z;
} dim3;

typedef struct cudaLaunchConfig_st {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    void *attrs; /* cudaLaunchAttribute; ignored */
    unsigned int numAttrs;
} cudaLaunchConfig_t;

SIMCUDA_API cudaError_t cudaLaunchKernel(const void *func, dim3 gridDim, dim3 blockDim, void **args, size_t sharedMem,
                                         cudaStream_t stream);
SIMCUDA_API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *func, void **args);
SIMCUDA_API cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind,
                                        cudaStream_t stream); /* between host and device only */
SIMCUDA_API cudaError_t cudaMalloc(void **devPtr, size_t size);
SIMCUDA_API cudaError_t cudaFree(void *devPtr);
SIMCUDA_API cudaError_t cudaStreamCreate(cudaStream_t *pStream);
SIMCUDA_API cudaError_t cudaStreamSynchronize(cudaStream_t stream);
SIMCUDA_API cudaError_t cudaDeviceSynchronize(void);
SIMCUDA_API cudaError_t cudaEventCreate(cudaEvent_t *event);
SIMCUDA_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
SIMCUDA_API cudaError_t cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream);
SIMCUDA_API cudaError_t cudaGetDevice(int *device);
SIMCUDA_API cudaError_t cudaGetLastError(void);

/* -- what only the simulated one has; all of it lies in libcuda.so.1 ---------------------------------------------- */

/* Time that one call of a function keeps its thread busy, in ns; what it calls itself comes on top. At first 0, or what
 * the environment says: SIMCUDA_NS="cuLaunchKernel=3000,cudaLaunchKernel=2000". Returns 0, or -1 if there is no such
 * function or it is one that takes no time. */
SIMCUDA_API int simcuda_set_ns(const char *name, int64_t ns);

/* Makes a function fail with this error from now on, and do nothing; 0: no more. Returns 0, or -1: no such function. */
SIMCUDA_API int simcuda_fail(const char *name, int error);

/* The timeline: "kernel" (duration of a kernel that has none of its own, at first 2000), "latency" (from a call to the
 * earliest start, 1000), "copy" and "set" (each of them, 500, and one ns per 16 bytes on top), in ns; also
 * SIMCUDA_GPU="kernel=5000,latency=0". "correlation": the next correlation id. Returns 0, or -1: no such setting. */
SIMCUDA_API int simcuda_set_gpu(const char *setting, int64_t value);

/* Name and duration of a kernel. Returns 0, or -1: too many of them. */
SIMCUDA_API int simcuda_set_kernel(const void *function, const char *name, int64_t ns);

enum simcuda_work { SIMCUDA_KERNEL = 1, SIMCUDA_COPY = 2, SIMCUDA_SET = 3, SIMCUDA_SYNC = 4, SIMCUDA_WORK_KINDS };

/* How many items of a kind (enum simcuda_work) were enqueued since the start; sum of their durations, if asked for. */
SIMCUDA_API int64_t simcuda_enqueued(uint32_t kind, int64_t *total_ns);

/* What a shared GPU has done, or is to do, for a process, or (0) for all. Returns 0, or -1: the GPU is not shared. Only
 * while nobody launches. */
struct simcuda_device_work {
    int64_t kernels, activities; /* activities: copies and sets, too */
    int64_t busy_ns, first_start, last_end; /* CLOCK_MONOTONIC */
    int64_t gap_ns; /* the longest time between two activities */
};
SIMCUDA_API int simcuda_device_work(int32_t pid, struct simcuda_device_work *out);

/* How often a function was called, getters too; -1 if there is no such function. */
SIMCUDA_API int64_t simcuda_calls(const char *name);

/* Name of the function with this number, NULL beyond the last. */
SIMCUDA_API const char *simcuda_name(uint32_t function);

enum simcuda_kind { SIMCUDA_ENTER = 1, SIMCUDA_LEAVE = 2 };

struct simcuda_stamp {
    int64_t time_ns; /* CLOCK_MONOTONIC; of an entry: the function's first action, of an exit: its last */
    uint32_t kind;
    uint32_t function;
};

/* Reading the threads' logs; only while no other thread is in a call. They outlive their threads. */
SIMCUDA_API uint32_t simcuda_threads(void);
SIMCUDA_API int32_t simcuda_thread_tid(uint32_t thread);
SIMCUDA_API uint64_t simcuda_thread_size(uint32_t thread);
SIMCUDA_API uint64_t simcuda_thread_copy(uint32_t thread, struct simcuda_stamp *out, uint64_t capacity);

#ifdef __cplusplus
}
#endif
#endif
