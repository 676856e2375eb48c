/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes a zombie: prints "READY pid" with the pid of a child that has exited and is not waited for, until a line (or
 * the end) comes on stdin.
 */
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
    siginfo_t info;
    char line[64];
    pid_t child = fork();

    if (child < 0)
        return 1;
    if (child == 0)
        _exit(0);
    if (waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT)) /* it has exited, and stays a zombie */
        return 1;
    printf("READY %d\n", (int)child);
    fflush(stdout);
    fgets(line, sizeof line, stdin);
    waitpid(child, NULL, 0);
    return 0;
}
