"""Sums over the iterations of one process and phase that are over."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.model.histogram import BINS, bins_of, percentiles
from rlscope_ebpf.model.iteration_figures import SLOWEST
from rlscope_ebpf.model.keys import Ints, KeyRows, grown
from rlscope_ebpf.model.trend import TrendBuckets

MOST_HISTOGRAMS = 512
"""Of this many operations per process and phase the median is told: the histogram of one takes 11 kB."""

_CATEGORIES = len(Category)


@dataclass(slots=True)
class Slow:
    """One of the slowest iterations; texts are still ids. `number` counts from 1."""

    number: int
    step: int
    start_ns: int
    duration_ns: int
    category_ns: Ints
    cost_ns: Ints
    others_running_ns: int
    sampled_ns: int
    samples: Ints
    transitions: NDArray[np.uint32]
    operations: dict[int, int]  # path id -> ns
    gpu_ns: int | None = None


class ScopeSums:
    """Adds up iterations that are over, in order of time."""

    def __init__(self) -> None:
        self.count = 0
        self.min_ns = 0
        self.max_ns = 0
        self.total_ns = 0
        self.category_ns: Ints = np.zeros(_CATEGORIES, np.int64)
        self.cost_ns: Ints = np.zeros(_CATEGORIES, np.int64)
        self.columns: Ints = np.zeros(0, np.int64)
        """As in `rlscope_ebpf.model.iterations`."""
        self.transitions: Ints = np.zeros(_CATEGORIES * _CATEGORIES, np.int64)
        self.steps = (0, 0)
        self.slowest: list[Slow] = []  # slowest first
        self.trend = TrendBuckets()
        self.gpu_ns = 0
        self.gpu_iterations = 0
        self._histogram: Ints = np.zeros(BINS, np.int64)
        self._category_histograms: Ints = np.zeros((_CATEGORIES, BINS), np.int64)
        self._paths = KeyRows()
        self._path_ns: Ints = np.zeros(0, np.int64)
        self._present: Ints = np.zeros(0, np.int64)
        self._path_histograms: Ints = np.zeros((0, BINS), np.int64)

    def add_iterations(
        self,
        duration_ns: Ints,
        category_ns: Ints,
        cost_ns: Ints,
        columns: Ints,
        transitions: NDArray[np.uint32],
        step: Ints,
    ) -> Ints:
        """Add some, one a row. Returns the indices of those that belong to the slowest by now."""
        shortest, longest = int(duration_ns.min()), int(duration_ns.max())
        self.min_ns = min(self.min_ns, shortest) if self.count else shortest
        self.max_ns = max(self.max_ns, longest)
        self.steps = (self.steps[0] if self.count else int(step[0]), int(step[-1]))
        self.count += len(duration_ns)
        self.total_ns += int(duration_ns.sum())
        self.category_ns += category_ns.sum(0)
        self.cost_ns += cost_ns.sum(0)
        self.columns = columns.sum(0) + (self.columns if len(self.columns) else 0)
        self.transitions += transitions.sum(0, dtype=np.int64)
        self.trend.add(duration_ns, category_ns)
        self._histogram += np.bincount(bins_of(duration_ns), minlength=BINS)
        for category in range(_CATEGORIES):
            self._category_histograms[category] += np.bincount(bins_of(category_ns[:, category]), minlength=BINS)
        candidates = np.arange(len(duration_ns))
        if len(self.slowest) == SLOWEST:
            candidates = np.flatnonzero(duration_ns > self.slowest[-1].duration_ns)
        # Of equal ones the earliest stays.
        return candidates[np.argsort(-duration_ns[candidates], kind="stable")[:SLOWEST]]

    def add_slow(self, slow: Slow) -> None:
        """Add one of those that `add_iterations` told."""
        self.slowest.append(slow)
        self.slowest.sort(key=lambda each: (-each.duration_ns, each.number))
        del self.slowest[SLOWEST:]

    def add_operations(self, path: Ints, ns: Ints) -> None:
        """Add times of paths, one for each iteration in which the path has time."""
        if not len(path):
            return
        row = self._paths.rows(path.astype(np.uint64))
        size = len(self._paths)
        self._path_ns, self._present = grown(self._path_ns, size), grown(self._present, size)
        self._path_ns[:size] += np.bincount(row, ns, size).astype(np.int64)
        self._present[:size] += np.bincount(row, minlength=size)
        kept = min(size, MOST_HISTOGRAMS)
        self._path_histograms = grown(self._path_histograms, kept)
        if size > kept:
            few = row < kept
            row, ns = row[few], ns[few]
        cells, counts = np.unique(row * BINS + bins_of(ns), return_counts=True)
        self._path_histograms.reshape(-1)[cells] += counts

    def duration_percentiles(self) -> tuple[int, int]:
        """Median and 99th percentile of the durations, within what was seen."""
        low, high = percentiles(self._histogram, (0.5, 0.99))
        return min(max(low, self.min_ns), self.max_ns), min(max(high, self.min_ns), self.max_ns)

    def typical_ns(self) -> tuple[int, ...]:
        """The median of each category's time."""
        return tuple(percentiles(histogram, (0.5,))[0] for histogram in self._category_histograms)

    def operations(self) -> list[tuple[int, int, int, int | None]]:
        """(path, ns, iterations that have it, median of all iterations)."""
        found: list[tuple[int, int, int, int | None]] = []
        for row, path in enumerate(self._paths.keys):
            present, median = int(self._present[row]), None
            if row < MOST_HISTOGRAMS:
                histogram = self._path_histograms[row].copy()
                histogram[0] += self.count - present
                (median,) = percentiles(histogram, (0.5,))
            found.append((path, int(self._path_ns[row]), present, median))
        return found
