/* SPDX-License-Identifier: Apache-2.0
 *
 * On the functions at which the GPU helper hands things out (userspace/rlscope_cupti.h): copies their arguments into
 * rings; and on functions of CUPTI's that nobody else should call while the helper uses it. A program of its own: it is
 * compiled only when a helper is there, with
 *   -DGPU_RING_PAGES, -DGPU_TEXT_RING_PAGES  sizes of the rings, in pages, powers of two
 *   -DRLS_PID_NAMESPACE, -DRLS_PID_NAMESPACE_DEVICE  see pids.h
 */
#include <uapi/linux/ptrace.h>
#include "gpu.h"
#include "pids.h"

/* By a name of our own: see thread.bpf.c. */
static long (*read_user)(void *to, u32 size, const void *from) = (void *)BPF_FUNC_probe_read_user;

BPF_RINGBUF_OUTPUT(gpu_batches, GPU_RING_PAGES);
BPF_RINGBUF_OUTPUT(gpu_texts, GPU_TEXT_RING_PAGES);
BPF_TABLE("hash", u32, u64, gpu_targets, 4096);
BPF_TABLE("percpu_array", int, u64, gpu_counters, RLS_GPU_N_COUNTERS);

static __always_inline void count(int which, u64 by)
{
    u64 *counter = gpu_counters.lookup(&which);
    if (counter)
        *counter += by;
}

static __always_inline void take_records(struct pt_regs *ctx, u32 pid)
{
    u64 wanted = ctx->si & 0xffff;
    u32 size = (u32)wanted * RLS_GPU_RECORD_BYTES;
    struct rls_gpu_batch *batch;

    count(RLS_GPU_N_BATCHES, 1);
    if (size > sizeof(batch->records)) {
        count(RLS_GPU_N_UNREADABLE, wanted);
        return;
    }
    batch = gpu_batches.ringbuf_reserve(sizeof(*batch));
    if (!batch) {
        count(RLS_GPU_N_LOST_RECORDS, wanted);
        return;
    }
    if (read_user(batch->records, size, (void *)ctx->di)) {
        count(RLS_GPU_N_UNREADABLE, wanted);
        gpu_batches.ringbuf_discard(batch, BPF_RB_NO_WAKEUP);
        return;
    }
    batch->time_ns = bpf_ktime_get_ns();
    batch->before = ctx->dx;
    batch->pid = pid;
    batch->count = wanted;
    gpu_batches.ringbuf_submit(batch, BPF_RB_NO_WAKEUP);
}

static __always_inline void take_text(u32 pid, u32 kind, u32 id, u64 address, u64 length)
{
    struct rls_gpu_text *text = gpu_texts.ringbuf_reserve(sizeof(*text));
    u32 size = length > RLS_GPU_TEXT_MAX ? RLS_GPU_TEXT_MAX : (u32)length;

    if (!text) {
        count(RLS_GPU_N_LOST_TEXTS, 1);
        return;
    }
    if (read_user(text->text, size, (void *)address)) {
        count(RLS_GPU_N_LOST_TEXTS, 1);
        gpu_texts.ringbuf_discard(text, BPF_RB_NO_WAKEUP);
        return;
    }
    text->time_ns = bpf_ktime_get_ns();
    text->pid = pid;
    text->kind = kind;
    text->id = id;
    text->length = size;
    gpu_texts.ringbuf_submit(text, BPF_RB_NO_WAKEUP);
}

static __always_inline void take_foreign(u32 pid, u32 called)
{
    struct rls_gpu_text *text = gpu_texts.ringbuf_reserve(sizeof(*text));

    if (!text) {
        count(RLS_GPU_N_LOST_TEXTS, 1);
        return;
    }
    text->time_ns = bpf_ktime_get_ns();
    text->pid = pid;
    text->kind = RLS_GPU_FOREIGN;
    text->id = called;
    text->length = 0;
    gpu_texts.ringbuf_submit(text, BPF_RB_NO_WAKEUP);
}

int rls_gpu(struct pt_regs *ctx)
{
    u64 called = bpf_get_attach_cookie(ctx);
    u32 pid = current_ids() >> 32;

    /* Probes attached as perf events fire in every process that maps the file. */
    if (!gpu_targets.lookup(&pid))
        return 0;
    if (called == RLS_GPU_CALLED_RECORDS)
        take_records(ctx, pid);
    else if (called == RLS_GPU_CALLED_NAME)
        take_text(pid, RLS_GPU_NAME, ctx->di, ctx->si, ctx->dx);
    else if (called == RLS_GPU_CALLED_STATUS)
        take_text(pid, RLS_GPU_STATUS, 0, ctx->di, ctx->si);
    else
        take_foreign(pid, called);
    return 0;
}
