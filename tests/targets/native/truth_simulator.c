/* SPDX-License-Identifier: Apache-2.0 */
#include "truth_simulator.h"

#include <pthread.h>

void sim_spin(int64_t ns)
{
    truth_enter(TRUTH_SIMULATOR);
    truth_spin(ns);
    truth_leave();
}

void sim_recurse(int64_t ns, int depth)
{
    truth_enter(TRUTH_SIMULATOR);
    truth_spin(ns);
    if (depth > 0)
        sim_recurse(ns, depth - 1);
    truth_spin(ns);
    truth_leave();
}

void sim_call_native(truth_native function, int64_t argument, int64_t ns)
{
    truth_enter(TRUTH_SIMULATOR);
    truth_spin(ns);
    function(argument);
    truth_spin(ns);
    truth_leave();
}

void sim_callback(truth_callback callback, void *context, int64_t ns)
{
    truth_enter(TRUTH_SIMULATOR);
    truth_spin(ns);
    truth_enter(TRUTH_PYTHON);
    callback(context);
    truth_leave();
    truth_spin(ns);
    truth_leave();
}

void sim_longjmp(jmp_buf target, int64_t ns)
{
    truth_enter(TRUTH_SIMULATOR);
    truth_spin(ns);
    longjmp(target, 1); /* who lands calls truth_unwind() */
}

void sim_pthread_exit(int64_t ns)
{
    truth_enter(TRUTH_SIMULATOR);
    truth_spin(ns);
    truth_leave();
    pthread_exit(NULL);
}
