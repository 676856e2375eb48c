"""What several processes did at once, trends of iterations, phases by the clock, instances, the tree of processes."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

sys.path.insert(0, str(Path(__file__).parent))

import report_samples as samples

from rlscope_ebpf.analysis.breakdown import Breakdown, break_down
from rlscope_ebpf.analysis.processes import tree
from rlscope_ebpf.model import instances
from rlscope_ebpf.model.categories import Category, ThreadState
from rlscope_ebpf.model.figures import PROCESS_NAME
from rlscope_ebpf.model.gpu import GPU_DTYPE, GpuKind
from rlscope_ebpf.model.histogram import RELATIVE_ERROR
from rlscope_ebpf.model.instances import InstanceTotals
from rlscope_ebpf.model.iteration_figures import IterationOperation, IterationTotal, SlowIteration
from rlscope_ebpf.model.iteration_words import excess, spent_more_on, trend_sentence
from rlscope_ebpf.model.overlap import Overlap
from rlscope_ebpf.model.phase_times import PhaseTime, PhaseTimes
from rlscope_ebpf.model.tables import INTERVAL_DTYPE, SPAN_DTYPE, ProcessInfo, SpanFlag
from rlscope_ebpf.model.trend import BUCKETS, TrendBuckets
from rlscope_ebpf.report import json, text

MS = 1_000_000


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), window=st.sampled_from([0, 50, 1000]))
def test_overlap_is_exact_in_whatever_order(seed: int, window: int) -> None:
    random = Random(seed)
    end, unit = 200, 10_000_000  # slabs are cut every 50 units
    cpu: dict[int, set[int]] = {pid: set() for pid in (7, 8, 9)}
    gpu: dict[int, set[int]] = {pid: set() for pid in (7, 8, 9)}
    overlap = Overlap(window_ns=window * unit)
    activity = []
    for _ in range(random.randint(0, 8)):
        start = random.randint(0, end - 1)
        pid, stop = random.choice((7, 8, 9)), min(end, start + random.randint(0, 60))
        gpu[pid].update(range(start, stop))
        # Told of at most `window` after it began, in the first turn after that.
        activity.append((start + random.randint(0, max(0, window - 50)), pid, start, stop))
    turns = sorted({*random.sample(range(1, end), random.randint(0, 8)), *range(10, end, 10), end})
    begin = 0
    for now in turns:
        rows, pids, threads = [], [], []
        for thread, pid in ((1, 7), (2, 7), (3, 8), (4, 9)):
            at = begin
            while at < now:
                stop = min(now, at + random.randint(1, 30))
                state = random.choice(list(ThreadState))
                if state == ThreadState.RUNNING:
                    cpu[pid].update(range(at, stop))
                rows.append((at * unit, (stop - at) * unit, state))
                pids.append(pid)
                threads.append(thread)
                at = stop
        table = np.zeros(len(rows), INTERVAL_DTYPE)
        for row, (start_ns, duration_ns, state) in zip(table, rows, strict=True):
            row["start_ns"], row["duration_ns"], row["state"] = start_ns, duration_ns, state
        overlap.add_time(np.array(pids, np.uint32), np.array(threads), table)
        due = [each for each in activity if begin <= each[0] < now or (now == end and each[0] >= end)]
        kernels = np.zeros(len(due), GPU_DTYPE)
        for row, (_, pid, start, stop) in zip(kernels, due, strict=True):
            row["kind"], row["pid"] = GpuKind.KERNEL, pid
            row["start_ns"], row["duration_ns"] = start * unit, (stop - start) * unit
        overlap.add_gpu(kernels)
        overlap.advance(now * unit)
        begin = now
    if overlap.late:
        return  # what came too late is counted, and missing
    found = overlap.total(end * unit)
    any_cpu, any_gpu = set[int]().union(*cpu.values()), set[int]().union(*gpu.values())
    assert found.both_ns == len(any_cpu & any_gpu) * unit
    assert found.cpu_only_ns == len(any_cpu - any_gpu) * unit
    assert found.gpu_only_ns == len(any_gpu - any_cpu) * unit
    assert found.neither_ns == (end - len(any_cpu | any_gpu)) * unit
    assert found.wall_ns == end * unit
    assert found.cpu_by_pid_ns == {pid: len(units) * unit for pid, units in cpu.items() if units}
    assert found.gpu_by_pid_ns == {pid: len(units) * unit for pid, units in gpu.items() if units}
    for at_once, by_pid in ((found.cpu_at_once_ns, cpu), (found.gpu_at_once_ns, gpu)):
        levels = Counter(Counter(each for units in by_pid.values() for each in units).values())
        assert at_once == tuple(levels[number] * unit for number in range(1, max(levels, default=0) + 1))


def test_overlap_of_gpu_work_told_of_late_enough_is_seldom_dropped() -> None:
    """The test above would show nothing if all of its sessions were late."""
    overlap = Overlap(window_ns=10**9)
    kernels = np.zeros(1, GPU_DTYPE)
    kernels["pid"], kernels["duration_ns"] = 7, 10
    overlap.advance(10**9)
    overlap.add_gpu(kernels)
    assert (overlap.late, overlap.total(100).gpu_only_ns) == (0, 10)
    overlap.advance(3 * 10**9)
    overlap.add_gpu(kernels)
    assert overlap.late == 1


def trend_of(duration_ns: np.ndarray, category: Category = Category.SIMULATOR) -> TrendBuckets:
    buckets = TrendBuckets()
    for part in np.array_split(duration_ns.astype(np.int64), 7):
        by_category = np.zeros((len(part), len(Category)), np.int64)
        by_category[:, category] = part
        buckets.add(part, by_category)
    return buckets


@pytest.mark.parametrize("count", [16, 128, 129, 1000, 100_000])
def test_buckets_hold_all_iterations(count: int) -> None:
    durations = np.arange(1, count + 1) * MS
    trend = trend_of(durations).trend()
    assert len(trend.mean_ns) == -(-count // trend.bucket_size) <= BUCKETS
    size = trend.bucket_size
    expected = [durations[first : first + size].mean() for first in range(0, count, size)]
    assert trend.mean_ns == pytest.approx(expected)
    assert trend.direction == 1
    assert trend.per_iteration_ns == pytest.approx(MS)
    assert trend.first_category_ns[Category.SIMULATOR] == pytest.approx(trend.first_ns)


def test_chance_alone_is_seldom_a_trend() -> None:
    """Heavy tails, hundreds of runs, a fixed seed: about one in a hundred may look like a trend to the test alone."""
    random = np.random.default_rng(1)
    told = [trend_of(random.lognormal(15, 1, 400)).trend().direction != 0 for _ in range(400)]
    assert sum(told) <= 12  # of 400 with 1 % each: beyond twelve in one of a thousand such tests


def test_a_real_trend_is_told_although_iterations_vary() -> None:
    random = np.random.default_rng(1)
    varied = random.lognormal(15, 0.3, 2000)
    rising = trend_of(varied * np.linspace(1, 1.5, 2000)).trend()
    assert (rising.direction, trend_of(varied * np.linspace(1.5, 1, 2000)).trend().direction) == (1, -1)
    assert rising.change == pytest.approx(0.42, abs=0.1)
    little = trend_of(random.lognormal(15, 0.02, 2000) * np.linspace(1, 1.02, 2000)).trend()
    assert (little.z > 3, little.direction) == (True, 0)  # real, and of no importance
    warm_up = varied.copy()
    warm_up[:20] *= 20
    assert trend_of(warm_up).trend().direction == 0
    assert trend_of(np.linspace(1, 2, 15) * MS).trend().direction == 0  # too few


def iterations(slow: SlowIteration, buckets: TrendBuckets) -> IterationTotal:
    return IterationTotal(
        pid=1, phase="training", count=100, total_ns=1000 * MS, min_ns=9 * MS, p50_ns=10 * MS, p99_ns=12 * MS,
        max_ns=20 * MS, category_ns=(500 * MS, 500 * MS, 0, 0, 0), overhead_ns=(0,) * 5, others_running_ns=0,
        transitions={}, typical_ns=(5 * MS, 5 * MS, 0, 0, 0),
        operations=(
            IterationOperation(("step",), 500 * MS, 100, 5 * MS), IterationOperation(("train",), 500 * MS, 100, 5 * MS)
        ),
        trend=buckets.trend(), slowest=(slow,),
    )  # fmt: skip


def test_words() -> None:
    slow = SlowIteration(
        number=7, step=70, start_ns=0, duration_ns=20 * MS, category_ns=(6 * MS, 14 * MS, 0, 0, 0),
        overhead_ns=(0,) * 5, others_running_ns=0, transitions={}, operations={("step",): 13 * MS, ("train",): 7 * MS},
    )  # fmt: skip
    total = iterations(slow, trend_of(np.linspace(10, 15, 400) * MS))
    assert excess(total, slow).total_ns == 10 * MS
    assert spent_more_on(total, slow) == "simulator +9.00 ms, step +8.00 ms"
    assert trend_sentence(total) == (
        "Iterations became slower: 14.4 ms each in the last quarter of them, 10.6 ms in the first (+35 %), mostly in "
        "simulator (+3.76 ms)."
    )
    assert trend_sentence(iterations(slow, trend_of(np.linspace(15, 10, 400) * MS))).startswith(
        "Iterations became faster: 10.6 ms"
    )
    assert trend_sentence(iterations(slow, trend_of(np.full(400, MS)))) == ""


def test_phases_by_the_clock() -> None:
    times = PhaseTimes()
    name = {0: "(default)", 1: "train", 2: "evaluate"}.__getitem__
    assert times.times(10, 30, name) == (PhaseTime("(default)", 10, 1, 20, True),)
    times.add(np.array([20, 40, 50]), np.array([1, 2, 2]), 10)
    times.add(np.array([70]), np.array([1]), 10)
    assert times.times(10, 100, name) == (
        PhaseTime("(default)", 10, 1, 10, False),
        PhaseTime("train", 20, 2, 50, True),
        PhaseTime("evaluate", 40, 1, 30, False),
    )
    assert times.at(np.array([0, 19, 20, 39, 40, 69, 70, 99])).tolist() == [0, 0, 1, 1, 2, 2, 1, 1]


def test_phases_that_change_very_often() -> None:
    times = PhaseTimes()
    for first in range(0, 10_000, 1000):
        at = np.arange(first, first + 1000)
        times.add(at, at % 3, 0)
    assert times.at(np.arange(9000, 10_000)).tolist() == [at % 3 for at in range(9000, 10_000)]
    assert sum(each.total_ns for each in times.times(0, 10_000, str)) == 10_000


@settings(max_examples=50, deadline=None)
@given(
    spans=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 10**9), st.sampled_from([0, 0, *SpanFlag])), min_size=1, max_size=60
    ),
    cut=st.integers(0, 60),
)
def test_instances(spans: list[tuple[int, int, int]], cut: int) -> None:
    totals = InstanceTotals()
    rows = np.zeros(len(spans), SPAN_DTYPE)
    for row, (_, duration_ns, flags) in zip(rows, spans, strict=True):
        row["start_ns"], row["end_ns"], row["flags"] = 5, 5 + duration_ns, flags
    numbers = np.array([number for number, _, _ in spans])
    for part in (slice(0, cut), slice(cut, None)):
        totals.add(numbers[part], rows[part])
        totals.of(0)
    for number in range(5):
        whole = sorted(ns for one, ns, flags in spans if one == number and not flags)
        found = totals.of(number)
        assert (found.count, found.total_ns) == (len(whole), sum(whole))
        if whole:
            assert (found.min_ns, found.max_ns) == (whole[0], whole[-1])
            for told, share in ((found.p50_ns, 50), (found.p99_ns, 99)):
                exact = whole[max(0, -(-len(whole) * share // 100) - 1)]
                assert told == pytest.approx(exact, rel=RELATIVE_ERROR, abs=1)


def test_more_instances_than_histograms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "MOST_HISTOGRAMS", 1)
    totals = InstanceTotals()
    rows = np.zeros(2, SPAN_DTYPE)
    rows["end_ns"] = (10, 20)
    totals.add(np.array([0, 1]), rows)
    assert (totals.of(0).p50_ns, totals.of(1).p50_ns, totals.of(1).max_ns) == (10, None, 20)


def with_processes(*infos: ProcessInfo) -> Breakdown:
    """The training run, and further processes of which nothing was recorded."""
    trace = samples.training()
    for info in infos:
        trace.define(info)
    return break_down(trace)


def several() -> Breakdown:
    start = samples.START_NS
    return with_processes(
        ProcessInfo(101, 100, "env-0", (), start + 100 * MS, start + 900 * MS, 0),
        ProcessInfo(102, 100, "env-1", (), start + 200 * MS, start + 700 * MS, -signal.SIGKILL),
        ProcessInfo(103, 101, "helper", (), start + 300 * MS, start + 800 * MS, None),
        ProcessInfo(104, 1, "stranger", (), start),
    )


def test_a_process_is_called_as_it_calls_itself() -> None:
    total = several().processes[0].total
    assert total.name == "train.py"
    assert replace(total, metadata={PROCESS_NAME: "learner"}).name == "learner"
    named = replace(
        several(),
        processes=(replace(several().processes[0], total=replace(total, metadata={PROCESS_NAME: "learner"})),),
    )
    assert json.report_dict(named)["processes"][0]["name"] == "learner"
    assert "learner pid 100" in text.report_text(named)


def test_the_tree() -> None:
    placed = [(each.process.total.info.pid, each.depth, each.last) for each in tree(several().processes)]
    assert placed == [(100, 0, True), (101, 1, False), (103, 2, True), (102, 1, True), (104, 0, True)]


def test_a_circle_of_parents_loses_nobody() -> None:
    circle = with_processes(ProcessInfo(101, 102, "a", (), 0), ProcessInfo(102, 101, "b", (), 0)).processes
    assert sorted(each.process.total.info.pid for each in tree(circle)) == [100, 101, 102]


@pytest.mark.parametrize("width", [160, 80])
def test_the_text_of_several_processes(width: int, snapshot: SnapshotAssertion) -> None:
    assert text.report_text(several(), width) == snapshot


def test_the_json_of_several_processes() -> None:
    report = json.report_dict(several())
    jsonschema.validate(report, json.schema())
    (trainer, *_) = report["processes"]
    assert (
        sum(report["overlap"][name] for name in ("cpu_only_ns", "cpu_gpu_ns", "gpu_only_ns", "neither_ns"))
        == (report["session"]["duration_ns"])
    )
    assert report["total"]["wall_ns"] == trainer["wall_ns"]
    assert sum(phase["wall_ns"] for phase in report["total"]["phases"]) == trainer["wall_ns"]
    assert sum(phase["duration_ns"] for phase in trainer["phases"]) == trainer["end_ns"] - trainer["start_ns"]
    training, evaluation = trainer["iterations"]
    assert (training["count"], evaluation["count"]) == (samples.ITERATIONS - 1, samples.EVALUATIONS)
    for each in (training, evaluation):
        assert sum(each["cpu_ns"].values()) == each["total_ns"] == each["count"] * samples.ITERATION_MS * MS
        assert sum(operation["total_ns"] for operation in each["operations"]) == each["total_ns"]
        assert each["trend"]["direction"] == "steady"
    (step,) = (
        each for each in trainer["operations"] if each["path"] == ["rollout", "env.step"] and each["count"] == 20
    )
    assert step["instances"]["count"] == 20
    assert step["instances"]["min_ns"] == step["instances"]["max_ns"] == 32 * MS
