"""Totals against a plain re-count of the same session, row by row and instance by instance."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rlscope_ebpf.model import histogram, totals
from rlscope_ebpf.model.categories import CATEGORY_NAMES, DEFAULT_PHASE, Category, Opened, ThreadState, Wait
from rlscope_ebpf.model.figures import by_activity
from rlscope_ebpf.model.keys import KeyRows, last_of_each
from rlscope_ebpf.model.tables import (
    INTERVAL_DTYPE,
    MARK_DTYPE,
    SPAN_DTYPE,
    Batch,
    Counters,
    Losses,
    MarkKind,
    PathInfo,
    ProbeInfo,
    ProcessInfo,
    SpanFlag,
    StringInfo,
    ThreadInfo,
)
from rlscope_ebpf.model.totals import Totals

NAMES = ("a", "b", "c")
PHASES = ("warmup", "train")
SITES = {1: "cudaLaunchKernel@@libcudart.so.13", 2: "cuMemcpyAsync", 3: "cudaLaunchKernel"}


@dataclass
class Truth:
    """What a session did, counted as it was made up."""

    time: Counter[tuple[int, str, tuple[str, ...], int, int]] = field(default_factory=Counter)
    waits: Counter[tuple[int, str, tuple[str, ...], int, int]] = field(default_factory=Counter)
    hits: Counter[tuple[int, str, tuple[str, ...]]] = field(default_factory=Counter)
    overhead: Counter[tuple[int, str, tuple[str, ...], int]] = field(default_factory=Counter)
    instances: Counter[tuple[int, str, tuple[str, ...]]] = field(default_factory=Counter)
    open_now: Counter[tuple[int, str, tuple[str, ...]]] = field(default_factory=Counter)
    transitions: Counter[tuple[int, str, tuple[str, ...], str]] = field(default_factory=Counter)
    calls: dict[tuple[int, str], list[list[int]]] = field(default_factory=lambda: defaultdict(list))


class Session:
    """A made-up session: threads do random things, rows come out as the matcher would write them."""

    def __init__(self, seed: int, threads: int, *, instants: bool) -> None:
        self.random = random.Random(seed)
        self.durations = (1, 7, 1000, 123_456) + ((0, 0) if instants else ())
        self.truth = Truth()
        self.strings = {text: number for number, text in enumerate(("", *NAMES, *PHASES))}
        self.paths: dict[tuple[str, ...], int] = {(): 0}
        self.definitions: list[object] = [StringInfo(number, text) for text, number in self.strings.items() if number]
        self.definitions += [ProcessInfo(pid, 1, f"process {pid}", ("python",), 0) for pid in (100, 200)]
        self.definitions += [
            ProbeInfo(number, "cuda", Category.CUDA_API, "libcuda.so", symbol, 0, "emulated", "session", True)
            for number, symbol in SITES.items()
        ]
        self.rows: list[tuple[int, ...]] = []
        self.spans: list[tuple[int, ...]] = []
        self.threads = [self._thread(number) for number in range(1, threads + 1)]

    def _thread(self, number: int) -> dict[str, object]:
        pid = self.random.choice((100, 200))
        self.definitions.append(ThreadInfo(number, pid, number, f"thread {number}"))
        stack: list[tuple[tuple[str, ...], str, int, int]] = []
        for _ in range(self.random.randrange(3)):  # open before the profiler came
            path = (stack[-1][0] if stack else ()) + (self.random.choice(NAMES),)
            self._path(path)
            stack.append((path, DEFAULT_PHASE, 0, SpanFlag.OPEN_AT_START))
            self.truth.instances[pid, DEFAULT_PHASE, path] += 1
        return {
            "number": number, "pid": pid, "stack": stack, "category": Category.PYTHON, "state": ThreadState.RUNNING,
            "wait": Wait.OTHER, "phase": DEFAULT_PHASE, "now": 0, "alive": True, "opened": Opened.CONTINUED,
            "origin": Category.PYTHON, "site": 0, "hits": 0, "call": None,
        }  # fmt: skip

    def _path(self, path: tuple[str, ...]) -> int:
        if path not in self.paths:
            parent = self._path(path[:-1])
            self.paths[path] = len(self.paths)
            self.definitions.append(PathInfo(self.paths[path], parent, self.strings[path[-1]]))
        return self.paths[path]

    def _emit(self, thread: dict, duration: int) -> None:
        """Hand out the thread's open interval; instants are dropped unless a call opened them, as the matcher does."""
        path = thread["stack"][-1][0] if thread["stack"] else ()
        pid, phase = thread["pid"], thread["phase"]
        if thread["opened"] == Opened.CALL and thread["category"] == Category.CUDA_API:
            thread["call"] = [0]
            self.truth.calls[pid, SITES[thread["site"]].split("@")[0]].append(thread["call"])
        if thread["category"] == Category.CUDA_API and thread["call"] is not None:
            thread["call"][0] += duration
        if duration or thread["opened"] == Opened.CALL:
            key = (pid, phase, path)
            self.truth.time[(*key, thread["category"], thread["state"])] += duration
            if thread["wait"]:
                self.truth.waits[(*key, thread["category"], thread["wait"])] += duration
            self.truth.hits[key] += thread["hits"]
            overhead = self.random.choice((0, 3, 900))  # more than the duration, at times
            self.truth.overhead[(*key, thread["category"])] += overhead
            if thread["opened"] == Opened.CALL and thread["origin"] != thread["category"]:
                kind = f"{CATEGORY_NAMES[thread['origin']]}_to_{CATEGORY_NAMES[thread['category']]}"
                self.truth.transitions[(*key, kind)] += 1
            self.rows.append((
                thread["number"], self.paths[path], self.strings.get(phase, 0), thread["site"], thread["now"], duration,
                thread["hits"], overhead, thread["category"], thread["origin"], thread["state"], thread["opened"],
                thread["wait"], 0,
            ))  # fmt: skip
            thread["hits"] = 0
        thread["now"] += duration
        thread["origin"] = thread["category"]
        thread["opened"] = Opened.CONTINUED

    def _close(self, thread: dict, flags: int = 0) -> None:
        path, phase, start, opened_flags = thread["stack"].pop()
        self.spans.append(
            (thread["number"], self.paths[path], self.strings.get(phase, 0), opened_flags | flags, start, thread["now"])
        )

    def step(self, thread: dict) -> None:
        """One event of one thread, after some time or none."""
        self._emit(thread, self.random.choice(self.durations))
        choice = self.random.randrange(10)
        thread["hits"] += 1
        if choice < 2:
            path = (thread["stack"][-1][0] if thread["stack"] else ()) + (self.random.choice(NAMES),)
            self._path(path)
            thread["stack"].append((path, thread["phase"], thread["now"], 0))
            self.truth.instances[thread["pid"], thread["phase"], path] += 1
            thread["opened"] = Opened.OP_BEGIN
        elif choice < 4 and thread["stack"]:
            self._close(thread)
            thread["opened"] = Opened.OP_END
        elif choice < 8:
            thread["category"] = Category(self.random.randrange(5))
            thread["site"] = self.random.choice(list(SITES))
            thread["opened"] = self.random.choice((Opened.CALL, Opened.CALL, Opened.RETURN, Opened.GIL_RELEASE))
        elif choice == 8:
            thread["state"] = ThreadState(self.random.randrange(3))
            blocked = thread["state"] == ThreadState.BLOCKED
            thread["wait"] = Wait(self.random.randrange(len(Wait))) if blocked else Wait.OTHER
            thread["opened"] = Opened.SCHEDULER
        elif self.random.random() < 0.3:  # the thread exits
            while thread["stack"]:
                self._close(thread, SpanFlag.CUT_AT_END)
            thread["alive"] = False

    def change_phase(self) -> None:
        """Every thread of one process is in another phase from now on (each at its own time: enough for totals)."""
        pid, phase = self.random.choice((100, 200)), self.random.choice(PHASES)
        for thread in self.threads:
            if thread["pid"] == pid and thread["alive"]:
                self._emit(thread, 5)
                thread["phase"] = phase
                thread["opened"] = Opened.PHASE

    def batch(self, events: int) -> Batch:
        """Random events of random threads, then everything up to now is handed out."""
        for _ in range(events):
            living = [thread for thread in self.threads if thread["alive"]]
            if not living:
                break
            if self.random.random() < 0.03:
                self.change_phase()
            self.step(self.random.choice(living))
        for thread in self.threads:
            if thread["alive"] and self.random.random() < 0.7 and thread["opened"] != Opened.OP_END:
                self._emit(thread, 11)
        rows = np.array(self.rows, INTERVAL_DTYPE)
        spans = np.array(self.spans, SPAN_DTYPE)
        definitions, self.definitions, self.rows, self.spans = self.definitions, [], [], []
        return Batch(0, definitions, {"intervals": rows, "spans": spans})  # type: ignore[arg-type]

    def settle(self) -> None:
        """What is open now, as the truth has it."""
        for thread in self.threads:
            for path, phase, _, _ in thread["stack"]:
                self.truth.open_now[thread["pid"], phase, path] += 1


