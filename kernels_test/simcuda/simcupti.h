/* SPDX-License-Identifier: Apache-2.0
 *
 * A simulated CUPTI over the simulated CUDA: libcupti.so.12 and libcupti.so.13, whose records have the layout of CUDA
 * 12.1 and 13.0 (userspace/cupti_abi.h).
 *
 * What is true of it
 *
 * - Callbacks are made only for functions that were enabled, records only for kinds that were enabled. One subscriber.
 * - Records of what the GPU does go into buffers that the user gives. A full buffer is handed over by a thread of
 *   CUPTI's once all its records lie in the past; a flush hands over what lies in the past, a forced flush everything,
 *   and what is not over yet has no times in it.
 * - A call of the API that was made from outside is one record, of kind DRIVER or RUNTIME, if it was not switched off.
 * - Without a callback for the time, times are of CLOCK_REALTIME.
 * - cuptiFinalize takes everything away; any call begins anew.
 *
 * It misbehaves when told to, by simcupti_set or SIMCUPTI="zero=10,…"; 0 switches a misbehaviour off:
 *
 *   zero, reversed, future, nameless, unknown
 *                      every n-th record of a kernel has times of 0, ends before it begins, ends a minute from now, has
 *                      no name, or is replaced by a record of a kind that nobody knows
 *   drop               every n-th record is dropped, and counted as such
 *   broken             the n-th record of each buffer cannot be read
 *   unordered          1: the records of a buffer stand in it last to first
 *   version            what cuptiGetVersion says
 *   fail.FUNCTION      a function does nothing but return this error
 */
#ifndef SIMCUPTI_H
#define SIMCUPTI_H

#include "cupti_abi.h"
#include "simcuda.h"

#define SIMCUPTI_DECLARE(name, arguments) SIMCUDA_API int name arguments;
CU_REQUIRED(SIMCUPTI_DECLARE)
CU_OPTIONAL(SIMCUPTI_DECLARE)

/* What cupti-python uses and the helper does not. */
enum { SIMCUPTI_KIND_DRIVER = 4, SIMCUPTI_KIND_RUNTIME = 5 };
struct simcupti_api { /* CUpti_ActivityAPI */
    uint32_t kind, function;
    uint64_t start, end;
    uint32_t process, thread, correlation, result;
};
SIMCUDA_API int cuptiActivityEnableDriverApi(uint32_t function, uint8_t on);
SIMCUDA_API int cuptiActivityEnableRuntimeApi(uint32_t function, uint8_t on);
SIMCUDA_API int cuptiSetThreadIdType(uint32_t type); /* 1: as the kernel numbers them; 0: of pthreads */

/* Returns 0, or -1 if there is no such setting. */
SIMCUDA_API int simcupti_set(const char *name, int64_t value);

/* State and counts: "subscribers", "kinds" and "callbacks" (how many are enabled), "clock" (1: the user's), "buffers"
 * (given and not handed back), "records" (written since the start), "dropped", "finalized", "finalized_outside" (of
 * these, not in a callback at the end of a call), "called" (callbacks made). -1: no such name. */
SIMCUDA_API int64_t simcupti_get(const char *name);

#endif
