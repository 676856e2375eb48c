/* SPDX-License-Identifier: Apache-2.0
 *
 * What gpu.bpf.c writes: batches of the GPU helper's records as they are (userspace/rlscope_cupti.h), and its names and
 * states. rlscope_ebpf/capture/gpu_layout.py mirrors it; a test compares the two.
 */
#ifndef RLSCOPE_PROBES_GPU_H
#define RLSCOPE_PROBES_GPU_H

#define RLS_GPU_BATCH 256
#define RLS_GPU_RECORD_BYTES 64

/* One record of the batches ring. */
struct rls_gpu_batch {
    unsigned long long time_ns;
    unsigned long long before; /* records that the helper had handed out before these */
    unsigned int pid;
    unsigned int count;        /* of the records that follow; what is behind them is to be ignored */
    char records[RLS_GPU_BATCH * RLS_GPU_RECORD_BYTES];
};

/* One record of the texts ring. */
#define RLS_GPU_TEXT_MAX 1024
enum rls_gpu_text_kind {
    RLS_GPU_NAME = 1,   /* id and name of a kernel */
    RLS_GPU_STATUS = 2, /* text: struct rlscope_gpu_status */
    RLS_GPU_FOREIGN = 3, /* no text; id: which function of CUPTI was called */
};
struct rls_gpu_text {
    unsigned long long time_ns;
    unsigned int pid;
    unsigned int kind;   /* enum rls_gpu_text_kind */
    unsigned int id;
    unsigned int length; /* bytes of text used */
    char text[RLS_GPU_TEXT_MAX];
};

/* The attach cookie: which function was called, of the helper, or, once it is active, of CUPTI by somebody else. */
enum rls_gpu_function {
    RLS_GPU_CALLED_RECORDS = 1,
    RLS_GPU_CALLED_NAME = 2,
    RLS_GPU_CALLED_STATUS = 3,
    RLS_GPU_CALLED_SUBSCRIBE = 4,
    RLS_GPU_CALLED_REGISTER = 5,
};

/* Indices of the counters array (per CPU). */
enum rls_gpu_counter {
    RLS_GPU_N_BATCHES = 0,      /* seen */
    RLS_GPU_N_LOST_RECORDS = 1, /* the batches ring was full */
    RLS_GPU_N_UNREADABLE = 2,   /* records that could not be read from the target */
    RLS_GPU_N_LOST_TEXTS = 3,
    RLS_GPU_N_COUNTERS = 4,
};

#endif