def check(counted: Totals, truth: Truth, *, phases: bool) -> None:
    time: Counter[tuple[int, str, tuple[str, ...], int, int]] = Counter()
    hits, overhead, instances, open_now, waits = Counter(), Counter(), Counter(), Counter(), Counter()
    transitions: Counter[tuple[int, str, tuple[str, ...], str]] = Counter()
    for row in counted.operations():
        key = (row.pid, row.phase, row.path)
        assert key not in hits
        for cell, ns in enumerate(row.time_ns):
            time[(*key, *divmod(cell, len(ThreadState)))] = ns
        for category in Category:
            for name, ns in by_activity(row.activity_ns, category).items():
                if name not in ("running", "runnable", "other"):
                    waits[(*key, category, Wait[name.upper()])] = ns
        parts = row.activities_ns
        assert [parts["running"], parts["runnable"], sum(parts.values()) - sum(row.state_ns[:2])] == list(row.state_ns)
        assert min(parts.values()) >= 0
        for category, ns in enumerate(row.category_ns):
            assert sum(by_activity(row.activity_ns, category).values()) == ns
        hits[key], instances[key], open_now[key] = row.hits, row.count if row.path else 0, row.open_now
        for category, ns in enumerate(row.overhead_ns):
            overhead[(*key, category)] = ns
        wanted = [max(0, raw - cost) for raw, cost in zip(row.category_ns, row.overhead_ns, strict=True)]
        assert list(row.corrected_ns) == wanted
        assert sum(row.category_ns) - sum(row.overhead_ns) == sum(wanted) - row.overcorrected_ns
        corrected = row.resources_of(sum(wanted))
        assert sum(corrected.values()) == sum(wanted)
        assert min(corrected.values()) >= 0
        for kind, number in row.transitions.items():
            transitions[(*key, kind)] = number
        assert sum(row.category_ns) == sum(row.state_ns) == row.wall_ns == sum(row.resources_ns.values())
    assert +time == +truth.time
    assert +waits == +truth.waits
    assert +hits == +truth.hits
    assert +overhead == +truth.overhead
    assert +transitions == +truth.transitions
    if phases:
        assert +open_now == +truth.open_now
        assert +instances == +truth.instances
    assert without_phases(open_now) == without_phases(truth.open_now)
    assert without_phases(instances) == without_phases(truth.instances)


