/* SPDX-License-Identifier: Apache-2.0
 *
 * libtruth_simulator_storm.so: a boundary function that does almost nothing, and one that calls it many times. It begins
 * with a push, which the kernel emulates, so that the events that it makes are limited by who reads them.
 */
#include <stdint.h>

uint64_t storm_step(uint64_t state);
__attribute__((visibility("default"))) uint64_t storm_steps(uint64_t state, int steps, int work);

#define WORK(state, work)               \
    for (int w = 0; w < (work); w++)    \
    (state) = ((state) ^ (state) >> 7) * 5

/* Calls from within the library: they change no category, so a profiler hears of them without being told anything. */
uint64_t storm_steps(uint64_t state, int steps, int work)
{
    for (int i = 0; i < steps; i++) {
        state = storm_step(state);
        WORK(state, work);
    }
    return state;
}

__asm__(".text\n"
        ".globl storm_step\n"
        ".type storm_step, @function\n"
        "storm_step:\n"
        "    pushq %rbx\n"
        "    leaq 1(%rdi,%rdi,4), %rax\n"
        "    popq %rbx\n"
        "    ret\n"
        ".size storm_step, .-storm_step\n");
