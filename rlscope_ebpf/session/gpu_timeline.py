"""Where each thread was a moment ago: operation and phase, as the intervals handed out tell."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.keys import Ints, grown
from rlscope_ebpf.model.rows import copied, joined
from rlscope_ebpf.model.tables import Definition, ThreadInfo

HORIZON_NS = 60_000_000_000
"""Changes older than this are forgotten, but for the latest of them."""

MOST_CHANGES = 1 << 17
"""Of one thread that are remembered."""

_SMALL = 1 << 12  # changes that wait before they are put in place, unless somebody asks

CHANGE_DTYPE = np.dtype([("start_ns", "<i8"), ("thread", "<u4"), ("path", "<u4"), ("phase", "<u4"), ("known", "?")])
"""From this moment on; `known` is false where it is not known any more, or not yet."""


class _Timeline:
    """One (pid, tid), whichever threads have it one after the other."""

    __slots__ = ("_changes", "_new", "_waiting", "marked")

    def __init__(self, thread: int) -> None:
        # Before the first change the thread is in no operation that anybody has heard of.
        self._changes = np.array([(np.iinfo(np.int64).min, thread, 0, 0, True)], CHANGE_DTYPE)
        self._new: list[NDArray[np.void]] = []
        self._waiting = 0
        self.marked = False

    def add(self, changes: NDArray[np.void]) -> None:
        self.marked = self.marked or bool(changes["path"].any())
        self._new.append(changes)
        self._waiting += len(changes)
        if self._waiting >= _SMALL:
            self._collect()

    def at(self, time_ns: Ints) -> NDArray[np.void]:
        self._collect()
        return np.take(self._changes, np.searchsorted(self._changes["start_ns"], time_ns, side="right") - 1)

    def _collect(self) -> None:
        if not self._new:
            return
        changes = joined([self._changes, *self._new])
        self._new.clear()
        self._waiting = 0
        starts = changes["start_ns"]
        first = int(np.searchsorted(starts, int(starts[-1]) - HORIZON_NS, side="right")) - 1
        first = max(first, len(changes) - MOST_CHANGES)
        if first > 0:
            changes = copied(changes[first - 1 :])
            changes[0] = (np.iinfo(np.int64).min, changes["thread"][0], 0, 0, False)
        self._changes = changes


class ThreadTimelines:
    """All threads, by pid and tid."""

    def __init__(self) -> None:
        self._timelines: dict[tuple[int, int], _Timeline] = {}
        self._of_thread: dict[int, _Timeline] = {}
        self._last: NDArray[np.uint64] = np.zeros(0, np.uint64)  # path and phase reached, by thread id
        self._seen: NDArray[np.bool_] = np.zeros(0, np.bool_)

    def define(self, definitions: Iterable[Definition]) -> None:
        """Learn which threads there are."""
        for info in definitions:
            if isinstance(info, ThreadInfo):
                key = (info.pid, info.tid)
                if key not in self._timelines:
                    self._timelines[key] = _Timeline(info.id)
                self._of_thread[info.id] = self._timelines[key]

    def add(self, rows: NDArray[np.void]) -> None:
        """Follow intervals (INTERVAL_DTYPE), those of one thread in order of time and next to one another."""
        if not len(rows):
            return
        thread = rows["thread"]
        state = (rows["path"].astype(np.uint64) << np.uint64(32)) | rows["phase"]
        first = np.append(True, thread[1:] != thread[:-1])
        changed = first.copy()
        changed[1:] |= state[1:] != state[:-1]
        highest = int(thread.max()) + 1
        self._last, self._seen = grown(self._last, highest), grown(self._seen, highest)
        begins = np.flatnonzero(first)
        ends = np.append(begins[1:], len(rows)) - 1
        changed[begins] = (self._last[thread[begins]] != state[begins]) | ~self._seen[thread[begins]]
        self._last[thread[ends]] = state[ends]
        self._seen[thread[ends]] = True
        at = np.flatnonzero(changed)
        changes = np.empty(len(at), CHANGE_DTYPE)
        changes["start_ns"] = rows["start_ns"][at]
        for name in ("thread", "path", "phase"):
            changes[name] = rows[name][at]
        changes["known"] = True
        bounds = np.flatnonzero(changes["thread"][1:] != changes["thread"][:-1]) + 1
        for part in np.split(changes, bounds):
            timeline = self._of_thread.get(int(part["thread"][0])) if len(part) else None
            if timeline is not None:
                timeline.add(part)

    def at(self, pid: int, tid: int, time_ns: Ints) -> NDArray[np.void]:
        """Where a thread was at each moment (CHANGE_DTYPE): `thread` 0 and not `known` if nobody has heard of it."""
        timeline = self._timelines.get((pid, tid))
        return np.zeros(len(time_ns), CHANGE_DTYPE) if timeline is None else timeline.at(time_ns)

    def is_marked(self, pid: int, tid: int) -> bool:
        """Whether a thread has been in an operation: it says itself what it does, also outside of them."""
        timeline = self._timelines.get((pid, tid))
        return timeline is not None and timeline.marked

    def phase_at(self, pid: int, time_ns: Ints) -> Ints:
        """Phase of a process, as far as its main thread tells."""
        phases: Ints = self.at(pid, pid, time_ns)["phase"].astype(np.int64)
        return phases
