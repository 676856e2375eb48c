/* SPDX-License-Identifier: Apache-2.0
 *
 * brief MILLISECONDS [STATUS]: prints "READY pid" and exits so long afterwards, whatever a profiler is doing to it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    double ns = argc > 1 ? atof(argv[1]) * 1e6 : 0;
    struct timespec pause = {(time_t)(ns / 1e9), (long)(ns - 1e9 * (double)(time_t)(ns / 1e9))};

    printf("READY %d\n", (int)getpid());
    fflush(stdout);
    nanosleep(&pause, NULL);
    return argc > 2 ? atoi(argv[2]) : 0;
}
