/* SPDX-License-Identifier: Apache-2.0
 *
 * A simulator library that the program loads only while it runs.
 */
#include "truth_clock.h"

TRUTH_API void late_spin(int64_t ns);

void late_spin(int64_t ns)
{
    truth_enter(TRUTH_SIMULATOR);
    truth_spin(ns);
    truth_leave();
}
