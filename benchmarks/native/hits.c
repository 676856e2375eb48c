/* SPDX-License-Identifier: Apache-2.0
 *
 * What a call of a function costs, in a tight loop: plain, or while something probes the function.
 *
 *   hits [LIBRARY]        LIBRARY: librlscope_markers.so, for the function "marker"
 *
 * Prints "READY pid". Then reads lines "FUNCTION CALLS" and answers each with the ns that so many calls took.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* In assembly, so that their first instructions are these whatever the compiler's flags. Distributions build their
 * libraries like hit_endbr; hit_nop5 begins as the marker library's functions do. */
__asm__(".pushsection .text\n"
        ".p2align 6\n"
        ".globl hit_endbr\n"
        ".type hit_endbr, @function\n"
        "hit_endbr:\n"
        "endbr64\n"
        "push %rbp\n"
        "mov %rsp, %rbp\n"
        "lea 1(%rdi), %rax\n"
        "pop %rbp\n"
        "ret\n"
        ".size hit_endbr, .-hit_endbr\n"
        ".p2align 6\n"
        ".globl hit_nop5\n"
        ".type hit_nop5, @function\n"
        "hit_nop5:\n"
        ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n"
        "push %rbp\n"
        "mov %rsp, %rbp\n"
        "lea 1(%rdi), %rax\n"
        "pop %rbp\n"
        "ret\n"
        ".size hit_nop5, .-hit_nop5\n"
        ".popsection\n");

extern uint64_t hit_endbr(uint64_t value);
extern uint64_t hit_nop5(uint64_t value);

static void (*begin)(const char *);
static void (*end)(void);

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int main(int argc, char **argv)
{
    char name[32];
    long calls;
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;

    if (argc > 1 && !library) {
        fprintf(stderr, "hits: %s\n", dlerror());
        return 2;
    }
    if (library) {
        begin = dlsym(library, "rlscope_operation_begin");
        end = dlsym(library, "rlscope_operation_end");
    }
    printf("READY %d\n", (int)getpid());
    fflush(stdout);
    while (scanf("%31s %ld", name, &calls) == 2) {
        volatile uint64_t state = 0;
        int64_t start = now_ns();

        if (!strcmp(name, "hit_endbr")) {
            for (long i = 0; i < calls; i++)
                state = hit_endbr(state);
        } else if (!strcmp(name, "hit_nop5")) {
            for (long i = 0; i < calls; i++)
                state = hit_nop5(state);
        } else if (!strcmp(name, "marker") && begin && end) {
            for (long i = 0; i < calls; i++) {
                begin("benchmark");
                end();
            }
        } else {
            fprintf(stderr, "hits: no function %s\n", name);
            return 2;
        }
        printf("%lld\n", (long long)(now_ns() - start));
        fflush(stdout);
    }
    return 0;
}