def without_phases(counts: Counter[tuple[int, str, tuple[str, ...]]]) -> Counter[tuple[int, tuple[str, ...]]]:
    found: Counter[tuple[int, tuple[str, ...]]] = Counter()
    for (pid, _, path), count in counts.items():
        found[pid, path] += count
    return +found


def check_calls(counted: Totals, truth: Truth) -> None:
    found = {(call.pid, call.name): call for call in counted.cuda_calls()}
    assert set(found) == set(truth.calls)
    for key, durations in truth.calls.items():
        call, ordered = found[key], sorted(ns for (ns,) in durations)
        assert (call.count, call.total_ns) == (len(ordered), sum(ordered))
        for fraction, value in ((0.5, call.p50_ns), (0.99, call.p99_ns)):
            exact = ordered[math.ceil(fraction * len(ordered)) - 1]
            assert abs(value - exact) <= exact * histogram.RELATIVE_ERROR


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    threads=st.integers(1, 6),
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=6),
    instants=st.booleans(),
)
def test_totals_are_what_happened(seed: int, threads: int, sizes: list[int], instants: bool) -> None:
    session = Session(seed, threads, instants=instants)
    counted = Totals()
    for size in sizes:
        counted.add(session.batch(size))
    # Whatever an instant left open in the last batch shows with the next one.
    for thread in session.threads:
        if thread["alive"]:
            session._emit(thread, 3)
    counted.add(session.batch(0))
    session.settle()
    # Where an instant hides the begin of an operation, a change of the phase can hide in it as well.
    check(counted, session.truth, phases=not instants)
    check_calls(counted, session.truth)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32), block=st.integers(1, 50))
