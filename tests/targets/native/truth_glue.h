/* SPDX-License-Identifier: Apache-2.0
 *
 * libtruth_glue.so: belongs to no category; it stands between Python and the boundary libraries. In a Python thread its
 * own time is `python`, in a native thread `other`.
 */
#ifndef TRUTH_GLUE_H
#define TRUTH_GLUE_H

#include "truth_backend.h"
#include "truth_simulator.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each returns 1 if the call ended the unusual way it is meant to end, otherwise 0. */
TRUTH_API int glue_throwing(int64_t ns);
TRUTH_API int glue_throwing_through(int64_t ns); /* the exception crosses two boundary functions */
TRUTH_API int glue_longjmp(int64_t ns);

TRUTH_API int64_t glue_cpp_steps(int64_t unit_ns, int64_t units); /* a virtual C++ method */

/* Runs `threads` native threads and waits for them; each makes `calls` calls into the simulator and as many into the
 * backend, of ns each; with `exits`, a last call of a simulator function that ends the thread. Returns 0, or an errno.
 */
TRUTH_API int glue_native_threads(int threads, int calls, int64_t ns, int exits);

#ifdef __cplusplus
}
#endif
#endif
