/* SPDX-License-Identifier: Apache-2.0
 *
 * libtruth_simulator.so: boundary functions of the category `simulator`. Every one spends the time it is asked to.
 */
#ifndef TRUTH_SIMULATOR_H
#define TRUTH_SIMULATOR_H

#include <setjmp.h>
#include <stdint.h>

#include "truth_clock.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef void (*truth_callback)(void *context); /* runs Python */
typedef void (*truth_native)(int64_t ns);      /* a boundary function of another library */

TRUTH_API void sim_spin(int64_t ns);
TRUTH_API void sim_recurse(int64_t ns, int depth);                                /* calls itself `depth` times */
TRUTH_API void sim_call_native(truth_native function, int64_t argument, int64_t ns); /* ns before and ns after */
TRUTH_API void sim_callback(truth_callback callback, void *context, int64_t ns);     /* ns before and ns after */
TRUTH_API void sim_longjmp(jmp_buf target, int64_t ns);                            /* does not return */
TRUTH_API void sim_pthread_exit(int64_t ns);                                       /* does not return */

/* C++ part */
TRUTH_API void sim_throwing(int64_t ns);         /* throws std::runtime_error after ns */
TRUTH_API void sim_passes_exception(int64_t ns); /* calls sim_throwing and lets the exception through */

#ifdef __cplusplus
}

namespace truth {

class TRUTH_API Simulator {
public:
    explicit Simulator(int64_t unit_ns);
    virtual ~Simulator();
    virtual int64_t step(int64_t units);

private:
    int64_t unit_ns_;
    int64_t steps_ = 0;
};

} /* namespace truth */
#endif
#endif
