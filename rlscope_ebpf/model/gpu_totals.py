"""Totals of GPU activity: how long the GPU worked for whom, and what threads did meanwhile.

Rows come in no order, up to seconds after the time they tell of. What is to be exact, unions and what overlaps them,
is therefore made up with a delay: rows wait until their time is `WINDOW_NS` ago (or too many wait), then the time up
to there is settled: added to sums that never change again. A row that comes later still is in all counts and sums of
durations, but not in unions: it is counted as late. Whoever asks gets the settled sums with those of what waits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.categories import ThreadState
from rlscope_ebpf.model.durations import DurationTotals
from rlscope_ebpf.model.gpu import IS_WORK, GpuKind
from rlscope_ebpf.model.histogram import bins_of
from rlscope_ebpf.model.keys import LOW_HALF, Ints, KeyRows, grown, pair
from rlscope_ebpf.model.unions import Coverage, Spans, clipped, union

WINDOW_NS = 10_000_000_000
"""Rows may come this long after their time: CUPTI keeps them for a while, and the matcher waits for their launches."""

SETTLE_STEP_NS = 1_000_000_000
"""Time is settled in steps of at least this length."""

MOST_WAITING = 1 << 19
"""With more rows waiting than this, time is settled earlier."""

LONGEST_NS = 1 << 45
"""What claims to have taken longer (ten hours) is damaged; sums of whatever damage says must not overflow."""

_PIECE_DTYPE = np.dtype([("start", "<i8"), ("end", "<i8"), ("row", "<i8"), ("place", "<i8")])
"""A stretch of activity (`place`: device index), or of a thread (`place`: process index * 2 + 1 if it slept)."""

_NOTHING = np.zeros(0, _PIECE_DTYPE)


@dataclass(frozen=True, slots=True)
class GpuSums:
    """Sums of time, ns. By row of the operations, by device index, by process index."""

    gpu_ns: Ints  # union of the activity that the operation launched
    cpu_gpu_ns: Ints  # of the operation's time on a CPU (or waiting for one), while its process's GPUs worked
    gpu_only_ns: Ints  # the same of the time in which it slept
    device_ns: Ints
    process_ns: Ints  # on whichever device

    def plus(self, other: GpuSums) -> GpuSums:
        """Both together; `other` may know more rows."""
        return GpuSums(
            _plus(self.gpu_ns, other.gpu_ns),
            _plus(self.cpu_gpu_ns, other.cpu_gpu_ns),
            _plus(self.gpu_only_ns, other.gpu_only_ns),
            _plus(self.device_ns, other.device_ns),
            _plus(self.process_ns, other.process_ns),
        )


def _plus(left: Ints, right: Ints) -> Ints:
    total = np.zeros(max(len(left), len(right)), np.int64)
    total[: len(left)] += left
    total[: len(right)] += right
    return total


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

    def __init__(self, window_ns: int = WINDOW_NS, most_waiting: int = MOST_WAITING) -> None:
        self.expected = True
        """Whether GPU activity may still come. If not, and until it does, threads' time is not kept waiting for it."""
        self.late = 0
        """Rows that came after their time was settled."""
        self.kernels = DurationTotals()
        """By (pid, StringInfo.id)."""
        self.kernel_delays = DurationTotals()
        """Launch to start, by the same."""
        self.delays = DurationTotals()
        """Launch to start of all activity, by row. Of a graph launch, that of the first of its activities counts."""
        self.activities: Ints = np.zeros(0, np.int64)
        """By row."""
        self._window_ns = window_ns
        self._most_waiting = most_waiting
        self._copies = KeyRows()  # (pid, kind << 8 | detail)
        self._copy_sums: Ints = np.zeros((0, 3), np.int64)  # count, ns, bytes
        self._processes = KeyRows()  # pid
        self._devices = KeyRows()  # (process index, device)
        self._graph_launches: NDArray[np.uint64] = np.zeros(0, np.uint64)  # of the latest rows, ascending
        self._gpu: list[NDArray[np.void]] = []
        self._cpu: list[NDArray[np.void]] = []
        self._waiting = [0, 0]
        self._settled_ns = 0
        none: Ints = np.zeros(0, np.int64)
        self._settled = GpuSums(none, none, none, none, none)
        self._latest: GpuSums | None = None

    @property
    def empty(self) -> bool:
        """Whether no GPU has done anything."""
        return not len(self._devices)

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
        pieces = np.empty(len(rows), _PIECE_DTYPE)
        pieces["start"], pieces["end"], pieces["row"] = start_ns, start_ns + duration_ns, row
        pieces["place"] = self._devices.rows(pair(process, rows["device"]))
        late = start_ns < self._settled_ns
        if late.any():
            self.late += int(np.count_nonzero(late))
            np.maximum(pieces["start"], self._settled_ns, out=pieces["start"])
            pieces = pieces[pieces["end"] > pieces["start"]]
        self._latest = None
        self._gpu.append(pieces)
        self._waiting[0] += len(pieces)

    def add_time(self, pid: NDArray[np.uint32], thread: Ints, row: Ints, rows: NDArray[np.void]) -> None:
        """Add what threads did: intervals, those of one thread in order of time."""
        if not self.expected or not len(rows):
            return
        if bool((thread[1:] < thread[:-1]).any()):
            order = np.argsort(thread, kind="stable")
            pid, thread, row, rows = pid[order], thread[order], row[order], rows[order]
        start_ns = clipped(rows["start_ns"])
        end_ns = start_ns + clipped(rows["duration_ns"])
        place = self._processes.rows(pid.astype(np.uint64)) * 2 + (rows["state"] == ThreadState.BLOCKED)
        # A thread passes many rows in the same operation: they are one piece.
        first = np.append(True, (start_ns[1:] != end_ns[:-1]) | (thread[1:] != thread[:-1]))
        first[1:] |= (row[1:] != row[:-1]) | (place[1:] != place[:-1])
        at = np.flatnonzero(first)
        pieces = np.empty(len(at), _PIECE_DTYPE)
        pieces["start"], pieces["end"] = start_ns[at], end_ns[np.append(at[1:], len(rows)) - 1]
        pieces["row"], pieces["place"] = row[at], place[at]
        self._latest = None
        self._cpu.append(pieces)
        self._waiting[1] += len(pieces)

    def advance(self, now_ns: int) -> None:
        """Everything before this moment has been added, but for rows that come late."""
        until = now_ns - self._window_ns
        if until - self._settled_ns >= SETTLE_STEP_NS or not self._settled_ns:
            self._settle(until)
        for parts, waiting in ((self._gpu, self._waiting[0]), (self._cpu, self._waiting[1])):
            if waiting > self._most_waiting:
                starts = np.concatenate([part["start"] for part in parts])
                half = len(starts) // 2
                self._settle(min(now_ns, int(np.partition(starts, half)[half])))

    def sums(self) -> GpuSums:
        """Of all time. Asked again without anything new, it costs nothing."""
        if not self._waiting[0]:
            return self._settled
        if self._latest is None:
            self._collect()
            self._latest = self._settled.plus(self._evaluate(*(part[0] for part in (self._gpu, self._cpu))))
        return self._latest

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

    def _collect(self) -> None:
        for parts in (self._gpu, self._cpu):
            if len(parts) != 1:
                parts[:] = [np.concatenate([_NOTHING, *parts])]

    def _settle(self, until: int) -> None:
        """Add what happened before `until` to the settled sums."""
        self._latest = None
        until = max(until, self._settled_ns)
        self._collect()
        settled = []
        for number, parts in enumerate((self._gpu, self._cpu)):
            pieces = parts[0]
            past = pieces[pieces["start"] < until]
            rest = pieces[pieces["end"] > until]
            past["end"], rest["start"] = np.minimum(past["end"], until), np.maximum(rest["start"], until)
            settled.append(past)
            parts[:] = [rest]
            self._waiting[number] = len(rest)
        self._settled = self._settled.plus(self._evaluate(*settled))
        self._settled_ns = until

    def _evaluate(self, gpu: NDArray[np.void], cpu: NDArray[np.void]) -> GpuSums:
        rows = 1 + max((int(pieces["row"].max()) for pieces in (gpu, cpu) if len(pieces)), default=-1)
        processes, devices = len(self._processes), len(self._devices)
        if not len(gpu):
            blank = np.zeros(0, np.int64)
            return GpuSums(blank, blank, blank, blank, blank)
        order = np.argsort(gpu["start"], kind="stable")
        row, place = gpu["row"][order], gpu["place"][order]
        start_ns, end_ns = gpu["start"][order], gpu["end"][order]
        by_row = _grouped_union(row, start_ns, end_ns)
        by_device = _grouped_union(place, start_ns, end_ns)
        process_of = np.array([key >> 32 for key in self._devices.keys], np.int64)
        by_process = union(process_of[by_device.key], by_device.start_ns, by_device.end_ns)
        covered = Coverage(by_process).within(cpu["place"] >> 1, cpu["start"], cpu["end"])
        slept = (cpu["place"] & 1).astype(np.bool_)
        return GpuSums(
            by_row.total_by_key(rows),
            np.bincount(cpu["row"], np.where(slept, 0, covered), rows).astype(np.int64),
            np.bincount(cpu["row"], np.where(slept, covered, 0), rows).astype(np.int64),
            by_device.total_by_key(devices),
            by_process.total_by_key(processes),
        )


def _grouped_union(key: Ints, start_ns: Ints, end_ns: Ints) -> Spans:
    """Union by key of intervals in order of time."""
    if int(key.max()) < 1 << 16:  # NumPy sorts these by radix; what follows finds its order made
        order = np.argsort(key.astype(np.uint16), kind="stable")
        key, start_ns, end_ns = key[order], start_ns[order], end_ns[order]
    return union(key, start_ns, end_ns)


def work_only(rows: NDArray[np.void]) -> NDArray[np.void]:
    """The rows during which a GPU worked."""
    work = IS_WORK[rows["kind"]]
    return rows if bool(work.all()) else rows[work]
