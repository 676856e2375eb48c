/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated GPU that processes share; see simcuda_shared.h. Part of libcuda.so.1 and of libnvidia-ml.so.1.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "simcuda_shared.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct simcuda_shared *mapped;

static void fail(const char *path)
{
    fprintf(stderr, "simcuda: SIMCUDA_SHARED: %s: %s.\n", path, strerror(errno));
    abort();
}

static void map(void)
{
    const char *path = getenv("SIMCUDA_SHARED");
    int fd;

    if (!path || !*path)
        return;
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_EX) || ftruncate(fd, sizeof *mapped))
        fail(path);
    mapped = mmap(NULL, sizeof *mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        fail(path);
    if (!mapped->ready) {
        pthread_mutexattr_t kind;

        pthread_mutexattr_init(&kind);
        pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_init(&mapped->lock, &kind);
        mapped->ready = 1;
    }
    flock(fd, LOCK_UN); /* closing is not enough: what is mapped stays open */
    close(fd);
}

struct simcuda_shared *simcuda_shared_device(void)
{
    pthread_once(&once, map);
    return mapped;
}

static void take(struct simcuda_shared *device)
{
    if (pthread_mutex_lock(&device->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&device->lock); /* a process was killed in here: at most its own last item is lost */
}

static int index_of(struct simcuda_shared *device, int32_t pid)
{
    uint32_t i = 0;

    while (i < device->processes && device->pids[i] != pid)
        i++;
    if (i == SIMCUDA_PROCESSES) {
        errno = ENOSPC;
        fail("more processes than it has room for");
    }
    if (i == device->processes) {
        device->pids[i] = pid;
        device->processes++;
    }
    return (int)i;
}

static void count(struct simcuda_shared_work *work, int64_t start, int64_t end, int is_kernel)
{
    if (!work->activities)
        work->first_start = start;
    else if (start - work->last_end > work->gap_ns)
        work->gap_ns = start - work->last_end;
    work->activities++;
    work->kernels += is_kernel;
    work->busy_ns += end - start;
    work->last_end = end;
}

int64_t simcuda_shared_append(struct simcuda_shared *device, int64_t earliest, int64_t duration, int is_kernel)
{
    int64_t start, end;
    int process;

    take(device);
    process = index_of(device, getpid());
    start = device->all.last_end > earliest ? device->all.last_end : earliest;
    end = start + duration;
    count(&device->all, start, end, is_kernel);
    count(&device->of[process], start, end, is_kernel);
    if (is_kernel && duration) {
        for (int64_t tick = start / SIMCUDA_TICK_NS; tick <= (end - 1) / SIMCUDA_TICK_NS; tick++) {
            int place = tick % SIMCUDA_TICKS;

            if (device->ticks[place].number != tick) {
                device->ticks[place].number = tick;
                device->ticks[place].running = 0;
            }
            device->ticks[place].running |= (uint64_t)1 << process;
        }
    }
    pthread_mutex_unlock(&device->lock);
    return start;
}

unsigned int simcuda_shared_percent(struct simcuda_shared *device, int64_t first, int64_t last, int process)
{
    uint64_t wanted = process < 0 ? ~(uint64_t)0 : (uint64_t)1 << process;
    unsigned int running = 0;

    take(device);
    for (int64_t tick = first; tick < last; tick++) {
        int place = tick % SIMCUDA_TICKS;

        running += device->ticks[place].number == tick && (device->ticks[place].running & wanted);
    }
    pthread_mutex_unlock(&device->lock);
    return last > first ? 100 * running / (unsigned int)(last - first) : 0;
}