def test_blocks_and_order_of_threads_do_not_matter(seed: int, block: int) -> None:
    """A trace is read table by table, in blocks, each chunk sorted by thread: the same totals."""
    session = Session(seed, 4, instants=False)
    batches = [session.batch(40) for _ in range(4)]
    session.settle()
    whole = Totals()
    for batch in batches:
        whole.add(batch)
    streamed = Totals()
    for definition in itertools.chain.from_iterable(batch.definitions for batch in batches):
        streamed.define(definition)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(totals, "BLOCK_ROWS", block)
        for batch in batches:
            rows = batch.tables["intervals"]
            rows = rows[np.argsort(rows["thread"], kind="stable")]
            streamed.add_intervals(rows[list(totals.INTERVAL_COLUMNS)])
        for batch in batches:
            streamed.add_spans(batch.tables["spans"])
    assert by_key(streamed) == by_key(whole)
    assert sorted(streamed.cuda_calls(), key=repr) == sorted(whole.cuda_calls(), key=repr)


def by_key(counted: Totals) -> dict[tuple[int, str, tuple[str, ...]], object]:
    # A path that was only ever open for an instant may have a row in one of the two, without figures.
    return {
        (row.pid, row.phase, row.path): row
        for row in counted.operations()
        if row.wall_ns or row.count or row.hits or row.transitions
    }


def intervals(*rows: dict[str, int]) -> NDArray[np.void]:
    table = np.zeros(len(rows), INTERVAL_DTYPE)
    for index, row in enumerate(rows):
        for name, value in row.items():
            table[name][index] = value
    return table


def defined(threads: int = 1) -> Totals:
    counted = Totals()
    counted.define(ProcessInfo(100, 1, "train", ("python", "train.py"), 0))
    for number in range(1, threads + 1):
        counted.define(ThreadInfo(number, 100, 100 + number, ""))
    for number, text in enumerate(("a", "b", "warmup", "train", "algorithm", "PPO", "DQN"), 1):
        counted.define(StringInfo(number, text))
    counted.define(PathInfo(1, 0, 1))
    counted.define(PathInfo(2, 1, 2))
    return counted


def test_an_operation_that_began_in_an_earlier_phase_stays_there() -> None:
    counted = defined()
    counted.add_intervals(
        intervals(
            {"thread": 1, "path": 1, "phase": 3, "start_ns": 0, "duration_ns": 10, "opened": Opened.OP_BEGIN},
            {"thread": 1, "path": 1, "phase": 4, "start_ns": 10, "duration_ns": 10, "opened": Opened.PHASE},
            {"thread": 1, "path": 2, "phase": 4, "start_ns": 20, "duration_ns": 10, "opened": Opened.OP_BEGIN},
        )
    )
    counts = {(row.phase, row.path): (row.count, row.open_now) for row in counted.operations()}
    assert counts == {("warmup", ("a",)): (1, 1), ("train", ("a",)): (0, 0), ("train", ("a", "b")): (1, 1)}


def test_a_long_call_cut_by_the_scheduler_is_one_call() -> None:
    counted = defined()
    counted.define(ProbeInfo(7, "cuda", 3, "libcuda.so", "cuStreamSynchronize", 0, "emulated", "session", True))
    cuda = {"thread": 1, "site": 7, "category": Category.CUDA_API}
    python = {"thread": 1, "category": Category.PYTHON}
    counted.add_intervals(
        intervals(
            {**cuda, "duration_ns": 1000, "opened": Opened.CALL},
            {**cuda, "duration_ns": 5000, "state": ThreadState.BLOCKED, "opened": Opened.SCHEDULER},
        )
    )
    running = counted.cuda_calls()[0]
    assert (running.count, running.total_ns) == (1, 6000)
    counted.add_intervals(
        intervals(
            {**cuda, "duration_ns": 2000, "opened": Opened.SCHEDULER},
            {**python, "duration_ns": 999, "opened": Opened.RETURN},
            {**cuda, "duration_ns": 100, "opened": Opened.CALL},
        )
    )
    (call,) = counted.cuda_calls()
    assert (call.name, call.count, call.total_ns) == ("cuStreamSynchronize", 2, 8100)
    assert call.p50_ns == pytest.approx(100, rel=histogram.RELATIVE_ERROR)
    assert call.p99_ns == pytest.approx(8000, rel=histogram.RELATIVE_ERROR)


