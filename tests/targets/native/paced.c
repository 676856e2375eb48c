/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations of an always equal number of calls into a library, and how long they took on a CPU.
 *
 *   paced --markers PATH --library PATH [--calls N] [--work N] [--lines N] [--seconds S]
 *
 * PATHs: librlscope_markers.so, libtruth_simulator_storm.so. Each operation makes `calls` calls; after each one come `work`
 * steps of 1 to 2 ns, and `lines` cache lines of 64 bytes are read, in an order that no prefetcher knows and always the
 * same ones: what was in the caches for the call is pushed out. Prints "READY pid", waits for a line on stdin, prints
 * "TRUTH {json}" when told so by a second one or after `seconds`: for each tenth of a second its begin (CLOCK_MONOTONIC),
 * the operations and the time they took on a CPU.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define STRETCH_NS 100000000
#define STRETCHES 4096
#define LINE 64

static uint64_t (*call)(uint64_t);
static void (*begin)(const char *);
static void (*end)(void);

static int64_t now_ns(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* A ring through all lines in random order (Sattolo's algorithm): each line holds the number of the next. */
static char *ring_of(int lines)
{
    char *memory = aligned_alloc(LINE, (size_t)LINE * (lines ? lines : 1));
    uint32_t *order = malloc(sizeof *order * (lines ? lines : 1)), seed = 12345;

    if (!memory || !order)
        exit(2);
    for (int i = 0; i < lines; i++)
        order[i] = i;
    for (int i = lines - 1; i > 0; i--) {
        seed = seed * 1664525 + 1013904223;
        int j = (int)(((uint64_t)seed * i) >> 32);
        uint32_t other = order[i];
        order[i] = order[j];
        order[j] = other;
    }
    for (int i = 0; i < lines; i++)
        *(uint32_t *)(memory + (size_t)LINE * order[i]) = order[(i + 1) % lines];
    free(order);
    return memory;
}

static void *symbol(void *library, const char *name)
{
    void *address = library ? dlsym(library, name) : NULL;

    if (!address) {
        fprintf(stderr, "paced: %s\n", dlerror());
        exit(2);
    }
    return address;
}

int main(int argc, char **argv)
{
    static struct {
        int64_t begun, cpu, operations;
    } stretches[STRETCHES];
    const char *markers = "", *path = "";
    int calls = 200, work = 100, lines = 0, count = 0;
    double seconds = 60;
    char line[64];

    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--markers"))
            markers = argv[i + 1];
        else if (!strcmp(argv[i], "--library"))
            path = argv[i + 1];
        else if (!strcmp(argv[i], "--calls"))
            calls = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--work"))
            work = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--lines"))
            lines = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--seconds"))
            seconds = atof(argv[i + 1]);
    }
    call = symbol(dlopen(path, RTLD_NOW), "storm_step");
    void *library = dlopen(markers, RTLD_NOW);
    begin = symbol(library, "rlscope_operation_begin");
    end = symbol(library, "rlscope_operation_end");
    char *ring = ring_of(lines);

    printf("READY %d\n", (int)getpid());
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        return 1;
    uint64_t state = 1, at = 0;
    int64_t start = now_ns(CLOCK_MONOTONIC);
    struct pollfd input = {0, POLLIN, 0};
    while (count < STRETCHES && poll(&input, 1, 0) == 0) {
        int64_t begun = now_ns(CLOCK_MONOTONIC), cpu = now_ns(CLOCK_THREAD_CPUTIME_ID);
        if (begun - start > seconds * 1e9)
            break;
        stretches[count].begun = begun;
        while (now_ns(CLOCK_MONOTONIC) - begun < STRETCH_NS) {
            begin("paced");
            for (int i = 0; i < calls; i++) {
                state = call(state);
                for (int w = 0; w < work; w++)
                    state = (state ^ state >> 7) * 5;
                for (int l = 0; l < lines; l++)
                    at = *(volatile uint32_t *)(ring + LINE * at);
            }
            end();
            stretches[count].operations++;
        }
        stretches[count++].cpu = now_ns(CLOCK_THREAD_CPUTIME_ID) - cpu;
    }
    printf("TRUTH {\"schema\": \"rlscope-ebpf.paced/1\", \"pid\": %d, \"calls\": %d, \"state\": %d, \"stretches\": [",
           (int)getpid(), calls, (int)((state + at) & 1));
    for (int i = 0; i < count; i++)
        printf("%s[%lld, %lld, %lld]", i ? ", " : "", (long long)stretches[i].begun, (long long)stretches[i].operations,
               (long long)stretches[i].cpu);
    printf("]}\n");
    return 0;
}
