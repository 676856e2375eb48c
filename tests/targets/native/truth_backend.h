/* SPDX-License-Identifier: Apache-2.0
 *
 * libtruth_backend.so: boundary functions of the category `backend`.
 */
#ifndef TRUTH_BACKEND_H
#define TRUTH_BACKEND_H

#include <stdint.h>

#include "truth_clock.h"

#ifdef __cplusplus
extern "C" {
#endif

TRUTH_API void be_spin(int64_t ns);
TRUTH_API void be_call_native(void (*function)(int64_t ns), int64_t argument, int64_t ns); /* ns before and after */
TRUTH_API void be_callback(void (*callback)(void *context), void *context, int64_t ns);    /* ns before and after */

#ifdef __cplusplus
}
#endif
#endif
