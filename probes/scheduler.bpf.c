/* SPDX-License-Identifier: Apache-2.0
 *
 * When followed threads run, wait for a CPU, sleep, and end.
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
