/* SPDX-License-Identifier: Apache-2.0
 *
 * librlscope_cupti.so: what the GPU does, told from inside the process that uses it.
 *
 * The library does nothing until it is started: by the CUDA driver (CUDA_INJECTION64_PATH), or by a call of
 * rlscope_gpu_start. It then takes activity records from CUPTI and hands them out, in batches, as the arguments of
 * functions that do nothing and begin with a push, which is cheap to probe; a profiler does. It watches its own first
 * bytes: while nobody probes rlscope_gpu_records, nobody listens, and it gives CUPTI back by itself. It never waits for anybody,
 * prints, throws or ends the process. What goes wrong is counted in rlscope_gpu_state.
 *
 * rlscope_ebpf/model/gpu.py mirrors the records, rlscope_ebpf/capture/gpu_layout.py the rest; a test compares them.
 */
#ifndef RLSCOPE_CUPTI_H
#define RLSCOPE_CUPTI_H

#include <stdint.h>

#define RLSCOPE_GPU_API __attribute__((visibility("default")))

enum rlscope_gpu_kind {
    RLSCOPE_GPU_KERNEL = 1,
    RLSCOPE_GPU_COPY = 2,   /* detail: CUpti_ActivityMemcpyKind (1 to the device, 2 to the host, 8 on the device) */
    RLSCOPE_GPU_SET = 3,
    RLSCOPE_GPU_SYNC = 4,   /* a thread waited; detail: CUpti_ActivitySynchronizationType (1 event, 3 stream, 4 context) */
    RLSCOPE_GPU_LAUNCH = 5, /* the driver call that caused the records of the same correlation; detail: below */
    RLSCOPE_GPU_GRAPH = 6,  /* a whole graph launch instead of its kernels; not asked for: see docs/design/gpu-helper.md */
};

/* detail of a launch */
enum rlscope_gpu_launch {
    RLSCOPE_GPU_LAUNCH_KERNEL = 1,
    RLSCOPE_GPU_LAUNCH_COPY = 2,
    RLSCOPE_GPU_LAUNCH_SET = 3,
    RLSCOPE_GPU_LAUNCH_GRAPH = 4,
};

struct rlscope_gpu_record {
    uint64_t start_ns, end_ns; /* CLOCK_MONOTONIC */
    uint64_t bytes;            /* copies, sets */
    uint64_t graph_node;       /* 0: not in a graph */
    uint32_t correlation;      /* per process; wraps */
    uint32_t name;             /* kernels: see rlscope_gpu_name; 0: none */
    uint32_t device, context, stream;
    uint32_t graph;            /* 0: not in a graph */
    uint32_t thread;           /* launches, waits: thread id, as the process's pid namespace numbers it */
    uint8_t kind;              /* enum rlscope_gpu_kind */
    uint8_t detail;
    uint16_t reserved;
};

#define RLSCOPE_GPU_BATCH 256    /* records, at most, in one call */
#define RLSCOPE_GPU_NAME_MAX 1023 /* bytes of a name; longer ones are cut and counted */

enum rlscope_gpu_state_number {
    RLSCOPE_GPU_DORMANT = 0,
    RLSCOPE_GPU_STARTING = 1,
    RLSCOPE_GPU_ACTIVE = 2,
    RLSCOPE_GPU_LEAVING = 3,
    /* what it tried last failed, and it is dormant again */
    RLSCOPE_GPU_FOREIGN = 4,       /* another profiler uses CUPTI */
    RLSCOPE_GPU_FAILED = 5,        /* `error` and `failed_call` say what */
    RLSCOPE_GPU_NO_LIBRARY = 6,    /* no libcupti found */
    RLSCOPE_GPU_WRONG_VERSION = 7, /* `cupti_version` is one that we do not know */
};

enum rlscope_gpu_clock { RLSCOPE_GPU_CLOCK_OURS = 1, RLSCOPE_GPU_CLOCK_CALIBRATED = 2 };

