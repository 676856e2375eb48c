/* SPDX-License-Identifier: Apache-2.0
 *
 * A 32-bit x86 process: static, without any library, so that no 32-bit libc is needed to build it. Prints "READY pid",
 * then waits for a byte or the end of its stdin.
 */
static int system_call(int number, int a, const void *b, int c)
{
    int result;

    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory");
    return result;
}

enum { SYSCALL_EXIT = 1, SYSCALL_READ = 3, SYSCALL_WRITE = 4, SYSCALL_GETPID = 20 };

void _start(void)
{
    char line[24] = "READY ", digits[12], byte;
    int pid = system_call(SYSCALL_GETPID, 0, 0, 0), count = 0, length = 6;

    do {
        digits[count++] = (char)('0' + pid % 10);
        pid /= 10;
    } while (pid);
    while (count)
        line[length++] = digits[--count];
    line[length++] = '\n';
    system_call(SYSCALL_WRITE, 1, line, length);
    system_call(SYSCALL_READ, 0, &byte, 1);
    system_call(SYSCALL_EXIT, 0, 0, 0);
}