def test_marks() -> None:
    counted = defined(threads=2)
    marks = np.array(
        [
            (1, MarkKind.PROGRESS, 1, 1, 0),
            (1, MarkKind.PHASE, 2, 3, 0),
            (2, MarkKind.PROGRESS, 3, 2, 50),
            (1, MarkKind.METADATA, 4, 5, 6),
            (1, MarkKind.METADATA, 5, 5, 7),
            (2, MarkKind.PROGRESS, 6, 3, 50),
            (1, MarkKind.PHASE, 7, 4, 0),
        ],
        MARK_DTYPE,
    )
    counted.add(Batch(10, [], {"marks": marks[:3]}))
    counted.add(Batch(20, [], {"marks": marks[3:]}, Losses(events=3), Counters(received=9)))
    (process,) = counted.processes()
    assert (process.phase, process.steps, process.step, process.total_steps) == ("train", 3, 3, 50)
    assert process.steps_by_phase == {DEFAULT_PHASE: 1, "warmup": 2}
    assert process.metadata == {"algorithm": "DQN"}
    assert process.threads == 2
    assert (counted.losses.events, counted.counters.received, counted.now_ns) == (3, 9, 20)


def test_ids_without_a_definition_are_unknown_and_counted() -> None:
    counted = Totals()
    counted.add_intervals(
        intervals({"thread": 4_000_000_000, "path": 9, "phase": 9, "duration_ns": 5, "category": 99, "state": 99})
    )
    (row,) = counted.operations()
    assert (row.pid, row.phase, row.path) == (0, "(unknown)", ("(unknown)",))
    assert row.category_ns[Category.OTHER] == row.state_ns[ThreadState.BLOCKED] == 5
    assert [process.info.name for process in counted.processes()] == ["(unknown)"]


def test_a_process_defined_again_keeps_its_totals() -> None:
    counted = defined()
    counted.add_intervals(intervals({"thread": 1, "duration_ns": 5}))
    counted.define(ProcessInfo(100, 1, "selfplay-03", ("python",), 0, end_ns=77))
    (process,) = counted.processes()
    assert (process.info.name, process.info.end_ns, process.threads) == ("selfplay-03", 77, 1)
    assert counted.wall_ns() == 5


def test_empty_tables_add_nothing() -> None:
    counted = Totals()
    empty = {"intervals": intervals(), "spans": np.zeros(0, SPAN_DTYPE), "marks": np.zeros(0, MARK_DTYPE)}
    counted.add(Batch(1, [], empty))
    assert counted.operations() == []
    assert counted.phases() == ()


@given(st.lists(st.integers(0, 2**48 - 1), min_size=1))
def test_histogram_bins_hold_their_durations(durations: list[int]) -> None:
    values = np.array(durations, np.uint64)
    bins = histogram.bins_of(values)
    assert bins.max() < histogram.BINS
    middles = histogram.MIDDLES[bins].astype(np.float64)
    assert (np.abs(middles - values) <= values * histogram.RELATIVE_ERROR).all()
    order = np.argsort(values)
    assert (np.diff(bins[order]) >= 0).all()


def test_histogram_takes_the_longest_durations() -> None:
    assert histogram.bins_of(np.array([2**63 - 1, 2**48], np.uint64)).tolist() == [histogram.BINS - 1] * 2
    assert histogram.percentiles(np.zeros(histogram.BINS, np.int64), (0.5,)) == (0,)


@given(st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=20), max_size=8))
def test_key_rows(batches: list[list[int]]) -> None:
    rows, expected = KeyRows(), {}
    for batch in batches:
        for key in batch:
            expected.setdefault(key, len(expected))
        assert rows.rows(np.array(batch, np.uint64)).tolist() == [expected[key] for key in batch]
    assert rows.keys == list(expected)


@given(st.lists(st.integers(0, 30)))
def test_last_of_each(values: list[int]) -> None:
    expected = [len(values) - 1 - values[::-1].index(value) for value in sorted(set(values))]
    assert last_of_each(np.array(values, np.int64)).tolist() == expected