/* Running totals since the library was loaded. */
#define RLSCOPE_GPU_COUNTERS(X)                                                                                        \
    X(records)         /* handed out */                                                                                \
    X(batches)                                                                                                         \
    X(kernels)                                                                                                         \
    X(copies)                                                                                                          \
    X(sets)                                                                                                            \
    X(syncs)                                                                                                           \
    X(launches)                                                                                                        \
    X(graphs)                                                                                                          \
    X(graph_kernels)   /* of the kernels, those in graphs */                                                           \
    X(names)                                                                                                           \
    X(dropped)         /* by CUPTI */                                                                                  \
    X(no_buffer)       /* CUPTI wanted one and our memory was used up */                                               \
    X(zero_time)       /* not handed out: no start or no end */                                                        \
    X(reversed_time)   /* not handed out: ends before it starts */                                                     \
    X(out_of_range)    /* not handed out: before the start, or in the future */                                        \
    X(unfinished)      /* not handed out: not over when we left */                                                     \
    X(unknown_kind)                                                                                                    \
    X(broken)          /* buffers that could not be read to their end */                                               \
    X(late)            /* buffers thrown away: nobody listened any more */                                             \
    X(nameless)        /* kernels */                                                                                   \
    X(cut_names)                                                                                                       \
    X(lost_names)      /* there were too many */                                                                       \
    X(lost_launches)   /* a thread's were not fetched in time, or there were too many threads */                       \
    X(failed_launches) /* calls that returned an error: they launched nothing */                                       \
    X(errors)          /* calls of CUPTI that failed */

struct rlscope_gpu_counters {
#define RLSCOPE_GPU_COUNTER(name) uint64_t name;
    RLSCOPE_GPU_COUNTERS(RLSCOPE_GPU_COUNTER)
#undef RLSCOPE_GPU_COUNTER
};

#define RLSCOPE_GPU_MAGIC 0x55504752u /* "RGPU" */
#define RLSCOPE_GPU_VERSION 1

struct rlscope_gpu_status {
    uint32_t magic, version, size, pid;
    uint32_t state;         /* enum rlscope_gpu_state_number */
    uint32_t error;         /* CUptiResult of the last call that failed */
    uint32_t failed_call;   /* its number: 1 is the first of CU_REQUIRED, then CU_OPTIONAL (cupti_abi.h) */
    uint32_t cupti_version; /* CUPTI_API_VERSION */
    uint32_t clock;         /* enum rlscope_gpu_clock */
    uint32_t listening;     /* 1: somebody probes rlscope_gpu_records */
    uint32_t starts;        /* how often it became active */
    uint32_t finalized;     /* how often it finalized CUPTI */
    uint32_t simulated;     /* 1: the library is no real CUPTI */
    uint32_t reserved;
    uint64_t updated_ns;    /* CLOCK_MONOTONIC */
    struct rlscope_gpu_counters counters;
};

/* Changes at any time; every word is whole. */
extern RLSCOPE_GPU_API struct rlscope_gpu_status rlscope_gpu_state;

/* -- to be probed --------------------------------------------------------------------------------------------- */

/* `count` records; `before`: how many were handed out before them. They are not kept after the call. */
RLSCOPE_GPU_API void rlscope_gpu_records(const struct rlscope_gpu_record *records, uint32_t count, uint64_t before);
/* A kernel's name, before the first record with its id. All are told again to a new listener. */
RLSCOPE_GPU_API void rlscope_gpu_name(uint32_t id, const char *name, uint32_t length);
/* The state: at every change, and twice a second. */
RLSCOPE_GPU_API void rlscope_gpu_status(const struct rlscope_gpu_status *status, uint32_t size);

/* -- to be called --------------------------------------------------------------------------------------------- */

/* Never give CUPTI back by cuptiFinalize: all is disabled, and CUPTI stays initialised. */
#define RLSCOPE_GPU_KEEP 0x1u
/* Take CUPTI into use at once, in the calling thread. Until somebody listens, records are kept, as far as memory goes. */
#define RLSCOPE_GPU_AT_ONCE 0x2u

/* Starts, unless it is started: as soon as somebody listens, who has to within `patience_ms` (0: 10 s). Returns the
 * state; the work is done by a thread of the library's own. One that is about to leave starts again. */
RLSCOPE_GPU_API uint32_t rlscope_gpu_start(uint32_t flags, uint32_t patience_ms);
/* Asks it to leave. Returns the state at once; dormant follows within four seconds. */
RLSCOPE_GPU_API uint32_t rlscope_gpu_stop(void);
/* What the CUDA driver calls: starts at once. */
RLSCOPE_GPU_API int InitializeInjection(void);

#endif
