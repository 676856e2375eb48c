"""The GPU helper in another process, on the simulated CUDA, heard through probes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlscope_ebpf.capture.gpu import GpuCapture, GpuRead
from rlscope_ebpf.capture.gpu_layout import HelperState
from rlscope_ebpf.errors import UnsupportedError
from rlscope_ebpf.model.gpu import GpuKind, GpuLaunch
from rlscope_ebpf.paths import gpu_library, marker_library

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
HELPER = str(gpu_library())
LAUNCHES = 5_000
KERNEL_NS = 3_000
DORMANT, ACTIVE = HelperState.DORMANT, HelperState.ACTIVE

TARGET = """
import ctypes, json, os, sys, threading, time
folder, helper_path, launches, kernel_ns = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
cuda = ctypes.CDLL(folder + "/libcuda.so.1")
cupti = ctypes.CDLL(folder + "/libcupti.so.13")
helper = ctypes.CDLL(helper_path)
cupti.simcupti_get.restype = ctypes.c_int64
cuda.simcuda_enqueued.restype = ctypes.c_int64
state = (ctypes.c_uint32 * 5).in_dll(helper, "rlscope_gpu_state")
kernel = ctypes.create_string_buffer(1)
cuda.simcuda_set_kernel(kernel, b"_Z6kernelv", ctypes.c_int64(kernel_ns))
assert cuda.cuInit(0) == 0
arguments = [1, 1, 1, 32, 1, 1, 0, None, None, None]
def launch(count):
    for _ in range(count):
        assert cuda.cuLaunchKernel(kernel, *arguments) == 0
def wait(wanted):
    while state[4] != wanted:
        time.sleep(0.001)
helper.rlscope_gpu_start(2, 60000)  # at once
wait(2)
print(os.getpid(), flush=True)
for line in sys.stdin:
    command = line.strip()
    if command == "launch":
        other = threading.Thread(target=launch, args=(launches,))
        other.start()
        launch(launches)
        other.join()
        cuda.cuCtxSynchronize()
        total = ctypes.c_int64()
        kernels = cuda.simcuda_enqueued(1, ctypes.byref(total))
        threads = [threading.get_native_id(), other.native_id]
        print(json.dumps({"kernels": kernels, "ns": total.value, "threads": threads}))
    elif command == "dormant":
        wait(0)
        left = {name: cupti.simcupti_get(name.encode()) for name in ("subscribers", "kinds", "callbacks", "buffers")}
        print(json.dumps(left))
    elif command == "start":
        helper.rlscope_gpu_start(0, 60000)
        wait(1)
        print("{}")
    elif command == "active":
        wait(2)
        print("{}")
    elif command == "fork":
        child = os.fork()
        if not child:
            for entry in (helper.rlscope_gpu_records, helper.rlscope_gpu_name, helper.rlscope_gpu_status):
                entry(None, 0, 0)
            os._exit(0)
        print(os.waitpid(child, 0)[1])
    sys.stdout.flush()
