"""The last two minutes by process: every nanosecond of busy threads in the bucket in which it passed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

import report_samples as samples

from rlscope_ebpf.live import timeline
from rlscope_ebpf.live.model import LiveModel
from rlscope_ebpf.live.timeline import BUCKET_NS, BUCKETS, TimelineTotals
from rlscope_ebpf.model.categories import Category, ThreadState
from rlscope_ebpf.model.gpu import GPU_DTYPE, GpuKind
from rlscope_ebpf.model.tables import (
    INTERVAL_DTYPE,
    SAMPLE_ROW_DTYPE,
    Batch,
    Definition,
    ProcessInfo,
    ThreadInfo,
)

RUNNING, RUNNABLE, BLOCKED = ThreadState
START_NS = 1_000 * BUCKET_NS


def process(pid: int, end_ns: int | None = None) -> ProcessInfo:
    return ProcessInfo(pid, 1, f"p{pid}", (), START_NS, end_ns)


def people(*pids: int) -> list[Definition]:
    """A process with one thread each; the thread's id is its place, from 1."""
    return [each for n, pid in enumerate(pids, 1) for each in (process(pid), ThreadInfo(n, pid, pid, ""))]


def intervals(*rows: tuple[int, int, int, Category, ThreadState]) -> np.ndarray:
    """Of (thread, start, end, category, state), times in ns after START_NS."""
    table = np.zeros(len(rows), INTERVAL_DTYPE)
    for row, (thread, start, end, category, state) in zip(table, rows, strict=True):
        row["thread"], row["start_ns"], row["duration_ns"] = thread, START_NS + start, end - start
        row["category"], row["state"] = category, state
    return table


def at(buckets: float) -> int:
    """So many buckets after START_NS."""
    return START_NS + int(buckets * BUCKET_NS)


