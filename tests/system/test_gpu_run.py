"""`run` on programs that use a (simulated) GPU: kernel times from the first launch on, and what stands in the way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gpu_truth import PROGRAM, about_gpu, checked_report, expect, libcupti, truths
from harness import ATTACH_S, PROFILER, Finished, operations_of, process_of, wait_for

pytestmark = pytest.mark.system

NOTHING = "import time; time.sleep(0.3)"


def _run(folder: Path, *options: str, environment: dict[str, str] | None = None, command: tuple[str, ...] = ()) -> Any:
    """How the profiler and its report ended. The program runs its rounds twice."""
    words = [sys.executable, str(PROGRAM), "--lines", "2"]
    done = subprocess.run(
        [
            str(PROFILER),
            "run",
            "--max-overhead",
            "0",
            "--no-tui",
            "-o",
            "a.rlscope",
            *options,
            "--",
            *(command or words),
        ],
        input="go\ngo\n",
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=200,
        env={**os.environ, "RLSCOPE_LIBCUPTI": libcupti(), **(environment or {})},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return Finished(done.returncode, done.stdout, done.stderr), checked_report(folder / "a.rlscope")


@pytest.mark.parametrize("method", ["auto", "perf"])
def test_every_kernel_is_charged_to_the_operation_that_launched_it(method: str, tmp_path: Path) -> None:
    done, document = _run(tmp_path, "--attach-method", method)
    expect(document, truths(done.stdout)[-1])
    assert not about_gpu(document)


def _run_python(folder: Path, words: bytes, **environment: str) -> tuple[Finished, Any]:
    """The same with cupti-python, which is only there a moment after CUDA: the rounds begin once a notice says so."""
    options = ["run", "--max-overhead", "0", "--no-tui", "-o", "a.rlscope", "--gpu", "cupti-python", "--"]
    trace = folder / "a.rlscope"
    with subprocess.Popen(
        [str(PROFILER), *options, sys.executable, str(PROGRAM), "--lines", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "RLSCOPE_LIBCUPTI": libcupti(), **environment},
    ) as profiler:
        try:
            wait_for(lambda: trace.exists() and words in trace.read_bytes(), ATTACH_S, "a notice in the trace")
        finally:
            output, said = profiler.communicate("go\n", timeout=200)
    assert profiler.returncode == 0, said
    assert "Traceback" not in said, said
    return Finished(profiler.returncode, output, said), checked_report(trace)


def test_cupti_python_tells_the_same(tmp_path: Path) -> None:
    done, document = _run_python(tmp_path, b"25 us each")
    expect(document, truths(done.stdout)[-1])
    (notice,) = about_gpu(document)
    assert "25 us each" in notice


def test_without_cupti_python_the_rest_of_the_profile_is_there(tmp_path: Path) -> None:
    (tmp_path / "cupti").mkdir()
    (tmp_path / "cupti" / "__init__.py").write_text("raise ImportError('not here')")
    done, document = _run_python(
        tmp_path, b"cupti-python failed", PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    )
    assert document["session"]["gpu"] == "unavailable"
    assert "cupti-python failed" in document["session"]["gpu_reason"]
    assert "not here" in document["session"]["gpu_reason"]
    pid = truths(done.stdout)[-1]["pid"]
    assert process_of(document, pid)["gpu_kernels"] == []
    assert operations_of(document, pid)["act"]["count"] == 20


def test_off_means_that_nothing_is_loaded(tmp_path: Path) -> None:
    done, document = _run(tmp_path, "--gpu", "off")
    truth = truths(done.stdout)[-1]
    assert document["session"]["gpu"] == "off"
    assert process_of(document, truth["pid"])["gpu_kernels"] == []
    assert not any(truth["cupti"].values())  # not even loaded


def test_a_program_without_a_gpu_shows_none_and_hears_nothing_of_it(tmp_path: Path) -> None:
    done, document = _run(tmp_path, command=(sys.executable, "-c", NOTHING))
    assert document["session"]["gpu"] == "unavailable"
    assert document["session"]["gpu_reason"] == "The target has not loaded CUDA"
    assert document["processes"][0]["gpu_kernels"] == []
    assert not about_gpu(document)
    assert "GPU" not in done.stderr


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("fail.cuptiSubscribe=39", "Another profiler"),
        ("fail.cuptiSubscribe=35", "NVreg_RestrictProfilingToAdminUsers"),
        ("fail.cuptiActivityEnable=1", "in cuptiActivityEnable"),
        ("version=17", "has version 17"),
    ],
)
def test_what_stands_in_the_way_is_a_sentence(settings: str, words: str, tmp_path: Path) -> None:
    done, document = _run(tmp_path, environment={"SIMCUPTI": settings})
    assert document["session"]["gpu"] == "unavailable"
    assert words in document["session"]["gpu_reason"]
    assert words in done.stderr
    pid = truths(done.stdout)[-1]["pid"]
    assert process_of(document, pid)["gpu_kernels"] == []
    assert operations_of(document, pid)["act"]["count"] == 40  # the rest of the profile is there


def test_another_injected_library_is_left_alone(tmp_path: Path) -> None:
    other = {"CUDA_INJECTION64_PATH": "/opt/other/libToolsInjection64.so"}
    done, document = _run(tmp_path, environment=other)
    assert document["session"]["gpu"] == "unavailable"
    assert other["CUDA_INJECTION64_PATH"] in document["session"]["gpu_reason"]
    assert process_of(document, truths(done.stdout)[-1]["pid"])["gpu_kernels"] == []


def test_what_cupti_drops_is_counted(tmp_path: Path) -> None:
    done, document = _run(tmp_path, environment={"SIMCUPTI": "drop=10"})
    truth = truths(done.stdout)[-1]
    found = sum(row["count"] for row in process_of(document, truth["pid"])["gpu_kernels"])
    assert document["losses"]["gpu_records"] > 0
    assert found < truth["launched"]
    # Records of waits are dropped as well: there are two a round.
    assert truth["launched"] - found <= document["losses"]["gpu_records"]


def test_impossible_times_are_counted_and_left_out(tmp_path: Path) -> None:
    done, document = _run(tmp_path, environment={"SIMCUPTI": "zero=9"})
    truth = truths(done.stdout)[-1]
    found = sum(row["count"] for row in process_of(document, truth["pid"])["gpu_kernels"])
    assert document["losses"]["gpu_invalid"] == truth["launched"] - found == truth["launched"] // 9


LEAVES = """
import os, sys
sys.argv = [sys.argv[1], "--lines", "1"]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
import operations
operations.main()
os._exit(0)
"""


def test_a_program_that_does_not_let_the_helper_finish_is_said(tmp_path: Path) -> None:
    done, document = _run(tmp_path, command=(sys.executable, "-c", LEAVES, str(PROGRAM)))
    assert truths(done.stdout)
    (notice,) = about_gpu(document)
    assert "without letting the GPU helper finish" in notice
