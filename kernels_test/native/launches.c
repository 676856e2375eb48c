/* SPDX-License-Identifier: Apache-2.0
 *
 * Work for a (simulated) GPU, compiled three times: over the shared runtime, over the runtime linked in, and over the
 * driver alone (-DDRIVER). It belongs to no category: what is not spent in a CUDA call is the caller's time.
 *
 * Functions take one int64_t and return nothing where they can, so that a backend library may call them by address.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "simcuda.h"

#define API __attribute__((visibility("default")))
#define BYTES 256

static CUstream stream;
static CUevent event;
static void *buffer;
static char host[BYTES];
static const char kernel[1]; /* its address stands for a kernel */

static void check(int error, const char *what)
{
    if (error) {
        fprintf(stderr, "launches: %s: error %d\n", what, error);
        abort();
    }
}
#define CHECK(call) check(call, #call)

#ifdef DRIVER

static CUgraphExec graph;

static void launch_one(void)
{
    CHECK(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
}

static void launch_another(void)
{
    CUlaunchConfig config = {1, 1, 1, 32, 1, 1, 0, stream, NULL, 0};

    CHECK(cuLaunchKernelEx(&config, (CUfunction)kernel, NULL, NULL));
    CHECK(cuLaunchKernel_ptsz((CUfunction)kernel, 1, 1, 1, 32, 1, 1, 0, (CUstream)2, NULL, NULL));
    CHECK(cuGraphLaunch(graph, stream));
}

static void copy_in(void)
{
    CHECK(cuMemcpyHtoDAsync_v2((CUdeviceptr)buffer, host, BYTES, stream));
}

static void copy_out(void)
{
    CHECK(cuMemcpyDtoHAsync_v2(host, (CUdeviceptr)buffer, BYTES, stream));
}

static void mark(void)
{
    CHECK(cuMemsetD8Async((CUdeviceptr)buffer, 1, BYTES, stream));
    CHECK(cuEventRecord(event, stream));
    CHECK(cuEventSynchronize(event));
}

static void synchronize(void)
{
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuCtxSynchronize());
}

static void get(void)
{
    unsigned int flags;
    int device, active;

    CHECK(cuCtxGetDevice(&device));
    CHECK(cuDevicePrimaryCtxGetState(device, &flags, &active));
}

static void allocate_one(void)
{
    CUdeviceptr pointer;

    CHECK(cuMemAlloc_v2(&pointer, BYTES));
    CHECK(cuMemFree_v2(pointer));
}

API void launches_prepare(void)
{
    CUdeviceptr pointer;
    CUmodule module;
    CUgraph empty;

    CHECK(cuInit(0));
    CHECK(cuModuleLoadData(&module, kernel));
    CHECK(cuStreamCreate(&stream, 0));
    CHECK(cuEventCreate(&event, 0));
    CHECK(cuGraphCreate(&empty, 0));
    CHECK(cuGraphInstantiateWithFlags(&graph, empty, 0));
    CHECK(cuMemAlloc_v2(&pointer, BYTES));
    buffer = (void *)pointer;
}

#else

static void launch_one(void)
{
    CHECK(cudaLaunchKernel(kernel, (dim3){1, 1, 1}, (dim3){32, 1, 1}, NULL, 0, stream));
}

static void launch_another(void)
{
    cudaLaunchConfig_t config = {{1, 1, 1}, {32, 1, 1}, 0, stream, NULL, 0};

    CHECK(cudaLaunchKernelExC(&config, kernel, NULL));
}

static void copy_in(void)
{
    CHECK(cudaMemcpyAsync(buffer, host, BYTES, cudaMemcpyHostToDevice, stream));
}

static void copy_out(void)
{
    CHECK(cudaMemcpyAsync(host, buffer, BYTES, cudaMemcpyDeviceToHost, stream));
}

static void mark(void)
{
    CHECK(cudaEventRecord(event, stream));
}

static void synchronize(void)
{
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaDeviceSynchronize());
}

static void get(void)
{
    int device;

    CHECK(cudaGetDevice(&device));
    CHECK(cudaGetLastError());
}

static void allocate_one(void)
{
    void *pointer;

    CHECK(cudaMalloc(&pointer, BYTES));
    CHECK(cudaFree(pointer));
}

API void launches_prepare(void)
{
    CHECK(cudaFree(NULL));
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaEventCreate(&event));
    CHECK(cudaMalloc(&buffer, BYTES));
}

#endif

API void launches_launch(int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        launch_one();
}

/* One of each, as a training step makes them, with getters in between. */
API void launches_step(int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        get();
        copy_in();
        get();
        launch_one();
        get();
        launch_another();
        mark();
        copy_out();
        synchronize();
    }
}

API void launches_allocate(int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        allocate_one();
}

API void launches_copy(int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        copy_in();
}

API void launches_ask(int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        get();
}

struct task {
    int64_t rounds;
    int64_t pause_ns;
};

static void *work(void *argument)
{
    const struct task *task = argument;
    struct timespec pause = {task->pause_ns / 1000000000, task->pause_ns % 1000000000};

    for (int64_t i = 0; i < task->rounds; i++) {
        launches_step(1);
        nanosleep(&pause, NULL);
    }
    return NULL;
}

/* Native threads, each `rounds` steps with a pause after each. Waits for them. Returns 0, or an errno. */
API int launches_step_in_threads(int threads, int64_t rounds, int64_t pause_ns)
{
    struct task task = {rounds, pause_ns};
    pthread_t *handles = calloc((size_t)threads, sizeof *handles);
    int started = 0, error = handles ? 0 : 12;

    while (started < threads && !error) {
        error = pthread_create(&handles[started], NULL, work, &task);
        started += !error;
    }
    for (int i = 0; i < started; i++)
        pthread_join(handles[i], NULL);
    free(handles);
    return error;
}
