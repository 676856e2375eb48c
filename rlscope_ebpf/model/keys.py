"""Rows for keys: whole arrays of keys become indices into arrays that grow."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

LOW_HALF = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def pair(high: NDArray[Any], low: NDArray[Any]) -> NDArray[np.uint64]:
    """Two non-negative numbers below 2^32 as one key, element by element."""
    keys: NDArray[np.uint64] = (high.astype(np.uint64) << _HALF) | low.astype(np.uint64)
    return keys


def grown(array: NDArray[Any], rows: int) -> NDArray[Any]:
    """`array` if it has that many rows, else a copy with at least as many, the new ones zero; doubles."""
    if rows <= len(array):
        return array
    larger = np.zeros((max(rows, 2 * len(array)), *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger


def stable_order(values: NDArray[Any], highest: int) -> NDArray[np.intp]:
    """The order of non-negative integers, none above `highest`; equal ones stay in theirs."""
    # NumPy sorts 16 bits by radix: five times faster.
    return np.argsort(values.astype(np.uint16) if highest < 1 << 16 else values, kind="stable")


def last_of_each(values: NDArray[Any]) -> Ints:
    """For each distinct non-negative small integer in `values`, the index of its last occurrence.

    "Small": memory is proportional to the largest value. Ordered by value.
    """
    if not len(values):
        return np.empty(0, np.int64)
    last = np.full(int(values.max()) + 1, -1, np.int64)
    last[values] = np.arange(len(values))  # where an index is repeated, the last value stays
    return last[last >= 0]


class KeyRows:
    """Hands out rows 0, 1, 2, … to 64-bit keys in the order of their first use."""

    __slots__ = ("_order", "_sorted", "keys")

    def __init__(self) -> None:
        self.keys: list[int] = []  # by row
        self._sorted: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._order: Ints = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self.keys)

    def rows(self, keys: NDArray[np.uint64]) -> Ints:
        """The row of every key, same shape; unknown keys are added."""
        if not len(keys):
            return np.empty(0, np.int64)
        found = self._lookup(keys)
        if found is None:
            self._add(keys)
            found = self._lookup(keys)
            assert found is not None
        return found

    def _lookup(self, keys: NDArray[np.uint64]) -> Ints | None:
        if not len(self._sorted):
            return None
        if len(self._sorted) == 1:
            return np.zeros(len(keys), np.int64) if bool((keys == self._sorted[0]).all()) else None
        at = self._sorted.searchsorted(keys)
        np.minimum(at, len(self._sorted) - 1, out=at)
        if not np.array_equal(self._sorted[at], keys):
            return None
        return self._order[at]

    def _add(self, keys: NDArray[np.uint64]) -> None:
        distinct, first = np.unique(keys, return_index=True)
        distinct = distinct[np.argsort(first, kind="stable")]
        new = distinct[~np.isin(distinct, self._sorted)]
        order = np.concatenate([self._order, np.arange(len(self.keys), len(self.keys) + len(new))])
        merged = np.concatenate([self._sorted, new])
        self.keys += new.tolist()
        by_key = np.argsort(merged, kind="stable")
        self._sorted, self._order = merged[by_key], order[by_key]
