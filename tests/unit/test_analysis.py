"""The analysis: breakdown and DataFrames of a run whose figures are known, from memory and from a file."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

import report_samples as samples
import trace_samples

import rlscope_ebpf
from rlscope_ebpf.analysis.api import Trace, open_trace
from rlscope_ebpf.analysis.breakdown import LOSS_LIMIT, OPERATION_COLUMNS, add_up, break_down
from rlscope_ebpf.errors import DamagedTraceError, UsageError
from rlscope_ebpf.model.categories import CATEGORY_NAMES, DEFAULT_PHASE, Category
from rlscope_ebpf.model.tables import Batch, Counters, Losses, PathInfo, StringInfo
from rlscope_ebpf.model.totals import Totals
from rlscope_ebpf.trace.reader import TraceReader
from rlscope_ebpf.trace.writer import TraceWriter

MS = samples.MS
RESOURCES = ["cpu_only_ns", "cpu_gpu_ns", "gpu_only_ns", "idle_ns"]


def write(path: Path, batch: Batch | None = None) -> Path:
    writer = TraceWriter(path)
    writer.start(samples.INFO)
    writer.batch(samples.training_batch() if batch is None else batch)
    writer.finish(samples.END)
    return path


@pytest.fixture
def trace() -> Trace:
    return Trace(samples.training())


def test_breakdown_of_a_training_run() -> None:
    breakdown = break_down(samples.training())
    assert breakdown.duration_ns == 2_500 * MS
    assert breakdown.complete
    assert not breakdown.overhead.calibrated
    assert breakdown.overhead.fraction == pytest.approx(90 / 2_500)  # of the process, whose two threads took turns
    (process,) = breakdown.processes
    assert [phase.name for phase in process.phases] == [DEFAULT_PHASE, "evaluation"]
    training, evaluation = process.phases
    assert (training.wall_ns, evaluation.wall_ns) == (4_000 * MS, 1_000 * MS)
    assert (training.steps, evaluation.steps) == (20, 5)
    assert [operation.text for operation in training.operations] == [
        "rollout", "rollout/env.step", "rollout/inference", "train", "train/backprop", "(untracked)",
    ]  # fmt: skip
    rollout, step = training.operations[:2]
    assert rollout.wall_ns == 20 * 6 * MS
    assert rollout.inclusive_ns == 20 * 58 * MS
    assert rollout.share == pytest.approx(120 / 5_000)
    assert step.mean_ns == 32 * MS
    assert training.operations[-1].mean_ns is None
    assert step.total.corrected_ns == step.total.category_ns
    assert sum(operation.share for operation in process.operations) == pytest.approx(1)


def test_progress_reaches_the_number_of_rows() -> None:
    calls: list[tuple[int, int]] = []
    break_down(samples.training(), lambda done, total: calls.append((done, total)))
    rows = len(samples.tables()["intervals"])
    assert calls[-1] == (rows, rows)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


def test_calibrated_only_if_the_session_says_so() -> None:
    for calibration, expected in (({"calibrated": True}, True), ({"calibrated": "no"}, False), ({}, False)):
        source = samples.training(info=replace(samples.INFO, calibration=calibration))
        assert break_down(source).overhead.calibrated is expected


@pytest.mark.parametrize(
    ("sent", "lost", "refused"), [(1000, 10, False), (1000, 11, True), (0, 5, True), (0, 0, False), (5, 1000, True)]
)
def test_shares_are_refused_when_too_much_is_lost(sent: int, lost: int, refused: bool) -> None:
    counters = Counters(received=max(0, sent - lost), sent=sent)
    breakdown = break_down(samples.training(losses=Losses(events=lost), counters=counters))
    assert breakdown.shares_refused is refused
    assert (breakdown.loss_fraction > LOSS_LIMIT) is refused
    assert 0 <= breakdown.loss_fraction <= 1
    shares = Trace(samples.training(losses=Losses(events=lost), counters=counters)).operations()["share"]
    assert shares.isna().all() == refused


def test_operations(trace: Trace) -> None:
    frame = trace.operations()
    assert tuple(frame.columns) == OPERATION_COLUMNS
    assert (frame[[f"{name}_ns" for name in CATEGORY_NAMES]].sum(axis=1) == frame["wall_ns"]).all()
    assert (frame[RESOURCES].sum(axis=1) == frame["wall_ns"]).all()
    assert (frame[["running_ns", "runnable_ns", "blocked_ns"]].sum(axis=1) == frame["wall_ns"]).all()
    inference = frame.set_index(["phase", "operation"]).loc[("evaluation", "rollout/inference")]
    assert inference["count"] == 5
    assert inference["cuda_api_ns"] == 5 * 6 * MS
    assert inference["idle_ns"] == 5 * 4 * MS
    assert (inference["process"], inference["pid"], inference["depth"]) == ("train.py", 100, 2)


def test_transitions(trace: Trace) -> None:
    frame = trace.transitions().set_index(["phase", "operation", "transition"])
    row = frame.loc[(DEFAULT_PHASE, "rollout/inference", "backend_to_cuda_api")]
    assert (row["origin"], row["category"], row["count"]) == ("backend", "cuda_api", 20)
    assert (row["per_instance"], row["per_step"]) == (1, 1)


def test_cuda_calls(trace: Trace) -> None:
    (row,) = trace.cuda_calls().to_dict("records")
    assert (row["name"], row["count"], row["total_ns"], row["mean_ns"]) == ("cuStreamSynchronize", 25, 150 * MS, 6 * MS)
    assert row["p99_ns"] == pytest.approx(6 * MS, rel=0.02)


def test_processes(trace: Trace) -> None:
    (row,) = trace.processes().to_dict("records")
    assert (row["pid"], row["name"], row["command"]) == (100, "train.py", "python train.py --lr 3e-4")
    assert (row["threads"], row["steps"], row["exited"], row["wall_ns"]) == (2, 25, False, 5_000 * MS)
    assert row["metadata"] == {"algorithm": "PPO"}


def test_intervals_agree_with_operations(trace: Trace) -> None:
    intervals = trace.intervals()
    assert isinstance(intervals["operation"].dtype, pd.CategoricalDtype)
    sums = intervals.groupby(["phase", "operation"], observed=True)["duration_ns"].sum()
    expected = trace.operations().set_index(["phase", "operation"])["wall_ns"]
    assert sums.to_dict() == expected.to_dict()
    assert set(intervals["category"]) == {"python", "simulator", "backend", "cuda_api", "other"}
    assert set(intervals.loc[intervals["category"] == "cuda_api", "site"]) == {"cuStreamSynchronize"}
    assert set(zip(intervals["pid"], intervals["tid"], strict=True)) == {(100, 100), (100, 101)}
    parts = pd.concat([part["duration_ns"] for part in trace.interval_chunks()])
    assert parts.sum() == intervals["duration_ns"].sum()


def test_spans(trace: Trace) -> None:
    spans = trace.spans()
    steps = spans[spans["operation"] == "rollout/env.step"]
    assert len(steps) == 25
    assert (steps["wall_ns"] == 32 * MS).all()
    assert (spans[spans["operation"] == "rollout"]["wall_ns"] == 58 * MS).all()
    assert not spans["cut_at_end"].any()


def test_marks(trace: Trace) -> None:
    marks = trace.marks()
    assert marks["kind"].value_counts().to_dict() == {"progress": 25, "phase": 1, "metadata": 1}
    (phase,) = marks[marks["kind"] == "phase"].to_dict("records")
    assert phase["text"] == "evaluation"
    assert pd.isna(phase["step"])
    (metadata,) = marks[marks["kind"] == "metadata"].to_dict("records")
    assert (metadata["key"], metadata["text"]) == ("algorithm", "PPO")
    assert marks["step"].max() == 25
    assert set(marks["total"].dropna()) == {25}


def test_a_file_says_the_same_as_memory(tmp_path: Path, trace: Trace) -> None:
    read = rlscope_ebpf.open(write(tmp_path / "run.rlscope"))
    assert read.complete
    assert read.problems == ()
    assert (read.info, read.losses) == (samples.INFO, Losses())
    pd.testing.assert_frame_equal(read.operations(), trace.operations())
    pd.testing.assert_frame_equal(read.transitions(), trace.transitions())
    pd.testing.assert_frame_equal(read.cuda_calls(), trace.cuda_calls())
    pd.testing.assert_frame_equal(read.processes(), trace.processes())
    assert len(read.intervals()) == len(trace.intervals())
    assert "trainer" in repr(read)


def test_an_empty_trace_has_empty_tables(tmp_path: Path) -> None:
    read = open_trace(write(tmp_path / "empty.rlscope", Batch(samples.END_NS)))
    for frame in (
        read.operations(), read.transitions(), read.cuda_calls(), read.processes(),
        read.intervals(), read.spans(), read.marks(),
    ):  # fmt: skip
        assert len(frame) == 0
        assert len(frame.columns) > 5
    assert tuple(read.operations().columns) == OPERATION_COLUMNS


def test_errors_of_opening(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        open_trace(tmp_path / "missing.rlscope")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(DamagedTraceError):
        open_trace(tmp_path / "empty")


def test_a_trace_without_its_end_counts_what_is_open(tmp_path: Path) -> None:
    batch = samples.training_batch()
    # The profiler was killed 10 ms into the last iteration, inside "inference".
    cut = samples.END_NS - 90 * MS
    intervals, spans = batch.tables["intervals"], batch.tables["spans"]
    ends = intervals["start_ns"] + intervals["duration_ns"]
    batch.tables = {"intervals": intervals[ends <= cut], "spans": spans[spans["end_ns"] <= cut]}
    path = tmp_path / "killed.rlscope"
    writer = TraceWriter(path)
    writer.start(samples.INFO)
    writer.batch(batch)
    writer.flush()
    writer.close()
    read = open_trace(path)
    assert not read.complete
    frame = read.operations().set_index(["phase", "operation"])
    inference = frame.loc[("evaluation", "rollout/inference")]
    assert (inference["count"], inference["open_now"]) == (5, 1)
    assert frame.loc[("evaluation", "rollout/env.step")]["count"] == 4


def test_live_totals_and_a_trace_agree(tmp_path: Path) -> None:
    """The same batches through the writer and reader, and straight into the totals."""
    path = tmp_path / "run.rlscope"
    live = Totals()
    for batch in trace_samples.write(path):
        live.add(batch)
    read = add_up(TraceReader(path))

    def figures(totals: Totals) -> list[str]:
        return sorted(
            repr((each.pid, each.phase, each.path, each.time_ns, each.hits, sorted(each.transitions.items())))
            for each in totals.operations()
        )

    assert figures(read) == figures(live)
    assert sorted(map(repr, read.cuda_calls())) == sorted(map(repr, live.cuda_calls()))
    live.advance(read.now_ns)
    assert read.processes() == live.processes()
    live.finish()
    assert read.iterations() == live.iterations()
    assert read.overlap(0, read.now_ns) == live.overlap(0, read.now_ns)


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 1000),
    strings=st.lists(st.text(max_size=5), min_size=8, max_size=8),
)
def test_frames_hold_for_any_names(seed: int, strings: list[str]) -> None:
    """Equal names, empty names, names with separators: the sums stay what they are."""
    source = samples.training()
    for number, text in enumerate(strings, 1):
        source.define(StringInfo(number, text))
    for number, parent in ((1, 0), (2, 1), (3, 1), (4, 0), (5, 4)):
        source.define(PathInfo(number, parent, 1 + (seed + number) % 8))
    trace = Trace(source)
    operations, intervals = trace.operations(), trace.intervals()
    assert operations["wall_ns"].sum() == intervals["duration_ns"].sum() == 5_000 * MS
    assert operations["count"].sum() == len(trace.spans()) == 125
    assert np.isclose(operations["share"].sum(), 1)
    assert (operations["inclusive_ns"] >= operations["wall_ns"]).all()
    assert operations[f"{Category.CUDA_API.name.lower()}_ns"].sum() == trace.cuda_calls()["total_ns"].sum()
