/* SPDX-License-Identifier: Apache-2.0
 *
 * A process without Python whose threads mark operations through the marker library, which is loaded with dlopen.
 *
 *   native_ops MARKER_LIBRARY [ROUNDS]
 *
 * Each of two threads: ROUNDS times an operation "native_step" (1 ms of its own: `other`) around an operation
 * "native_simulation" (2 ms in the simulator). Prints "READY pid", waits for a line on stdin, prints "TRUTH {json}" in
 * the form that truth.py uses.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "truth_simulator.h"

#define THREADS 2

static void (*begin)(const char *);
static void (*end)(void);
static int rounds = 300;

struct sums {
    int64_t outer_ns, inner_ns, simulator_ns;
};

/* Where an operation begins or ends: halfway through the call of the marker. */
static int64_t marked_begin(const char *name)
{
    int64_t before = truth_now();

    begin(name);
    return before + (truth_now() - before) / 2;
}

static int64_t marked_end(void)
{
    int64_t before = truth_now();

    end();
    return before + (truth_now() - before) / 2;
}

static void *work(void *argument)
{
    struct sums *sums = argument;

    for (int i = 0; i < rounds; i++) {
        int64_t outer = marked_begin("native_step");
        truth_spin(500000);
        int64_t inner = marked_begin("native_simulation");
        sim_spin(2000000);
        inner = marked_end() - inner;
        truth_spin(500000);
        outer = marked_end() - outer;
        sums->inner_ns += inner;
        sums->outer_ns += outer - inner;
    }
    return NULL;
}

/* The stamps of the boundary functions are in the threads' logs. */
static int64_t simulator_ns(void)
{
    int64_t sum = 0;

    for (uint32_t thread = 0; thread < truth_threads(); thread++) {
        uint64_t size = truth_thread_size(thread);
        struct truth_stamp *stamps = calloc(size ? size : 1, sizeof *stamps);

        if (!stamps)
            abort();
        truth_thread_copy(thread, stamps, size);
        for (uint64_t i = 0; i + 1 < size; i += 2) /* sim_spin only: enter, leave, enter, leave … */
            sum += stamps[i + 1].time_ns - stamps[i].time_ns;
        free(stamps);
    }
    return sum;
}

static void print_operation(const char *path, long long wall, long long simulator, int calls)
{
    printf("{\"path\": [%s], \"phase\": null, \"count\": %d, \"wall_ns\": %lld, \"cpu_ns\": {\"python\": 0, "
           "\"simulator\": %lld, \"backend\": 0, \"cuda_api\": 0, \"other\": %lld}, \"transitions\": {",
           path, THREADS * rounds, wall, simulator, wall - simulator);
    if (calls)
        printf("\"other_to_simulator\": %d", calls);
    printf("}, \"exact\": {\"wall\": true, \"count\": true, \"categories\": "
           "[\"python\", \"simulator\", \"backend\", \"cuda_api\", \"other\"]}}");
}

int main(int argc, char **argv)
{
    struct sums sums[THREADS] = {{0}}, total = {0};
    pthread_t threads[THREADS];
    char line[64];

    if (argc < 2) {
        fprintf(stderr, "usage: native_ops MARKER_LIBRARY [ROUNDS]\n");
        return 2;
    }
    if (argc > 2)
        rounds = atoi(argv[2]);
    void *library = dlopen(argv[1], RTLD_NOW);
    if (library) {
        begin = (void (*)(const char *))dlsym(library, "rlscope_operation_begin");
        end = (void (*)(void))dlsym(library, "rlscope_operation_end");
    }
    if (!begin || !end) {
        fprintf(stderr, "native_ops: %s\n", dlerror());
        return 2;
    }
    printf("READY %d\n", (int)getpid());
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        return 1;

    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, &sums[i]))
            return 1;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        total.outer_ns += sums[i].outer_ns;
        total.inner_ns += sums[i].inner_ns;
    }
    total.simulator_ns = simulator_ns();
    printf("TRUTH {\"schema\": \"rlscope-ebpf.truth/1\", \"pid\": %d, \"operations\": [", (int)getpid());
    print_operation("\"native_step\"", total.outer_ns, 0, 0);
    printf(", ");
    print_operation("\"native_step\", \"native_simulation\"", total.inner_ns, total.simulator_ns, THREADS * rounds);
    printf("]}\n");
    return 0;
}
