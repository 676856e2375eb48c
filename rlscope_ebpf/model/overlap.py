"""When any process used a CPU or a GPU: exact unions over all processes of a session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.busy_time import MOST_WAITING, STRETCH_DTYPE, WINDOW_NS, Slabs, plus
from rlscope_ebpf.model.categories import ThreadState
from rlscope_ebpf.model.keys import Ints, KeyRows
from rlscope_ebpf.model.unions import Coverage, Spans, clipped, union

_NONE: Ints = np.zeros(0, np.int64)
_NO_SPANS = Spans(_NONE, _NONE, _NONE)


@dataclass(frozen=True, slots=True)
class OverlapTotal:
    """What was busy, of the wall time of a session. Times are ns; a process is busy while any of its threads runs."""

    cpu_only_ns: int = 0  # some process ran on a CPU, no GPU worked for any
    both_ns: int = 0
    gpu_only_ns: int = 0
    neither_ns: int = 0
    cpu_at_once_ns: tuple[int, ...] = ()  # by the number of processes that ran at once, from one on
    gpu_at_once_ns: tuple[int, ...] = ()  # by the number of processes that a GPU worked for at once, from one on
    cpu_by_pid_ns: dict[int, int] = field(default_factory=dict)
    gpu_by_pid_ns: dict[int, int] = field(default_factory=dict)

    @property
    def cpu_ns(self) -> int:
        """In which at least one process ran on a CPU."""
        return self.cpu_only_ns + self.both_ns

    @property
    def gpu_ns(self) -> int:
        """In which a GPU worked for at least one process."""
        return self.gpu_only_ns + self.both_ns

    @property
    def wall_ns(self) -> int:
        """All of the time."""
        return self.cpu_ns + self.gpu_only_ns + self.neither_ns

    @property
    def mean_at_once(self) -> float:
        """Processes that ran on a CPU at once, a mean over the time in which any did."""
        return _mean(self.cpu_at_once_ns)

    @property
    def gpu_mean_at_once(self) -> float:
        """The same for those that a GPU worked for."""
        return _mean(self.gpu_at_once_ns)


NO_OVERLAP = OverlapTotal()


def _mean(at_once_ns: tuple[int, ...]) -> float:
    of = sum(at_once_ns)
    return sum(number * ns for number, ns in enumerate(at_once_ns, 1)) / of if of else 0.0


@dataclass(frozen=True, slots=True)
class OverlapSums:
    """Sums of time, ns. Arrays may end early (zeros)."""

    cpu_ns: int = 0
    gpu_ns: int = 0
    both_ns: int = 0
    cpu_by_process: Ints = field(default_factory=lambda: _NONE)
    gpu_by_process: Ints = field(default_factory=lambda: _NONE)
    cpu_at_once: Ints = field(default_factory=lambda: _NONE)  # by the number of processes
    gpu_at_once: Ints = field(default_factory=lambda: _NONE)
    gpu_spans: Spans = _NO_SPANS  # of a single slab, by process

    def __add__(self, other: OverlapSums) -> OverlapSums:
        return OverlapSums(
            self.cpu_ns + other.cpu_ns,
            self.gpu_ns + other.gpu_ns,
            self.both_ns + other.both_ns,
            plus(self.cpu_by_process, other.cpu_by_process),
            plus(self.gpu_by_process, other.gpu_by_process),
            plus(self.cpu_at_once, other.cpu_at_once),
            plus(self.gpu_at_once, other.gpu_at_once),
        )


class Overlap(Slabs[OverlapSums]):
    """Adds up when processes ran and when GPUs worked for them, told of late as that is."""

    def __init__(self, window_ns: int = WINDOW_NS, most_waiting: int = MOST_WAITING) -> None:
        super().__init__(OverlapSums(), window_ns, most_waiting)
        self.on_settling: Callable[[int], None] = lambda until_ns: None
        """Called before what lies before a moment is settled: the last chance to ask `gpu_until` for such times."""
        self._processes = KeyRows()  # pid

    def add_time(self, pid: NDArray[np.uint32], thread: Ints, rows: NDArray[np.void]) -> None:
        """Add intervals, with their processes and threads."""
        ran = rows["state"] == ThreadState.RUNNING
        if not ran.any():
            return
        start_ns = clipped(rows["start_ns"])
        end_ns = start_ns + clipped(rows["duration_ns"])
        # Most go on where the one before ended: they are one piece.
        joins = (start_ns[1:] == end_ns[:-1]) & (thread[1:] == thread[:-1]) & ran[:-1]
        first = np.flatnonzero(ran & np.append(True, ~joins))
        last = np.flatnonzero(ran & np.append(~(joins & ran[1:]), True))
        pieces = np.zeros(len(first), STRETCH_DTYPE)
        pieces["start"], pieces["end"] = start_ns[first], end_ns[last]
        pieces["place"] = self._processes.rows(pid[first].astype(np.uint64))
        self.add(pieces, gpu=False)

    def add_gpu(self, rows: NDArray[np.void]) -> None:
        """Add GPU activity: rows of kinds of work only."""
        if not len(rows):
            return
        pieces = np.zeros(len(rows), STRETCH_DTYPE)
        pieces["start"] = clipped(rows["start_ns"])
        pieces["end"] = pieces["start"] + clipped(rows["duration_ns"])
        pieces["place"] = self._processes.rows(rows["pid"].astype(np.uint64))
        self.add(pieces, gpu=True)

    def gpu_until(self, pid: int, times: Ints) -> Ints:
        """How long GPUs had worked for a process by each of some moments, none of which is settled."""
        process = int(self._processes.rows(np.array([pid], np.uint64))[0])
        settled = self._settled.gpu_by_process
        total = np.full(len(times), settled[process] if process < len(settled) else 0, np.int64)
        for slab in self._slabs:
            spans = self._sums_of(slab).gpu_spans
            if len(spans.key):
                total += Coverage(spans).within(np.full(len(times), process, np.int64), np.zeros_like(times), times)
        return total

    def total(self, wall_ns: int) -> OverlapTotal:
        """Of a session that took `wall_ns`."""
        sums = self.sums()
        used_ns = sums.cpu_ns + sums.gpu_ns - sums.both_ns
        return OverlapTotal(
            cpu_only_ns=sums.cpu_ns - sums.both_ns,
            both_ns=sums.both_ns,
            gpu_only_ns=sums.gpu_ns - sums.both_ns,
            neither_ns=max(0, wall_ns - used_ns),
            cpu_at_once_ns=tuple(sums.cpu_at_once[1:].tolist()),
            gpu_at_once_ns=tuple(sums.gpu_at_once[1:].tolist()),
            cpu_by_pid_ns=self._by_pid(sums.cpu_by_process),
            gpu_by_pid_ns=self._by_pid(sums.gpu_by_process),
        )

    def _by_pid(self, by_process: Ints) -> dict[int, int]:
        return {pid: ns for pid, ns in zip(self._processes.keys, by_process.tolist(), strict=False) if ns}

    def _before_settling(self, until_ns: int) -> None:
        self.on_settling(until_ns)

    def _evaluate(self, gpu: NDArray[np.void], cpu: NDArray[np.void]) -> OverlapSums:
        cpu_spans, gpu_spans = _by_process(cpu), _by_process(gpu)
        any_cpu, any_gpu = _any(cpu_spans), _any(gpu_spans)
        cpu_ns, gpu_ns = _length(any_cpu), _length(any_gpu)
        both_ns = 0
        if cpu_ns and gpu_ns:
            together = union(*(np.concatenate([getattr(any_cpu, name), getattr(any_gpu, name)]) for name in _FIELDS))
            both_ns = cpu_ns + gpu_ns - _length(together)
        return OverlapSums(
            cpu_ns, gpu_ns, both_ns, _total(cpu_spans), _total(gpu_spans), _at_once(cpu_spans), _at_once(gpu_spans),
            gpu_spans,
        )  # fmt: skip


_FIELDS = ("key", "start_ns", "end_ns")


def _by_process(pieces: NDArray[np.void]) -> Spans:
    return union(pieces["place"].astype(np.int64), pieces["start"], pieces["end"])


def _any(spans: Spans) -> Spans:
    return union(np.zeros_like(spans.key), spans.start_ns, spans.end_ns)


def _length(spans: Spans) -> int:
    return int((spans.end_ns - spans.start_ns).sum())


def _total(spans: Spans) -> Ints:
    return spans.total_by_key(int(spans.key.max()) + 1) if len(spans.key) else _NONE


def _at_once(spans: Spans) -> Ints:
    """Time by the number of keys at once."""
    if not len(spans.key):
        return _NONE
    times = np.concatenate([spans.start_ns, spans.end_ns])
    order = np.argsort(times, kind="stable")
    level = np.cumsum(np.where(order < len(spans.key), 1, -1))
    times = times[order]
    ns: Ints = np.bincount(level[:-1].clip(0), np.diff(times)).astype(np.int64)
    if len(ns):
        ns[0] = 0  # gaps
    return np.trim_zeros(ns, "b")
