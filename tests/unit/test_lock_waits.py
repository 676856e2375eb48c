"""What probes take from those who hold a lock is charged to those who wait for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlscope_ebpf.model.categories import ThreadState, Wait
from rlscope_ebpf.model.tables import INTERVAL_DTYPE
from rlscope_ebpf.session.lock_waits import charge_lock_waits

RUNS, WAITS, IDLE = ThreadState.RUNNING, ThreadState.BLOCKED, ThreadState.RUNNABLE
Row = tuple[int, int, int, ThreadState, int]  # thread, start, end, state, overhead


def rows_of(rows: Sequence[Row], wait: Wait = Wait.LOCK) -> np.ndarray:
    found = np.zeros(len(rows), INTERVAL_DTYPE)
    for at, (thread, start, end, state, overhead) in enumerate(rows):
        found[at]["thread"], found[at]["start_ns"], found[at]["duration_ns"] = thread, start, end - start
        found[at]["state"], found[at]["overhead_ns"] = state, overhead
        found[at]["wait"] = wait if state == WAITS else Wait.OTHER
    return found


def charged(rows: Sequence[Row], processes: Sequence[int] | None = None, wait: Wait = Wait.LOCK) -> list[int]:
    found = rows_of(rows, wait)
    charge_lock_waits(found, np.array(processes if processes is not None else [1] * len(rows), np.int64))
    return [int(value) for value in found["overhead_ns"]]


def test_a_wait_for_one_that_runs_is_charged_what_its_hits_took() -> None:
    assert charged([(1, 0, 100, RUNS, 20), (1, 100, 200, RUNS, 50), (2, 50, 150, WAITS, 0)]) == [20, 50, 10 + 25]


def test_of_several_that_run_it_is_the_mean() -> None:
    assert charged([(1, 0, 100, RUNS, 20), (2, 0, 100, RUNS, 0), (3, 0, 100, WAITS, 0)])[2] == 10


def test_nobody_ran() -> None:
    assert charged([(1, 0, 100, RUNS, 20), (2, 100, 300, WAITS, 0), (1, 100, 300, WAITS, 0)]) == [20, 0, 0]


def test_others_processes_are_their_own_affair() -> None:
    assert charged([(1, 0, 100, RUNS, 20), (2, 0, 100, WAITS, 0)], [1, 2]) == [20, 0]


@pytest.mark.parametrize("wait", [wait for wait in Wait if wait != Wait.LOCK])
def test_other_waits_are_not_charged(wait: Wait) -> None:
    assert charged([(1, 0, 100, RUNS, 20), (2, 0, 100, WAITS, 0)], wait=wait) == [20, 0]


def test_an_absurd_cost_does_not_make_a_wait_negative() -> None:
    assert charged([(1, 0, 100, RUNS, 500), (2, 0, 100, WAITS, 0)]) == [500, 100]


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 9), st.integers(1, 9), st.sampled_from((RUNS, WAITS, IDLE)), st.integers(0, 9)),
            max_size=6,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_it_is_the_integral_over_the_others(threads: list[list[tuple[int, int, ThreadState, int]]]) -> None:
    rows: list[Row] = []
    for number, stretches in enumerate(threads):
        now = 0
        for gap, length, state, overhead in stretches:
            overhead = min(overhead, length) if state == RUNS else 0
            rows.append((number, now + gap, now + gap + length, state, overhead))
            now += gap + length
    found = charged(rows)
    for (_, start, end, state, overhead), value in zip(rows, found, strict=True):
        want = float(overhead)
        for at in range(start, end) if state == WAITS else ():
            parts = [o / (e - s) for _, s, e, other, o in rows if other == RUNS and s <= at < e]
            want += sum(parts) / len(parts) if parts else 0.0
        assert value == pytest.approx(want, abs=1)
