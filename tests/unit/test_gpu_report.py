"""GPU figures in reports, frames and the trace: the samples' training run has round ones."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import report_samples as samples

from rlscope_ebpf.analysis.api import Trace
from rlscope_ebpf.analysis.breakdown import break_down
from rlscope_ebpf.live.model import LiveModel
from rlscope_ebpf.model import format as fmt
from rlscope_ebpf.model.tables import Losses
from rlscope_ebpf.report import csv, json, text
from rlscope_ebpf.trace.reader import TraceReader
from rlscope_ebpf.trace.writer import TraceWriter

MS = samples.MS
RUNS = samples.ITERATIONS + samples.EVALUATIONS
INFERENCE, BACKPROP = ("rollout", "inference"), ("train", "backprop")


def test_json_is_valid_and_right() -> None:
    report = json.report_dict(break_down(samples.gpu_training()))
    jsonschema.validate(report, json.schema())
    assert report["session"]["gpu"] == "cupti"
    (process,) = report["processes"]
    for each in process["operations"]:
        runs = samples.ITERATIONS if each["phase"] == "(default)" else samples.EVALUATIONS
        own = samples.GPU_NS_OF_ITERATION.get(tuple(each["path"]), 0)
        assert each["raw"]["gpu_ns"] == each["corrected"]["gpu_ns"] == runs * own
        for times in (each["raw"], each["corrected"]):
            assert sum(times["resources_ns"].values()) == times["wall_ns"]
    inference = next(each for each in process["operations"] if tuple(each["path"]) == INFERENCE)
    # 20 ms, asleep from 18 to 22; the GPU works from 16.5 to 17 and from 17.2 to 20.7.
    assert inference["raw"]["resources_ns"] == {
        "cpu_only": 20 * 14.7 * MS, "cpu_gpu": 20 * 1.3 * MS, "gpu_only": 20 * 2.7 * MS, "idle": 20 * 1.3 * MS,
    }  # fmt: skip
    assert (inference["gpu_activities"], inference["queued"]["count"]) == (60, 60)
    assert inference["queued"]["total_ns"] == 20 * (0.5 + 0.2 + 2.7) * MS
    (device,) = process["gpu_devices"]
    assert (device["index"], device["busy_ns"], device["kernels"]) == (0, RUNS * 26.5 * MS, 4 * RUNS)
    assert (device["reported_utilization"], device["reported_own_utilization"], device["reported_ns"]) == (
        None,
        None,
        0,
    )
    assert process["gpu_ns"] == RUNS * 26.5 * MS
    assert [(each["name"], each["count"], each["total_ns"]) for each in process["gpu_kernels"]] == [
        (samples.KERNELS[1], 3 * RUNS, RUNS * 23 * MS), (samples.KERNELS[0], RUNS, RUNS * 4 * MS),
    ]  # fmt: skip
    assert {(each["direction"], each["count"], each["bytes"]) for each in process["gpu_copies"]} == {
        ("host_to_device", RUNS, RUNS * 1_048_576), ("device_to_host", RUNS, RUNS * 4096), ("set", RUNS, RUNS * 65_536),
    }  # fmt: skip


def written(path: Path) -> TraceReader:
    """The training run with GPU activity, on disk."""
    trace = samples.gpu_training()
    writer = TraceWriter(path)
    writer.start(trace.info)
    batch = samples.training_batch()
    batch.definitions += [info for info in trace.strings.values() if info not in batch.definitions]
    batch.tables["gpu"] = trace.tables["gpu"]
    writer.batch(batch)
    writer.finish(samples.END)
    return TraceReader(path)


def test_a_trace_on_disk_says_the_same(tmp_path: Path) -> None:
    read, held = (
        json.report_dict(break_down(each)) for each in (written(tmp_path / "gpu.rlscope"), samples.gpu_training())
    )
    assert read["processes"] == held["processes"]


@pytest.mark.parametrize("step_ns", [None, 130 * MS])
def test_a_replay_says_the_same(tmp_path: Path, step_ns: int | None) -> None:
    model = LiveModel()
    trace = written(tmp_path / "gpu.rlscope")
    model.start(trace.info)
    busy_ns = [0]
    for batch in trace.batches(step_ns):
        model.batch(batch)
        busy_ns.append(sum(device.busy_ns for device in model.snapshot().gpu_devices))
    assert busy_ns == sorted(busy_ns)
    (process,) = json.report_dict(break_down(trace))["processes"]
    snapshot = model.snapshot()
    assert busy_ns[-1] == process["gpu_ns"]
    assert {(row.phase, row.path): (row.gpu_ns, row.resources_ns) for row in snapshot.operations} == {
        (each["phase"], tuple(each["path"])): (each["raw"]["gpu_ns"], each["raw"]["resources_ns"])
        for each in process["operations"]
    }
    assert {row.name: row.count for row in snapshot.gpu_kernels} == {
        each["name"]: each["count"] for each in process["gpu_kernels"]
    }


@pytest.mark.parametrize("width", [60, 80, 140, 160])
def test_text(width: int) -> None:
    shown = text.report_text(break_down(samples.gpu_training()), width)
    assert max(map(len, shown.splitlines())) <= width
    for what in ("GPU KERNELS", "ampere_sgemm_128x64_tn", "GPU COPIES", "host → device", "device 0", "RESOURCES"):
        assert what in shown
    row = next(line for line in shown.splitlines() if "inference" in line and "6.5 %" in line)
    assert all(figure in row for figure in ("73.5 %", "13.5 %", "80.0 ms", "1.13 ms"))
    assert "GPU time comes from CUPTI." in shown


def test_a_process_that_uses_no_gpu_shows_none() -> None:
    info = replace(samples.INFO, gpu="cupti", gpu_reason="")
    value = break_down(samples.training(info=info))
    report = json.report_dict(value)
    jsonschema.validate(report, json.schema())
    (process,) = report["processes"]
    assert (process["gpu_kernels"], process["gpu_devices"], process["gpu_copies"]) == ([], [], [])
    shown = text.report_text(value, 160)
    assert [line for line in shown.splitlines() if "GPU" in line] == [
        "GPU time comes from CUPTI: no work of a GPU was seen."
    ]


def test_csv_and_frames_agree() -> None:
    trace = Trace(samples.gpu_training())
    table = pd.read_csv(io.StringIO(csv.report_text(trace.breakdown())))
    frame = trace.operations()
    for column in ("gpu_ns", "gpu_activities", "cpu_gpu_ns", "gpu_only_ns", "queue_mean_ns", "queue_p99_ns"):
        assert table[column].to_numpy() == pytest.approx(frame[column].to_numpy(), nan_ok=True)
    assert table["queue_mean_ns"].isna().sum() == (table["gpu_activities"] == 0).sum() > 0


def test_frames() -> None:
    trace = Trace(samples.gpu_training())
    rows = trace.gpu()
    assert len(rows) == RUNS * len(samples.GPU_ITERATION) == sum(len(chunk) for chunk in trace.gpu_chunks())
    assert rows.groupby("operation", observed=True)["duration_ns"].sum().to_dict() == {
        "rollout/inference": RUNS * 4 * MS, "train/backprop": RUNS * 24.5 * MS,
    }  # fmt: skip
    assert set(rows["direction"]) == {"", "host_to_device", "device_to_host"}
    assert (rows["queued_ns"] == rows["start_ns"] - rows["launch_ns"]).all()
    assert set(rows["kind"]) == {"kernel", "copy", "set"}
    kernels = trace.gpu_kernels().set_index("name")
    assert kernels.loc[samples.KERNELS[0], "queue_mean_ns"] == MS
    assert trace.gpu_copies()["bytes"].sum() == RUNS * (1_048_576 + 4096 + 65_536)
    devices = trace.gpu_devices()
    assert devices["busy"].tolist() == [pytest.approx(0.265)]
    assert trace.processes()["gpu_ns"].tolist() == devices["busy_ns"].tolist()


def test_activity_of_unknown_launch_has_missing_values() -> None:
    trace = samples.gpu_training()
    for column in ("launch_ns", "thread", "path"):
        trace.tables["gpu"][column] = 0
    rows = Trace(trace).gpu()
    assert rows["launch_ns"].isna().all()
    assert rows["queued_ns"].isna().all()
    assert (rows["tid"] == 0).all()


def test_what_comes_too_late_is_a_loss() -> None:
    trace = samples.gpu_training()
    late = trace.tables["gpu"][:7].copy()
    # Two processes' worth of time later; the file ends with activity of its beginning.
    trace.tables["intervals"]["start_ns"] *= 20
    trace.tables["intervals"]["duration_ns"] *= 20
    trace.tables["gpu"] = trace.tables["gpu"][:0]
    assert break_down(trace).losses == Losses()
    end_ns = int((trace.tables["intervals"]["start_ns"] + trace.tables["intervals"]["duration_ns"]).max())
    after = late.copy()
    after["start_ns"] = end_ns + 1
    trace.tables["gpu"] = np.concatenate([after, late])
    assert break_down(trace).losses == Losses(gpu_late=7)


@pytest.mark.parametrize(("lost", "warned"), [(0, False), (9, False), (20, True)])
def test_lost_records_are_said(lost: int, warned: bool) -> None:
    counters = replace(samples.COUNTERS, gpu_records=1_000, gpu_matched=500, gpu_early=3)
    value = break_down(samples.gpu_training(counters=counters, losses=Losses(gpu_records=lost)))
    shown = text.report_text(value, 160)
    assert "GPU records  1.00 k received, 3 of work launched before the recording" in shown
    assert ("its figures are too low" in shown) is warned
    session = json.report_dict(value)["session"]
    assert session["gpu_records_received"] == 1_000
    assert session["gpu_loss_fraction"] == pytest.approx(lost / (1_000 + lost))


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (samples.KERNELS[0], "vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >"),
        ("void f<(int)4>(char const*, (anonymous namespace)::T)", "f<(int)4>"),
        ("ns::(anonymous namespace)::apply<at::native::Adam, (a::B)1>(int)", "apply<at::native::Adam, (a::B)1>"),
        ("a::(anonymous namespace)", "(anonymous namespace)"),
        ("a::", "a::"),
        ("ampere_sgemm", "ampere_sgemm"),
        (")", ")"),
        ("(x)", "(x)"),
        ("", ""),
    ],
)
def test_kernels_are_shown_without_what_surrounds_their_names(name: str, shown: str) -> None:
    assert fmt.kernel(name) == shown
