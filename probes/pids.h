/* SPDX-License-Identifier: Apache-2.0
 *
 * Processes and threads as the profiler numbers them. In the initial pid namespace these are the kernel's own numbers;
 * a profiler in another one (a container) is compiled with
 *   -DRLS_PID_NAMESPACE, -DRLS_PID_NAMESPACE_DEVICE  inode and device of /proc/self/ns/pid
 * Processes of namespaces inside of that one have no number there that the kernel's helper would tell.
 */
#ifndef RLSCOPE_PIDS_H
#define RLSCOPE_PIDS_H

#ifdef RLS_PID_NAMESPACE
struct namespace_ids {
    u32 tid;
    u32 pid;
};

static long (*get_namespace_ids)(u64 device, u64 inode, void *ids, u32 size) =
    (void *)BPF_FUNC_get_ns_current_pid_tgid;
#endif

/* Who runs now: process in the upper half, thread in the lower. 0: not one of the profiler's namespace. */
static __always_inline u64 current_ids(void)
{
#ifdef RLS_PID_NAMESPACE
    struct namespace_ids ids = {};
    if (get_namespace_ids(RLS_PID_NAMESPACE_DEVICE, RLS_PID_NAMESPACE, &ids, sizeof(ids)))
        return 0;
    return (u64)ids.pid << 32 | ids.tid;
#else
    return bpf_get_current_pid_tgid();
#endif
}

#endif