"""


class Target:
    """The program, and what it has to say."""

    def __init__(self, folder: Path) -> None:
        words = [sys.executable, "-c", TARGET, str(folder), HELPER, str(LAUNCHES), str(KERNEL_NS)]
        environment = {**os.environ, "RLSCOPE_LIBCUPTI": str(folder / "libcupti.so.13")}
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self._process.stdout
        self.pid = int(self._process.stdout.readline())

    def ask(self, command: str) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def end(self) -> int:
        self._process.communicate(timeout=60)
        return self._process.returncode


@pytest.fixture(scope="module")
def simulated() -> Path:
    done = subprocess.run(
        [sys.executable, str(ROOT / "kernels_test" / "build.py")], capture_output=True, text=True, check=True
    )
    return Path(done.stdout.strip())


@pytest.fixture
def target(simulated: Path) -> Iterator[Target]:
    target = Target(simulated)
    yield target
    assert target.end() == 0


@pytest.fixture(params=["multi", "perf"])
def capture(request: pytest.FixtureRequest) -> Iterator[GpuCapture]:
    capture = GpuCapture(request.param)
    yield capture
    capture.close()


def _collect(capture: GpuCapture, into: GpuRead, kernels: int) -> None:
    """Reads until so many kernels have come in all. Fails after a minute."""
    until = time.monotonic() + 60
    while True:
        part = capture.read()
        into.batches.extend(part.batches)
        into.names.extend(part.names)
        into.statuses.extend(part.statuses)
        seen = sum(int((batch.records["kind"] == GpuKind.KERNEL).sum()) for batch in into.batches)
        if seen >= kernels:
            return
        assert time.monotonic() < until, f"{seen} of {kernels} kernels"
        time.sleep(0.01)


def _check(found: GpuRead, pid: int, truth: Any, launches: int) -> None:
    assert {batch.pid for batch in found.batches} == {pid}
    begins = [batch.before for batch in found.batches]
    ends = [batch.before + len(batch.records) for batch in found.batches]
    assert begins[1:] == ends[:-1], "a batch is missing"
    records = np.concatenate([batch.records for batch in found.batches])
    kernels = records[records["kind"] == GpuKind.KERNEL]
    launched = records[records["kind"] == GpuKind.LAUNCH]
    assert len(kernels) == len(launched) == launches
    assert set((kernels["end_ns"] - kernels["start_ns"]).tolist()) == {KERNEL_NS}
    assert np.array_equal(np.sort(kernels["correlation"]), np.sort(launched["correlation"]))
    assert set(launched["detail"].tolist()) == {GpuLaunch.KERNEL}
    assert set(launched["thread"].tolist()) == set(truth["threads"])
    (name,) = {kernel_name.text for kernel_name in found.names}
    assert name == "_Z6kernelv"
    assert set(kernels["name"].tolist()) == {kernel_name.id for kernel_name in found.names}


def test_everything_arrives_and_the_helper_leaves_with_the_probes(capture: GpuCapture, target: Target) -> None:
    # Twice: the second session is a second attach.
    for session in range(2):
        found = GpuRead()
        capture.attach(target.pid, HELPER)
        target.ask("active")
        truth = target.ask("launch")
        assert truth["kernels"] == 2 * LAUNCHES * (session + 1)
        assert truth["ns"] == truth["kernels"] * KERNEL_NS
        _collect(capture, found, 2 * LAUNCHES)
        _check(found, target.pid, truth, 2 * LAUNCHES)
        assert {status.state for status in found.statuses} - {HelperState.STARTING} == {ACTIVE}
        assert all(status.simulated and not status.error for status in found.statuses)
        capture.detach(target.pid)
        assert set(target.ask("dormant").values()) == {0}
        losses = capture.losses()
        assert (losses.lost_records, losses.unreadable_records, losses.lost_texts) == (0, 0, 0)
        capture.read()
        if not session:
            target.ask("start")


def test_what_was_launched_before_the_attach_is_kept(capture: GpuCapture, target: Target) -> None:
    found = GpuRead()
    truth = target.ask("launch")
    capture.attach(target.pid, HELPER)
    _collect(capture, found, 2 * LAUNCHES)
    _check(found, target.pid, truth, 2 * LAUNCHES)


def test_processes_forked_while_it_is_probed_can_call_what_is(capture: GpuCapture, target: Target) -> None:
    """Also afterwards. A 5-byte nop that has been hit would end them."""
    capture.attach(target.pid, HELPER)
    target.ask("launch")
    _collect(capture, GpuRead(), 2 * LAUNCHES)  # so it has been hit
    assert target.ask("fork") == 0
    capture.detach(target.pid)
    target.ask("dormant")
    assert target.ask("fork") == 0


def test_a_full_ring_is_counted(target: Target) -> None:
    """Nobody reads: what does not fit is counted, record for record."""
    capture = GpuCapture("multi")
    try:
        capture.attach(target.pid, HELPER)
        launches = 0
        while not capture.losses().lost_records:
            target.ask("launch")
            launches += 2 * LAUNCHES
            assert launches < 2_000_000
        time.sleep(0.5)
        found = GpuRead()
        last = -1
        while last != (last := sum(len(batch.records) for batch in found.batches)):
            part = capture.read()
            found.batches.extend(part.batches)
            found.statuses.extend(part.statuses)
        ends = found.batches[-1].before + len(found.batches[-1].records)
        gaps = ends - last
        assert 0 <= gaps <= capture.losses().lost_records
        target.ask("launch")
        part = GpuRead()
        _collect(capture, part, 1)
        # The numbers of the batches say the same as the counter.
        missing = part.batches[0].before - last
        assert missing == capture.losses().lost_records
    finally:
        capture.close()


def test_a_file_that_is_no_helper_is_refused() -> None:
    capture = GpuCapture("multi")
    try:
        with pytest.raises(UnsupportedError, match="is not this version's GPU helper"):
            capture.attach(os.getpid(), str(marker_library()))
    finally:
        capture.close()
