/* SPDX-License-Identifier: Apache-2.0
 *
 * Two threads that wake each other by turns, on one CPU.
 *
 *   turns LIBRARY         LIBRARY: librlscope_markers.so
 *
 * Prints "READY pid". Then reads lines "WHAT COUNT" and answers each with the ns that it took: "turns" (there and back:
 * two switches, two wake-ups), or "mark": both threads begin and end an operation, so that a profiler knows them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int there[2], back[2];
static void (*begin)(const char *);
static void (*end)(void);

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void mark(void)
{
    begin("turn");
    end();
}

static void *answer(void *unused)
{
    char what;

    while (read(there[0], &what, 1) == 1) {
        if (what == 'm')
            mark();
        if (write(back[1], &what, 1) != 1)
            break;
    }
    return unused;
}

int main(int argc, char **argv)
{
    char name[32];
    long count;
    pthread_t other;
    cpu_set_t one;
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;

    if (!library) {
        fprintf(stderr, "turns: %s\n", argc > 1 ? dlerror() : "no library");
        return 2;
    }
    begin = dlsym(library, "rlscope_operation_begin");
    end = dlsym(library, "rlscope_operation_end");
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof(one), &one);
    if (pipe(there) || pipe(back) || pthread_create(&other, NULL, answer, NULL))
        return 2;
    printf("READY %d\n", (int)getpid());
    fflush(stdout);
    while (scanf("%31s %ld", name, &count) == 2) {
        char what = name[0];
        int64_t start = now_ns();

        if (what == 'm')
            mark();
        for (long i = 0; i < count; i++)
            if (write(there[1], &what, 1) != 1 || read(back[0], &what, 1) != 1)
                return 2;
        printf("%lld\n", (long long)(now_ns() - start));
        fflush(stdout);
    }
    return 0;
}
