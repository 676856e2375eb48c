"""How long instances of operations took, from begin to end, with what is nested in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.histogram import BINS, MIDDLES, bins_of
from rlscope_ebpf.model.keys import Ints, grown
from rlscope_ebpf.model.tables import SpanFlag
from rlscope_ebpf.model.unions import clipped

MOST_HISTOGRAMS = 4096
"""Of this many operations (per process and phase) percentiles are told: the histogram of one takes 6 kB."""

_PARTIAL = SpanFlag.OPEN_AT_START | SpanFlag.CUT_AT_END
_NONE_YET = np.iinfo(np.int64).max
_FRACTIONS = (0.5, 0.99)


@dataclass(frozen=True, slots=True)
class Instances:
    """Of the instances of which begin and end were seen; ns."""

    count: int = 0
    total_ns: int = 0
    min_ns: int = 0
    p50_ns: int | None = None  # None: too many operations to know
    p99_ns: int | None = None
    max_ns: int = 0

    def __add__(self, other: Instances) -> Instances:
        """Percentiles are those of the one with more."""
        if not self.count or not other.count:
            return self if self.count else other
        more = max(self, other, key=lambda each: each.count)
        low, high = min(self.min_ns, other.min_ns), max(self.max_ns, other.max_ns)
        return Instances(
            self.count + other.count, self.total_ns + other.total_ns, low, more.p50_ns, more.p99_ns, high
        )  # fmt: skip


NO_INSTANCES = Instances()


class InstanceTotals:
    """Adds up spans by rows of the caller's."""

    def __init__(self) -> None:
        self._count: Ints = np.zeros(0, np.int64)
        self._total_ns: Ints = np.zeros(0, np.int64)
        self._min_ns: Ints = np.zeros(0, np.int64)  # as what it is below _NONE_YET, so that zeros are none yet
        self._max_ns: Ints = np.zeros(0, np.int64)
        self._histogram: NDArray[np.uint32] = np.zeros((0, BINS), np.uint32)
        self._percentiles: Ints = np.zeros((0, 2), np.int64)  # by row, of the histogram
        self._stale: NDArray[np.bool_] = np.zeros(0, np.bool_)  # whose percentiles are of an older histogram

    def add(self, row: Ints, spans: NDArray[np.void]) -> None:
        """Add spans (SPAN_DTYPE); those of which a part was not seen are left out."""
        whole = np.flatnonzero(spans["flags"] & _PARTIAL == 0)
        if not len(whole):
            return
        row = row[whole]
        ns = np.maximum(clipped(spans["end_ns"][whole]) - clipped(spans["start_ns"][whole]), 0)
        size = int(row.max()) + 1
        for name in ("_count", "_total_ns", "_min_ns", "_max_ns"):
            setattr(self, name, grown(getattr(self, name), size))
        self._histogram = grown(self._histogram, min(size, MOST_HISTOGRAMS))
        self._count[:size] += np.bincount(row, minlength=size)
        self._total_ns[:size] += np.bincount(row, ns, size).astype(np.int64)
        order = np.argsort(row, kind="stable")
        begins = np.flatnonzero(np.append(True, row[order][1:] != row[order][:-1]))
        found, ordered = row[order][begins], ns[order]
        self._max_ns[found] = np.maximum(self._max_ns[found], np.maximum.reduceat(ordered, begins))
        below = _NONE_YET - np.minimum.reduceat(ordered, begins)
        self._min_ns[found] = np.maximum(self._min_ns[found], below)
        few = row < len(self._histogram)
        self._percentiles = grown(self._percentiles, len(self._histogram))
        self._stale = grown(self._stale, len(self._histogram))
        self._stale[row[few]] = True
        cells, counts = np.unique(row[few] * BINS + bins_of(ns[few]), return_counts=True)
        self._histogram.reshape(-1)[cells] += counts.astype(np.uint32)

    def of(self, row: int) -> Instances:
        """The instances of a row."""
        count = int(self._count[row]) if row < len(self._count) else 0
        if not count:
            return NO_INSTANCES
        low, high = _NONE_YET - int(self._min_ns[row]), int(self._max_ns[row])
        p50_ns: int | None = None
        p99_ns: int | None = None
        if row < len(self._histogram):
            self._refresh()
            p50_ns, p99_ns = (min(max(ns, low), high) for ns in self._percentiles[row].tolist())
        return Instances(count, int(self._total_ns[row]), low, p50_ns, p99_ns, high)

    def _refresh(self) -> None:
        """All percentiles at once: somebody who asks for those of a row asks for the others, too."""
        rows = np.flatnonzero(self._stale)
        if not len(rows):
            return
        running = np.cumsum(self._histogram[rows], axis=1, dtype=np.int64)
        for column, fraction in enumerate(_FRACTIONS):
            rank = np.maximum(np.ceil(fraction * running[:, -1:]), 1)
            self._percentiles[rows, column] = MIDDLES[(running < rank).sum(1)]
        self._stale[rows] = False
