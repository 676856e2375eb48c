"""Unions of intervals and what they cover, against sets of nanoseconds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlscope_ebpf.model.unions import Coverage, Spans, clipped, union

INTERVALS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(0, 15)), max_size=40)
MOMENTS = st.lists(st.tuples(st.integers(0, 5), st.integers(-5, 90), st.integers(0, 40)), max_size=20)


def arrays(rows: list[tuple[int, int, int]]) -> list[np.ndarray]:
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    return [np.array(column, np.int64) for column in columns]


def moments(rows: list[tuple[int, int, int]]) -> dict[int, set[int]]:
    """Nanoseconds covered, by key."""
    found: dict[int, set[int]] = {}
    for key, start, length in rows:
        found.setdefault(key, set()).update(range(start, start + length))
    return found


@pytest.mark.parametrize("far", [0, 1 << 61], ids=["near", "far apart"])
@settings(deadline=None)
@given(rows=INTERVALS, asked=MOMENTS)
def test_against_sets(far: int, rows: list[tuple[int, int, int]], asked: list[tuple[int, int, int]]) -> None:
    key, start, length = arrays(rows)
    shift = np.where(start >= 30, far, 0)  # what is late, is very late: too far for one number with the key
    spans = union(key, start + shift, start + length + shift)
    expected = moments([(one, begin + (far if begin >= 30 else 0), ns) for one, begin, ns in rows])
    assert spans.total_by_key(6).tolist() == [len(expected.get(one, ())) for one in range(6)]
    same_key = spans.key[1:] == spans.key[:-1]
    assert (spans.start_ns[1:] > spans.end_ns[:-1])[same_key].all(), "they touch"
    assert (spans.key[1:] >= spans.key[:-1]).all()
    assert (spans.end_ns > spans.start_ns).all()
    keys, begins, lengths = arrays(asked)
    if len(keys):
        covered = Coverage(spans).within(keys, begins, begins + lengths)
        for one, begin, ns, got in zip(keys, begins, lengths, covered, strict=True):
            assert got == len(expected.get(int(one), set()) & set(range(int(begin), int(begin + ns))))


def test_nothing_covers_nothing() -> None:
    none = np.zeros(0, np.int64)
    spans = union(none, none, none)
    assert spans.total_by_key(2).tolist() == [0, 0]
    assert Coverage(spans).within(np.array([0]), np.array([0]), np.array([10])).tolist() == [0]


def test_far_apart_coverage_is_exact() -> None:
    far = 1 << 61
    spans = Spans(np.array([0, 0, 7]), np.array([5, far, 3]), np.array([9, far + 4, far + 1]))
    within = Coverage(spans).within(np.array([0, 0, 7, 3]), np.array([0, 7, 0, 0]), np.array([6, far + 1, far, far]))
    assert within.tolist() == [1, 2 + 1, far - 3, 0]


def test_impossible_times_are_clipped() -> None:
    assert clipped(np.array([5, 1 << 63, (1 << 64) - 1], np.uint64)).tolist() == [5, (1 << 62) - 1, (1 << 62) - 1]
