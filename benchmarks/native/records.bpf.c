/* SPDX-License-Identifier: Apache-2.0
 *
 * A record of the size of ours for each hit, for BCC's own reader. Compiled by BCC with -DRING_PAGES.
 */
#include <uapi/linux/ptrace.h>
#include "abi.h"

BPF_RINGBUF_OUTPUT(events, RING_PAGES);

int hit(struct pt_regs *ctx)
{
    u64 id = bpf_get_current_pid_tgid();
    struct rls_event *e = events.ringbuf_reserve(sizeof(struct rls_event));

    if (!e)
        return 0;
    __builtin_memset(e, 0, sizeof(*e));
    e->time_ns = bpf_ktime_get_ns();
    e->pid = id >> 32;
    e->tid = (u32)id;
    e->kind = RLS_EV_CALL;
    events.ringbuf_submit(e, BPF_RB_NO_WAKEUP);
    return 0;
}
