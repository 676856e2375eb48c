/* SPDX-License-Identifier: Apache-2.0
 *
 * When followed threads run, wait for a CPU, sleep, and end; and what they run when no probe has told it.
 */

/* The layout that /sys/kernel/tracing/events/sched/sched_switch/format describes. */
struct sched_switch_args {
    u64 common;
    char prev_comm[16];
    u32 prev_pid;
    u32 prev_prio;
    long prev_state;
    char next_comm[16];
    u32 next_pid;
    u32 next_prio;
};

int rls_sched_switch(struct sched_switch_args *args)
{
    /* The thread may be in the middle of one of our programs, which can be preempted: its state is only read here. */
    u64 now = 0;
    u32 tid = args->prev_pid;
    struct thread *t = threads.lookup(&tid);
    if (t && t->pid && !t->first) {
        now = bpf_ktime_get_ns();
        count(RLS_N_SWITCHES, 1);
#ifdef RLS_KERNEL_TYPES
        if (sampling() != RLS_SAMPLING_OFF) /* before the event, so that whoever has read the event finds it */
            send_sample(t->pid, tid, now, RLS_SAMPLE_OFF, 0, 0);
#endif
        /* 0: still runnable; 0x100 says the same of a preempted task. */
        put(t, tid, now, RLS_EV_OFF_CPU, 0, 0, args->prev_state & 0xff, t->sent, t->sent);
    }
    tid = args->next_pid;
    t = threads.lookup(&tid);
    if (t && t->pid && !t->first) {
        if (!now)
            now = bpf_ktime_get_ns();
        count(RLS_N_SWITCHES, 1);
        put(t, tid, now, RLS_EV_ON_CPU, 0, 0, 0, t->sent, t->sent);
    }
    return 0;
}

int rls_sched_exit(void *args)
{
    u32 tid = (u32)bpf_get_current_pid_tgid();
    struct thread *t = threads.lookup(&tid);
    if (!t)
        return 0;
    send(t, tid, bpf_ktime_get_ns(), RLS_EV_THREAD_EXIT, 0, 0, 0);
    threads.delete(&tid);
    return 0;
}

/* The layout that /sys/kernel/tracing/events/sched/sched_process_exec/format describes. */
struct sched_exec_args {
    u64 common;
    u32 filename;
    u32 pid;
    u32 old_pid;
};

static __always_inline void end_thread(u32 tid, u64 now)
{
    struct thread *t = threads.lookup(&tid);
    if (!t)
        return;
    send(t, tid, now, RLS_EV_THREAD_EXIT, 0, 0, 0);
    threads.delete(&tid);
}

/* The process runs another program now: nothing that was known of its threads holds any more. The thread that called
 * execve goes on with the process's id as its own, and the others have ended. */
int rls_sched_exec(struct sched_exec_args *args)
{
    u64 now = bpf_ktime_get_ns();
    u32 pid = args->pid;
    end_thread(pid, now);
    if (args->old_pid != pid)
        end_thread(args->old_pid, now);
    interpreters.delete(&pid);
    return 0;
}
