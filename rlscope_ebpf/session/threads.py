"""The threads of a session and, per thread, the interval that is open between two batches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.categories import Opened, ThreadState, Wait
from rlscope_ebpf.model.tables import ProcessInfo, ThreadInfo
from rlscope_ebpf.session.registry import Ints, KeyIndex, Registry

SLOT_DTYPE = np.dtype(
    [
        ("pid", "<u4"),
        ("tid", "<u4"),
        ("process", "<i4"),  # index of the process
        ("thread", "<u4"),  # ThreadInfo.id of whoever has the tid now
        ("alive", "?"),
        ("exited", "?"),  # a thread with this tid has exited in this session
        ("had_events", "?"),
        ("had_operations", "?"),
        ("handed_ns", "<i8"),  # the thread's time before this has been handed out
        # The interval open at handed_ns; its opening is still to be handed out unless `opened` is CONTINUED.
        ("path", "<u4"),
        ("site", "<u4"),
        ("hits", "<u4"),
        ("overhead_ns", "<u4"),
        ("category", "u1"),
        ("origin", "u1"),
        ("state", "u1"),
        ("opened", "u1"),
        ("wait", "u1"),
    ]
)


class ThreadTable:
    """One slot per (pid, tid) ever seen; a slot serves one thread after another when the kernel reuses the tid."""

    def __init__(self, registry: Registry, start_ns: int, thread_name: Callable[[int, int], str] | None) -> None:
        self.start_ns = start_ns  # no thread's time begins before it
        self._registry = registry
        self._thread_name = thread_name
        self._index = KeyIndex()
        self._slots = np.zeros(64, SLOT_DTYPE)
        self._count = 0
        self._last_thread = 0
        self._process_index: dict[int, int] = {}
        self._processes: list[ProcessInfo] = []

    @property
    def slots(self) -> NDArray[np.void]:
        """All slots (SLOT_DTYPE): a view, valid until the next slot is added."""
        return self._slots[: self._count]

    @property
    def process_count(self) -> int:
        """How many processes are known."""
        return len(self._processes)

    def set_process(self, info: ProcessInfo) -> int:
        """Define a process, or define it anew; returns its index."""
        index = self._process_index.setdefault(info.pid, len(self._processes))
        if index == len(self._processes):
            self._processes.append(info)
        else:
            self._processes[index] = info
        self._registry.define(info)
        return index

    def process(self, pid: int) -> ProcessInfo:
        """The process, defined without a name if nobody did it before its first event."""
        if pid not in self._process_index:
            self.set_process(ProcessInfo(pid, None, str(pid), (), self.start_ns))
        return self._processes[self._process_index[pid]]

    def ended_slots(self, now_ns: int) -> tuple[Ints, Ints]:
        """Slots of live threads whose process has ended before `now_ns`, and when it ended."""
        ends = {
            index: info.end_ns
            for index, info in enumerate(self._processes)
            if info.end_ns is not None and info.end_ns <= now_ns
        }
        live = self.live_slots()
        if not ends or not len(live):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        by_process = np.full(len(self._processes), -1, np.int64)
        by_process[list(ends)] = list(ends.values())
        end_ns = by_process[self.slots["process"][live]]
        return live[end_ns >= 0], end_ns[end_ns >= 0]

    def live_slots(self) -> Ints:
        """Indices of slots with a live thread, ascending."""
        return np.flatnonzero(self.slots["alive"])

    def slots_of(self, events: NDArray[np.void]) -> Ints:
        """Slot of every event's thread; unknown threads get a slot (without a live thread in it)."""
        keys = (events["pid"].astype(np.uint64) << np.uint64(32)) | events["tid"]
        slots = self._index.lookup(keys)
        missing = slots < 0
        if missing.any():
            for key in np.unique(keys[missing]).tolist():
                self.slot(key >> 32, key & 0xFFFFFFFF)
            slots = self._index.lookup(keys)
        return slots

    def slot(self, pid: int, tid: int) -> int:
        """Slot of one thread, added if there is none."""
        key = pid << 32 | tid
        slot = self._index.get(key)
        if slot < 0:
            self.process(pid)
            if self._count == len(self._slots):
                self._slots = np.concatenate([self._slots, np.zeros(self._count, SLOT_DTYPE)])
            slot = self._count
            self._count += 1
            self._index.add(key, slot)
            row = self._slots[slot]
            row["pid"], row["tid"], row["process"] = pid, tid, self._process_index[pid]
        return slot

    def start_thread(self, slot: int) -> int:
        """Give the slot to a new thread, alive from now on; returns its id."""
        self._last_thread += 1
        row = self._slots[slot]
        pid, tid = int(row["pid"]), int(row["tid"])
        row["thread"] = self._last_thread
        row["alive"] = True
        row["had_events"] = row["had_operations"] = False
        row["path"] = row["site"] = row["hits"] = row["overhead_ns"] = 0
        row["state"], row["wait"] = ThreadState.RUNNING, Wait.OTHER
        row["opened"] = Opened.CONTINUED
        name = self._thread_name(pid, tid) if self._thread_name is not None else ""
        self._registry.define(ThreadInfo(self._last_thread, pid, tid, name))
        return self._last_thread
