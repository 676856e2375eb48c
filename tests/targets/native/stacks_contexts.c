/* A plugin of stacks.c: two coroutines, each of which is switched away from inside of a call. With -DHIDDEN the functions
 * that make and switch contexts are found by name, so that nothing in the file tells of them; with -DHALVES contexts are saved and taken up one by one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <ucontext.h>
#include <unistd.h>
#include "stacks.h"

#define STACK_BYTES 65536
#define REST_EVERY 32

static ucontext_t outside, inside[2];
static char stacks[2][STACK_BYTES];
static run_callback_function *call;
static long done;
static int current;

#ifdef HIDDEN
typedef int switch_function(ucontext_t *, const ucontext_t *);
typedef void make_function(ucontext_t *, void (*)(void), int, ...);
#define swapcontext (*(switch_function *)dlsym(RTLD_DEFAULT, "swapcontext"))
#define makecontext (*(make_function *)dlsym(RTLD_DEFAULT, "makecontext"))
#endif

#ifdef HALVES
/* The same out of its two halves. */
static int switch_by_halves(ucontext_t *from, const ucontext_t *to)
{
    volatile int resumed = 0;
    getcontext(from);
    if (!resumed) {
        resumed = 1;
        setcontext(to);
    }
    return 0;
}
#define swapcontext switch_by_halves
#endif

static void leave(void *argument)
{
    (void)argument;
    swapcontext(&inside[current], &outside);
}

static void body(void)
{
    for (;;) {
        call(leave, 0);
        done++;
    }
}

__attribute__((visibility("default"))) long unusual_rounds(run_callback_function *run_callback, long rounds)
{
    call = run_callback;
    for (int i = 0; i < 2; i++) {
        getcontext(&inside[i]);
        inside[i].uc_stack.ss_sp = stacks[i];
        inside[i].uc_stack.ss_size = STACK_BYTES;
        inside[i].uc_link = &outside;
        makecontext(&inside[i], body, 0);
    }
    for (long turn = 0; turn <= rounds / 2; turn++) {
        for (current = 0; current < 2; current++)
            swapcontext(&outside, &inside[current]);
        if (turn % REST_EVERY == 0)
            usleep(1000);
    }
    return done;
}
