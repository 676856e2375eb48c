"""CUDA calls on the simulated CUDA: programs that know every call they made, and the profiler's report of them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import ROOT, Profiler, Program, compare, process_of, report, rlscope, until_it_agrees

pytestmark = pytest.mark.system

Attach = Callable[..., tuple[Profiler, Path]]
StartTarget = Callable[..., Program]

LAUNCHES = ROOT / "kernels_test" / "launches.py"

PROBES_NS = 3_000
"""What a call may appear longer than it takes itself: the probes stamp before its first and after its last action."""

SHORT_NS = 50_000
"""Of calls shorter than this the probes are more than a fiftieth, and may be so in the sum."""

DETACH_S = 120.0
"""Probes attached as perf events are taken away one after the other, each in about a tenth of a second."""

HALF_BIN = 1 / 64
"""A percentile is the middle of a bin of the report's histogram."""

FUNCTION_NS = 1_000_000
"""Default of --call-ns."""


def _simcuda() -> Any:
    spec = importlib.util.spec_from_file_location("rlscope_simcuda_build", ROOT / "kernels_test" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _profile(
    words: tuple[str, ...], options: tuple[str, ...], start_target: StartTarget, attach: Attach
) -> tuple[dict[str, Any], dict[str, Any], Path]:
    """Truth, report and trace of a program run under the profiler."""
    target = start_target(sys.executable, LAUNCHES, *words, realtime=True)
    profiler, trace = attach(target, *options)
    target.go()
    truth = target.truth()
    target.finish()
    assert profiler.wait(DETACH_S) == 0, profiler.stderr
    document = report(trace)
    assert document["session"]["complete"]
    assert document["session"]["probes_armed"] == document["session"]["probes_attached"] > 0
    assert document["losses"]["events"] == 0
    return truth, document, trace


def _call_counts(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {row["name"]: row["count"] for row in rows}


def _wrong_times(truth: dict[str, Any], document: dict[str, Any]) -> list[Any]:
    """Functions whose time the report has wrong."""
    found = {row["name"]: row for row in process_of(document, truth["pid"])["cuda_api"]}
    wrong = []
    for row in truth["cuda_api"]:
        # The slowest percent of the calls is where interrupts hit a probe.
        tolerances = {
            "total_ns": 0.02 * row["total_ns"] + (row["count"] * PROBES_NS if row["p50_ns"] < SHORT_NS else 0),
            "p50_ns": HALF_BIN * row["p50_ns"] + 2 * PROBES_NS,
            "p99_ns": 0.15 * row["p99_ns"] + 10 * PROBES_NS,
        }
        for key, allowed in tolerances.items():
            got = found[row["name"]][key]
            if abs(got - row[key]) > allowed:
                wrong.append(compare.Mismatch(row["name"], key, row[key], got, allowed))
    return wrong


def _expect_truth(
    words: tuple[str, ...], options: tuple[str, ...], start_target: StartTarget, attach: Attach
) -> tuple[dict[str, Any], dict[str, Any], Path]:
    """Profiles the program. Its counts must be right in every run, its times in one of a few."""

    def attempt() -> tuple[tuple[dict[str, Any], dict[str, Any], Path], list[Any]]:
        truth, document, trace = _profile(words, options, start_target, attach)
        counted = _call_counts(process_of(document, truth["pid"])["cuda_api"])
        assert counted == _call_counts(truth["cuda_api"])
        return (truth, document, trace), [*compare.compare(truth, document), *_wrong_times(truth, document)]

    return until_it_agrees(attempt)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("through", ["runtime", "static", "driver"])
def test_every_call_and_its_time(through: str, start_target: StartTarget, attach: Attach) -> None:
    """Calls with the interpreter lock held and released, in a backend, from 8 Python threads, from 8 native threads."""
    truth, _, _ = _expect_truth(("--through", through, "--rounds", "15"), (), start_target, attach)
    names = {row["name"] for row in truth["cuda_api"]}
    if through == "runtime":
        assert names >= {"cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync", "cudaStreamSynchronize"}
        assert truth["not_counted"]["cuLaunchKernel"] > 0  # so counting runtime and driver calls would show
    else:
        assert names >= {"cuLaunchKernel", "cuLaunchKernelEx", "cuMemcpyHtoDAsync_v2", "cuStreamSynchronize"}
    assert all(name.startswith("cuda" if through == "runtime" else "cu") for name in names)
    assert truth["not_counted"]["cuCtxGetDevice"] > 15_000  # getters ran, and are not in the report


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("method", ["session", "multi", "perf"])
def test_every_attach_method(method: str, start_target: StartTarget, attach: Attach) -> None:
    words = ("--scenario", "held", "--scenario", "backend", "--scenario", "native_threads", "--rounds", "15")
    _expect_truth(words, ("--attach-method", method), start_target, attach)


def test_libraries_that_come_after_the_attach(start_target: StartTarget, attach: Attach) -> None:
    truth, document, _ = _profile(
        ("--load", "late", "--scenario", "held", "--scenario", "backend", "--rounds", "10"), (), start_target, attach
    )
    found = {row["name"]: row["count"] for row in process_of(document, truth["pid"])["cuda_api"]}
    # The calls with which a library is set up may be among them, if the profiler was that quick.
    for row in truth["cuda_api"]:
        assert 0 <= found[row["name"]] - row["count"] <= 4, row
    assert not [each for each in compare.compare(truth, document) if not each.what.startswith(("wall_ns", "cpu_ns"))]


def test_a_storm_of_launches_is_counted_exactly(start_target: StartTarget, attach: Attach) -> None:
    """Launches as short as real ones. Their time cannot be exact, but their number is."""
    truth, _, _ = _expect_truth(("--scenario", "storm", "--storm", "50000"), (), start_target, attach)
    counts = {row["name"]: row["count"] for row in truth["cuda_api"]}
    assert counts == {"cudaLaunchKernel": 50_000, "cuLaunchKernel": 100_000}


def test_getters_are_not_probed(start_target: StartTarget, attach: Attach) -> None:
    """A call that a program makes hundreds of thousands of times to learn nothing must cost it nothing."""
    truth, document, _ = _expect_truth(("--scenario", "getters", "--rounds", "100"), (), start_target, attach)
    assert truth["not_counted"]["cudaGetDevice"] == 100_000
    assert truth["not_counted"]["cuDevicePrimaryCtxGetState"] == 100_000
    assert process_of(document, truth["pid"])["cuda_api"] == []
    assert document["overhead"]["probe_hits"] < 1_000


def test_transitions_into_cuda(start_target: StartTarget, attach: Attach) -> None:
    """By where the calls came from: Python, with its lock or without, or a backend."""
    words = ("--through", "runtime", "--scenario", "held", "--scenario", "released", "--scenario", "backend")
    truth, document, _ = _expect_truth((*words, "--rounds", "20"), (), start_target, attach)
    operations = process_of(document, truth["pid"])["operations"]

    def into_cuda(path: str) -> dict[str, int]:
        (row,) = [row for row in operations if row["path"] == path.split("/")]
        return {kind: n for kind, n in row["transitions"].items() if kind.endswith("_to_cuda_api")}

    assert into_cuda("held_runtime") == {"python_to_cuda_api": 20 * (2 * 7 + 5)}
    assert into_cuda("held_runtime/allocation") == {"python_to_cuda_api": 20 * 3 * 2}
    assert into_cuda("released_runtime") == {"python_to_cuda_api": 20 * 2 * 7}
    assert into_cuda("backend_runtime") == {"backend_to_cuda_api": 20 * 4}
    assert into_cuda("backend_runtime/inner") == {"backend_to_cuda_api": 20 * 7}


def test_the_text_report_names_the_calls(start_target: StartTarget, attach: Attach) -> None:
    words = ("--through", "runtime", "--scenario", "held", "--rounds", "5")
    truth, _, trace = _profile(words, (), start_target, attach)
    text = rlscope("report", trace).stdout
    for row in truth["cuda_api"]:
        assert row["name"] in text
    assert "cuLaunchKernel" not in text.replace("cudaLaunchKernel", "")


@pytest.mark.parametrize("through", ["runtime", "static", "driver"])
def test_the_program_alone_adds_up(through: str, start_target: StartTarget) -> None:
    """Without a profiler: the truth agrees with itself, and a call takes the time that was set."""
    target = start_target(sys.executable, LAUNCHES, "--through", through, "--rounds", "5", realtime=True)
    target.go()
    truth = target.truth()
    target.finish()
    calls = {row["name"]: row for row in truth["cuda_api"]}
    in_operations = sum(row["cpu_ns"]["cuda_api"] for row in truth["operations"])
    assert in_operations == sum(row["total_ns"] for row in calls.values())
    entries = sum(
        n for row in truth["operations"] for kind, n in row["transitions"].items() if kind.endswith("_to_cuda_api")
    )
    assert entries == sum(row["count"] for row in calls.values())
    launch, own_ns = calls["cudaLaunchKernel" if through == "runtime" else "cuLaunchKernel"], FUNCTION_NS
    expected = 2 * own_ns if through == "runtime" else own_ns  # a runtime call and its driver call
    assert expected <= launch["p50_ns"] < 1.02 * expected
    copy = calls["cudaMemcpyAsync" if through == "runtime" else "cuMemcpyHtoDAsync_v2"]
    assert copy["p99_ns"] > 5 * copy["p50_ns"]  # one copy in twenty of one scenario is slow
    for row in truth["operations"]:
        if row["path"] != ["(untracked)"]:
            assert row["wall_ns"] == sum(row["cpu_ns"].values()) == row["spans_ns"], json.dumps(row)


def test_the_simulated_driver_refuses_what_the_real_one_refuses() -> None:
    script = """
import ctypes, sys
cuda = ctypes.CDLL(sys.argv[1] + "/libcuda.so.1")
device, pointer = ctypes.c_int(), ctypes.c_uint64()
grid = [1] * 6 + [0, None, None, None]
print(cuda.cuCtxGetDevice(ctypes.byref(device)), cuda.cuInit(1), cuda.cuInit(0))
print(cuda.cuLaunchKernel(None, *grid), cuda.cuLaunchKernel(ctypes.c_void_p(8), 0, *grid[1:]))
print(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(0)), cuda.cuEventRecord(None, None))
print(cuda.simcuda_set_ns(b"cuCtxGetDevice", ctypes.c_int64(1)), cuda.simcuda_set_ns(b"cuNothing", ctypes.c_int64(1)))
"""
    done = _run(script)
    assert done == "3 1 0\n400 1\n1 400\n-1 -1\n"


def test_the_simulated_runtime_without_a_driver(tmp_path: Path) -> None:
    copied = tmp_path / "libcudart.so.13"
    copied.write_bytes((_simcuda().native() / copied.name).read_bytes())
    script = """
import ctypes, sys
runtime = ctypes.CDLL(sys.argv[1] + "/libcudart.so.13")
print(runtime.cudaFree(None), runtime.cudaGetLastError(), runtime.cudaGetLastError())
"""
    assert _run(script, tmp_path) == "35 35 0\n"


def test_device_memory_holds_what_was_copied() -> None:
    script = """
import ctypes, sys
runtime = ctypes.CDLL(sys.argv[1] + "/libcudart.so.13")
pointer, out = ctypes.c_void_p(), ctypes.create_string_buffer(8)
assert runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(8)) == 0
assert runtime.cudaMemcpyAsync(pointer, b"policies", ctypes.c_size_t(8), 1, None) == 0
assert runtime.cudaMemcpyAsync(out, pointer, ctypes.c_size_t(8), 2, None) == 0
on_device = runtime.cudaMemcpyAsync(pointer, pointer, ctypes.c_size_t(8), 3, None)
print(out.raw.decode(), on_device, runtime.cudaFree(pointer))
"""
    assert _run(script) == "policies 801 0\n"


def _run(script: str, folder: Path | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder or _simcuda().native())], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
