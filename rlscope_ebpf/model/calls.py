"""Calls of the CUDA API: how many, how long, by process and probe site.

A call is counted by the interval that its entry opened. Its time is that interval and the later ones of its thread in
the same category up to the thread's next call: the scheduler, a phase change or slicing cut a long call into several
rows, and a callback out of it leaves a gap that is not its own time. Rows before a thread's first call belong to no
known call and are left out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.categories import Category, Opened
from rlscope_ebpf.model.histogram import BINS, bins_of
from rlscope_ebpf.model.keys import LOW_HALF, Ints, KeyRows, grown, pair


class CallTotals:
    """Count, time and histogram of durations per (pid, site)."""

    def __init__(self) -> None:
        self._entries = KeyRows()  # (pid, site)
        self._count: Ints = np.zeros(0, np.int64)
        self._total_ns: Ints = np.zeros(0, np.int64)
        self._histogram: NDArray[np.uint32] = np.zeros((0, BINS), np.uint32)
        self._open_entry: Ints = np.zeros(0, np.int64)  # by thread: 1 + entry of its latest call, 0: none yet
        self._open_ns: Ints = np.zeros(0, np.int64)  # what that call has taken until now

    def add(self, pid: NDArray[np.uint32], thread: Ints, rows: NDArray[np.void]) -> None:
        """Add intervals; rows of other categories are skipped. `pid` and `thread` are those of the rows."""
        at = np.flatnonzero(rows["category"] == Category.CUDA_API)
        if not len(at):
            return
        threads = thread[at]
        if bool((threads[1:] < threads[:-1]).any()):
            order = np.argsort(threads, kind="stable")
            at, threads = at[order], threads[order]
        chosen = np.take(rows, at)
        is_call = chosen["opened"] == Opened.CALL
        highest = int(threads[-1]) + 1
        self._open_entry, self._open_ns = grown(self._open_entry, highest), grown(self._open_ns, highest)

        starts = np.flatnonzero(is_call | np.append(True, threads[1:] != threads[:-1]))
        segment_ns = np.add.reduceat(chosen["duration_ns"].astype(np.int64), starts)
        segment_thread = threads[starts]
        calls = np.flatnonzero(is_call[starts])
        rests = np.flatnonzero(~is_call[starts])  # go on with a call of an earlier batch; one per thread at most

        entry = self._entries.rows(pair(pid[at[starts[calls]]], chosen["site"][starts[calls]]))
        size = len(self._entries)
        self._count, self._total_ns = grown(self._count, size), grown(self._total_ns, size)
        self._histogram = grown(self._histogram, size)

        continued = rests[self._open_entry[segment_thread[rests]] > 0]
        self._open_ns[segment_thread[continued]] += segment_ns[continued]
        continued_entry = self._open_entry[segment_thread[continued]] - 1
        self._count[:size] += np.bincount(entry, minlength=size)
        self._add_time(np.append(entry, continued_entry), np.append(segment_ns[calls], segment_ns[continued]), size)

        if not len(calls):
            return
        call_thread, call_ns = segment_thread[calls], segment_ns[calls]
        first = np.append(True, call_thread[1:] != call_thread[:-1])
        last = np.append(first[1:], True)
        before = call_thread[first]
        before = before[self._open_entry[before] > 0]
        self._add_durations(
            np.append(self._open_entry[before] - 1, entry[~last]), np.append(self._open_ns[before], call_ns[~last])
        )
        self._open_entry[call_thread[last]] = entry[last] + 1
        self._open_ns[call_thread[last]] = call_ns[last]

    def entries(self) -> list[tuple[int, int, int, int, NDArray[np.int64]]]:
        """(pid, site, calls, ns, histogram of their durations); calls that still run are in all of them."""
        histogram = self._histogram[: len(self._entries)].astype(np.int64)
        running = np.flatnonzero(self._open_entry)
        for entry, index in zip(
            (self._open_entry[running] - 1).tolist(), bins_of(self._open_ns[running]).tolist(), strict=True
        ):
            histogram[entry, index] += 1
        return [
            (key >> 32, key & int(LOW_HALF), count, total, bins)
            for key, count, total, bins in zip(
                self._entries.keys, self._count.tolist(), self._total_ns.tolist(), histogram, strict=False
            )
        ]

    def _add_time(self, entry: Ints, ns: Ints, size: int) -> None:
        # Sums of a batch stay below 2^53 (104 days), where doubles are exact.
        self._total_ns[:size] += np.bincount(entry, ns, size).astype(np.int64)

    def _add_durations(self, entry: Ints, ns: Ints) -> None:
        cells, counts = np.unique(entry * BINS + bins_of(ns), return_counts=True)
        self._histogram.reshape(-1)[cells] += counts.astype(np.uint32)
