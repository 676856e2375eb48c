"""GPU records to rows: joining, charging, bounds, counts; hypothesis against a plain reading of the rules."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

import gpu_samples as samples
from gpu_samples import MS, PID, kernel, launch, record

from rlscope_ebpf.model.gpu import GPU_RECORD_DTYPE, GpuKind, GpuLaunch
from rlscope_ebpf.model.tables import Batch, Counters, Losses, StringInfo
from rlscope_ebpf.session import gpu as gpu_module
from rlscope_ebpf.session import gpu_timeline, gpu_waiting
from rlscope_ebpf.session.gpu import ACTIVITY_WAIT_NS, GpuMatcher
from rlscope_ebpf.session.gpu_waiting import LAUNCH_WAIT_NS
from rlscope_ebpf.session.registry import Registry

NONE = np.zeros(0, GPU_RECORD_DTYPE)


def advance(matcher: GpuMatcher, batch: Batch, *rows: tuple[int, ...], last: bool = False) -> Batch:
    found = samples.records(rows) if rows else NONE
    matcher.advance(batch, found, samples.pids(found), last=last)
    return batch


def rows_of(batch: Batch) -> list[dict[str, int]]:
    table = batch.tables.get("gpu")
    return [] if table is None else [dict(zip(table.dtype.names or (), row.tolist(), strict=True)) for row in table]


def one_thread(*changes: tuple[int, int, int], now_ns: int) -> Batch:
    rows = samples.thread_rows(7, *changes, end_ns=now_ns)
    return samples.batch(now_ns, rows, samples.definitions((7, PID, PID)))


def test_work_is_charged_to_the_operation_that_launched_it() -> None:
    matcher = GpuMatcher(Registry())
    batch = one_thread((0, 1, 0), (10 * MS, 2, 5), now_ns=100 * MS)
    advance(
        matcher, batch, launch(9 * MS, 1), kernel(12 * MS, 15 * MS, 1), launch(10 * MS, 2), kernel(15 * MS, 16 * MS, 2)
    )
    first, second = rows_of(batch)
    assert (first["path"], first["phase"], first["thread"], first["launch_ns"]) == (1, 0, 7, 9 * MS)
    assert (second["path"], second["phase"], second["start_ns"], second["duration_ns"]) == (2, 5, 15 * MS, MS)
    assert batch.losses == Losses()
    assert batch.counters == Counters(gpu_records=4, gpu_matched=2)


@pytest.mark.parametrize("late", ["launch", "kernel"])
def test_either_side_may_come_first_and_batches_later(late: str) -> None:
    matcher = GpuMatcher(Registry())
    pair = {"launch": launch(MS, 1), "kernel": kernel(2 * MS, 3 * MS, 1)}
    first = pair["kernel" if late == "launch" else "launch"]
    assert not rows_of(advance(matcher, one_thread((0, 3, 0), now_ns=10 * MS), first))
    assert not rows_of(advance(matcher, samples.batch(1000 * MS)))
    (row,) = rows_of(advance(matcher, samples.batch(4000 * MS), pair[late]))
    assert (row["path"], row["launch_ns"]) == (3, MS)


def test_a_launch_waits_until_its_time_has_been_handed_out() -> None:
    matcher = GpuMatcher(Registry())
    early = one_thread((0, 1, 0), now_ns=10 * MS)
    assert not rows_of(advance(matcher, early, launch(11 * MS, 1), kernel(12 * MS, 13 * MS, 1)))
    later = samples.batch(20 * MS, samples.thread_rows(7, (10 * MS, 1, 0), (int(10.5 * MS), 2, 0), end_ns=20 * MS))
    (row,) = rows_of(advance(matcher, later))
    assert row["path"] == 2


def test_what_began_after_the_end_is_none_of_the_sessions() -> None:
    matcher = GpuMatcher(Registry())
    early = one_thread((0, 1, 0), now_ns=10 * MS)
    advance(
        matcher, early, launch(18 * MS, 1), kernel(19 * MS, 40 * MS, 1), launch(30 * MS, 2), kernel(31 * MS, 40 * MS, 2)
    )
    end = samples.batch(20 * MS, samples.thread_rows(7, (10 * MS, 2, 0), end_ns=20 * MS))
    (row,) = rows_of(advance(matcher, end, last=True))
    assert (row["path"], row["launch_ns"]) == (2, 18 * MS)
    assert end.losses == Losses()


def test_one_graph_launch_is_all_its_kernels() -> None:
    matcher = GpuMatcher(Registry())
    batch = one_thread((0, 4, 0), now_ns=100 * MS)
    nodes = [kernel((20 + n) * MS, (21 + n) * MS, 9, graph=3, graph_node=n + 1) for n in range(5)]
    advance(matcher, batch, *nodes[:2], launch(10 * MS, 9, detail=GpuLaunch.GRAPH), nodes[2])
    found = rows_of(batch) + rows_of(advance(matcher, samples.batch(8_000 * MS), *nodes[3:]))
    assert [(row["path"], row["graph"], row["launch_ns"]) for row in found] == [(4, 3, 10 * MS)] * 5
    assert advance(matcher, samples.batch(9_000 * MS), last=True).losses == Losses()


def test_correlation_ids_wrap() -> None:
    matcher = GpuMatcher(Registry())
    batch = one_thread((0, 1, 0), (50 * MS, 2, 0), now_ns=200 * MS)
    # Both launches are known before either activity comes.
    advance(matcher, batch, launch(10 * MS, 7), launch(100 * MS, 7))
    done = advance(matcher, samples.batch(300 * MS), kernel(110 * MS, 120 * MS, 7), kernel(20 * MS, 30 * MS, 7))
    assert [(row["start_ns"], row["path"]) for row in rows_of(done)] == [(20 * MS, 1), (110 * MS, 2)]


def test_a_gpus_clock_may_be_behind_where_many_processes_share_it() -> None:
    matcher = GpuMatcher(Registry())
    batch = one_thread((0, 1, 0), (50 * MS, 2, 0), now_ns=400 * MS)
    late = gpu_waiting.MOST_SKEW_NS
    advance(matcher, batch, launch(150 * MS, 7), launch(20 * MS, 8), launch(60 * MS, 8), launch(390 * MS, 9))
    done = advance(
        matcher,
        samples.batch(500 * MS),
        kernel(110 * MS, 120 * MS, 7),  # 40 ms before its launch
        kernel(10 * MS, 11 * MS, 8),  # whose of the two is it
        kernel(390 * MS - late - 1, 391 * MS - late, 9),
        last=True,
    )
    found = {row["start_ns"]: (row["path"], row["launch_ns"]) for row in rows_of(done)}
    assert found[110 * MS] == (2, 110 * MS)
    assert found[10 * MS] == found[390 * MS - late - 1] == (0, 0)
    assert (done.losses.gpu_unmatched + done.counters.gpu_early, done.counters.gpu_matched) == (2, 1)
    assert (matcher.behind, matcher.most_behind_ns) == (1, 40 * MS)


def test_both_kinds_of_orphan_are_counted() -> None:
    matcher = GpuMatcher(Registry())
    batch = one_thread((0, 1, 6), now_ns=100 * MS)
    advance(matcher, batch, launch(MS, 1), launch(2 * MS, 2), kernel(5 * MS, 6 * MS, 3), kernel(3 * MS, 4 * MS, 1))
    assert len(rows_of(batch)) == 1
    assert not rows_of(advance(matcher, samples.batch(ACTIVITY_WAIT_NS)))
    given_up = advance(matcher, samples.batch(100 * MS + ACTIVITY_WAIT_NS))
    (row,) = rows_of(given_up)
    assert (row["path"], row["thread"], row["launch_ns"], row["pid"], row["phase"]) == (0, 0, 0, PID, 6)
    assert given_up.losses == Losses(gpu_unmatched=1)
    assert advance(matcher, samples.batch(101 * MS + LAUNCH_WAIT_NS)).losses == Losses(gpu_unmatched=1, gpu_launches=1)


def test_what_was_launched_before_the_recording_is_no_loss() -> None:
    matcher = GpuMatcher(Registry())
    batch = one_thread((0, 1, 0), now_ns=100 * MS)
    # Stream 1: what was launched before runs first. Stream 2: nothing of it was ever matched.
    came = [(20, 1, 1), (30, 2, 1), (40, 5, 1), (5, 3, 2), (50, 4, 2)]
    kernels = [kernel(at * MS, (at + 1) * MS, correlation, stream=stream) for at, correlation, stream in came]
    advance(matcher, batch, launch(10 * MS, 2), *kernels)
    done = advance(matcher, samples.batch(200 * MS), last=True)
    assert len(rows_of(batch) + rows_of(done)) == 5
    assert (done.counters.gpu_early, done.losses) == (2, Losses(gpu_unmatched=2))


def test_impossible_records_are_dropped_and_counted() -> None:
    matcher = GpuMatcher(Registry())
    batch = one_thread((0, 1, 0), now_ns=100 * MS)
    advance(
        matcher, batch, launch(MS, 1), kernel(0, 0, 1), kernel(5 * MS, 4 * MS, 1), kernel(0, 4 * MS, 1),
        kernel(MS, 1 << 63, 1), record(77, MS, 2 * MS, 1), kernel(3 * MS, 3 * MS, 1),
    )  # fmt: skip
    assert len(rows_of(batch)) == 1, "an activity may take no time"
    assert batch.losses == Losses(gpu_invalid=5)


def test_waits_of_the_host_have_no_launch_and_are_not_missed() -> None:
    matcher = GpuMatcher(Registry())
    batch = one_thread((0, 1, 8), now_ns=100 * MS)
    advance(matcher, batch, record(GpuKind.SYNC, MS, 2 * MS, 5, detail=3))
    (row,) = rows_of(batch)
    assert (row["kind"], row["detail"], row["path"], row["phase"]) == (GpuKind.SYNC, 3, 0, 8)
    assert batch.losses == Losses()


def test_processes_stay_apart() -> None:
    matcher = GpuMatcher(Registry())
    rows = np.concatenate([samples.thread_rows(1, (0, 1, 0), end_ns=MS), samples.thread_rows(2, (0, 2, 0), end_ns=MS)])
    batch = samples.batch(MS, rows, samples.definitions((1, 100, 100), (2, 200, 200)))
    found = samples.records([launch(1000, 1, 100), launch(1000, 1, 200), kernel(2000, 3000, 1), kernel(2000, 3000, 1)])
    matcher.add_name(100, 1, "mul")
    matcher.add_name(200, 1, "add")
    found["name"][2:] = 1
    matcher.advance(batch, found, np.array([100, 200, 200, 100], np.uint32))
    names = {info.id: info.text for info in batch.definitions if isinstance(info, StringInfo)}
    assert {(row["pid"], row["path"], names[row["name"]]) for row in rows_of(batch)} == {
        (100, 1, "mul"),
        (200, 2, "add"),
    }


def test_thread_ids_may_be_those_of_another_namespace() -> None:
    matcher = GpuMatcher(Registry(), host_tid=lambda pid, tid: {(PID, 12): 4012}[pid, tid])
    batch = samples.batch(
        10 * MS, samples.thread_rows(3, (0, 9, 0), end_ns=10 * MS), samples.definitions((3, PID, 4012))
    )
    advance(matcher, batch, launch(MS, 1, tid=12), kernel(2 * MS, 3 * MS, 1))
    assert [(row["thread"], row["path"]) for row in rows_of(batch)] == [(3, 9)]


def test_a_thread_id_may_be_used_again() -> None:
    matcher = GpuMatcher(Registry())
    rows = np.concatenate([
        samples.thread_rows(3, (0, 1, 0), end_ns=5 * MS), samples.thread_rows(4, (6 * MS, 2, 0), end_ns=10 * MS),
    ])  # fmt: skip
    batch = samples.batch(10 * MS, rows, samples.definitions((3, PID, 55), (4, PID, 55)))
    advance(
        matcher,
        batch,
        launch(4 * MS, 1, 55),
        kernel(7 * MS, 8 * MS, 1),
        launch(7 * MS, 2, 55),
        kernel(8 * MS, 9 * MS, 2),
    )
    assert [(row["thread"], row["path"]) for row in rows_of(batch)] == [(3, 1), (4, 2)]


def test_a_thread_nobody_has_heard_of_is_counted() -> None:
    matcher = GpuMatcher(Registry())
    batch = one_thread((0, 1, 5), now_ns=10 * MS)
    advance(matcher, batch, launch(MS, 1, tid=999), kernel(2 * MS, 3 * MS, 1))
    assert [(row["thread"], row["path"], row["phase"], row["launch_ns"]) for row in rows_of(batch)] == [(0, 0, 5, MS)]
    assert batch.losses == Losses(gpu_unmatched=1)


def test_losses_of_helpers_and_rings_are_running_totals() -> None:
    matcher = GpuMatcher(Registry())
    matcher.set_lost("ring", 5)
    matcher.set_lost(PID, 7, 2)
    matcher.set_lost(PID, 9, 3)
    assert advance(matcher, samples.batch(MS)).losses == Losses(gpu_records=14, gpu_invalid=3)


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_module, "MOST_ACTIVITIES", 10)
    monkeypatch.setattr(gpu_waiting, "MOST_LAUNCHES", 10)
    monkeypatch.setattr(gpu_timeline, "MOST_CHANGES", 10)
    matcher = GpuMatcher(Registry())
    batch = one_thread(*((n * 10_000, n % 7 + 1, 0) for n in range(1000)), now_ns=10 * MS)
    advance(matcher, batch, *(launch(n * 10_000 + 10, n) for n in range(100)),
            *(kernel(n * 10_000 + 20, n * 10_000 + 30, 5000 + n) for n in range(100)))  # fmt: skip
    assert len(rows_of(batch)) == 90, "the oldest are handed out"
    assert batch.losses.gpu_launches == 90
    # The thread's oldest whereabouts are forgotten, and that is said.
    again = advance(matcher, samples.batch(10 * MS), launch(15_000, 9000), kernel(16_000, 17_000, 9000),
                    launch(9_995_000, 9001), kernel(9_996_000, 9_997_000, 9001))  # fmt: skip
    matched = [row for row in rows_of(again) if row["launch_ns"]]
    assert [row["path"] for row in matched] == [0, 999 % 7 + 1]
    assert again.losses.gpu_unmatched == batch.losses.gpu_unmatched + 1


@dataclass(frozen=True)
class Work:
    """One launch and its activities, as drawn."""

    thread: int
    at: int
    queue: int
    nodes: int
    lost: str  # "", "launch", "activity"


WORK = st.builds(
    Work, st.integers(0, 2), st.integers(0, 9_000), st.integers(5, 2_000), st.integers(1, 4),
    st.sampled_from(["", "", "", "", "launch", "activity"]),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    work=st.lists(WORK, max_size=40),
    changes=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9_999), st.integers(0, 5)), max_size=30),
    first=st.integers(0, 2**32 - 1),
    cuts=st.lists(st.integers(0, 200), max_size=5),
    seed=st.integers(0, 1000),
)
def test_against_a_plain_reading(
    work: list[Work], changes: list[tuple[int, int, int]], first: int, cuts: list[int], seed: int
) -> None:
    """Any order, any cut into batches, ids that wrap: every activity is once in the table, with its launch's path."""
    unit = 10_000  # ns; all in all 0.1 s, so that nothing waits too long
    tids = [PID, PID + 1, PID + 2]
    timelines = [
        sorted({0: 0, **{at * unit: path for who, at, path in changes if who == thread}}.items()) for thread in range(3)
    ]
    end_ns = 20_000 * unit
    intervals = np.concatenate([
        samples.thread_rows(thread + 1, *((at, path, 0) for at, path in timeline), end_ns=end_ns)
        for thread, timeline in enumerate(timelines)
    ])  # fmt: skip
    rows: list[tuple[int, ...]] = []
    expected: list[tuple[int, ...]] = []
    silent = orphans = 0
    for number, each in enumerate(work):
        correlation = (first + number) % 2**32
        launched = each.at * unit + unit // 2
        detail = GpuLaunch.GRAPH if each.nodes > 1 else GpuLaunch.KERNEL
        if each.lost != "launch":
            rows.append(launch(launched, correlation, tids[each.thread], detail))
        path = [path for at, path in timelines[each.thread] if at <= launched][-1]
        if each.lost == "activity":
            silent += 1
            continue
        for node in range(each.nodes):
            start = launched + (each.queue + node) * unit
            rows.append(kernel(start, start + unit, correlation, stream=number))
            known = each.lost != "launch"
            orphans += not known
            expected.append((number, start, *((each.thread + 1, path, launched) if known else (0, 0, 0))))
    random.Random(seed).shuffle(rows)
    matcher = GpuMatcher(Registry())
    bounds = sorted(min(cut, len(rows)) for cut in cuts)
    found: list[dict[str, int]] = []
    batch = samples.batch(end_ns, intervals, samples.definitions(*((n + 1, PID, tid) for n, tid in enumerate(tids))))
    for low, high in zip([0, *bounds], [*bounds, len(rows)], strict=True):
        found += rows_of(advance(matcher, batch, *rows[low:high]))
        batch = samples.batch(end_ns)
    final = advance(matcher, batch, last=True)
    found += rows_of(final)
    got = [(row["stream"], row["start_ns"], row["thread"], row["path"], row["launch_ns"]) for row in found]
    assert sorted(got) == sorted(expected)
    assert final.losses.gpu_launches == silent
    assert final.losses.gpu_unmatched + final.counters.gpu_early == orphans
    assert final.counters.gpu_matched == len(expected) - orphans
