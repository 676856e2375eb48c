"""Sixteen self-play workers that share one simulated GPU: what is reported of it, and how long it worked for whom."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpu_truth import checked_report, libcupti
from harness import ROOT, Profiler, Program, process_of, rlscope, wait_for

from rlscope_ebpf.errors import ProfilerError
from rlscope_ebpf.model.gpu_words import MUCH
from rlscope_ebpf.paths import gpu_library
from rlscope_ebpf.trace.reader import TraceReader

pytestmark = pytest.mark.system

PROGRAM = ROOT / "kernels_test" / "selfplay" / "main.py"
WORKERS = 16
GAME = ("--library", "simulator=*/libconnect4.so")
PLAIN = {
    "_Z5conv1PfS_": "conv1(float*, float*)",
    "_Z5conv2PfS_": "conv2(float*, float*)",
    "_Z6policyPfS_": "policy(float*, float*)",
    "_Z5valuePfS_": "value(float*, float*)",
    "_Z8backwardPfS_": "backward(float*, float*)",
    "_Z4adamPfS_i": "adam(float*, float*, int)",
}
TOLERANCE = 0.02
SPREAD = 5
"""The driver reports the GPU to be busy for at least so many times as long as it is: a tick of 10 ms in which a few
kernels of 12 us ran counts whole."""
PATIENCE_S = 300.0


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated GPU, its driver's libraries for profiler and workers, all of one kind."""
    device = tmp_path / "device"
    device.touch()
    monkeypatch.setenv("SIMCUDA_SHARED", str(device))
    monkeypatch.setenv("RLSCOPE_LIBCUPTI", libcupti())
    monkeypatch.setenv("LD_LIBRARY_PATH", str(Path(libcupti()).parent))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def _workers(output: str) -> set[int]:
    found = re.search(r"^WORKERS (.*)$", output, re.MULTILINE)
    return set(json.loads(found[1])) if found else set()


def _profiled(trace: Path) -> set[int]:
    """Processes of which something has been written, when their probes had been set."""
    try:
        reader = TraceReader(trace)
    except (OSError, ProfilerError):  # nothing is in there yet
        return set()
    return {pid for pid, process in reader.processes.items() if process.is_python}


def _expect(document: dict[str, Any], truth: dict[str, Any]) -> None:
    assert document["session"]["gpu"] == "simulated", document["session"]["gpu_reason"]
    assert not {name: count for name, count in document["losses"].items() if name.startswith("gpu") and count}
    assert len(truth["workers"]) == WORKERS
    (gpu,) = document["gpus"]
    assert gpu["busy_ns"] == pytest.approx(truth["device"]["busy_ns"], rel=TOLERANCE)
    assert gpu["longest_pause_ns"] == pytest.approx(truth["device"]["gap_ns"], rel=TOLERANCE)
    assert gpu["kernels"] == truth["device"]["kernels"]
    assert set(gpu["processes"]) == {worker["pid"] for worker in truth["workers"]}
    assert gpu["reported_utilization"] > SPREAD * gpu["busy_ns"] / gpu["reported_ns"]
    for worker in truth["workers"]:
        found = process_of(document, worker["pid"])
        assert found["ppid"] == truth["pid"]
        assert found["steps"] == worker["iterations"]
        device = worker["gpu"]["device"]
        (told,) = found["gpu_devices"]
        assert told["busy_ns"] == pytest.approx(device["busy_ns"], rel=TOLERANCE)
        launched = {PLAIN[name]: count for name, count in worker["gpu"]["launched"].items()}
        assert {kernel["name"]: kernel["count"] for kernel in found["gpu_kernels"]} == launched
        assert sum(kernel["total_ns"] for kernel in found["gpu_kernels"]) == worker["gpu"]["kernel_ns"]
        evaluations = [row for row in found["operations"] if row["name"] == "evaluate"]
        search = worker["search"]
        assert sum(row["count"] for row in evaluations) == search["evaluations"]
        # All of it is a leaf's, and the kernels' of evaluations are those that were launched in them.
        inclusive = sum(row["inclusive_ns"] for row in evaluations)
        assert search["evaluate_ns"] * (1 - TOLERANCE) <= inclusive <= search["around_ns"] * (1 + TOLERANCE)
        assert told["kernels"] == device["kernels"]
        assert told["longest_pause_ns"] == pytest.approx(device["gap_ns"], rel=TOLERANCE)
        assert told["reported_utilization"] > SPREAD * told["busy_ns"] / told["reported_ns"]
        assert told["reported_utilization"] >= told["reported_own_utilization"] > told["busy_ns"] / told["reported_ns"]
        assert found["metadata"]["process_name"] == worker["name"]
        assert {phase["name"] for phase in found["phases"]} >= {"selfplay", "train"}


def test_a_command_whose_workers_share_a_gpu(
    shared: None, tmp_path: Path, start_target: Callable[..., Program]
) -> None:
    trace = tmp_path / "t.rlscope"
    options = ("--max-overhead", "0", "--no-tui", "-o", trace, *GAME)
    words = ("--workers", str(WORKERS), "--network", "simulated", "--seconds", "4", "--start", "spawn")
    command = (sys.executable, PROGRAM, *words)
    profiler = start_target(sys.executable, "-m", "rlscope_ebpf", "run", *options, "--", *command, ready=False)
    wait_for(lambda: _workers(profiler.output), PATIENCE_S, "the workers", turn_s=0.1)
    wait_for(lambda: _workers(profiler.output) <= _profiled(trace), PATIENCE_S, "their probes", turn_s=0.5)
    profiler.go()
    truth = profiler.truth(PATIENCE_S)
    assert profiler.wait(PATIENCE_S) == 0, profiler.errors
    assert "Traceback" not in profiler.errors, profiler.errors
    document = checked_report(trace)
    _expect(document, truth)
    told = rlscope("report", trace, folder=tmp_path).stdout
    assert re.search(r"device 0, Simulated GPU +\d", told)
    for worker in truth["workers"]:
        assert re.search(rf"^  {worker['name']} {worker['pid']} +\d", told, re.MULTILINE)
    (gpu,) = document["gpus"]
    by_much = gpu["reported_utilization"] - gpu["busy_ns"] / gpu["reported_ns"] >= MUCH
    assert (
        bool(re.search(r"reported device 0 to be busy for .* work of 16 processes ran there", " ".join(told.split())))
        == by_much
    )


def test_workers_that_are_there_already(
    shared: None,
    tmp_path: Path,
    start_target: Callable[..., Program],
    start_profiler: Callable[..., Profiler],
) -> None:
    trace = tmp_path / "t.rlscope"
    words = ("--workers", str(WORKERS), "--network", "simulated", "--seconds", "4", "--helper", gpu_library())
    target = start_target(sys.executable, PROGRAM, *words)
    options = ("--max-overhead", "0", "--no-tui", "-o", trace, *GAME)
    profiler = start_profiler("attach", "--tree", str(target.pid), *options).wait_until_attached(PATIENCE_S)
    wait_for(lambda: _workers(target.output) <= _asked_about(trace), PATIENCE_S, "word of their GPU", turn_s=0.5)
    target.go()
    truth = target.truth(PATIENCE_S)
    target.finish(PATIENCE_S)
    assert profiler.wait(PATIENCE_S) == 0, profiler.stderr
    document = checked_report(trace)
    _expect(document, truth)


def _asked_about(trace: Path) -> set[int]:
    return {device.pid for device in TraceReader(trace).devices.values()}
