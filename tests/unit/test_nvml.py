"""How busy the driver reports GPUs to be: a simulated NVML, which GPUs are meant, and what is made of the answers."""

from __future__ import annotations

import ctypes
import json as jsonlib
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import report_samples as samples

from rlscope_ebpf.analysis.breakdown import break_down
from rlscope_ebpf.capture import nvml
from rlscope_ebpf.capture.nvml import Utilization, _Device, devices_of
from rlscope_ebpf.live.model import LiveModel
from rlscope_ebpf.model import gpu_words
from rlscope_ebpf.model.figures import DeviceTotal
from rlscope_ebpf.model.tables import DeviceInfo, ProcessInfo
from rlscope_ebpf.report import json, text

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0
DEVICES = [_Device(number, "H200", f"GPU-{number}{number}{number}-aaaa") for number in range(3)]


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated NVML, which nvidia-ml-py finds since it is loaded."""
    build = [sys.executable, str(ROOT / "kernels_test" / "build.py")]
    folder = subprocess.run(build, capture_output=True, text=True, check=True).stdout.strip()
    ctypes.CDLL(f"{folder}/libnvidia-ml.so.1")
    monkeypatch.setattr(nvml, "PERIOD_S", 0.001)


def _answers(utilization: Utilization, count: int) -> list[nvml.Reported]:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := utilization.reported()) or min(each.samples for each in found) < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return found


def test_answers_are_added_up_and_stay_when_a_process_has_ended(
    simulated: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMNVML", "utilization=42")
    utilization = Utilization()
    assert utilization.reported() == []
    utilization.watch(os.getpid())
    (found,) = _answers(utilization, 3)
    assert (found.pid, found.index, found.name, found.percent) == (os.getpid(), 0, "Simulated GPU", 42 * found.samples)
    assert found.since_ns < found.until_ns <= time.monotonic_ns()
    utilization.forget(os.getpid())
    (before,) = utilization.reported()
    time.sleep(0.05)
    assert utilization.reported() == [before]
    utilization.close()


def test_of_several_gpus_those_count_that_the_process_uses(simulated: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMNVML", f"devices=2,utilization=50,user={os.getpid()}")
    utilization = Utilization()
    utilization.watch(os.getpid())
    assert [(each.index, each.percent // each.samples) for each in _answers(utilization, 1)] == [(0, 50), (1, 49)]
    utilization.close()


SHARING = """
import ctypes, json, os, sys, time
folder, = sys.argv[1:]
cuda, nvml = ctypes.CDLL(folder + "/libcuda.so.1"), ctypes.CDLL(folder + "/libnvidia-ml.so.1")
import pynvml

