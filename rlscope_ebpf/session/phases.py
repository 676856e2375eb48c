"""Which phase a process is in, at any moment not yet handed out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.session.registry import Ints


@dataclass(frozen=True, slots=True)
class Pieces:
    """Rows cut where their process changed its phase."""

    source: Ints  # row that each piece is of
    cut: NDArray[np.bool_]  # the piece begins at a cut
    start_ns: Ints  # of each piece


class PhaseTimeline:
    """Per process (by index): the phase reached and the changes that some thread has still before it.

    A change holds for all threads of the process. Events may lie beyond the moment up to which a batch hands out the
    other threads' time; such changes stay until that time has been handed out.
    """

    def __init__(self) -> None:
        self._base: Ints = np.zeros(8, np.int64)
        self._changes: dict[int, tuple[Ints, Ints]] = {}  # process -> times (ascending), phases

    def reset(self, process: int) -> None:
        """The process starts in the default phase."""
        self._reserve(process)
        self._base[process] = 0
        self._changes.pop(process, None)

    def add(self, process: Ints, time_ns: Ints, phase: Ints) -> None:
        """Add changes, in the order of the ring."""
        for index in np.unique(process).tolist():
            self._reserve(index)
            mine = process == index
            old_times, old_phases = self._changes.get(index, (time_ns[:0], phase[:0]))
            times = np.concatenate([old_times, time_ns[mine]])
            order = np.argsort(times, kind="stable")
            self._changes[index] = (times[order], np.concatenate([old_phases, phase[mine]])[order])

    def at(self, process: Ints, time_ns: Ints) -> Ints:
        """Phase of each process at each time, changes at that very time included."""
        if len(process) and (highest := int(process.max())) >= len(self._base):
            self._reserve(highest)
        phases = self._base[process]
        for index, (times, values) in self._changes.items():
            mine = np.flatnonzero(process == index)
            after = np.searchsorted(times, time_ns[mine], side="right")
            phases[mine] = np.concatenate([self._base[index : index + 1], values])[after]
        return phases

    def cut(self, process: Ints, start_ns: Ints, end_ns: Ints) -> Pieces | None:
        """Cut rows at changes strictly inside them; None if there is nothing to cut."""
        first = np.zeros(len(process), np.int64)
        counts = np.ones(len(process), np.int64)
        cuts: list[Ints] = []
        base = 0
        for index, (times, values) in self._changes.items():
            before = np.concatenate([self._base[index : index + 1], values[:-1]])
            distinct = np.unique(times[values != before])
            mine = np.flatnonzero(process == index)
            low = np.searchsorted(distinct, start_ns[mine], side="right")
            high = np.searchsorted(distinct, end_ns[mine], side="left")
            counts[mine] += np.maximum(high - low, 0)
            first[mine] = low + base
            cuts.append(distinct)
            base += len(distinct)
        total = int(counts.sum())
        if total == len(process):
            return None
        source = np.repeat(np.arange(len(process)), counts)
        nth = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        cut = nth > 0
        start = start_ns[source]
        start[cut] = np.concatenate(cuts)[first[source[cut]] + nth[cut] - 1]
        return Pieces(source, cut, start)

    def settle(self, now_ns: int) -> None:
        """All time before `now_ns` has been handed out: forget the changes before it."""
        for index, (times, values) in list(self._changes.items()):
            done = int(np.searchsorted(times, now_ns, side="right"))
            if done:
                self._base[index] = values[done - 1]
            if done == len(times):
                del self._changes[index]
            else:
                self._changes[index] = (times[done:], values[done:])

    def _reserve(self, process: int) -> None:
        if process >= len(self._base):
            self._base = np.concatenate([self._base, np.zeros(max(len(self._base), process + 1), np.int64)])
