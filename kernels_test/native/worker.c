/* SPDX-License-Identifier: Apache-2.0
 *
 * A backend library that has its kernels launched by a thread of its own while its callers wait, as PyTorch's autograd
 * engine does.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "simcuda.h"

#define API __attribute__((visibility("default")))

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static const void *function;
static int64_t wanted, stream, callers, served;

static void *work(void *nothing)
{
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!wanted)
            pthread_cond_wait(&changed, &lock);
        for (int64_t i = 0; i < wanted; i++)
            if (cuLaunchKernel((CUfunction)function, 1, 1, 1, 32, 1, 1, 0, (CUstream)stream, NULL, NULL)) {
                fprintf(stderr, "worker: a launch failed\n");
                abort();
            }
        wanted = 0;
        served++;
        pthread_cond_broadcast(&changed);
    }
    return nothing;
}

/* Has `count` kernels launched once so many callers are in here, and returns when they are. */
API void worker_run(const void *kernel, int64_t count, int64_t on_stream, int64_t together)
{
    static int started;
    pthread_t thread;

    pthread_mutex_lock(&lock);
    if (!started) {
        if (pthread_create(&thread, NULL, work, NULL))
            abort();
        started = 1;
    }
    int64_t before = served;
    if (++callers == together) {
        callers = 0;
        function = kernel;
        stream = on_stream;
        wanted = count;
        pthread_cond_broadcast(&changed);
    }
    while (served == before)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}
