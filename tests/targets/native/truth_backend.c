/* SPDX-License-Identifier: Apache-2.0 */
#include "truth_backend.h"

void be_spin(int64_t ns)
{
    truth_enter(TRUTH_BACKEND);
    truth_spin(ns);
    truth_leave();
}

void be_call_native(void (*function)(int64_t ns), int64_t argument, int64_t ns)
{
    truth_enter(TRUTH_BACKEND);
    truth_spin(ns);
    function(argument);
    truth_spin(ns);
    truth_leave();
}

void be_callback(void (*callback)(void *context), void *context, int64_t ns)
{
    truth_enter(TRUTH_BACKEND);
    truth_spin(ns);
    truth_enter(TRUTH_PYTHON);
    callback(context);
    truth_leave();
    truth_spin(ns);
    truth_leave();
}
