"""When GPUs worked, for whom, and what threads did meanwhile, exactly, although GPU activity is told of late.

Time is cut into slabs. Activity and threads' time wait in the slabs that they lie in. When a slab is `WINDOW_NS` old,
or too much waits, it is settled: its sums are added to those that never change again. Activity that comes later still
is left out and counted. Whoever asks gets the settled sums with those of the slabs, which are kept until something is
added to the slab: that is seldom an old one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.keys import Ints, stable_order
from rlscope_ebpf.model.rows import chosen, joined
from rlscope_ebpf.model.unions import Coverage, Spans, union

WINDOW_NS = 10_000_000_000
"""Activity may be told of this long after it began: CUPTI keeps it for a while, and it may wait for its launch."""

SLAB_NS = 500_000_000

MOST_WAITING = 1 << 20
"""With more stretches waiting than this, slabs are settled earlier."""

STRETCH_DTYPE = np.dtype([("start", "<i8"), ("end", "<i8"), ("row", "<i4"), ("place", "<i4")])
"""A stretch of activity (`place`: device index) or of a thread (`place`: process index * 2, + 1 if it slept)."""

_NOTHING = np.zeros(0, STRETCH_DTYPE)
_FOREVER = np.iinfo(np.int64).max
_NO_TIME: Ints = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class BusySums:
    """Sums of time, ns: by row of the operations, by device index, by process index. Arrays may end early (zeros)."""

    gpu_ns: Ints  # union of the activity of the row
    cpu_gpu_ns: Ints  # of the row's time on a CPU (or waiting for one), while its process's GPUs worked
    gpu_only_ns: Ints  # the same of the time in which it slept
    device_ns: Ints
    process_ns: Ints  # on whichever device

    def __add__(self, other: BusySums) -> BusySums:
        return BusySums(*(plus(getattr(self, name), getattr(other, name)) for name in BusySums.__slots__))


_NOT_BUSY = BusySums(_NO_TIME, _NO_TIME, _NO_TIME, _NO_TIME, _NO_TIME)


def plus(left: Ints, right: Ints) -> Ints:
    """The sum of two arrays, the shorter of which has zeros behind its end."""
    if len(left) < len(right):
        left, right = right, left
    if not len(right):
        return left
    total: Ints = left.copy()
    total[: len(right)] += right
    return total


_Other = TypeVar("_Other")


class Summable(Protocol):
    """Sums of one piece of time, which can be added to those of another."""

    def __add__(self: _Other, other: _Other, /) -> _Other: ...


_Sums = TypeVar("_Sums", bound=Summable)


class _Slab(Generic[_Sums]):
    """The stretches in one piece of time."""

    __slots__ = ("cpu", "gpu", "start_ns", "sums", "waiting")

    def __init__(self, start_ns: int) -> None:
        self.start_ns = start_ns  # it ends where the next one begins
        self.gpu: list[NDArray[np.void]] = []
        self.cpu: list[NDArray[np.void]] = []
        self.waiting = 0
        self.sums: _Sums | None = None

    def add(self, pieces: NDArray[np.void], *, gpu: bool) -> None:
        (self.gpu if gpu else self.cpu).append(pieces)
        self.waiting += len(pieces)
        self.sums = None


class Slabs(Generic[_Sums]):
    """Adds up what stretches of time amount to. Times are ns, below 2^62."""

    def __init__(self, nothing: _Sums, window_ns: int, most_waiting: int) -> None:
        self.late = 0
        """Stretches of activity that began before what was settled when they came: that part of them is missing."""
        self._window_ns = window_ns
        self._most_waiting = most_waiting
        self._slabs: list[_Slab[_Sums]] = [_Slab(0)]
        self._settled = nothing
        self._latest: _Sums | None = None

    @property
    def waiting(self) -> int:
        """Stretches that are not settled."""
        return sum(slab.waiting for slab in self._slabs)

    def add(self, pieces: NDArray[np.void], *, gpu: bool) -> None:
        """Add stretches (STRETCH_DTYPE) of activity, or of threads; those of no duration have no effect."""
        settled_ns = self._slabs[0].start_ns
        if gpu and len(pieces):
            self.late += int(np.count_nonzero(pieces["start"] < settled_ns))
        for slab in reversed(self._slabs):
            if not len(pieces):
                break
            before = pieces["start"] < slab.start_ns
            if not before.any():
                slab.add(pieces, gpu=gpu)
                break
            later, pieces = _cut(pieces, slab.start_ns)
            if len(later):
                slab.add(later, gpu=gpu)
        self._latest = None

    def advance(self, now_ns: int) -> None:
        """Everything before this moment has been added, but for activity that comes late."""
        current = self._slabs[-1]
        if now_ns - current.start_ns >= SLAB_NS or (current.waiting > self._most_waiting and now_ns > current.start_ns):
            following: _Slab[_Sums] = _Slab(now_ns)
            self._slabs.append(following)
            for parts, gpu in ((current.gpu, True), (current.cpu, False)):
                later, earlier = _cut(joined([_NOTHING, *parts]), now_ns)
                parts[:] = [earlier]
                if len(later):
                    following.add(later, gpu=gpu)
            current.waiting = sum(len(part) for part in (*current.gpu, *current.cpu))
        while len(self._slabs) > 1 and (
            self._slabs[1].start_ns <= now_ns - self._window_ns or self.waiting > self._most_waiting
        ):
            self._before_settling(self._slabs[1].start_ns)
            self._settled += self._sums_of(self._slabs.pop(0))

    def sums(self) -> _Sums:
        """Of all time."""
        if self._latest is None:
            self._latest = self._settled
            for slab in self._slabs:
                self._latest += self._sums_of(slab)
        return self._latest

    def _sums_of(self, slab: _Slab[_Sums]) -> _Sums:
        if slab.sums is None:
            for parts in (slab.gpu, slab.cpu):
                parts[:] = [joined([_NOTHING, *parts])]
            slab.sums = self._evaluate(slab.gpu[0], slab.cpu[0])
        return slab.sums

    def _before_settling(self, until_ns: int) -> None:
        """What lies before a moment is about to be settled."""

    def _evaluate(self, gpu: NDArray[np.void], cpu: NDArray[np.void]) -> _Sums:
        """The sums of one slab."""
        raise NotImplementedError


class BusyTime(Slabs[BusySums]):
    """How long GPUs worked for whom, and what threads did meanwhile."""

    def __init__(self, window_ns: int = WINDOW_NS, most_waiting: int = MOST_WAITING) -> None:
        super().__init__(_NOT_BUSY, window_ns, most_waiting)
        self._process_of: Ints = _NO_TIME  # by device index

    def set_devices(self, process_of: Ints) -> None:
        """Process index by device index; may become longer."""
        self._process_of = process_of

    def _evaluate(self, gpu: NDArray[np.void], cpu: NDArray[np.void]) -> BusySums:
        if not len(gpu):
            return _NOT_BUSY
        gpu = np.take(gpu, np.argsort(gpu["start"], kind="stable"))
        start_ns, end_ns = gpu["start"], gpu["end"]
        by_row = _grouped_union(gpu["row"], start_ns, end_ns)
        by_device = _grouped_union(gpu["place"], start_ns, end_ns)
        by_process = union(self._process_of[by_device.key], by_device.start_ns, by_device.end_ns)
        sums = [_total(by_row), _NO_TIME, _NO_TIME, _total(by_device), _total(by_process)]
        if len(cpu):
            covered = Coverage(by_process).within((cpu["place"] >> 1).astype(np.int64), cpu["start"], cpu["end"])
            for place, asleep in ((1, False), (2, True)):
                mine = np.flatnonzero((covered > 0) & ((cpu["place"] & 1 != 0) == asleep))
                sums[place] = np.bincount(cpu["row"][mine], covered[mine]).astype(np.int64)
        return BusySums(*sums)


def _cut(pieces: NDArray[np.void], at_ns: int) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """What of the stretches lies after a moment, and what before it."""
    later = chosen(pieces, pieces["end"] > at_ns)
    earlier = chosen(pieces, pieces["start"] < at_ns)
    np.maximum(later["start"], at_ns, out=later["start"])
    np.minimum(earlier["end"], at_ns, out=earlier["end"])
    return later, earlier


def _grouped_union(key: NDArray[np.int32], start_ns: Ints, end_ns: Ints) -> Spans:
    """Union by key of intervals in order of time."""
    wide = key.astype(np.int64)
    if not bool((key != key[0]).any()):
        return union(wide, start_ns, end_ns)
    order = stable_order(key, int(key.max()))
    wide, start_ns, end_ns = wide[order], start_ns[order], end_ns[order]  # what follows finds its order made
    return union(wide, start_ns, end_ns)


def _total(spans: Spans) -> Ints:
    return spans.total_by_key(int(spans.key.max()) + 1) if len(spans.key) else _NO_TIME
