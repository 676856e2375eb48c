/* The library of stacks.c, plain C: what passes through it, it does not know. */
#include <time.h>
#include <unistd.h>
#include "stacks.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT int run_callback(callback *function, void *argument)
{
    function(argument);
    return 1;
}

static long now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

EXPORT void spin(long ns)
{
    long end = now_ns() + ns;

    while (now_ns() < end)
        ;
}

/* Sleeps by itself, and calls nothing else. */
EXPORT void rest(long milliseconds)
{
    for (long i = 0; i < milliseconds; i++)
        usleep(1000);
}
