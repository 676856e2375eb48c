"""Do the iterations of a run become slower? Sums of consecutive iterations in few buckets, however many there are."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.model.keys import Ints

BUCKETS = 128
"""With more, two neighbours become one: an even number."""

GROUPS = 24
"""The test compares at most so many groups of consecutive iterations: single ones may depend on their neighbours."""

FEWEST = 16
"""Of fewer iterations no trend is told."""

SIGNIFICANT_Z = 2.576
"""Of the normal distribution: in one of a hundred runs without a trend, chance alone goes beyond."""

RELEVANT = 0.05
"""A smaller change over the run, as a share of the first quarter, is no news."""

_CATEGORIES = len(Category)


@dataclass(frozen=True, slots=True)
class Trend:
    """How the duration of iterations changed over a run. Times are ns, means per iteration."""

    bucket_size: int = 1  # iterations per bucket; the last one may have fewer
    mean_ns: tuple[float, ...] = ()  # by bucket, oldest first
    first_ns: float = 0.0  # of the first quarter of the iterations
    last_ns: float = 0.0  # of the last
    first_category_ns: tuple[float, ...] = ()  # of the first quarter, [Category]
    last_category_ns: tuple[float, ...] = ()
    per_iteration_ns: float = 0.0  # slope: the median of those between any two groups (Theil and Sen)
    z: float = 0.0  # of the test by Mann and Kendall: how surprising such an order would be without any trend
    direction: int = 0  # 1: iterations become slower, -1: faster, 0: neither can be told

    @property
    def change(self) -> float:
        """The last quarter's mean beyond that of the first, as a share of it."""
        return self.last_ns / self.first_ns - 1 if self.first_ns else 0.0


NO_TREND = Trend()


class TrendBuckets:
    """Adds up iterations in order."""

    __slots__ = ("_bucket_size", "_count", "_sums")

    def __init__(self) -> None:
        self._bucket_size = 1
        self._count = 0
        self._sums: Ints = np.zeros((BUCKETS, 1 + _CATEGORIES), np.int64)  # duration, then by category

    def add(self, duration_ns: Ints, category_ns: Ints) -> None:
        """Add iterations, (n,) and (n, Category) ns, in order of time."""
        added = len(duration_ns)
        while self._count + added > self._bucket_size * BUCKETS:
            half = self._sums.reshape(BUCKETS // 2, 2, -1).sum(1)
            self._sums = np.concatenate([half, np.zeros_like(half)])
            self._bucket_size *= 2
        first = (self._count + np.arange(added)) // self._bucket_size
        np.add.at(self._sums, first, np.column_stack([duration_ns, category_ns]))
        self._count += added

    def trend(self) -> Trend:
        """What can be told by now."""
        used = -(-self._count // self._bucket_size)
        if not used:
            return NO_TREND
        sums = self._sums[:used].astype(np.float64)
        counts = np.full(used, self._bucket_size)
        counts[-1] = self._count - (used - 1) * self._bucket_size
        quarter = max(1, used // 4)
        first, last = (
            sums[part].sum(0) / counts[part].sum() for part in (slice(0, quarter), slice(used - quarter, used))
        )
        slope, z = _test(sums[:, 0], counts) if self._count >= FEWEST else (0.0, 0.0)
        relevant = abs(last[0] - first[0]) >= RELEVANT * first[0] and (last[0] > first[0]) == (z > 0)
        return Trend(
            bucket_size=self._bucket_size,
            mean_ns=tuple((sums[:, 0] / counts).tolist()),
            first_ns=float(first[0]),
            last_ns=float(last[0]),
            first_category_ns=tuple(first[1:].tolist()),
            last_category_ns=tuple(last[1:].tolist()),
            per_iteration_ns=slope,
            z=z,
            direction=(1 if z > 0 else -1) if relevant and abs(z) > SIGNIFICANT_Z else 0,
        )


def _test(sums: np.ndarray[tuple[int, ...], np.dtype[np.float64]], counts: Ints) -> tuple[float, float]:
    """Slope per iteration and z, of means of groups of buckets."""
    per_group = -(-len(sums) // GROUPS)
    starts = np.arange(0, len(sums), per_group)
    total, number = np.add.reduceat(sums, starts), np.add.reduceat(counts, starts)
    means, middle = total / number, np.cumsum(number) - number / 2
    later, earlier = np.tril_indices(len(means), -1)
    rises = means[later] - means[earlier]
    score = float(np.sign(rises).sum())
    groups = len(means)
    _, ties = np.unique(means, return_counts=True)
    variance = groups * (groups - 1) * (2 * groups + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())
    slope = float(np.median(rises / (middle[later] - middle[earlier]))) if groups > 1 else 0.0
    z = (score - np.sign(score)) / sqrt(variance / 18) if variance > 0 else 0.0
    return slope, float(z)
