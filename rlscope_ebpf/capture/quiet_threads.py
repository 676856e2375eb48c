"""Threads of a process that can be borrowed for a moment without anybody noticing.

Who loads a library into a running process makes one of its threads call functions. Frida gives the thread its general
registers back, but not its vector registers: in a thread that computes, numbers would change. And a thread that is in
the middle of `malloc` or of the dynamic linker must not be made to call them. So it has to be a thread that waits in
the kernel, and has done so for a while: it is at a function call, across which no vector register keeps its value.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from rlscope_ebpf.capture.tasks import read_of_thread, thread_ids

SETTLED_S = 0.5
"""So long it has not run."""

_WAITS = (
    *(7, 271, 23, 270, 232, 281, 441),  # poll, ppoll, select, pselect6, epoll_wait, epoll_pwait, epoll_pwait2
    *(230, 35, 34, 128, 61, 247),  # clock_nanosleep, nanosleep, pause, rt_sigtimedwait, wait4, waitid
    219,  # restart_syscall: one of these, or futex, after an interruption
    *(0, 45, 47, 43, 288),  # read, recvfrom, recvmsg, accept, accept4
    *(202, 455),  # futex, futex_wait: perhaps for a lock, so the last
)
"""System calls that wait, by their numbers on x86-64 (arch/x86/entry/syscalls/syscall_64.tbl); the best first."""

_WAITING = "\nState:\tS"
_LOOK_S = 0.01

Moment = tuple[str, int]  # the system call with its arguments, and how often the thread has been switched to


def find_quiet_thread(pid: int, patience_s: float) -> int | None:
    """A thread of the process that waits, and has not run for `SETTLED_S`; None if there was none in `patience_s`."""
    deadline = time.monotonic() + patience_s
    while True:
        before = _waiting(pid)
        time.sleep(SETTLED_S)
        after = _waiting(pid)
        quiet = [thread for thread, moment in before.items() if after.get(thread) == moment]
        if quiet:
            return min(quiet, key=lambda thread: (_WAITS.index(_number(before[thread])), before[thread][1], thread))
        if time.monotonic() >= deadline:
            return None


def code_areas(pid: int) -> frozenset[str]:
    """Memory of a process that holds code and is of no file: that of compilers, and of what is put in from outside."""
    lines = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return frozenset(words[0] for words in lines if "x" in words[1] and len(words) < 6)


def wait_until_released(pid: int, areas_before: frozenset[str], patience_s: float) -> bool:
    """Wait until a process has no code of no file but `areas_before` (see `code_areas`), and nobody holds its threads.

    False if that was not so within `patience_s`; a compiler in the process may have made code meanwhile. True also if
    the process has ended.
    """
    deadline = time.monotonic() + patience_s
    with suppress(OSError):
        while code_areas(pid) - areas_before or _is_held(pid):  # in this order: what takes code out holds a thread
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_S)
    return True


def _is_held(pid: int) -> bool:
    for thread in thread_ids(pid):
        with suppress(OSError):
            if "\nTracerPid:\t0\n" not in Path(f"/proc/{pid}/task/{thread}/status").read_text():
                return True
    return False


def _number(moment: Moment) -> int:
    return int(moment[0].split()[0])


def _waiting(pid: int) -> dict[int, Moment]:
    found: dict[int, Moment] = {}
    for tid in thread_ids(pid):
        with suppress(OSError, ValueError, IndexError):
            call, status = (read_of_thread(pid, tid, name).decode() for name in ("syscall", "status"))
            moment = call.strip(), _switches(status)
            if _WAITING not in status:  # stopped, it would not come back; and what sleeps deeply takes no signal
                continue
            if moment[0].partition(" ")[0].isdigit() and _number(moment) in _WAITS:
                found[tid] = moment
    return found


def _switches(status: str) -> int:
    """Of a thread's /proc/…/status: both kinds of context switches."""
    return sum(int(line.split()[1]) for line in status.splitlines() if "ctxt_switches" in line)
