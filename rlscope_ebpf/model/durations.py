"""Count, sum and histogram of durations, by whatever they belong to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.histogram import BINS, percentiles
from rlscope_ebpf.model.keys import Ints, KeyRows, grown

_FEW_CELLS = 1 << 20  # up to here, counting all is faster than sorting those that occur


@dataclass(frozen=True, slots=True)
class Durations:
    """Of several durations, ns. Percentiles: see `rlscope_ebpf.model.histogram` for their error."""

    count: int = 0
    total_ns: int = 0
    p50_ns: int = 0
    p99_ns: int = 0

    @property
    def mean_ns(self) -> float:
        """Of all; 0 if there are none."""
        return self.total_ns / self.count if self.count else 0.0


NO_DURATIONS = Durations()


@dataclass(frozen=True, slots=True)
class DurationSum:
    """Several durations as they are added up."""

    count: int
    total_ns: int
    histogram: Ints

    def __add__(self, other: DurationSum) -> DurationSum:
        return DurationSum(
            self.count + other.count, self.total_ns + other.total_ns, self.histogram + other.histogram
        )  # fmt: skip

    @property
    def durations(self) -> Durations:
        """For people."""
        return Durations(self.count, self.total_ns, *percentiles(self.histogram, (0.5, 0.99)))


class DurationTotals:
    """Adds up durations by key (64 bits). A batch must sum up to less than 2^53 ns."""

    def __init__(self) -> None:
        self._entries = KeyRows()
        self._count: Ints = np.zeros(0, np.int64)
        self._total_ns: Ints = np.zeros(0, np.int64)
        self._histogram: NDArray[np.uint32] = np.zeros((0, BINS), np.uint32)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, keys: NDArray[np.uint64], ns: Ints, bins: Ints) -> None:
        """Add durations and the bins they fall in (`rlscope_ebpf.model.histogram.bins_of`)."""
        if not len(keys):
            return
        entry = self._entries.rows(keys)
        size = len(self._entries)
        self._count, self._total_ns = grown(self._count, size), grown(self._total_ns, size)
        self._histogram = grown(self._histogram, size)
        self._count[:size] += np.bincount(entry, minlength=size)
        self._total_ns[:size] += np.bincount(entry, ns, size).astype(np.int64)
        cell = entry * BINS + bins
        flat = self._histogram.reshape(-1)
        if size * BINS <= max(_FEW_CELLS, 4 * len(cell)):
            flat[: size * BINS] += np.bincount(cell, minlength=size * BINS).astype(np.uint32)
        else:
            cells, counts = np.unique(cell, return_counts=True)
            flat[cells] += counts.astype(np.uint32)

    def entries(self) -> Iterator[tuple[int, DurationSum]]:
        """By key, in the order in which keys were first seen."""
        for row, key in enumerate(self._entries.keys):
            histogram = self._histogram[row].astype(np.int64)
            yield key, DurationSum(int(self._count[row]), int(self._total_ns[row]), histogram)
