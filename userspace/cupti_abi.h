/* SPDX-License-Identifier: Apache-2.0
 *
 * What we use of CUPTI's binary interface, CUDA 12 and 13. Declared here so that the helper compiles where no CUDA
 * toolkit is, and so that one binary serves both: of each activity record only the first part is declared, which all
 * these versions share. tests/userspace/test_cupti_abi.py compares it with NVIDIA's headers.
 */
#ifndef RLSCOPE_CUPTI_ABI_H
#define RLSCOPE_CUPTI_ABI_H

#include <stddef.h>
#include <stdint.h>

/* CUptiResult */
enum {
    CU_OK = 0,
    CU_INVALID_PARAMETER = 1,
    CU_OUT_OF_MEMORY = 8,
    CU_MAX_LIMIT_REACHED = 12,
    CU_NOT_INITIALIZED = 15,
    CU_INVALID_KIND = 21,
    CU_NOT_SUPPORTED = 27,
    CU_INSUFFICIENT_PRIVILEGES = 35,
    CU_MULTIPLE_SUBSCRIBERS = 39,
};

/* CUpti_ActivityKind */
enum {
    CU_KIND_MEMCPY = 1,
    CU_KIND_MEMSET = 2,
    CU_KIND_CONCURRENT_KERNEL = 10,
    CU_KIND_MEMCPY2 = 22, /* between devices */
    CU_KIND_SYNCHRONIZATION = 38,
    CU_KIND_GRAPH_TRACE = 51, /* a whole graph launch as one record, instead of its kernels */
};

/* CUpti_CallbackDomain, CUpti_ApiCallbackSite */
enum { CU_DOMAIN_DRIVER = 1, CU_DOMAIN_RUNTIME = 2 };
enum { CU_SITE_ENTER = 0, CU_SITE_EXIT = 1 };

enum { CU_FLUSH_FORCED = 1 };

/* CUpti_ActivityKernel5 (CUDA 11) to CUpti_ActivityKernel10 (CUDA 13) */
struct cu_kernel {
    uint32_t kind;
    uint16_t not_used_1;
    uint16_t registers;
    uint64_t not_used_2;
    uint64_t start, end, completed;
    uint32_t device, context, stream;
    int32_t grid[3], block[3];
    int32_t static_shared, dynamic_shared;
    uint32_t local_per_thread, local_total, correlation;
    int64_t grid_id;
    const char *name;
    uint64_t not_used_3, queued, submitted;
    uint64_t not_used_4;
    uint64_t graph_node;
    uint32_t not_used_5, graph;
};

/* CUpti_ActivityMemcpy4 and later */
struct cu_memcpy {
    uint32_t kind;
    uint8_t copy, source, destination, flags;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation;
    uint32_t runtime_correlation, pad;
    void *not_used;
    uint64_t graph_node;
    uint32_t graph, channel;
};

/* CUpti_ActivityMemcpyPtoP3 and later */
struct cu_memcpy2 {
    uint32_t kind;
    uint8_t copy, source, destination, flags;
    uint64_t bytes, start, end;
    uint32_t device, context, stream;
    uint32_t source_device, source_context, destination_device, destination_context, correlation;
    void *not_used;
    uint64_t graph_node;
    uint32_t graph, channel;
};

/* CUpti_ActivityMemset3 and later */
struct cu_memset {
    uint32_t kind, value;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation;
    uint16_t flags, memory;
    uint32_t pad;
    void *not_used;
    uint64_t graph_node;
    uint32_t graph, channel;
};

/* CUpti_ActivitySynchronization and later */
struct cu_synchronization {
    uint32_t kind, type;
    uint64_t start, end;
    uint32_t correlation, context, stream, event;
};

/* CUpti_ActivityGraphTrace and later */
struct cu_graph_trace {
    uint32_t kind, correlation;
    uint64_t start, end;
    uint32_t device, graph, context, stream;
};

/* CUpti_CallbackData */
struct cu_callback_data {
    uint32_t site;
    const char *function;
    const void *parameters;
    const void *result; /* CUresult or cudaError_t; at the exit */
    const char *symbol;
    void *context;
    uint32_t context_id;
    uint64_t *own; /* a word that lives from the call's entry to its exit */
    uint32_t correlation;
};

typedef void (*cu_request)(uint8_t **buffer, size_t *size, size_t *records);
typedef void (*cu_complete)(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);
typedef void (*cu_callback)(void *user, uint32_t domain, uint32_t function, const void *data);
typedef uint64_t (*cu_clock)(void);

/* name, result, arguments: everything that is looked up in libcupti */
#define CU_REQUIRED(X)                                                                                                 \
    X(cuptiGetVersion, (uint32_t * version))                                                                           \
    X(cuptiGetTimestamp, (uint64_t * time))                                                                            \
    X(cuptiSubscribe, (void **subscriber, cu_callback callback, void *user))                                           \
    X(cuptiUnsubscribe, (void *subscriber))                                                                            \
    X(cuptiEnableCallback, (uint32_t enable, void *subscriber, uint32_t domain, uint32_t function))                    \
    X(cuptiEnableDomain, (uint32_t enable, void *subscriber, uint32_t domain))                                         \
    X(cuptiGetCallbackName, (uint32_t domain, uint32_t function, const char **name))                                   \
    X(cuptiActivityRegisterCallbacks, (cu_request request, cu_complete complete))                                      \
    X(cuptiActivityEnable, (uint32_t kind))                                                                            \
    X(cuptiActivityDisable, (uint32_t kind))                                                                           \
    X(cuptiActivityFlushAll, (uint32_t flag))                                                                          \
    X(cuptiActivityGetNextRecord, (uint8_t * buffer, size_t valid, void **record))                                     \
    X(cuptiActivityGetNumDroppedRecords, (void *context, uint32_t stream, size_t *dropped))
#define CU_OPTIONAL(X)                                                                                                 \
    X(cuptiActivityRegisterTimestampCallback, (cu_clock clock))                                                        \
    X(cuptiFinalize, (void))

#endif