rows_of = st.lists(
    st.tuples(
        st.integers(1, 3), st.integers(0, 30 * BUCKET_NS), st.integers(0, 12 * BUCKET_NS),
        st.sampled_from(Category), st.sampled_from(ThreadState),
    ),
    max_size=30,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(rows_of, st.integers(0, 29))
def test_time_is_in_the_bucket_in_which_it_passed(
    rows: list[tuple[int, int, int, Category, ThreadState]], cut: int
) -> None:
    totals = TimelineTotals()
    rows = [(thread, start, start + took, category, state) for thread, start, took, category, state in rows]
    totals.add(Batch(at(30), people(7, 8, 9), {"intervals": intervals(*rows[:cut])}))
    totals.add(Batch(at(50), [], {"intervals": intervals(*rows[cut:])}))
    found = totals.picture()
    assert found.pids == (7, 8, 9)
    assert found.end_ns == at(50)
    expected = np.zeros_like(found.busy_ns)
    first_ns = found.end_ns - found.buckets * BUCKET_NS
    for number, (thread, start, end, category, state) in enumerate(rows):
        if state == BLOCKED and category in (Category.PYTHON, Category.OTHER):
            continue
        if number < cut:  # what lies behind the moment up to which all has been told is not believed
            end = min(end, 31 * BUCKET_NS)
        for bucket in range(found.buckets):
            begin = first_ns + bucket * BUCKET_NS
            passed = min(START_NS + end, begin + BUCKET_NS) - max(START_NS + start, begin)
            expected[thread - 1, bucket, category] += max(0, passed)
    assert np.array_equal(found.busy_ns, expected)


def test_the_oldest_is_forgotten() -> None:
    totals = TimelineTotals()
    rows = intervals((1, 0, 3 * BUCKET_NS, Category.PYTHON, RUNNING))
    totals.add(Batch(at(4), people(7), {"intervals": rows}))
    assert totals.picture().busy_ns[0, -4:, Category.PYTHON].tolist() == [BUCKET_NS] * 3 + [0]
    totals.add(Batch(at(BUCKETS)))
    assert totals.picture().busy_ns.sum() == 2 * BUCKET_NS
    totals.add(Batch(at(5 * BUCKETS)))
    assert totals.picture().busy_ns.sum() == 0
    totals.add(Batch(at(5 * BUCKETS), [], {"intervals": rows}))  # of long ago
    assert totals.picture().busy_ns.sum() == 0


def test_who_ended_stays_as_long_as_its_time_is_shown() -> None:
    totals = TimelineTotals()
    rows = intervals((2, 0, BUCKET_NS, Category.BACKEND, BLOCKED))
    totals.add(Batch(at(2), [*people(7, 8), process(8, at(2))], {"intervals": rows}))
    assert totals.picture().pids == (7, 8)
    totals.add(Batch(at(BUCKETS + 3)))
    assert totals.picture().pids == (7,)
    # The next one gets its place, and nothing of it; a late row of the old thread goes nowhere.
    totals.add(Batch(at(BUCKETS + 4), [process(9), ThreadInfo(3, 9, 9, "")], {"intervals": rows}))
    late = intervals((2, BUCKETS * BUCKET_NS, (BUCKETS + 1) * BUCKET_NS, Category.PYTHON, RUNNING))
    totals.add(Batch(at(BUCKETS + 4), [], {"intervals": late}))
    assert totals.picture().pids == (7, 9)
    assert totals.picture().busy_ns.sum() == 0


def test_more_processes_than_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MOST_LANES", 3)
    totals = TimelineTotals()
    totals.add(Batch(at(5), [*people(7, 8, 9), process(8, at(3)), process(9, at(2))]))
    totals.add(Batch(at(6), [process(10), ThreadInfo(4, 10, 10, "")]))
    assert totals.picture().pids == (7, 8, 10)
    totals.add(Batch(at(6), [process(11), ThreadInfo(5, 11, 11, "")]))
    totals.add(Batch(at(6), [process(12), ThreadInfo(6, 12, 12, "")]))  # all others live
    assert totals.picture().pids == (7, 10, 11)
    totals.add(Batch(at(7), [], {"intervals": intervals((6, 0, BUCKET_NS, Category.PYTHON, RUNNING))}))
    assert totals.picture().busy_ns.sum() == 0


def test_gpu_work_of_two_streams_counts_once() -> None:
    totals = TimelineTotals()
    rows = np.zeros(3, GPU_DTYPE)
    rows["pid"], rows["kind"] = 7, GpuKind.KERNEL
    rows["start_ns"] = [at(0.5), at(1), at(4)]
    rows["duration_ns"] = [BUCKET_NS, BUCKET_NS, BUCKET_NS // 2]
    totals.add(Batch(at(5), people(7), {"gpu": rows}))
    half = BUCKET_NS // 2
    assert totals.picture().gpu_ns[0, -5:].tolist() == [half, BUCKET_NS, 0, 0, half]


def test_samples_tell_the_categories_of_sampled_time() -> None:
    totals = TimelineTotals()
    rows = intervals((1, 0, 2 * BUCKET_NS, Category.PYTHON, RUNNING), (1, 0, BUCKET_NS, Category.BACKEND, BLOCKED))
    rows["sampled"] = 1
    looks = np.zeros(4, SAMPLE_ROW_DTYPE)
    looks["thread"], looks["time_ns"] = 1, at(0.5)
    looks["category"] = [Category.PYTHON, Category.BACKEND, Category.BACKEND, Category.BACKEND]
    totals.add(Batch(at(2), people(7), {"intervals": rows, "samples": looks}))
    busy_ns = totals.picture().busy_ns[0, -2:]
    assert busy_ns[0].tolist() == [BUCKET_NS // 4, 0, BUCKET_NS * 3 // 4, 0, 0]
    assert busy_ns[1].tolist() == [0, 0, 0, 0, BUCKET_NS]  # nobody looked


def test_rows_of_threads_that_were_never_defined() -> None:
    totals = TimelineTotals()
    rows = intervals((99, 0, BUCKET_NS, Category.PYTHON, RUNNING))
    totals.add(Batch(at(2), [], {"intervals": rows}))
    assert totals.picture().pids == ()
    totals.add(Batch(at(2), people(7), {"intervals": rows}))
    assert totals.picture().busy_ns.sum() == 0


def test_the_live_model_has_it() -> None:
    model = LiveModel()
    model.start(samples.INFO)
    assert model.snapshot().timeline.pids == ()
    model.batch(samples.training_batch())
    snapshot = model.snapshot()
    assert snapshot.timeline.pids == (100,)
    assert 0 < snapshot.timeline.busy_ns.sum() <= sum(row.wall_ns for row in snapshot.operations)
    assert snapshot.now_ns - BUCKET_NS < snapshot.timeline.end_ns <= snapshot.now_ns
