"""Totals of GPU activity: what ran, how long, how long it was queued, and how long GPUs worked for whom."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.busy_time import STRETCH_DTYPE, BusySums, BusyTime
from rlscope_ebpf.model.categories import ThreadState
from rlscope_ebpf.model.durations import DurationTotals
from rlscope_ebpf.model.gpu import IS_WORK, GpuKind
from rlscope_ebpf.model.histogram import bins_of
from rlscope_ebpf.model.keys import LOW_HALF, Ints, KeyRows, grown, pair
from rlscope_ebpf.model.rows import chosen
from rlscope_ebpf.model.unions import clipped

LONGEST_NS = 1 << 45
"""What claims to have taken longer (ten hours) is damaged; sums of whatever damage says must not overflow."""


@dataclass(frozen=True, slots=True)
class CopySum:
    """Copies of one direction, or memory filled, in one process."""

    pid: int
    kind: int  # GpuKind: COPY or SET
    detail: int  # direction
    count: int
    total_ns: int
    bytes: int


class GpuTotals:
    """Adds up rows of the `gpu` table (GPU_DTYPE) and, for what overlaps them, of the `intervals` table.

    `row` is always a number of the caller's for (process, phase, operation path).
    """

    def __init__(self) -> None:
        self.expected = True
        """Whether GPU activity may still come. If not, and until it does, threads' time is not kept waiting for it."""
        self.kernels = DurationTotals()
        """By (pid, StringInfo.id)."""
        self.kernel_delays = DurationTotals()
        """Launch to start, by the same."""
        self.delays = DurationTotals()
        """Launch to start of all activity, by row. Of a graph launch, that of the first of its activities counts."""
        self.activities: Ints = np.zeros(0, np.int64)
        """By row."""
        self._copies = KeyRows()  # (pid, kind << 8 | detail)
        self._copy_sums: Ints = np.zeros((0, 3), np.int64)  # count, ns, bytes
        self._processes = KeyRows()  # pid
        self._devices = KeyRows()  # (process index, device)
        self._graph_launches: NDArray[np.uint64] = np.zeros(0, np.uint64)  # of the latest rows, ascending
        self._busy = BusyTime()

    @property
    def late(self) -> int:
        """Activities that came too late for the sums of `sums`; they are in all others."""
        return self._busy.late

    def add(self, rows: NDArray[np.void], row: Ints) -> None:
        """Add activity: rows of kinds of work only."""
        if not len(rows):
            return
        self.expected = True
        start_ns, duration_ns = clipped(rows["start_ns"]), clipped(rows["duration_ns"], LONGEST_NS)
        kind = rows["kind"]
        self.activities = grown(self.activities, int(row.max()) + 1)
        self.activities += np.bincount(row, minlength=len(self.activities))
        kernels = np.flatnonzero(kind == GpuKind.KERNEL)
        keys = pair(rows["pid"], rows["name"])
        self.kernels.add(keys[kernels], duration_ns[kernels], bins_of(duration_ns[kernels]))
        self._add_delays(rows, row, keys, kind, start_ns)
        self._add_copies(rows, kind, duration_ns)

        process = self._processes.rows(rows["pid"].astype(np.uint64))
        pieces = np.empty(len(rows), STRETCH_DTYPE)
        pieces["start"], pieces["end"], pieces["row"] = start_ns, start_ns + duration_ns, row
        before = len(self._devices)
        pieces["place"] = self._devices.rows(pair(process, rows["device"]))
        if len(self._devices) > before:
            self._busy.set_devices(np.array([key >> 32 for key in self._devices.keys], np.int64))
        self._busy.add(pieces, gpu=True)

    def add_time(self, pid: NDArray[np.uint32], thread: Ints, row: Ints, rows: NDArray[np.void]) -> None:
        """Add what threads did: intervals, those of one thread in order of time."""
        if not self.expected or not len(rows):
            return
        if bool((thread[1:] < thread[:-1]).any()):
            order = np.argsort(thread, kind="stable")
            pid, thread, row, rows = pid[order], thread[order], row[order], np.take(rows, order)
        start_ns = clipped(rows["start_ns"])
        end_ns = start_ns + clipped(rows["duration_ns"])
        place = self._processes.rows(pid.astype(np.uint64)) * 2 + (rows["state"] == ThreadState.BLOCKED)
        # A thread passes many rows in the same operation: they are one piece.
        first = np.append(True, (start_ns[1:] != end_ns[:-1]) | (thread[1:] != thread[:-1]))
        first[1:] |= (row[1:] != row[:-1]) | (place[1:] != place[:-1])
        at = np.flatnonzero(first)
        pieces = np.empty(len(at), STRETCH_DTYPE)
        pieces["start"], pieces["end"] = start_ns[at], end_ns[np.append(at[1:], len(rows)) - 1]
        pieces["row"], pieces["place"] = row[at], place[at]
        self._busy.add(pieces, gpu=False)

    def advance(self, now_ns: int) -> None:
        """Everything before this moment has been added, but for activity that comes late."""
        self._busy.advance(now_ns)

    def sums(self) -> BusySums:
        """How long GPUs worked, by row, device index and process index."""
        return self._busy.sums()

    def copies(self) -> list[CopySum]:
        """By process and direction, in the order in which they were first seen."""
        return [
            CopySum(key >> 32, (key & int(LOW_HALF)) >> 8, key & 0xFF, *sums)
            for key, sums in zip(self._copies.keys, self._copy_sums.tolist(), strict=False)
        ]

    def devices(self) -> list[tuple[int, int]]:
        """(pid, device) by device index."""
        return [(self._processes.keys[key >> 32], key & int(LOW_HALF)) for key in self._devices.keys]

    def processes(self) -> list[int]:
        """The pid by process index."""
        return self._processes.keys

    def _add_delays(
        self, rows: NDArray[np.void], row: Ints, keys: NDArray[np.uint64], kind: NDArray[np.uint8], start_ns: Ints
    ) -> None:
        launch_ns = rows["launch_ns"]
        counts = launch_ns != 0
        in_graph = np.flatnonzero(counts & (rows["graph"] != 0))
        if len(in_graph):
            # What follows the first in a graph waited for the others, not for the GPU.
            counts[in_graph] = False
            in_order = in_graph[np.argsort(start_ns[in_graph], kind="stable")]
            launches, first = np.unique(launch_ns[in_order], return_index=True)
            new = ~np.isin(launches, self._graph_launches, assume_unique=True)
            counts[in_order[first[new]]] = True
            self._graph_launches = launches
        at = np.flatnonzero(counts)
        delay_ns = np.clip(start_ns[at] - clipped(launch_ns[at]), 0, LONGEST_NS)
        bins = bins_of(delay_ns)
        self.delays.add(row[at].astype(np.uint64), delay_ns, bins)
        of_kernels = np.flatnonzero(kind[at] == GpuKind.KERNEL)
        self.kernel_delays.add(keys[at[of_kernels]], delay_ns[of_kernels], bins[of_kernels])

    def _add_copies(self, rows: NDArray[np.void], kind: NDArray[np.uint8], duration_ns: Ints) -> None:
        at = np.flatnonzero((kind == GpuKind.COPY) | (kind == GpuKind.SET))
        if not len(at):
            return
        what = (kind[at].astype(np.uint32) << np.uint32(8)) | rows["detail"][at]
        entry = self._copies.rows(pair(rows["pid"][at], what))
        size = len(self._copies)
        self._copy_sums = grown(self._copy_sums, size)
        self._copy_sums[:size, 0] += np.bincount(entry, minlength=size)
        self._copy_sums[:size, 1] += np.bincount(entry, duration_ns[at], size).astype(np.int64)
        self._copy_sums[:size, 2] += np.bincount(entry, clipped(rows["bytes"][at], LONGEST_NS), size).astype(np.int64)


def work_only(rows: NDArray[np.void]) -> NDArray[np.void]:
    """The rows during which a GPU worked."""
    work = IS_WORK[rows["kind"]]
    return rows if bool(work.all()) else chosen(rows, work)
