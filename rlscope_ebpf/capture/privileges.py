"""Giving privileges up once all is attached: docs/design/privileges.md says what is kept, and what for.

Capabilities belong to threads, and a thread begins with those of the one that starts it. So each long-lived one calls
`confine_thread`, and the main thread `drop_privileges` before it starts any that lives for the rest of the session.
Nothing here can fail a session: what cannot be given up is kept.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rlscope_ebpf.capture.kernel import CAPABILITIES, CapabilitySet, capability_sets

EFFECTIVE: dict[str, str] = {
    "CAP_BPF": "set probes in new libraries and children, and those that the budget took off",
    "CAP_PERFMON": "the same",
    "CAP_SYS_PTRACE": "read the targets' maps and memory",
    "CAP_DAC_READ_SEARCH": "open their programs and libraries",
    "CAP_CHECKPOINT_RESTORE": "open libraries that were deleted or replaced since they were loaded",
}
"""What threads keep, and what for."""

ACCOUNTS = frozenset({"CAP_NET_ADMIN"})
"""In reserve, for the thread that asks the kernel for its accounts of tasks (TaskStats)."""

LOADING = frozenset({"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_SYS_ADMIN", "CAP_SYS_CHROOT"})
"""In reserve unless GPUs are left alone, for loading the GPU helper into a target: into other users' folders, and, with
gdb, into other namespaces."""

_CAPABILITY_VERSION = 0x20080522  # _LINUX_CAPABILITY_VERSION_3
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_SETPCAP = 8
_LAST = 63

_libc = ctypes.CDLL(None, use_errno=True)


_more: set[str] = set()


def keep_for_perf_events() -> None:
    """Uprobes that are perf events are going to be set: for each the kernel asks for CAP_SYS_ADMIN itself."""
    _more.add("CAP_SYS_ADMIN")


def drop_privileges(*, loads_into_gpu_programs: bool) -> None:
    """Keep, in this thread and those that it starts from now on, only what the rest of a session needs.

    Args:
        loads_into_gpu_programs: whether the GPU helper may have to be loaded into a target yet.
    """
    held = capability_sets()
    reserve = ACCOUNTS | (LOADING if loads_into_gpu_programs else frozenset())
    effective = _bits(_needed(held))
    permitted = effective | _bits(reserve)
    if held.effective >> _SETPCAP & 1:
        for number in range(_LAST):
            if not permitted >> number & 1:
                _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # Who is not root hands capabilities on to a debugger in this way alone.
    inheritable = held.inheritable & permitted if loads_into_gpu_programs else 0
    _set(held.effective & effective, held.permitted & permitted, inheritable)


def confine_thread(names: Iterable[str] = EFFECTIVE) -> None:
    """Let the calling thread have only these capabilities, of those that it has, for good."""
    held = capability_sets()
    wanted = _bits(_needed(held) & frozenset((*names, "CAP_SYS_ADMIN")))
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _set(held.effective & wanted, held.permitted & wanted, 0)


@contextmanager
def raised(names: Iterable[str]) -> Iterator[None]:
    """Let the calling thread use capabilities that it has in reserve."""
    before = capability_sets()
    wanted = before.effective | before.permitted & _bits(names)
    if wanted == before.effective:
        yield
        return
    _set(wanted, before.permitted, before.inheritable)
    try:
        yield
    finally:
        _set(before.effective, before.permitted, before.inheritable)


def raise_in_thread(names: Iterable[str]) -> None:
    """The same until the thread ends, which then needs nothing else."""
    held = capability_sets()
    wanted = held.permitted & _bits(names)
    _set(wanted, wanted, 0)


def _needed(held: CapabilitySet) -> frozenset[str]:
    """`EFFECTIVE`, and CAP_SYS_ADMIN where it stands for those that were split off it."""
    split = _bits(("CAP_BPF", "CAP_PERFMON"))
    stands_in = frozenset({"CAP_SYS_ADMIN"}) if held.effective & split != split else frozenset()
    return frozenset(EFFECTIVE) | stands_in | _more


def _bits(names: Iterable[str]) -> int:
    bits = 0
    for name in names:
        bits |= 1 << CAPABILITIES[name]
    return bits


def _set(effective: int, permitted: int, inheritable: int) -> None:
    """Of the calling thread. Where the kernel refuses, all stays as it is."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    halves = [(value & 0xFFFF_FFFF, value >> 32) for value in (effective, permitted, inheritable)]
    data = struct.pack("=6I", *(half[0] for half in halves), *(half[1] for half in halves))
    _libc.capset(header, data)