TICK_NS, PERIOD_NS = 10_000_000, 200_000_000
kernel = ctypes.create_string_buffer(1)
cuda.cuInit(0)
cuda.simcuda_set_gpu(b"kernel", ctypes.c_int64(1000))
work = (ctypes.c_int64 * 6)()
begin = time.monotonic_ns()
ticks = set()
for number in range(60):  # in every second tick or so
    latency = begin + 100_000_000 + number * 2 * TICK_NS - time.monotonic_ns()
    cuda.simcuda_set_gpu(b"latency", ctypes.c_int64(max(0, latency)))
    cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)
    cuda.simcuda_device_work(0, work)
    ticks.add((work[4] - 1) // TICK_NS)
pynvml.nvmlInit()
(device,) = [pynvml.nvmlDeviceGetHandleByIndex(0)]
said = []
while time.monotonic_ns() < work[4] + PERIOD_NS:
    period = time.monotonic_ns() // PERIOD_NS
    percent = pynvml.nvmlDeviceGetUtilizationRates(device).gpu
    (own,) = pynvml.nvmlDeviceGetProcessUtilization(device, 0)
    if time.monotonic_ns() // PERIOD_NS == period:
        inside = range((period - 1) * PERIOD_NS // TICK_NS, period * PERIOD_NS // TICK_NS)
        said.append([percent, own.smUtil, 100 * len(ticks & set(inside)) // len(inside), own.pid == os.getpid()])
    time.sleep(0.02)
print(json.dumps([said, list(work)]))
"""


def test_of_a_shared_gpu_nvml_counts_whole_what_ran_for_a_moment(tmp_path: Path) -> None:
    (tmp_path / "device").touch()
    build = [sys.executable, str(ROOT / "kernels_test" / "build.py")]
    folder = subprocess.run(build, capture_output=True, text=True, check=True).stdout.strip()
    environment = {**os.environ, "SIMCUDA_SHARED": str(tmp_path / "device")}
    done = subprocess.run(
        [sys.executable, "-c", SHARING, folder], capture_output=True, text=True, check=True, env=environment
    )
    said, (kernels, activities, busy_ns, *_) = jsonlib.loads(done.stdout)
    assert (kernels, activities, busy_ns) == (60, 60, 60_000)
    assert len(said) > 1
    assert all(device == process == expected and own for device, process, expected, own in said)
    assert max(device for device, *_ in said) >= 40  # of which it was busy for 0.005 %


def test_without_the_package_nothing_is_known_and_nothing_said(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    utilization = Utilization()
    utilization.watch(os.getpid())
    assert utilization._thread is not None
    utilization._thread.join(PATIENCE_S)
    assert utilization.reported() == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("environment", "users", "expected"),
    [
        ({}, {0, 1, 2}, {0: 0, 1: 1, 2: 2}),
        ({}, {1}, {1: 1}),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, {0, 1, 2}, {0: 2, 1: 0}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1, GPU-222-a"}, {0, 1, 2}, {0: 1, 1: 2}),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,0"}, {0, 1, 2}, {0: 1}),
        ({"CUDA_VISIBLE_DEVICES": ""}, {0, 1, 2}, {}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-,1"}, {0, 1, 2}, {}),  # of several
        ({"CUDA_VISIBLE_DEVICES": "0"}, {1}, {}),  # it has changed its environment since
    ],
)
def test_numbers_mean_what_cuda_makes_of_them(
    environment: dict[str, str], users: set[int], expected: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"\0".join(f"{key}={value}".encode() for key, value in environment.items())
    monkeypatch.setattr(Path, "read_bytes", lambda _: data)
    found = devices_of(7, DEVICES, lambda device: {7} if device.handle in users else {8})
    assert {index: device.handle for index, device in found.items()} == expected


def test_of_different_gpus_the_order_must_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = [*DEVICES[:2], _Device(2, "L4", "GPU-9")]
    monkeypatch.setattr(Path, "read_bytes", lambda _: b"")
    assert devices_of(7, mixed, lambda _: {7}) == {}
    monkeypatch.setattr(Path, "read_bytes", lambda _: b"CUDA_DEVICE_ORDER=PCI_BUS_ID")
    assert len(devices_of(7, mixed, lambda _: {7})) == 3
    assert devices_of(7, DEVICES, lambda _: None) == {}  # the driver does not tell
    assert len(devices_of(7, DEVICES[:1], lambda _: None)) == 1  # there is no other


def _info(percent: int, seconds: int = 10) -> DeviceInfo:
    return DeviceInfo(1, 100, 0, "H200", samples.START_NS, samples.START_NS + seconds * 10**9, 4, 4 * percent)


@pytest.mark.parametrize(
    ("busy_s", "percent", "words"),
    [(3.1, 97, "97.0 %"), (3.1, 45, ""), (9.9, 60, "a mean of short looks"), (9.9, 90, "")],
)
def test_a_sentence_says_when_they_differ_by_much(busy_s: float, percent: int, words: str) -> None:
    said = gpu_words.disagreement(DeviceTotal(100, 0, int(busy_s * 1e9), _info(percent)))
    assert (words in said) if words else not said
    assert gpu_words.disagreement(DeviceTotal(100, 0, 1)) == ""


def test_it_reaches_report_and_screen() -> None:
    trace = samples.gpu_training()
    trace.define(_info(97))
    value = break_down(trace)
    (device,) = json.report_dict(value)["processes"][0]["gpu_devices"]
    assert (device["reported_utilization"], device["reported_ns"]) == (0.97, 10 * 10**9)
    shown = text.report_text(value, 160)
    assert "NVML REPORTS" in shown
    assert "reported device 0 to be busy for 97.0 %" in shown
    live = LiveModel()
    live.start(trace.info)
    batch = samples.training_batch()
    batch.tables["gpu"] = trace.tables["gpu"]
    batch.definitions.append(_info(97))
    live.batch(batch)
    snapshot = live.snapshot()
    assert [row.reported for row in snapshot.gpu_devices] == [0.97]
    (gpu,) = snapshot.gpus
    assert (gpu.reported, gpu.busy_ns, gpu.devices) == (0.97, device["busy_ns"], snapshot.gpu_devices)


def test_several_processes_on_one_gpu_are_a_table_and_a_sentence() -> None:
    trace = samples.gpu_training()
    alone = text.report_text(break_down(trace), 100)
    assert "LONGEST PAUSE" in alone
    assert "REALLY" not in alone
    rows = trace.tables["gpu"].copy()
    rows["pid"] = 101
    trace.tables["gpu"] = np.concatenate([trace.tables["gpu"], rows])
    trace.define(ProcessInfo(101, 100, "worker", ("worker",), samples.START_NS, namespace_pids=(8,)))
    for number, pid in enumerate((100, 101), 1):
        until_ns = samples.START_NS + 10**10
        trace.define(
            DeviceInfo(number, pid, 0, "H200", samples.START_NS, until_ns, 4, 4 * 97, "GPU-1", 4, 4 * (50 + number))
        )
    value = break_down(trace)
    (gpu,) = value.gpus
    own = [device for process in value.processes for device in process.gpu_devices if device.index == 0]
    assert [device.busy_ns for device in own] == [gpu.busy_ns] * 2  # both at the same times
    assert [device.reported_own for device in own] == [0.51, 0.52]
    (said,) = json.report_dict(value)["gpus"]
    assert said["kernels"] == 2 * own[0].kernels > 0
    assert (said["uuid"], said["processes"], said["reported_utilization"]) == ("GPU-1", [100, 101], 0.97)
    shown = text.report_text(value, 60)
    assert "REALLY" in shown
    assert "  worker 101 (8) " in shown  # in the table of GPUs
    assert "PID (INSIDE)" in text.report_text(value, 160)
    assert "of 2 processes ran there for" in " ".join(shown.split())
    assert "this process's work ran there" not in shown
