// SPDX-License-Identifier: Apache-2.0
#include "truth_glue.h"

#include <pthread.h>

#include <exception>
#include <vector>

namespace {

int caught(void (*function)(int64_t), int64_t ns)
{
    uint32_t depth = truth_depth();
    try {
        function(ns);
    } catch (const std::exception &) {
        truth_unwind(depth);
        return 1;
    }
    return 0;
}

struct Work {
    int calls;
    int64_t ns;
    int exits;
};

void *work(void *argument)
{
    Work task = *static_cast<Work *>(argument);
    for (int i = 0; i < task.calls; i++) {
        sim_spin(task.ns);
        be_spin(task.ns);
    }
    if (task.exits)
        sim_pthread_exit(task.ns);
    return nullptr;
}

} // namespace

extern "C" int glue_throwing(int64_t ns) { return caught(sim_throwing, ns); }

extern "C" int glue_throwing_through(int64_t ns) { return caught(sim_passes_exception, ns); }

extern "C" int glue_longjmp(int64_t ns)
{
    jmp_buf here;
    volatile uint32_t depth = truth_depth();

    if (setjmp(here)) {
        truth_unwind(depth);
        return 1;
    }
    sim_longjmp(here, ns);
    return 0;
}

extern "C" int64_t glue_cpp_steps(int64_t unit_ns, int64_t units)
{
    // Never destroyed: the destructor is a call into the library, too, but comes after the truth has been printed.
    static truth::Simulator *const simulator = new truth::Simulator(1);
    truth::Simulator *volatile called = simulator; // volatile: no devirtualised, inlined shortcut
    return called->step(unit_ns * units);
}

extern "C" int glue_native_threads(int threads, int calls, int64_t ns, int exits)
{
    std::vector<pthread_t> handles;
    Work task{calls, ns, exits};
    int error = 0;

    for (int i = 0; i < threads && !error; i++) {
        pthread_t handle;
        error = pthread_create(&handle, nullptr, work, &task);
        if (!error)
            handles.push_back(handle);
    }
    for (pthread_t handle : handles)
        pthread_join(handle, nullptr);
    return error;
}
