"""Reports, tables and the summary say which figures are sampled, and how far these may be off."""

from __future__ import annotations

import csv as stdlib_csv
import io
import json as stdlib_json
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import report_samples as samples

from rlscope_ebpf.analysis.breakdown import Breakdown, break_down
from rlscope_ebpf.cli import summary
from rlscope_ebpf.live.model import LiveModel
from rlscope_ebpf.model.categories import CATEGORY_NAMES, Category, ThreadState
from rlscope_ebpf.model.tables import SAMPLE_ROW_DTYPE, Batch, Losses
from rlscope_ebpf.report import csv, json, text
from rlscope_ebpf.trace.reader import TraceReader
from rlscope_ebpf.trace.writer import TraceWriter

INFERENCE = ("rollout", "inference")
COUNTERS = replace(samples.COUNTERS, samples=500)
INFO = replace(samples.INFO, capture={**samples.INFO.capture, "mode": "sample"})


def tables(*, sampled: int | None = None) -> dict[str, np.ndarray]:
    """The training run; the time of inference on a CPU is sampled (of all operations without `sampled`)."""
    found = samples.tables()
    rows = found["intervals"]
    on_cpu = rows["state"] != ThreadState.BLOCKED
    rows["sampled"] = on_cpu & (rows["path"] == sampled if sampled is not None else True)
    marked = rows[rows["sampled"] != 0]
    # One in a millisecond, of the category that the probes would have told; and then no probe does.
    each = np.repeat(np.arange(len(marked)), marked["duration_ns"].astype(np.int64) // samples.MS)
    table = np.zeros(len(each), SAMPLE_ROW_DTYPE)
    for name in ("thread", "path", "phase", "category"):
        table[name] = marked[name][each]
    table["time_ns"] = marked["start_ns"][each]
    found["samples"] = table
    rows["category"][rows["sampled"] != 0] = Category.PYTHON
    return found


def breakdown(**changes: object) -> Breakdown:
    trace = samples.training(counters=COUNTERS, info=INFO, **changes)
    trace.tables.update(tables(sampled=samples.PATHS[INFERENCE]))
    return break_down(trace)


def by_path(value: Breakdown) -> dict[tuple[str, ...], dict]:
    report = stdlib_json.loads(json.report_text(value))
    jsonschema.Draft202012Validator(json.schema()).validate(report)
    assert report["session"]["mode"] == "sample"
    assert report["session"]["samples"] == 500
    return {tuple(row["path"]): row for row in report["processes"][0]["operations"] if row["phase"] == "(default)"}


def test_json_says_what_is_sampled_and_keeps_the_figures() -> None:
    exact = {
        tuple(row.total.path): row.total
        for row in break_down(samples.training()).processes[0].operations
        if row.total.phase == "(default)"
    }
    found = by_path(breakdown())
    assert {path for path, row in found.items() if row["sampled"]} == {INFERENCE}
    row = found[INFERENCE]
    assert list(row["raw"]["cpu_ns"].values()) == pytest.approx(list(exact[INFERENCE].category_ns), rel=0.02)
    assert sum(row["raw"]["cpu_ns"].values()) == row["raw"]["wall_ns"] == exact[INFERENCE].wall_ns
    sampled = row["sampled"]
    assert sum(sampled["samples"].values()) == sampled["time_ns"] // samples.MS
    assert sampled["confidence"] == 0.95
    for name in CATEGORY_NAMES:
        low, high = sampled["cpu_ns"][name]
        assert 0 <= low <= row["raw"]["cpu_ns"][name] <= high <= row["raw"]["wall_ns"]
    assert sampled["cpu_ns"]["backend"][0] < row["raw"]["cpu_ns"]["backend"]


def test_the_text_marks_them_and_says_what_the_mark_means() -> None:
    for width, each in ((80, 3), (160, 1)):  # lines of an operation
        shown = text.report_text(breakdown(), width)
        lines = shown[: shown.index("all together")].splitlines()
        at = {name: number for number, line in enumerate(lines) for name in ("inference", "backprop") if name in line}
        assert "±" in "".join(lines[at["inference"] : at["inference"] + each]), shown
        assert "±" not in "".join(lines[at["backprop"] : at["backprop"] + min(2, each)]), shown
        told = " ".join(shown.split())
        assert "Shares with ± were told by samples" in told
        assert "95 %" in told
        assert "chance only" in told
        assert "Samples count no calls" in told
        assert "500 looks at running threads" in told
    assert "±" not in text.report_text(break_down(samples.training()), 160)


def test_csv_has_their_bounds() -> None:
    rows = list(stdlib_csv.DictReader(io.StringIO(csv.report_text(breakdown()))))
    sampled = [row for row in rows if row["path"] == '["rollout", "inference"]']
    assert sampled
    for row in sampled:
        assert int(row["backend_low_ns"]) < int(row["backend_ns"]) < int(row["backend_high_ns"])
        assert int(row["samples"]) > 0
    for row in rows:
        if row not in sampled:
            assert int(row["sampled_ns"]) == 0
            assert row["python_low_ns"] == row["python_ns"] == row["python_high_ns"]


def test_shares_that_are_refused_have_no_error_either() -> None:
    lossy = breakdown(losses=Losses(events=50_000))
    assert lossy.shares_refused
    assert "±0" not in text.report_text(lossy, 160)


def test_a_trace_holds_them_and_the_summary_marks_them(tmp_path: Path) -> None:
    batch = Batch(samples.END_NS, samples.definitions(), tables(), Losses(), COUNTERS)
    writer, model = TraceWriter(tmp_path / "a.rlscope"), LiveModel()
    for sink in (writer, model):
        sink.start(INFO)
        sink.batch(batch)
        sink.finish(samples.END)
    reader = TraceReader(tmp_path / "a.rlscope")
    assert len(reader.table("samples")) == len(batch.tables["samples"])
    written = {row.total.path: row.total.category_ns for row in break_down(reader).processes[0].operations}
    live = {row.path: row.category_ns for row in model.snapshot().operations}
    assert written == live
    shown = summary.render(model.snapshot())
    assert "≈" in shown
    assert "told by samples" in shown
