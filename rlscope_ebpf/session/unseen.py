"""Says how much CPU time of the targets is not in the figures: of threads of which no probe ever heard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from rlscope_ebpf.capture.tasks import read_of_thread, thread_ids
from rlscope_ebpf.model import format as fmt
from rlscope_ebpf.model.categories import ThreadState
from rlscope_ebpf.model.keys import grown
from rlscope_ebpf.model.tables import Batch, ImportantNotice, ThreadInfo
from rlscope_ebpf.session.target import monotonic_ns, read_cpu_ns

LOOK_NS = 1_000_000_000
"""Between two looks at all threads, at least."""

REST = 200
"""So many times as long as a look took is waited before the next, which bounds what looks cost."""

WORTH_SAYING = 0.01
"""Share of the CPU time of the targets from which on it is said."""

SHORTEST_NS = 10_000_000
"""The kernel tells CPU times of processes in such steps."""

_UNCERTAIN = 0.05  # what the sums of intervals may be off by from what the kernel accounts, as a share and in ns
_UNCERTAIN_NS = 200_000_000
_RAN_NS = 1_000_000  # a thread that ran for less is not counted


@dataclass(slots=True)
class _Process:
    """CPU times in ns of a process and of its threads: at the start, and as they were last seen."""

    first_ns: int
    last_ns: int
    before: dict[int, int]
    after: dict[int, int] = field(default_factory=dict)
    heard: set[int] = field(default_factory=set)
    due_ns: int = 0
    tells: bool = True  # whether anything is told of it


class UnseenThreads:
    """Compares what the kernel accounts for processes and threads with the threads that intervals tell of."""

    def __init__(self) -> None:
        self._processes: dict[int, _Process] = {}
        self._pid = np.zeros(1, np.int64)  # by thread id
        self._heard_ns = np.zeros(1, np.int64)  # by thread id: on a CPU

    def begin(self, pid: int) -> None:
        """A process is profiled from now on."""
        total = read_cpu_ns(pid) or 0
        self._processes[pid] = _Process(total, total, dict(_threads_ns(pid)))

    def look(self, pid: int, now_ns: int, *, tells: bool, last: bool = False) -> None:
        """See what a process and its threads have used, if it is time or the `last` look. `tells`: figures have it."""
        process = self._processes.get(pid)
        if process is None or (now_ns < process.due_ns and not last):
            return
        began_ns = monotonic_ns()
        process.tells = tells
        process.last_ns = max(process.last_ns, read_cpu_ns(pid) or 0)  # of one that has ended until it is reaped
        process.after.update(_threads_ns(pid))
        process.due_ns = now_ns + max(LOOK_NS, REST * (monotonic_ns() - began_ns))

    def add(self, batch: Batch) -> None:
        """Take what was handed out into account."""
        for definition in batch.definitions:
            if isinstance(definition, ThreadInfo):
                self._pid = grown(self._pid, definition.id + 1)
                self._heard_ns = grown(self._heard_ns, definition.id + 1)
                self._pid[definition.id] = definition.pid
                if definition.pid in self._processes:
                    self._processes[definition.pid].heard.add(definition.tid)
        rows = batch.tables.get("intervals")
        if rows is not None and len(rows):
            ran = rows[rows["state"] == ThreadState.RUNNING]
            sums = np.bincount(ran["thread"], ran["duration_ns"].astype(np.int64), len(self._heard_ns))
            self._heard_ns += sums.astype(np.int64)

    def said(self, *, certain: bool) -> list[ImportantNotice]:
        """What is to be said at the end, if anything. `certain`: intervals tell rightly when threads were on a CPU."""
        used_ns = missing_ns = threads = 0
        for pid, process in self._processes.items():
            if not process.tells:
                continue
            whole_ns = process.last_ns - process.first_ns
            unheard = [
                ran_ns
                for tid, last_ns in process.after.items()
                if tid not in process.heard and (ran_ns := last_ns - process.before.get(tid, 0)) >= _RAN_NS
            ]
            lacking_ns = sum(unheard)
            # Threads may have ended between two looks, and all of them run on after the last.
            apart_ns = whole_ns - int(self._heard_ns[self._pid == pid].sum())
            if certain and apart_ns > lacking_ns + max(_UNCERTAIN * whole_ns, _UNCERTAIN_NS):
                lacking_ns = apart_ns
            used_ns, missing_ns, threads = used_ns + whole_ns, missing_ns + lacking_ns, threads + len(unheard)
        if missing_ns < max(SHORTEST_NS, WORTH_SAYING * used_ns) or not used_ns:
            return []
        share = fmt.percent(min(1.0, missing_ns / used_ns))
        whose = "process's" if len(self._processes) == 1 else "processes'"
        more = fmt.plural_exact(threads, "more thread")
        which = (
            f"{more} ran that never entered Python, an operation or a probed library"
            if threads
            else "threads ran that had ended before they were looked at, or ran before any probe heard of them"
        )
        return [
            ImportantNotice(
                f"{fmt.duration(missing_ns)} of CPU time, {share} of the {whose}, are not in the figures: {which}."
            )
        ]


def _threads_ns(pid: int) -> Iterator[tuple[int, int]]:
    """Thread and its CPU time, of each that a process has."""
    for tid in thread_ids(pid):
        with suppress(OSError, IndexError, ValueError):  # it has ended meanwhile
            yield tid, int(read_of_thread(pid, tid, "schedstat").split()[0])
