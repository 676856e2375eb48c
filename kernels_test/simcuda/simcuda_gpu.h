/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated GPU, and what libcupti is told of it and of the calls.
 */
#ifndef SIMCUDA_GPU_H
#define SIMCUDA_GPU_H

#include "simcuda.h"

#define SIMCUDA_DEVICE 0
#define SIMCUDA_CONTEXT 1
#define SIMCUDA_EVERY_STREAM 0xffffffffu

/* Numbers are CUPTI's: CUpti_ActivityMemcpyKind, CUpti_ActivitySynchronizationType. */
enum { SIMCUDA_HTOD = 1, SIMCUDA_DTOH = 2, SIMCUDA_DTOD = 8 };
enum { SIMCUDA_SYNC_EVENT = 1, SIMCUDA_SYNC_WAIT_EVENT = 2, SIMCUDA_SYNC_STREAM = 3, SIMCUDA_SYNC_CONTEXT = 4 };

struct simcuda_item {
    uint32_t kind; /* enum simcuda_work */
    uint32_t correlation;
    uint32_t stream;
    uint32_t detail; /* of a copy or a synchronisation */
    uint32_t graph;
    uint64_t node;
    uint64_t bytes;
    const char *name; /* of a kernel; never freed */
    int64_t start, end;
};

struct simcuda_profiler {
    /* `own` is a word of the call's that keeps its value from its begin to its end; `result` is null at the begin. */
    void (*api)(uint32_t domain, uint32_t function, const int *result, uint32_t correlation, uint64_t *own);
    void (*item)(const struct simcuda_item *item);
};

/* One at a time; NULL: none. A call that is under way may still use the one before. */
SIMCUDA_API void simcuda_set_profiler(const struct simcuda_profiler *profiler);

struct CUstream_st {
    uint32_t id;
    int64_t end;
};
struct CUevent_st {
    int64_t end;
};
struct CUgraph_st {
    uint32_t count, capacity;
    const void **kernels;
};
struct CUgraphExec_st {
    uint32_t id;
    uint32_t count;
    const void *kernels[];
};

/* Everything below is called between simcuda_begin and simcuda_end of a call of the driver. */
void simcuda_new_stream(CUstream stream);
void simcuda_launch(const void *function, CUstream stream);
void simcuda_launch_graph(CUgraphExec graph, CUstream stream);
void simcuda_copy(uint32_t direction, uint64_t bytes, CUstream stream);
void simcuda_set(uint64_t bytes, CUstream stream);
void simcuda_record_event(CUevent event, CUstream stream);
void simcuda_wait_event(CUevent event, CUstream stream);
uint32_t simcuda_new_graph(void);
/* Waits until everything that was enqueued before is done. A null stream here means every stream. */
void simcuda_synchronize(uint32_t type, CUstream stream, CUevent event);
/* The stream that a handle means. */
CUstream simcuda_stream(CUstream handle);

#endif
