"""Rows moved as wholes: the same as NumPy moves them."""

from __future__ import annotations

import numpy as np
import pytest

from rlscope_ebpf.model.rows import chosen, copied, joined

PACKED = np.dtype([("a", "u1"), ("b", "<u8"), ("c", "<i2")])
ALIGNED = np.dtype([("a", "u1"), ("b", "<u8"), ("c", "<i2")], align=True)


def sample(dtype: np.dtype[np.void], count: int, first: int = 0) -> np.ndarray:
    rows = np.zeros(count, dtype)
    rows["a"], rows["b"], rows["c"] = np.arange(count) + first, np.arange(count) * 3 + first, -np.arange(count)
    return rows


@pytest.mark.parametrize("dtype", [PACKED, ALIGNED])
def test_rows_are_as_numpy_moves_them(dtype: np.dtype[np.void]) -> None:
    rows, more = sample(dtype, 7), sample(dtype, 3, first=50)
    every_other = rows[::2]  # not contiguous
    which = np.array([True, False, True, True, False, False, True])
    found = (copied(rows), copied(every_other), joined([rows, every_other, more]), chosen(rows, which))
    expected = (rows, every_other, np.concatenate([rows, every_other, more]), rows[which])
    for mine, numpys in zip(found, expected, strict=True):
        assert mine.dtype == dtype
        np.testing.assert_array_equal(mine, numpys)


def test_a_copy_is_no_view() -> None:
    rows = sample(PACKED, 4)
    copy, picked = copied(rows), chosen(rows, np.ones(4, np.bool_))
    rows["b"] = 99
    assert (copy["b"] != 99).all()
    assert (picked["b"] != 99).all()


def test_what_is_empty_adds_nothing() -> None:
    rows, nothing = sample(PACKED, 4), np.zeros(0, PACKED)
    assert joined([nothing, rows, nothing]) is rows
    assert joined([nothing, nothing]).dtype == PACKED
    assert len(joined([nothing, nothing])) == len(copied(nothing)) == 0
