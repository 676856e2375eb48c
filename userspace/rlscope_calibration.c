/* SPDX-License-Identifier: Apache-2.0
 *
 * What calibration runs under its probes, in a process of its own: functions whose first instruction is of one kind
 * each, and a loop that stamps the clock around every call of one of them.
 *
 * A probe in a tight loop is cheaper than one in a real program, which has used the caches for other things since the
 * last hit. So between two calls the loop can walk through as much code and data as it is told.
 */
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define EXPORTED __attribute__((visibility("default"), noinline))

typedef void function(void);

/* A function of the given instructions and a `ret`. */
#define PROBED(name, instructions)                                                                                     \
    __asm__(".pushsection .text\n.p2align 6\n.globl " name "\n.type " name ",@function\n" name ":\n" instructions     \
            "\nret\n.size " name ", . - " name "\n.popsection");

#if defined(__x86_64__)
#define PROBED_THREE_WAYS(name, instructions)                                                                           \
    PROBED(name, instructions) PROBED(name "_entry", instructions) PROBED(name "_event", instructions)
PROBED_THREE_WAYS("rlscope_calibrate_nop5", ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00")
PROBED_THREE_WAYS("rlscope_calibrate_emulated", "push %rbp\npop %rbp")
PROBED_THREE_WAYS("rlscope_calibrate_stepped", "mov %edi, %eax")

/* Code to walk through: functions of 64 bytes, a cache line each. */
#define WALK_FUNCTIONS 4096
#define WALK_BYTES 64
#define TEXT_OF(number) TEXT_OF_EXPANDED(number)
#define TEXT_OF_EXPANDED(number) #number
__asm__(".pushsection .text\n.p2align 6\n.local rlscope_walk\nrlscope_walk:\n"
        ".rept " TEXT_OF(WALK_FUNCTIONS) "\nlea 1(%rdi), %rax\nret\n.p2align 6\n.endr\n.popsection");
#else
#error "calibration knows the instructions of x86-64 only"
#endif

extern const char rlscope_walk[] __attribute__((visibility("hidden")));

static uint8_t data[WALK_FUNCTIONS * WALK_BYTES];

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Uses `lines` cache lines of code and as many of data, in an order that no prefetcher guesses. */
static uint64_t walk(uint64_t lines, uint64_t seed)
{
    uint64_t place = seed;
    for (uint64_t i = 0; i < lines; i++) {
        place = place * 6364136223846793005u + 1442695040888963407u;
        uint64_t line = (place >> 33) % WALK_FUNCTIONS;
        uint64_t (*step)(uint64_t) = (uint64_t (*)(uint64_t))(rlscope_walk + line * WALK_BYTES);
        place ^= step(line) & 1;
        data[line * WALK_BYTES] += (uint8_t)i;
    }
    return place;
}

/*
 * Calls `called` so many times and writes the clock before and after each call to `stamps`, two values a call.
 * `lines` is the number of cache lines of code and of data that are used between two calls. Returns a number that
 * depends on all that was done.
 */
EXPORTED uint64_t rlscope_calibrate(function *called, uint64_t calls, uint64_t lines, uint64_t *stamps)
{
    uint64_t place = 1;
    for (uint64_t i = 0; i < calls; i++) {
        place = walk(lines, place);
        stamps[2 * i] = now_ns();
        called();
        stamps[2 * i + 1] = now_ns();
    }
    return place;
}

/* The same, to be probed itself: calls that it makes are calls within a call. */
EXPORTED uint64_t rlscope_calibrate_within(function *called, uint64_t calls, uint64_t lines, uint64_t *stamps)
{
    uint64_t place = rlscope_calibrate(called, calls, lines, stamps);
    __asm__ volatile("" : "+r"(place)); /* no tail call, which would leave before its callee does */
    return place;
}
