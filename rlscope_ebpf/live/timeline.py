"""The last two minutes of every process, in short pieces of time: what its threads did, and its GPUs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.categories import Category, ThreadState
from rlscope_ebpf.model.gpu_totals import LONGEST_NS, work_only
from rlscope_ebpf.model.keys import Ints, grown
from rlscope_ebpf.model.sampling import split
from rlscope_ebpf.model.tables import Batch, ProcessInfo, ThreadInfo
from rlscope_ebpf.model.unions import clipped, union

BUCKET_NS = 250_000_000
BUCKETS = 480

MOST_LANES = 256
"""So many processes at most: a newer one takes the place of that which ended first."""

_CATEGORIES = len(Category)
# Channels of a bucket: time by category, time whose category samples tell, GPU time, then samples by category.
_SAMPLED, _GPU, _SAMPLES = _CATEGORIES, _CATEGORIES + 1, _CATEGORIES + 2
_CHANNELS = _SAMPLES + _CATEGORIES

_WORKS_ASLEEP = np.isin(np.arange(_CATEGORIES), (Category.SIMULATOR, Category.BACKEND, Category.CUDA_API))
"""In a call of such a library a thread that waits, waits for what it called; elsewhere it is idle."""


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """What processes did lately, for a picture. Buckets are aligned to multiples of their width; oldest first.

    A thread is busy while it runs or waits for a CPU, and in calls of libraries also while it is blocked.
    """

    bucket_ns: int
    end_ns: int  # where the last bucket ends; CLOCK_MONOTONIC
    pids: tuple[int, ...]
    busy_ns: Ints  # (pids, buckets, Category): of all threads together, so a bucket may hold more than its width
    gpu_ns: Ints  # (pids, buckets): some GPU worked for the process

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Timeline)
            and (self.bucket_ns, self.end_ns, self.pids) == (other.bucket_ns, other.end_ns, other.pids)
            and np.array_equal(self.busy_ns, other.busy_ns)
            and np.array_equal(self.gpu_ns, other.gpu_ns)
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def buckets(self) -> int:
        """How many there are."""
        return int(self.gpu_ns.shape[1])


def no_timeline() -> Timeline:
    """Of nothing."""
    return Timeline(BUCKET_NS, 0, (), np.zeros((0, 0, _CATEGORIES), np.int64), np.zeros((0, 0), np.int64))


class TimelineTotals:
    """Adds up batches. Not thread-safe."""

    def __init__(self) -> None:
        self._lanes: dict[int, int] = {}  # pid -> place in _cells
        self._free: list[int] = []
        self._ends: dict[int, int] = {}  # pid -> when it ended
        self._thread_lane: NDArray[np.int32] = np.zeros(0, np.int32)  # by thread id; place + 1, 0: not drawn
        self._cells: Ints = np.zeros((0, BUCKETS, _CHANNELS), np.int64)  # bucket b at b % BUCKETS
        self._head = -1  # the newest bucket, which is not complete

    def add(self, batch: Batch) -> None:
        """Add what one turn of a session produced."""
        self._advance(batch.now_ns // BUCKET_NS)
        for definition in batch.definitions:
            if isinstance(definition, ThreadInfo):
                self._thread_lane = grown(self._thread_lane, definition.id + 1)
                self._thread_lane[definition.id] = self._lane(definition.pid) + 1
            elif isinstance(definition, ProcessInfo):
                if definition.end_ns is None:
                    self._ends.pop(definition.pid, None)
                else:
                    self._ends[definition.pid] = definition.end_ns
        tables = batch.tables
        if "intervals" in tables:
            self._add_intervals(tables["intervals"])
        if "samples" in tables:
            self._add_samples(tables["samples"])
        if "gpu" in tables:
            self._add_gpu(work_only(tables["gpu"]))

    def picture(self) -> Timeline:
        """The complete buckets of all processes that are or were there."""
        if self._head < 0 or not self._lanes:
            return no_timeline()
        lanes, now = list(self._lanes.values()), self._head % BUCKETS
        older, newer = self._cells[lanes, now + 1 :], self._cells[lanes, :now]
        cells = np.concatenate((older, newer), axis=1)[:, -self._head :]
        busy_ns = cells[:, :, :_CATEGORIES]
        sampled = np.nonzero(cells[:, :, _SAMPLED])
        if len(sampled[0]):
            told = cells[sampled]
            busy_ns[sampled] += split(told[:, _SAMPLED : _SAMPLED + 1], told[:, _SAMPLES:])[:, :, 0]
        return Timeline(BUCKET_NS, self._head * BUCKET_NS, tuple(self._lanes), busy_ns, cells[:, :, _GPU])

    def _advance(self, head: int) -> None:
        if head <= self._head:
            return
        first = max(self._head + 1, head - BUCKETS + 1)
        self._cells[:, np.arange(first, head + 1) % BUCKETS] = 0
        self._head = head
        oldest_ns = self._oldest * BUCKET_NS
        for pid in [pid for pid, end_ns in self._ends.items() if end_ns < oldest_ns]:
            self._forget(pid)

    @property
    def _oldest(self) -> int:
        return max(0, self._head - BUCKETS + 1)

    def _lane(self, pid: int) -> int:
        """Its place; -1 if there is no room."""
        known = self._lanes.get(pid)
        if known is not None:
            return known
        if not self._free and len(self._lanes) >= MOST_LANES:
            ended = [pid for pid in self._ends if pid in self._lanes]
            if not ended:
                return -1
            self._forget(min(ended, key=self._ends.__getitem__))
        if not self._free:
            self._free.append(len(self._lanes))
            self._cells = grown(self._cells, len(self._lanes) + 1)
        lane = self._lanes[pid] = self._free.pop()
        return lane

    def _forget(self, pid: int) -> None:
        self._ends.pop(pid)
        lane = self._lanes.pop(pid, None)
        if lane is not None:
            self._thread_lane[self._thread_lane == lane + 1] = 0
            self._cells[lane] = 0
            self._free.append(lane)

    def _lanes_of(self, thread: NDArray[np.uint32]) -> Ints:
        """By row; -1: not drawn."""
        numbers = thread.astype(np.int64)
        numbers[numbers >= len(self._thread_lane)] = 0  # a damaged trace may lack its definition
        return self._thread_lane[numbers].astype(np.int64) - 1 if len(self._thread_lane) else numbers - 1

    def _add_intervals(self, rows: NDArray[np.void]) -> None:
        if not len(rows):
            return
        lane = self._lanes_of(rows["thread"])
        channel = np.minimum(rows["category"], Category.OTHER).astype(np.int64)
        sampled = rows["sampled"] != 0
        busy = (rows["state"] != ThreadState.BLOCKED) | (_WORKS_ASLEEP[channel] & ~sampled)
        channel[sampled] = _SAMPLED
        at = np.flatnonzero(busy & (lane >= 0))
        start_ns = clipped(rows["start_ns"][at])
        self._spread(lane[at], channel[at], start_ns, start_ns + clipped(rows["duration_ns"][at], LONGEST_NS))

    def _add_samples(self, rows: NDArray[np.void]) -> None:
        lane = self._lanes_of(rows["thread"])
        bucket = clipped(rows["time_ns"]) // BUCKET_NS
        at = np.flatnonzero((lane >= 0) & (bucket >= self._oldest) & (bucket <= self._head))
        channel = _SAMPLES + np.minimum(rows["category"][at], Category.OTHER)
        np.add.at(self._cells, (lane[at], bucket[at] % BUCKETS, channel), 1)

    def _add_gpu(self, rows: NDArray[np.void]) -> None:
        """What two batches tell of the same time counts twice: that is seldom."""
        if not len(rows):
            return
        pids, which = np.unique(rows["pid"], return_inverse=True)
        lane = np.array([self._lane(pid) for pid in pids.tolist()], np.int64)[which]
        at = np.flatnonzero(lane >= 0)
        start_ns = clipped(rows["start_ns"][at])
        spans = union(lane[at], start_ns, start_ns + clipped(rows["duration_ns"][at], LONGEST_NS))
        self._spread(spans.key, np.full(len(spans.key), _GPU), spans.start_ns, spans.end_ns)

    def _spread(self, lane: Ints, channel: Ints, start_ns: Ints, end_ns: Ints) -> None:
        """Add stretches of time to the buckets that they lie in."""
        origin_ns = self._oldest * BUCKET_NS
        begin = np.maximum(start_ns - origin_ns, 0)
        end = np.minimum(end_ns, (self._head + 1) * BUCKET_NS) - origin_ns
        at = np.flatnonzero(end > begin)
        if not len(at):
            return
        row, begin, end = lane[at] * _CHANNELS + channel[at], begin[at], end[at]
        first, last = begin // BUCKET_NS, (end - 1) // BUCKET_NS
        low, width = int(first.min()), int(last.max() - first.min()) + 1
        size = len(self._cells) * _CHANNELS * width
        place = row * width - low
        within = first == last
        time_ns = np.bincount(place + first, np.where(within, end - begin, (first + 1) * BUCKET_NS - begin), size)
        across = np.flatnonzero(~within)
        if len(across):
            row_at, first, last = place[across], first[across], last[across]
            time_ns += np.bincount(row_at + last, end[across] - last * BUCKET_NS, size)
            whole = np.bincount(row_at + first + 1, minlength=size) - np.bincount(row_at + last, minlength=size)
            time_ns += np.cumsum(whole) * BUCKET_NS  # what begins in a row ends in it
        added = time_ns.astype(np.int64).reshape(len(self._cells), _CHANNELS, width)
        numbers = (np.arange(low, low + width) + self._oldest) % BUCKETS
        self._cells[:, numbers] += added.transpose(0, 2, 1)
