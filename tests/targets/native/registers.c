/* SPDX-License-Identifier: Apache-2.0
 *
 * A program whose main thread keeps numbers in vector registers, and looks whether they are still its own.
 *
 *   registers [sleepers]
 *
 * `sleepers` threads wait meanwhile. Prints READY pid, works until stdin ends, and prints its truth.
 */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TURNS 20000000u /* some ten milliseconds */

typedef unsigned lanes __attribute__((vector_size(16)));

static void *sleep_for_ever(void *nothing)
{
    for (;;)
        poll(NULL, 0, -1);
    return nothing;
}

static int has_ended(void)
{
    struct pollfd input = {.fd = 0, .events = POLLIN};

    return poll(&input, 1, 0) != 0;
}

int main(int argc, char **argv)
{
    unsigned long rounds = 0, changed = 0;

    for (int left = argc > 1 ? atoi(argv[1]) : 0; left > 0; left--) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, sleep_for_ever, NULL))
            return 1;
    }
    printf("READY %d\n", getpid());
    fflush(stdout);
    while (!has_ended()) {
        lanes step = {3, 3, 3, 3}, sum = {0};
        for (unsigned turn = 0; turn < TURNS; turn++) {
            sum += step;
            __asm__ volatile("" : "+x"(sum), "+x"(step)); /* nothing else is kept of them */
        }
        for (int lane = 0; lane < 4; lane++)
            changed += sum[lane] != 3 * TURNS;
        rounds++;
    }
    printf("TRUTH {\"rounds\": %lu, \"changed\": %lu}\n", rounds, changed);
    return 0;
}
