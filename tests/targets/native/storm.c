/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes an exactly known number of events at a set rate.
 *
 *   storm --kind boundary|nested|marker --library PATH [--rate EVENTS_PER_SECOND] [--seconds S] [--threads N] [--work N]
 *
 * `boundary`: PATH is libtruth_simulator_storm.so; each call is two events (call, return). `marker`: PATH is
 * librlscope_markers.so; each operation is two events (begin, end). The rate is that of all threads together; 0, the
 * default: as fast as possible. `nested`: calls from within the library, a thousand in each one from outside. `work`: steps
 * of 1 to 2 ns after each call from outside or within. The truth has the calls and CPU time of each second of the first
 * thread. Prints "READY pid", waits for a line on stdin, prints "TRUTH {json}".
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define BATCH 64 /* calls between two looks at the clock */
#define NESTED 1000
#define SECONDS 64

static uint64_t (*boundary)(uint64_t);
static uint64_t (*nested)(uint64_t, int, int);
static int after; /* work after each call */
static void (*begin)(const char *);
static void (*end)(void);

struct worker {
    pthread_t handle;
    double calls_per_ns; /* 0: no limit */
    int64_t duration_ns;
    int tid;
    uint64_t calls;
    int64_t elapsed_ns;
    uint64_t state;
    uint64_t by_second[SECONDS];
    int64_t cpu_by_second[SECONDS]; /* only with `work` */
};

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    int64_t start = now_ns(), elapsed = 0, worked = 0;

    worker->tid = (int)syscall(SYS_gettid);
    while ((elapsed = now_ns() - start) < worker->duration_ns) {
        if (worker->calls_per_ns > 0 && worker->calls > worker->calls_per_ns * elapsed) {
            struct timespec pause = {0, 50000};
            nanosleep(&pause, NULL);
            continue;
        }
        uint64_t *second = &worker->by_second[elapsed / 1000000000 % SECONDS];
        if (after) {
            int64_t last = worked;
            struct timespec cpu;
            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
            worked = (int64_t)cpu.tv_sec * 1000000000 + cpu.tv_nsec;
            worker->cpu_by_second[elapsed / 1000000000 % SECONDS] += worked - last;
        }
        if (nested) {
            worker->state = nested(worker->state, NESTED, after);
            worker->calls += NESTED;
            *second += NESTED;
            continue;
        }
        *second += BATCH;
        if (boundary) {
            for (int i = 0; i < BATCH; i++) {
                uint64_t state = boundary(worker->state);
                for (int w = 0; w < after; w++)
                    state = (state ^ state >> 7) * 5;
                worker->state = state;
            }
        } else {
            for (int i = 0; i < BATCH; i++) {
                begin("storm");
                end();
            }
        }
        worker->calls += BATCH;
    }
    worker->elapsed_ns = elapsed;
    return NULL;
}

static void *symbol(void *library, const char *name)
{
    void *address = dlsym(library, name);

    if (!address) {
        fprintf(stderr, "storm: %s\n", dlerror());
        exit(2);
    }
    return address;
}

int main(int argc, char **argv)
{
    const char *kind = "boundary", *path = NULL;
    double rate = 0, seconds = 5;
    int threads = 1;
    char line[64];

    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--kind"))
            kind = argv[i + 1];
        else if (!strcmp(argv[i], "--library"))
            path = argv[i + 1];
        else if (!strcmp(argv[i], "--rate"))
            rate = atof(argv[i + 1]);
        else if (!strcmp(argv[i], "--seconds"))
            seconds = atof(argv[i + 1]);
        else if (!strcmp(argv[i], "--threads"))
            threads = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--work"))
            after = atoi(argv[i + 1]);
        else
            argc = 0;
    }
    int known = !strcmp(kind, "boundary") || !strcmp(kind, "nested") || !strcmp(kind, "marker");
    if (argc % 2 == 0 || !path || threads < 1 || seconds <= 0 || !known) {
        fprintf(stderr, "usage: storm --kind boundary|nested|marker --library PATH [--rate N] [--seconds S] [--threads N] "
                        "[--work N]\n");
        return 2;
    }

    void *library = dlopen(path, RTLD_NOW);
    if (!library) {
        fprintf(stderr, "storm: %s\n", dlerror());
        return 2;
    }
    if (!strcmp(kind, "boundary")) {
        boundary = symbol(library, "storm_step");
    } else if (!strcmp(kind, "nested")) {
        nested = symbol(library, "storm_steps");
    } else {
        begin = symbol(library, "rlscope_operation_begin");
        end = symbol(library, "rlscope_operation_end");
    }

    printf("READY %d\n", (int)getpid());
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        return 1;

    struct worker *workers = calloc((size_t)threads, sizeof *workers);
    uint64_t calls = 0;
    int64_t elapsed = 0;
    for (int i = 0; i < threads; i++) {
        workers[i].calls_per_ns = rate / 2 / threads / 1e9;
        workers[i].duration_ns = (int64_t)(seconds * 1e9);
        if (pthread_create(&workers[i].handle, NULL, work, &workers[i]))
            return 1;
    }
    printf("TRUTH {\"schema\": \"rlscope-ebpf.storm/1\", \"pid\": %d, \"kind\": \"%s\", \"threads\": [", (int)getpid(), kind);
    for (int i = 0; i < threads; i++) {
        pthread_join(workers[i].handle, NULL);
        printf("%s{\"tid\": %d, \"calls\": %llu}", i ? ", " : "", workers[i].tid, (unsigned long long)workers[i].calls);
        calls += workers[i].calls;
        if (workers[i].elapsed_ns > elapsed)
            elapsed = workers[i].elapsed_ns;
    }
    printf("], \"by_second\": [");
    for (int i = 0; i < SECONDS && i < elapsed / 1000000000; i++)
        printf("%s%llu", i ? ", " : "", (unsigned long long)workers[0].by_second[i]);
    printf("], \"cpu_by_second\": [");
    for (int i = 0; i < SECONDS && i < elapsed / 1000000000; i++)
        printf("%s%lld", i ? ", " : "", (long long)workers[0].cpu_by_second[i]);
    printf("], \"calls\": %llu, \"events\": %llu, \"elapsed_ns\": %lld}\n", (unsigned long long)calls,
           (unsigned long long)(2 * calls), (long long)elapsed);
    return 0;
}
