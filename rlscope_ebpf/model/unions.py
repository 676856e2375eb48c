"""Time covered by intervals that may overlap: what several do at once counts once.

Everything is on whole arrays. Intervals belong to keys (small non-negative integers), each of which is a world of its
own. Times are ns, non-negative and below 2^62.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.keys import Ints

_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class Spans:
    """Intervals that neither overlap nor touch, by key, then by time."""

    key: Ints
    start_ns: Ints
    end_ns: Ints

    def total_by_key(self, keys: int) -> Ints:
        """Time covered per key, for keys 0 to `keys` - 1. Exact below 2^53 ns (104 days) per key."""
        sums: Ints = np.bincount(self.key, self.end_ns - self.start_ns, keys).astype(np.int64)
        return sums


def union(key: Ints, start_ns: Ints, end_ns: Ints) -> Spans:
    """The time that intervals cover, by key; those without duration cover none."""
    if not len(key):
        return Spans(key, start_ns, end_ns)
    base, width = int(start_ns.min()), int(end_ns.max() - start_ns.min()) + 2
    if (int(key.max()) + 1) * width < _LIMIT:
        starts, ends = _merged(key * width + (start_ns - base), key * width + (end_ns - base))
        found = starts // width
        return Spans(found, starts - found * width + base, ends - found * width + base)
    # Times too far apart for one number with the key: their ranks are close together.
    times, rank = np.unique(np.concatenate([start_ns, end_ns]), return_inverse=True)
    rank = rank.astype(np.int64).reshape(-1)
    ranked = union(key, rank[: len(key)], rank[len(key) :])
    return Spans(ranked.key, times[ranked.start_ns], times[ranked.end_ns])


def _merged(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """The union of intervals without a key; those without duration are left out."""
    order = np.argsort(starts, kind="stable")  # mostly sorted: that is fast
    starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    first = np.flatnonzero(np.append(True, starts[1:] > reach[:-1]))
    last = np.append(first[1:], len(starts)) - 1
    starts, ends = starts[first], reach[last]
    some = ends > starts
    return (starts, ends) if some.all() else (starts[some], ends[some])


class Coverage:
    """How much of the time before a moment is covered, by key."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._base = int(spans.start_ns.min()) if len(spans.key) else 0
        self._width = int(spans.end_ns.max()) - self._base + 2 if len(spans.key) else 2
        self._before = np.append(0, np.cumsum(spans.end_ns - spans.start_ns))

    def within(self, key: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
        """Covered time of `key` between two moments, element by element."""
        spans = self._spans
        if not len(spans.key) or not len(key):
            return np.zeros(len(key), np.int64)
        highest = max(int(key.max()), int(spans.key.max()))
        if not highest or (highest + 1) * self._width < _LIMIT:
            starts = self._place(spans.key, spans.start_ns)
            ends = starts + (spans.end_ns - spans.start_ns)
            from_ns, until_ns = self._place(key, start_ns), self._place(key, end_ns)
            return self._until(until_ns, starts, ends) - self._until(from_ns, starts, ends)
        found = np.zeros(len(key), np.int64)  # times too far apart for one number with the key: key by key
        for one in np.unique(key).tolist():
            mine, own = np.flatnonzero(key == one), np.flatnonzero(spans.key == one)
            single = Coverage(Spans(np.zeros(len(own), np.int64), spans.start_ns[own], spans.end_ns[own]))
            found[mine] = single.within(np.zeros(len(mine), np.int64), start_ns[mine], end_ns[mine])
        return found

    def _place(self, key: Ints, time_ns: Ints) -> Ints:
        return key * self._width + np.clip(time_ns - self._base, 0, self._width - 1)

    def _until(self, place: Ints, starts: Ints, ends: Ints) -> Ints:
        after = np.searchsorted(starts, place, side="right")
        covered: Ints = self._before[after]
        inside = np.maximum(ends[np.maximum(after - 1, 0)] - place, 0)
        inside[after == 0] = 0
        covered -= inside
        return covered


def clipped(times: NDArray[np.uint64], longest: int = _LIMIT - 1) -> Ints:
    """Times as signed numbers; what is beyond `longest` becomes that."""
    result: Ints = np.minimum(times, np.uint64(longest)).astype(np.int64)
    return result
