/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares userspace/cupti_abi.h with NVIDIA's own headers. Compiled, never run.
 */
#include <cupti.h>

#include "cupti_abi.h"
#include "simcupti_ids.h"

#define SAME(number, theirs) _Static_assert((int)(number) == (int)(theirs), #theirs)
SAME(CU_OK, CUPTI_SUCCESS);
SAME(CU_INVALID_PARAMETER, CUPTI_ERROR_INVALID_PARAMETER);
SAME(CU_OUT_OF_MEMORY, CUPTI_ERROR_OUT_OF_MEMORY);
SAME(CU_MAX_LIMIT_REACHED, CUPTI_ERROR_MAX_LIMIT_REACHED);
SAME(CU_NOT_INITIALIZED, CUPTI_ERROR_NOT_INITIALIZED);
SAME(CU_INVALID_KIND, CUPTI_ERROR_INVALID_KIND);
SAME(CU_NOT_SUPPORTED, CUPTI_ERROR_NOT_SUPPORTED);
SAME(CU_INSUFFICIENT_PRIVILEGES, CUPTI_ERROR_INSUFFICIENT_PRIVILEGES);
SAME(CU_MULTIPLE_SUBSCRIBERS, CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
SAME(CU_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMCPY);
SAME(CU_KIND_MEMSET, CUPTI_ACTIVITY_KIND_MEMSET);
SAME(CU_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
SAME(CU_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_MEMCPY2);
SAME(CU_KIND_SYNCHRONIZATION, CUPTI_ACTIVITY_KIND_SYNCHRONIZATION);
SAME(CU_KIND_GRAPH_TRACE, CUPTI_ACTIVITY_KIND_GRAPH_TRACE);
SAME(CU_DOMAIN_DRIVER, CUPTI_CB_DOMAIN_DRIVER_API);
SAME(CU_DOMAIN_RUNTIME, CUPTI_CB_DOMAIN_RUNTIME_API);
SAME(CU_SITE_ENTER, CUPTI_API_ENTER);
SAME(CU_SITE_EXIT, CUPTI_API_EXIT);
SAME(CU_FLUSH_FORCED, CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);

#define FIELD(ours, our_field, theirs, their_field)                                                                    \
    _Static_assert(offsetof(struct ours, our_field) == offsetof(theirs, their_field), #theirs "." #their_field);       \
    _Static_assert(sizeof(((struct ours *)0)->our_field) == sizeof(((theirs *)0)->their_field), #their_field)

#define TIMED(ours, theirs)                                                                                            \
    FIELD(ours, kind, theirs, kind);                                                                                   \
    FIELD(ours, start, theirs, start);                                                                                 \
    FIELD(ours, end, theirs, end);                                                                                     \
    FIELD(ours, correlation, theirs, correlationId);                                                                   \
    FIELD(ours, context, theirs, contextId);                                                                           \
    FIELD(ours, stream, theirs, streamId)
#define ON_DEVICE(ours, theirs)                                                                                        \
    TIMED(ours, theirs);                                                                                               \
    FIELD(ours, device, theirs, deviceId);                                                                             \
    FIELD(ours, graph, theirs, graphId)
#define IN_GRAPH(ours, theirs)                                                                                         \
    ON_DEVICE(ours, theirs);                                                                                           \
    FIELD(ours, graph_node, theirs, graphNodeId)
#define KERNEL(theirs)                                                                                                 \
    IN_GRAPH(cu_kernel, theirs);                                                                                       \
    FIELD(cu_kernel, name, theirs, name);                                                                              \
    FIELD(cu_kernel, registers, theirs, registersPerThread);                                                           \
    FIELD(cu_kernel, grid[0], theirs, gridX);                                                                          \
    FIELD(cu_kernel, block[0], theirs, blockX);                                                                        \
    _Static_assert(sizeof(struct cu_kernel) <= sizeof(theirs), #theirs)
#define COPY(ours, theirs)                                                                                             \
    IN_GRAPH(ours, theirs);                                                                                            \
    FIELD(ours, bytes, theirs, bytes);                                                                                 \
    FIELD(ours, copy, theirs, copyKind);                                                                               \
    FIELD(ours, source, theirs, srcKind);                                                                              \
    FIELD(ours, destination, theirs, dstKind);                                                                         \
    _Static_assert(sizeof(struct ours) <= sizeof(theirs), #theirs)

#if CUPTI_API_VERSION >= 130000
KERNEL(CUpti_ActivityKernel10);
COPY(cu_memcpy, CUpti_ActivityMemcpy6);
TIMED(cu_synchronization, CUpti_ActivitySynchronization2);
ON_DEVICE(cu_graph_trace, CUpti_ActivityGraphTrace2);
_Static_assert(sizeof(CUpti_ActivityKernel10) == SIMCUPTI_KERNEL_13, "kernel");
_Static_assert(sizeof(CUpti_ActivityMemcpy6) == SIMCUPTI_MEMCPY_13, "memcpy");
_Static_assert(sizeof(CUpti_ActivitySynchronization2) == SIMCUPTI_SYNC_13, "synchronization");
#endif
/* CUDA 12, still described by the headers of 13 */
KERNEL(CUpti_ActivityKernel9);
COPY(cu_memcpy, CUpti_ActivityMemcpy5);
COPY(cu_memcpy2, CUpti_ActivityMemcpyPtoP4);
IN_GRAPH(cu_memset, CUpti_ActivityMemset4);
FIELD(cu_memset, bytes, CUpti_ActivityMemset4, bytes);
TIMED(cu_synchronization, CUpti_ActivitySynchronization);
FIELD(cu_synchronization, type, CUpti_ActivitySynchronization, type);
ON_DEVICE(cu_graph_trace, CUpti_ActivityGraphTrace);
_Static_assert(sizeof(struct cu_synchronization) == sizeof(CUpti_ActivitySynchronization), "synchronization");
_Static_assert(sizeof(struct cu_graph_trace) <= sizeof(CUpti_ActivityGraphTrace), "graph trace");
_Static_assert(sizeof(CUpti_ActivityKernel9) == SIMCUPTI_KERNEL_12, "kernel");
_Static_assert(sizeof(CUpti_ActivityMemcpy5) == SIMCUPTI_MEMCPY_12, "memcpy");
_Static_assert(sizeof(CUpti_ActivityMemset4) == SIMCUPTI_MEMSET, "memset");
_Static_assert(sizeof(CUpti_ActivitySynchronization) == SIMCUPTI_SYNC_12, "synchronization");

FIELD(cu_callback_data, site, CUpti_CallbackData, callbackSite);
FIELD(cu_callback_data, function, CUpti_CallbackData, functionName);
FIELD(cu_callback_data, result, CUpti_CallbackData, functionReturnValue);
FIELD(cu_callback_data, context, CUpti_CallbackData, context);
FIELD(cu_callback_data, own, CUpti_CallbackData, correlationData);
FIELD(cu_callback_data, correlation, CUpti_CallbackData, correlationId);
_Static_assert(sizeof(struct cu_callback_data) == sizeof(CUpti_CallbackData), "callback data");

/* The functions: same arguments, as far as a C compiler sees; enumerations are ints. */
_Static_assert(sizeof(CUpti_ActivityKind) == 4 && sizeof(CUpti_CallbackDomain) == 4, "enumerations");
_Static_assert(sizeof(CUptiResult) == 4, "enumerations");

/* The simulated CUPTI's callback ids. */
#define SIMCUPTI_CBID(name, id) SAME(id, CUPTI_DRIVER_TRACE_CBID_##name);
#define SIMCUPTI_RUNTIME_CBID(name, version, id) SAME(id, CUPTI_RUNTIME_TRACE_CBID_##name##_v##version);
SIMCUPTI_DRIVER_IDS(SIMCUPTI_CBID)
SIMCUPTI_RUNTIME_IDS(SIMCUPTI_RUNTIME_CBID)
