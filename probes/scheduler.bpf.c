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

/*
 * Which followed threads sleep, by their task's address: so that whoever wakes somebody else, which happens all the time
 * anywhere in the system, pays for no more than one look-up that finds nothing.
 */
struct sleeper {
    u32 tid;
    u32 asleep;
};
BPF_TABLE("hash", u64, struct sleeper, sleepers, RLS_MAX_THREADS);

static u64 (*task_address)(void) = (void *)BPF_FUNC_get_current_task;

static __always_inline void fall_asleep(u32 tid)
{
    u64 task = task_address();
    struct sleeper *known = sleepers.lookup(&task);
    if (known && known->tid == tid) {
        known->asleep = 1;
        return;
    }
    struct sleeper sleeper = {.tid = tid, .asleep = 1};
    sleepers.update(&task, &sleeper);
}

/* What the running thread is in the kernel for. */
static __always_inline u64 reason_to_sleep(void)
{
#ifdef RLS_KERNEL_TYPES
    struct pt_regs user = {};
    if (read_kernel(&user, sizeof(user), (void *)task_registers(current_task())))
        return 0;
    if (user.orig_ax >= 0xffff) /* all ones: no system call, but for example a page fault */
        return 0;
    u64 reason = (user.orig_ax + 1) << RLS_OFF_CALL_SHIFT;
    if (!user.di)
        reason |= RLS_OFF_ARG0_ZERO;
    if (!user.si)
        reason |= RLS_OFF_ARG1_ZERO;
    return reason;
#else
    return 0;
#endif
}

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
            send_sample(t->pid, t->tid, now, RLS_SAMPLE_OFF, 0, 0);
#endif
        u64 arg = args->prev_state & RLS_OFF_STATE; /* 0x100 says of a preempted task that it is still runnable */
        if (arg) {
            fall_asleep(tid);
            arg |= reason_to_sleep();
        }
        put(t, t->tid, now, RLS_EV_OFF_CPU, 0, 0, arg, t->sent, t->sent);
    }
    tid = args->next_pid;
    t = threads.lookup(&tid);
    if (t && t->pid && !t->first) {
        if (!now)
            now = bpf_ktime_get_ns();
        count(RLS_N_SWITCHES, 1);
        put(t, t->tid, now, RLS_EV_ON_CPU, 0, 0, 0, t->sent, t->sent);
    }
    return 0;
}

/* The arguments of a raw tracepoint; those of sched_wakeup: the task. */
struct sched_wakeup_args {
    u64 task;
};

/* Runs where a thread is woken, on the CPU of whoever does it; never for one that has not slept since. */
int rls_sched_wakeup(struct sched_wakeup_args *args)
{
    u64 task = args->task;
    struct sleeper *sleeper = sleepers.lookup(&task);
    if (!sleeper || !sleeper->asleep)
        return 0;
    sleeper->asleep = 0;
    u32 tid = sleeper->tid;
    struct thread *t = threads.lookup(&tid);
    if (!t || !t->pid || t->first)
        return 0;
    count(RLS_N_SWITCHES, 1);
    put(t, t->tid, bpf_ktime_get_ns(), RLS_EV_WAKEUP, 0, 0, 0, t->sent, t->sent);
    return 0;
}

int rls_sched_exit(void *args)
{
    u64 task = task_address();
    sleepers.delete(&task);
    u32 tid = (u32)bpf_get_current_pid_tgid();
    struct thread *t = threads.lookup(&tid);
    if (!t)
        return 0;
    send(t, t->tid, bpf_ktime_get_ns(), RLS_EV_THREAD_EXIT, 0, 0, 0);
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
    send(t, t->tid, now, RLS_EV_THREAD_EXIT, 0, 0, 0);
    threads.delete(&tid);
}

/* The process runs another program now: nothing that was known of its threads holds any more. The thread that called
 * execve goes on with the process's id as its own, and the others have ended. */
int rls_sched_exec(struct sched_exec_args *args)
{
    u64 now = bpf_ktime_get_ns(), task = task_address();
    u32 pid = args->pid;
    sleepers.delete(&task); /* it may have had another id before */
    end_thread(pid, now);
    if (args->old_pid != pid)
        end_thread(args->old_pid, now);
    u32 number = current_ids() >> 32;
    interpreters.delete(&number);
    return 0;
}
