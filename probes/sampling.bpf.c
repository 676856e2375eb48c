/* SPDX-License-Identifier: Apache-2.0
 *
 * Where threads of the targets are, looked at by a clock of the time that each CPU works, and when they leave their CPU;
 * and who is seen to run Python.
 * rlscope_ebpf/capture/code_map.py tells the category of what is found.
 */

BPF_RINGBUF_OUTPUT(samples, SAMPLE_RING_PAGES);

#define RLS_PAGE 4096

/* Kernels from 5.15 on tell where a thread entered the kernel, if they know their own types (BTF). */
static void *(*current_task)(void) = (void *)BPF_FUNC_get_current_task_btf;
static long (*task_registers)(void *task) = (void *)BPF_FUNC_task_pt_regs;
static long (*read_kernel)(void *to, u32 size, const void *from) = (void *)BPF_FUNC_probe_read_kernel;

static __always_inline u32 sampling(void)
{
    int index = RLS_SET_SAMPLES;
    u32 *value = settings.lookup(&index);
    return value ? *value : RLS_SAMPLING_OFF;
}

static __always_inline void send_sample(u32 pid, u32 tid, u64 now, u32 kind, u64 ip, u64 sp)
{
    count(RLS_N_SAMPLES, 1);
    struct rls_sample *s = samples.ringbuf_reserve(sizeof(struct rls_sample));
    if (!s) {
        count(RLS_N_LOST_SAMPLES, 1);
        return;
    }
#ifdef RLS_KERNEL_TYPES
    if (!ip) {
        struct pt_regs user = {};
        if (!read_kernel(&user, sizeof(user), (void *)task_registers(current_task()))) {
            ip = user.ip;
            sp = user.sp;
        }
    }
#endif
    s->time_ns = now;
    s->ip = ip;
    s->pid = pid;
    s->tid = tid;
    s->kind = kind;
    s->words = 0;
    if (ip) {
        if (!read_user(s->stack, sizeof(s->stack), (void *)sp)) {
            s->words = RLS_SAMPLE_WORDS;
        } else {
            /* The stack ends before: what is left of its page. */
            u64 size = (RLS_PAGE - (sp & (RLS_PAGE - 1))) & ~7ULL;
            if (size > sizeof(s->stack))
                size = sizeof(s->stack);
            if (size > 0 && !read_user(s->stack, size, (void *)sp))
                s->words = size / 8;
        }
    }
    samples.ringbuf_submit(s, BPF_RB_NO_WAKEUP);
    count(RLS_N_SAMPLED_NS, bpf_ktime_get_ns() - now);
}

/* Where the function lies in which a process's interpreter runs Python. */
struct code_range {
    u64 start;
    u64 end;
};
BPF_TABLE("hash", u32, struct code_range, interpreters, 4096);

/* Who is found in the interpreter's loop holds its lock, although no probe may have said so: a thread that took it before
 * the attach, and never releases it, passes none. Call where a thread was interrupted in its own code: no other program of
 * ours is at work on it then. */
static __always_inline void find_python(u32 pid, u64 ip)
{
    u32 tid;
    struct code_range *loop = interpreters.lookup(&pid);
    if (!loop || ip < loop->start || ip >= loop->end)
        return;
    struct thread *t = current_thread(&tid, 1);
    if (!t || (t->held && !t->first))
        return;
    if (t->depth && frame_at(t, t->depth - 1)->category != RLS_CAT_PYTHON)
        return;
    hold(t);
    t->sent = RLS_CAT_PYTHON; /* so it was before, too: since the last event, or it would have been found earlier */
    u64 silent = t->silent;
    t->silent = 0;
    send(t, tid, bpf_ktime_get_ns(), RLS_EV_GIL_ACQUIRE, 0, RLS_F_FIRST | RLS_F_HEALED, silent);
}

/* Now and then on every CPU, unless samples are taken. */
int rls_tick(struct pt_regs *ctx)
{
    find_python(current_ids() >> 32, ctx->ip);
    return 0;
}

int rls_sample(struct pt_regs *ctx)
{
    u64 id = current_ids();
    u32 pid = id >> 32;
    if (!targets.lookup(&pid))
        return 0;
    u64 ip = ctx->ip;
    if ((ctx->cs & 3) == 0) /* in the kernel */
        ip = 0;
    u64 now = bpf_ktime_get_ns();
    u32 tid;
    if (sampling() == RLS_SAMPLING_ALL) {
        struct thread *t = current_thread(&tid, 0);
        if (t && t->first) /* a program of ours may be at work on it; then it sends nothing but this once more */
            send(t, tid, now, RLS_EV_GIL_RELEASE, 0, RLS_F_FIRST | RLS_F_HEALED, 0);
    }
    if (ip)
        find_python(pid, ip);
    send_sample(pid, (u32)id, now, RLS_SAMPLE_CLOCK, ip, ctx->sp);
    return 0;
}
