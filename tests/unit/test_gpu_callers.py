"""For whom a library's thread launches: the one thread that is inside a call of a backend; otherwise for nobody."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))

import gpu_samples as samples
from gpu_samples import MS, PID, kernel, launch

from rlscope_ebpf.model.categories import Category, Opened, ThreadState
from rlscope_ebpf.model.tables import INTERVAL_DTYPE, Batch
from rlscope_ebpf.session.gpu import GpuMatcher
from rlscope_ebpf.session.gpu_callers import OWN_SHARE, OWN_WINDOW, BackendCalls
from rlscope_ebpf.session.registry import Registry

WORKER = PID + 1
CALLER, OTHER = PID, PID + 2
THREADS = samples.definitions((1, PID, CALLER), (2, PID, WORKER), (3, PID, OTHER), (4, PID + 50, PID + 50))
RUNS, SLEEPS = ThreadState.RUNNING, ThreadState.BLOCKED

Stretch = tuple[int, int, int, Category, ThreadState]  # start, end, path, category, state


def rows(thread: int, *stretches: Stretch) -> NDArray[np.void]:
    return np.array(
        [
            (thread, path, path * 10, 0, start, end - start, 0, 0, category, category, state, Opened.CONTINUED, 0, 0)
            for start, end, path, category, state in stretches
        ],
        INTERVAL_DTYPE,
    )


def waits(thread: int, path: int, start: int = 10, end: int = 20, state: ThreadState = SLEEPS) -> NDArray[np.void]:
    return rows(thread, (start * MS, end * MS, path, Category.BACKEND, state))


def session(*parts: NDArray[np.void], now_ns: int = 100 * MS) -> Batch:
    return samples.batch(now_ns, np.concatenate(parts), THREADS)


def charged(batch: Batch, *times_ms: float, matcher: GpuMatcher | None = None) -> tuple[list[tuple[int, int]], Batch]:
    """(path, phase) of a kernel that the worker launches at each time."""
    matcher = matcher or GpuMatcher(Registry())
    records = []
    for number, time_ms in enumerate(times_ms, 1):
        at = int(time_ms * MS)
        records += [launch(at, number, WORKER), kernel(at + 1000, at + 2000, number)]
    found = samples.records(records)
    matcher.advance(batch, found, samples.pids(found))
    return [(int(row["path"]), int(row["phase"])) for row in batch.tables["gpu"]], batch


def test_the_one_thread_inside_a_backend_call_is_the_caller() -> None:
    beside = rows(3, (0, 50 * MS, 8, Category.SIMULATOR, RUNS))
    found, batch = charged(session(waits(1, 5), waits(1, 6, 20, 30, RUNS), beside), 10, 19.9, 25)
    assert found == [(5, 50), (5, 50), (6, 60)]
    assert batch.counters.gpu_inherited == batch.counters.gpu_matched == 3
    assert not any(batch.losses.as_dict().values())


@pytest.mark.parametrize("state", [RUNS, SLEEPS])
@pytest.mark.parametrize("path", [7, 0])
def test_two_that_may_be_it_are_none(path: int, state: ThreadState) -> None:
    """A thread without operations is only taken for a caller if it sleeps: one that runs works itself."""
    found, batch = charged(session(waits(1, 5), waits(3, path, 15, 20, state)), 12, 16)
    ambiguous = path != 0 or state == SLEEPS
    assert found == [(5, 50), (0, 0) if ambiguous else (5, 50)]
    assert batch.losses.gpu_ambiguous == ambiguous
    assert batch.counters.gpu_inherited == 2 - ambiguous
    assert batch.counters.gpu_matched == 2


def test_a_caller_without_operation_has_none_to_give() -> None:
    found, batch = charged(session(waits(1, 0)), 12)
    assert found == [(0, 0)]
    assert batch.counters.gpu_inherited == batch.losses.gpu_ambiguous == 0


def test_other_processes_have_nothing_to_do_with_it() -> None:
    found, _ = charged(session(waits(4, 5)), 12)
    assert found == [(0, 0)]


@pytest.mark.parametrize("before", [True, False])
def test_a_thread_with_operations_of_its_own_says_itself_what_it_does(before: bool) -> None:
    """Also in between two of them, and before the first one that is known by now."""
    start = 0 if before else 40 * MS
    own = rows(2, (start, start + MS, 3, Category.OTHER, RUNS), (start + MS, start + 2 * MS, 0, Category.OTHER, RUNS))
    found, _ = charged(session(waits(1, 5), own), 12)
    assert found == [(0, 0)]


def test_the_main_thread_is_nobodys_worker() -> None:
    batch = session(waits(3, 5))
    records = samples.records([launch(12 * MS, 1, PID), kernel(13 * MS, 14 * MS, 1)])
    GpuMatcher(Registry()).advance(batch, records, samples.pids(records))
    assert [int(row["path"]) for row in batch.tables["gpu"]] == [0]


def test_a_thread_that_launches_while_nobody_waits_works_for_itself() -> None:
    inside, outside = [10 + n / 100 for n in range(OWN_SHARE)], [30.0]
    found, _ = charged(session(waits(1, 5)), *inside[: OWN_SHARE - 1], *outside)
    assert found == [(5, 50)] * (OWN_SHARE - 1) + [(0, 0)]
    found, batch = charged(session(waits(1, 5)), *inside[: OWN_SHARE - 2], *outside)
    assert found == [(0, 0)] * (OWN_SHARE - 1)
    assert not batch.losses.gpu_ambiguous


def test_that_is_forgotten() -> None:
    """Calls are not followed while a library is being loaded; afterwards the same thread works for its callers."""
    calls = BackendCalls()
    calls.define(THREADS)
    calls.add(waits(1, 5))
    inside, outside = np.full(OWN_WINDOW // 4, 12 * MS), np.full(OWN_WINDOW, 30 * MS)
    assert not calls.callers(PID, WORKER, outside)["found"].any()
    turns = 0
    while not calls.callers(PID, WORKER, inside)["found"].all():
        turns += 1
        assert turns < 4 * 2 * OWN_SHARE.bit_length()  # so many windows at most


@given(
    stretches=st.lists(
        st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2), st.booleans(), st.booleans()), max_size=6),
        min_size=1,
        max_size=4,
    ),
    times=st.lists(st.integers(0, 60), min_size=1, max_size=20),
)
def test_against_a_plain_reading(stretches: list[list[tuple[int, int, bool, bool]]], times: list[int]) -> None:
    """Threads 1 to 4 pass through stretches (length, path, in a backend call, asleep); the worker is another one."""
    calls = BackendCalls()
    calls.define(samples.definitions(*((number, PID, PID + number) for number in range(1, 6))))
    where: dict[int, list[tuple[int, int, int, bool]]] = {}
    for thread, parts in enumerate(stretches, 1):
        at, table = 0, []
        for length, path, backend, asleep in parts:
            category = Category.BACKEND if backend else Category.OTHER
            table.append((at, at + length, path, category, SLEEPS if asleep else RUNS))
            if backend:
                where.setdefault(thread, []).append((at, at + length, path, asleep))
            at += length
        if table:
            calls.add(rows(thread, *table))
    found = calls.callers(PID, PID + 5, np.array(times, np.int64))
    expected = []
    for time in times:
        there = [(path, asleep) for each in where.values() for a, b, path, asleep in each if a <= time < b]
        candidates = [path for path, asleep in there if path or asleep]
        sole = len(candidates) == 1 and candidates[0] != 0
        expected.append((candidates[0] if sole else None, len(candidates) > 1 and any(candidates), not there))
    independent = sum(nobody for *_, nobody in expected) * OWN_SHARE > len(times)
    for row, (path, ambiguous, nobody) in zip(found, expected, strict=True):
        assert bool(row["nobody"]) == nobody
        assert bool(row["ambiguous"]) == (ambiguous and not independent)
        assert bool(row["found"]) == (path is not None and not independent)
        if row["found"]:
            assert row["path"] == path
