"""Iterations: exact against a reference that looks at one interval after the other, in whatever batches they come."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlscope_ebpf.model import iteration_scopes
from rlscope_ebpf.model.categories import CATEGORY_NAMES, DEFAULT_PHASE, Opened, ThreadState
from rlscope_ebpf.model.gpu import GPU_DTYPE, GpuKind
from rlscope_ebpf.model.histogram import RELATIVE_ERROR
from rlscope_ebpf.model.iteration_figures import SLOWEST, IterationTotal
from rlscope_ebpf.model.sampling import split
from rlscope_ebpf.model.tables import (
    INTERVAL_DTYPE,
    MARK_DTYPE,
    SAMPLE_ROW_DTYPE,
    Batch,
    MarkKind,
    PathInfo,
    ProcessInfo,
    StringInfo,
    ThreadInfo,
)
from rlscope_ebpf.model.totals import REPORTS_LATE_NS, Totals

UNIT_NS = 10_000_000
"""Times of the generated sessions are multiples: many events fall on the same moment."""

LATE_UNITS = REPORTS_LATE_NS // UNIT_NS
PIDS = (100, 200)
THREADS = (1, 2, 3)  # the last one is of the second process
PHASES = (0, 1, 2)
DEFINITIONS = [
    *(ProcessInfo(pid, 1, f"p{pid}", (), 0) for pid in PIDS),
    *(ThreadInfo(thread, PIDS[thread // 3], thread, "") for thread in THREADS),
    *(StringInfo(number, f"s{number}") for number in (1, 2, 3)),
    *(PathInfo(number, 0, number) for number in (1, 2, 3)),
]


@dataclass
class Session:
    intervals: list[dict[str, int]]
    marks: list[dict[str, int]]
    samples: list[dict[str, int]]
    gpu: list[tuple[int, int, int]] = field(default_factory=list)  # pid, start, end
    end: int = 0


def random_session(seed: int, ties: bool) -> Session:
    """Times in units; `ties`: several marks may fall on one moment."""
    random = Random(seed)
    end = random.randint(20, 120)
    intervals, samples = [], []
    for thread in THREADS:
        bounds = sorted(random.randint(0, end) for _ in range(random.randint(2, 30)))
        for start, stop in pairwise(bounds):
            intervals.append(
                {
                    "thread": thread, "path": random.randint(0, 3), "start": start, "stop": stop,
                    "category": random.randint(0, 4), "origin": random.randint(0, 4),
                    "opened": random.choice(list(Opened)), "state": random.choice(list(ThreadState)),
                    "overhead": random.randint(0, 10**6), "sampled": random.random() < 0.3,
                }
            )  # fmt: skip
        samples += [
            {"thread": thread, "time": random.randint(0, end - 1), "category": random.randint(0, 4)}
            for _ in range(random.randint(0, 10))
        ]
    marks = []
    times = range(end + 1)
    number = random.randint(0, 20)
    for time in sorted(random.choices(times, k=number) if ties else random.sample(times, number)):
        kind = MarkKind.PHASE if random.random() < 0.25 else MarkKind.PROGRESS
        a = random.choice(PHASES) if kind == MarkKind.PHASE else len(marks)
        marks.append({"thread": random.choice(THREADS), "kind": kind, "time": time, "a": a})
    gpu = []
    for _ in range(random.randint(0, 6)):
        start = random.randint(0, end)
        gpu.append((random.choice(PIDS), start, start + random.randint(0, 40)))
    return Session(intervals, marks, samples, gpu, end)


def rows_of(session: Session) -> dict[str, Any]:
    intervals = np.zeros(len(session.intervals), INTERVAL_DTYPE)
    for row, each in zip(intervals, session.intervals, strict=True):
        for name in ("thread", "path", "category", "origin", "opened", "state", "sampled"):
            row[name] = each[name]
        row["start_ns"], row["duration_ns"] = each["start"] * UNIT_NS, (each["stop"] - each["start"]) * UNIT_NS
        row["overhead_ns"] = each["overhead"]
    marks = np.zeros(len(session.marks), MARK_DTYPE)
    for row, each in zip(marks, session.marks, strict=True):
        row["thread"], row["kind"], row["time_ns"], row["a"] = (
            each["thread"], each["kind"], each["time"] * UNIT_NS, each["a"],
        )  # fmt: skip
    samples = np.zeros(len(session.samples), SAMPLE_ROW_DTYPE)
    for row, each in zip(samples, session.samples, strict=True):
        row["thread"], row["time_ns"], row["category"] = each["thread"], each["time"] * UNIT_NS, each["category"]
    gpu = np.zeros(len(session.gpu), GPU_DTYPE)
    for row, (pid, start, stop) in zip(gpu, session.gpu, strict=True):
        row["kind"], row["pid"] = GpuKind.KERNEL, pid
        row["start_ns"], row["duration_ns"] = start * UNIT_NS, (stop - start) * UNIT_NS
    return {"intervals": intervals, "marks": marks, "samples": samples, "gpu": gpu}


def in_batches(session: Session, ends: list[int], late: list[bool], held: int) -> Totals:
    """Batches that end at these moments. Intervals come with the batch in which they begin; reports may be late."""
    totals = Totals()
    rows = rows_of(session)
    marks = rows["marks"]
    # Phase changes are never late; a report that is waits until a batch ends `held` units after it.
    due = marks["time_ns"].astype(np.int64)
    due += np.where(np.resize(np.array(late), len(marks)) & (marks["kind"] == MarkKind.PROGRESS), held * UNIT_NS, 0)
    reached = -1
    for number, end in enumerate([*sorted(ends), session.end + 1]):
        until = end * UNIT_NS
        tables = {}
        for name, time in (("intervals", "start_ns"), ("samples", "time_ns"), ("gpu", "start_ns")):
            begin = rows[name][time].astype(np.int64)
            tables[name] = rows[name][(begin >= reached) & (begin < until)]
        tables["marks"] = marks[(due >= reached) & (due < until)]
        if number == len(ends):
            tables["marks"] = marks[due >= reached]
        totals.add(Batch(until, DEFINITIONS if not number else [], tables))
        reached = until
    totals.finish()
    return totals


@dataclass
class Expected:
    durations: list[int] = field(default_factory=list)
    times: Counter[int] = field(default_factory=Counter)
    costs: Counter[int] = field(default_factory=Counter)
    sampled: list[tuple[int, int, Counter[int]]] = field(default_factory=list)  # per iteration: time, cost, samples
    others: int = 0
    transitions: Counter[str] = field(default_factory=Counter)
    paths: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # time of each iteration that has it
    gpu: int = 0
    steps: list[int] = field(default_factory=list)


def naive(session: Session) -> dict[tuple[int, int], Expected]:
    """By process and phase, one unit of time after the other."""
    found: dict[tuple[int, int], Expected] = {}
    process_of = {thread: PIDS[thread // 3] for thread in THREADS}
    for pid in PIDS:
        mine = [mark for mark in session.marks if process_of[mark["thread"]] == pid]
        reports = [mark for mark in mine if mark["kind"] == MarkKind.PROGRESS]
        for first, last in pairwise(reports):
            phase = 0
            for mark in mine:
                if mark["kind"] == MarkKind.PHASE and mark["time"] <= last["time"]:
                    phase = mark["a"]
            into = found.setdefault((pid, phase), Expected())
            begin, end = first["time"], last["time"]
            into.durations.append((end - begin) * UNIT_NS)
            into.steps.append(last["a"])
            paths: Counter[int] = Counter()
            sampled_ns = sampled_cost = 0
            for each in session.intervals:
                if process_of[each["thread"]] != pid:
                    continue
                # Of several reports at a moment, what comes from then on belongs to the last.
                begins_here = begin <= each["start"] < end
                if begins_here and each["opened"] == Opened.CALL and each["origin"] != each["category"]:
                    into.transitions[f"{CATEGORY_NAMES[each['origin']]}_to_{CATEGORY_NAMES[each['category']]}"] += 1
                ns = max(0, min(each["stop"], end) - max(each["start"], begin)) * UNIT_NS
                if each["thread"] != first["thread"]:
                    into.others += ns if each["state"] == ThreadState.RUNNING else 0
                    continue
                cost = each["overhead"] if begins_here else 0
                if each["sampled"]:
                    sampled_ns, sampled_cost = sampled_ns + ns, sampled_cost + cost
                else:
                    into.times[each["category"]] += ns
                    into.costs[each["category"]] += cost
                paths[each["path"]] += ns
            samples = Counter(
                each["category"] for each in session.samples
                if each["thread"] == first["thread"] and begin <= each["time"] < end
            )  # fmt: skip
            into.sampled.append((sampled_ns, sampled_cost, samples))
            for path, ns in paths.items():
                if ns:
                    into.paths[path].append(ns)
            busy = {
                unit for owner, start, stop in session.gpu if owner == pid for unit in range(start, stop)
                if begin <= unit < end
            }  # fmt: skip
            into.gpu += len(busy) * UNIT_NS
    return found


def check(found: IterationTotal, expected: Expected, uses_gpu: bool) -> None:
    ordered = sorted(expected.durations)
    assert (found.count, found.total_ns) == (len(ordered), sum(ordered))
    assert (found.min_ns, found.max_ns) == (ordered[0], ordered[-1])
    assert found.p50_ns == pytest.approx(ordered[(len(ordered) + 1) // 2 - 1], rel=RELATIVE_ERROR, abs=1)
    times, costs, samples = expected.times.copy(), expected.costs.copy(), Counter[int]()
    for ns, cost, counts in expected.sampled:
        row = np.array([[counts[category] for category in range(5)]])
        samples.update(counts)
        for into, value in ((times, ns), (costs, cost)):
            for category in range(5):
                into[category] += int(split(np.array([[value]]), row)[0, category, 0])
    assert found.category_ns == tuple(times[category] for category in range(5))
    assert found.overhead_ns == tuple(costs[category] for category in range(5))
    assert found.sampled.time_ns == sum(ns for ns, _, _ in expected.sampled)
    assert found.sampled.samples == tuple(samples[category] for category in range(5))
    assert found.others_running_ns == expected.others
    assert found.transitions == dict(expected.transitions)
    assert found.steps == (expected.steps[0], expected.steps[-1])
    assert found.gpu_ns == expected.gpu
    assert found.gpu_iterations == (len(ordered) if uses_gpu else 0)
    operations = {each.path: each for each in found.operations}
    assert len(operations) == len(expected.paths)
    for path, ns in expected.paths.items():
        each = operations[(f"s{path}",) if path else ()]
        assert (each.total_ns, each.present) == (sum(ns), len(ns))
        every = sorted([0] * (len(ordered) - len(ns)) + ns)
        assert each.p50_ns == pytest.approx(every[(len(every) + 1) // 2 - 1], rel=RELATIVE_ERROR, abs=1)
    slowest = sorted(expected.durations, reverse=True)[:SLOWEST]
    assert [each.duration_ns for each in found.slowest] == slowest
    if len(ordered) <= SLOWEST:  # all of them are there, so they add up
        assert sum(sum(each.category_ns) for each in found.slowest) == sum(found.category_ns)
        assert sum(sum(each.operations.values()) for each in found.slowest) == sum(
            each.total_ns for each in found.operations
        )
        assert sum(each.others_running_ns for each in found.slowest) == found.others_running_ns
        if uses_gpu:
            assert sum(each.gpu_ns or 0 for each in found.slowest) == found.gpu_ns
        else:
            assert {each.gpu_ns for each in found.slowest} == {None}


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), held=st.integers(0, LATE_UNITS - 1))
def test_exact_in_whatever_batches(seed: int, held: int) -> None:
    session = random_session(seed, ties=not held)
    random = Random(seed + 1)
    late = [random.random() < 0.4 for _ in range(7)] if held else [False]
    # A late report comes with the first batch that ends after it is due: they must not be far apart.
    few = sorted(random.sample(range(1, session.end + 1), random.randint(0, 12)))
    steps = list(range(1, session.end + 1)) if any(late) else few
    totals = in_batches(session, steps, late, held)
    expected = naive(session)
    found = {(each.pid, each.phase): each for each in totals.iterations()}
    names = {0: DEFAULT_PHASE, 1: "s1", 2: "s2"}
    assert set(found) == {(pid, names[phase]) for pid, phase in expected}
    on_gpu = {pid for pid, start, stop in session.gpu if stop > start}
    for (pid, phase), each in expected.items():
        check(found[pid, names[phase]], each, pid in on_gpu)


def test_more_operations_than_histograms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iteration_scopes, "MOST_HISTOGRAMS", 2)
    sums = iteration_scopes.ScopeSums()
    sums.count = 1
    sums.add_operations(np.array([4, 5, 6]), np.array([10, 20, 30]))
    assert sums.operations() == [(4, 10, 1, 10), (5, 20, 1, 20), (6, 30, 1, None)]


def test_memory_does_not_grow_with_the_session() -> None:
    """A million iterations leave no more behind than a thousand do."""
    totals = Totals()
    totals.add(Batch(0, DEFINITIONS))

    def turn(number: int) -> None:
        begin, count = number * 10**9, 5000
        intervals = np.zeros(count, INTERVAL_DTYPE)
        intervals["thread"] = 1
        intervals["start_ns"] = begin + np.arange(count) * (10**9 // count)
        intervals["duration_ns"] = 10**9 // count
        marks = np.zeros(count, MARK_DTYPE)
        marks["thread"], marks["kind"], marks["time_ns"] = 1, MarkKind.PROGRESS, intervals["start_ns"]
        totals.add(Batch(begin + 10**9, [], {"intervals": intervals, "marks": marks}))

    for number in range(200):
        turn(number)
    (process,) = totals._iterations._processes.values()
    assert process.over > 990_000
    late = REPORTS_LATE_NS / 10**9 * 5000
    assert len(process.time_ns) <= late + 2
    assert len(process.sums) <= 2 * 5000
    assert sum(len(times) for times, _ in process.queue) <= 12 * 5000
    (found,) = totals.iterations()
    assert found.count == process.over
    assert found.min_ns == found.max_ns == found.p50_ns == found.p99_ns == 200_000
    assert len(found.trend.mean_ns) <= 128
    assert found.trend.direction == 0
