// A plugin of stacks.c: C++ whose exceptions pass through the plain C of the library, which it was handed a pointer to.
#include <stdexcept>

#include "stacks.h"

static void thrower(void *) { throw std::runtime_error("passes through C"); }

extern "C" __attribute__((visibility("default"))) long unusual_rounds(run_callback_function *run_callback, long rounds)
{
    long caught = 0;
    for (long i = 0; i < rounds; i++) {
        try {
            run_callback(thrower, nullptr);
        } catch (const std::exception &) {
            caught++;
        }
    }
    return caught;
}
