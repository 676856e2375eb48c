"""Totals of GPU activity: unions, resources, kernels, copies, delays; hypothesis against sets of moments."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

import gpu_samples as samples
from gpu_samples import MS, PID, activities, activity

from rlscope_ebpf.model.busy_time import STRETCH_DTYPE, WINDOW_NS, BusyTime
from rlscope_ebpf.model.categories import ThreadState
from rlscope_ebpf.model.durations import NO_DURATIONS
from rlscope_ebpf.model.figures import CopyTotal, OperationTotal
from rlscope_ebpf.model.gpu import GpuKind
from rlscope_ebpf.model.histogram import RELATIVE_ERROR
from rlscope_ebpf.model.tables import Definition, PathInfo, StringInfo
from rlscope_ebpf.model.totals import Totals

RUN, WAIT, SLEEP = ThreadState.RUNNING, ThreadState.RUNNABLE, ThreadState.BLOCKED
S = 1_000_000_000


def definitions(*threads: tuple[int, int, int]) -> list[Definition]:
    names = [StringInfo(number, f"op{number}") for number in range(1, 6)]
    return [*samples.definitions(*threads), *names, *(PathInfo(number, 0, number) for number in range(1, 6))]


def by_name(totals: Totals) -> dict[tuple[int, str], OperationTotal]:
    return {(operation.pid, "/".join(operation.path)): operation for operation in totals.operations()}


def one_thread(*rows: tuple[int, int, int, int]) -> Totals:
    """From (path, start, end, state) of thread 1."""
    totals = Totals()
    table = samples.intervals((1, path, 0, start, end, state) for path, start, end, state in rows)
    totals.add(samples.batch(rows[-1][2], table, definitions((1, PID, PID))))
    return totals


def busy(totals: Totals) -> list[tuple[int, int, int]]:
    return [(device.pid, device.index, device.busy_ns) for device in totals.gpu_devices()]


def test_two_streams_busy_at_once_count_once() -> None:
    totals = one_thread((1, 0, 100 * MS, RUN))
    rows = [activity(10 * MS, 30 * MS, path=1, stream=1), activity(20 * MS, 40 * MS, path=1, stream=2)]
    totals.add(samples.batch(100 * MS, gpu=activities(rows)))
    operation = by_name(totals)[PID, "op1"]
    assert (operation.gpu_ns, operation.gpu_activities) == (30 * MS, 2)
    assert busy(totals) == [(PID, 0, 30 * MS)]
    assert totals.processes()[0].gpu_ns == 30 * MS


def test_work_belongs_to_who_launched_it_and_resources_to_whoever_runs_meanwhile() -> None:
    totals = one_thread((1, 0, 10 * MS, RUN), (2, 10 * MS, 20 * MS, RUN), (2, 20 * MS, 40 * MS, SLEEP))
    totals.add(samples.batch(50 * MS, gpu=activities([activity(15 * MS, 35 * MS, path=1, launch_ns=9 * MS)])))
    found = by_name(totals)
    assert (found[PID, "op1"].gpu_ns, found[PID, "op2"].gpu_ns) == (20 * MS, 0)
    assert found[PID, "op1"].resources_ns == {"cpu_only": 10 * MS, "cpu_gpu": 0, "gpu_only": 0, "idle": 0}
    assert found[PID, "op2"].resources_ns == {
        "cpu_only": 5 * MS, "cpu_gpu": 5 * MS, "gpu_only": 15 * MS, "idle": 5 * MS,
    }  # fmt: skip


def test_waits_of_the_host_are_no_work() -> None:
    totals = one_thread((1, 0, 10 * MS, SLEEP))
    totals.add(samples.batch(10 * MS, gpu=activities([activity(0, 10 * MS, path=5, kind=GpuKind.SYNC)])))
    assert by_name(totals).keys() == {(PID, "op1")}
    assert by_name(totals)[PID, "op1"].resources_ns["idle"] == 10 * MS
    assert not totals.gpu_devices()


def test_another_process_does_not_count() -> None:
    totals = Totals()
    rows = samples.intervals([(1, 1, 0, 0, 10 * MS, SLEEP), (2, 1, 0, 0, 10 * MS, SLEEP)])
    gpu = activities([activity(0, 4 * MS, path=1, pid=200), activity(2 * MS, 6 * MS, path=1, pid=200, device=1)])
    totals.add(samples.batch(10 * MS, rows, definitions((1, 100, 100), (2, 200, 200)), gpu))
    found = by_name(totals)
    assert found[100, "op1"].resources_ns["gpu_only"] == 0
    assert found[200, "op1"].resources_ns["gpu_only"] == found[200, "op1"].gpu_ns == 6 * MS
    assert busy(totals) == [(200, 0, 4 * MS), (200, 1, 4 * MS)]


def test_corrected_resources_add_up_to_corrected_time() -> None:
    totals = one_thread((1, 0, 10 * MS, RUN), (1, 10 * MS, 14 * MS, SLEEP))
    totals.add(samples.batch(50 * MS, gpu=activities([activity(5 * MS, 12 * MS, path=1)])))
    operation = by_name(totals)[PID, "op1"]
    corrected = operation.resources_of(operation.wall_ns - 2 * MS)
    assert corrected == {"cpu_only": 4 * MS, "cpu_gpu": 4 * MS, "gpu_only": 2 * MS, "idle": 2 * MS}
    for wall_ns in range(0, operation.wall_ns + 1, MS):
        parts = operation.resources_of(wall_ns)
        assert sum(parts.values()) == wall_ns
        assert min(parts.values()) >= 0


def test_kernels_by_name_and_how_long_they_were_queued() -> None:
    totals = one_thread((1, 0, 10 * MS, RUN))
    rows = [activity(n * MS + 5000, n * MS + 6000 + n, path=1, name=4, launch_ns=n * MS) for n in range(1, 101)]
    rows += [activity(0, 7, path=1, name=5)]
    totals.add(samples.batch(200 * MS, gpu=activities(rows)))
    first, second = totals.gpu_kernels()
    assert (first.pid, first.name, first.ran.count, first.ran.total_ns) == (PID, "op4", 100, 100 * 1000 + 5050)
    assert first.ran.p50_ns == pytest.approx(1050, rel=RELATIVE_ERROR, abs=1)
    assert (first.queued.count, first.queued.mean_ns) == (100, 5000)
    assert first.queued.p99_ns == pytest.approx(5000, rel=RELATIVE_ERROR, abs=1)
    assert (second.name, second.ran.count, second.queued) == ("op5", 1, NO_DURATIONS)
    assert by_name(totals)[PID, "op1"].queued == first.queued


def test_of_a_graph_the_first_tells_how_long_it_was_queued() -> None:
    totals = one_thread((1, 0, 10 * MS, RUN))
    nodes = [activity(MS + n * 1000, MS + n * 1000 + 900, path=1, graph=2, launch_ns=MS - 700) for n in range(6)]
    totals.add(samples.batch(10 * MS, gpu=activities([nodes[2], nodes[0], nodes[1]])))
    totals.add(samples.batch(20 * MS, gpu=activities(nodes[3:])))
    assert (by_name(totals)[PID, "op1"].queued.count, by_name(totals)[PID, "op1"].queued.total_ns) == (1, 700)


def test_copies_by_direction() -> None:
    totals = one_thread((1, 0, 10 * MS, RUN))
    copy = GpuKind.COPY
    rows = [
        activity(0, 100, kind=copy, detail=1, bytes=1000),
        activity(200, 250, kind=copy, detail=2, bytes=7),
        activity(300, 310, kind=GpuKind.SET, detail=2, bytes=64),
        activity(400, 500, kind=copy, detail=1, bytes=1),
    ]
    totals.add(samples.batch(10 * MS, gpu=activities(rows)))
    assert set(totals.gpu_copies()) == {
        CopyTotal(PID, "host_to_device", 2, 200, 1001), CopyTotal(PID, "device_to_host", 1, 50, 7),
        CopyTotal(PID, "set", 1, 10, 64),
    }  # fmt: skip


def test_what_comes_after_its_time_was_settled_is_counted() -> None:
    totals = one_thread((1, 0, 60 * S, RUN))
    totals.add(samples.batch(60 * S + WINDOW_NS, samples.intervals([(1, 1, 0, 60 * S, 70 * S, RUN)])))
    rows = [activity(59 * S, 62 * S, path=1), activity(10 * S, 11 * S, path=1), activity(63 * S, 64 * S, path=1)]
    totals.add(samples.batch(60 * S + WINDOW_NS, gpu=activities(rows)))
    assert totals.missing().gpu_late == 2, "60 s have been settled"
    operation = by_name(totals)[PID, "op1"]
    assert operation.gpu_ns == operation.resources_ns["cpu_gpu"] == 3 * S
    assert operation.gpu_activities == 3
    assert busy(totals) == [(PID, 0, 3 * S)]


def test_what_waits_is_bounded() -> None:
    busy = BusyTime(most_waiting=100)
    busy.set_devices(np.zeros(1, np.int64))
    for n in range(100):
        pieces = np.zeros(50, STRETCH_DTYPE)
        pieces["start"] = (n * 50 + np.arange(50)) * MS
        pieces["end"] = pieces["start"] + 1000
        busy.add(pieces, gpu=True)
        busy.advance((n + 1) * 50 * MS)
        assert busy.waiting <= 150
    assert busy.sums().gpu_ns.tolist() == [5000 * 1000]


def test_times_that_no_clock_says_do_no_harm() -> None:
    totals = one_thread((1, 0, 10 * MS, RUN))
    rows = activities(activity(0, 1, path=1, device=n, launch_ns=(1 << 64) - 1, bytes=(1 << 64) - 1) for n in range(50))
    rows["start_ns"][:25] = (1 << 64) - 1
    rows["duration_ns"] = (1 << 64) - 1
    totals.add(samples.batch(10 * MS, gpu=rows))
    for operation in totals.operations():
        assert sum(operation.resources_ns.values()) == operation.wall_ns
    assert len(totals.gpu_devices()) == 50


UNIT = S // 10
END = 400


@dataclass(frozen=True)
class Task:
    """GPU activity as drawn, in units; `lag`: how much later than its end its record comes."""

    pid: int
    path: int
    device: int
    start: int
    length: int
    lag: int


TASK = st.builds(
    Task, st.sampled_from([100, 200]), st.integers(0, 3), st.integers(0, 2), st.integers(0, 380), st.integers(0, 45),
    st.integers(0, 50),
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(
    tasks=st.lists(TASK, max_size=40),
    changes=st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, END - 1), st.integers(0, 3), st.sampled_from(ThreadState)),
        max_size=25,
    ),
    step=st.integers(3, 150),
    seed=st.integers(0, 99),
)
def test_against_sets_of_moments(
    tasks: list[Task], changes: list[tuple[int, int, int, ThreadState]], step: int, seed: int
) -> None:
    """Whatever the order of the records and the cut into batches, as long as none is later than the window."""
    threads = {1: 100, 2: 100, 3: 200}
    rows: list[tuple[int, int, int, int, int, int]] = []
    for thread in threads:
        mine = sorted({0: (0, RUN), **{at: (path, state) for who, at, path, state in changes if who == thread}}.items())
        ends = [*(at for at, _ in mine[1:]), END]
        for (at, (path, state)), end in zip(mine, ends, strict=True):
            # As the session does: cut where a batch ends.
            cuts = [at, *(cut for cut in range(step, END, step) if at < cut < end), end]
            rows += [(thread, path, 0, a, b, state) for a, b in pairwise(cuts)]
    totals = Totals()
    known = definitions(*((thread, pid, pid + thread) for thread, pid in threads.items()))
    order = random.Random(seed)
    for now in [*range(step, END, step), END]:
        before = now - step if now != END else (END - 1) // step * step
        part = [row for row in rows if before <= row[3] < now]
        part.sort(key=lambda row: (row[0], row[3]))
        come = [task for task in tasks if before <= min(task.start + task.length + task.lag, END - 1) < now]
        order.shuffle(come)
        table = samples.intervals((t, p, f, a * UNIT, b * UNIT, s) for t, p, f, a, b, s in part)
        gpu = activities(
            activity(
                task.start * UNIT, (task.start + task.length) * UNIT, path=task.path, pid=task.pid, device=task.device
            )
            for task in come
        )
        totals.add(samples.batch(now * UNIT, table, known, gpu))
        known = []
        if order.random() < 0.3:
            totals.operations()  # asking changes nothing

    def busy(pid: int, path: int | None = None, device: int | None = None) -> set[int]:
        return {
            moment
            for task in tasks
            if task.pid == pid and path in (None, task.path) and device in (None, task.device)
            for moment in range(task.start, task.start + task.length)
        }

    assert totals.missing().gpu_late == 0
    names = {0: "", 1: "op1", 2: "op2", 3: "op3"}
    found = by_name(totals)
    for pid in (100, 200):
        for path, name in names.items():
            operation = found.get((pid, name))
            own = [row for row in rows if threads[row[0]] == pid and row[1] == path]
            if operation is None:
                assert not own
                assert not busy(pid, path)
                continue
            assert operation.gpu_ns == len(busy(pid, path)) * UNIT
            parts = dict.fromkeys(("cpu_only", "cpu_gpu", "gpu_only", "idle"), 0)
            for _, _, _, start, end, state in own:
                for moment in range(start, end):
                    works = moment in busy(pid)
                    parts[
                        ("gpu_only" if works else "idle") if state == SLEEP else "cpu_gpu" if works else "cpu_only"
                    ] += UNIT
            assert operation.resources_ns == parts
    assert {(device.pid, device.index): device.busy_ns for device in totals.gpu_devices()} == {
        (task.pid, task.device): len(busy(task.pid, None, task.device)) * UNIT for task in tasks
    }
    assert {each.info.pid: each.gpu_ns for each in totals.processes()} == {
        pid: len(busy(pid)) * UNIT for pid in (100, 200)
    }
