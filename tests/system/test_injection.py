"""Loading a library into a program that computes: not one of its numbers changes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Program, build, wait_for

from rlscope_ebpf.capture import gpu_injection
from rlscope_ebpf.capture.gpu_files import HELPER_PREFIX
from rlscope_ebpf.capture.gpu_injection import Way, inject
from rlscope_ebpf.capture.process import inspect
from rlscope_ebpf.capture.quiet_threads import SETTLED_S, find_quiet_thread
from rlscope_ebpf.errors import UnsupportedError
from rlscope_ebpf.paths import gpu_library, injection_library

pytestmark = pytest.mark.system

StartTarget = Callable[..., Program]
TIMES = 5


def _inject(pid: int, way: Way) -> None:
    assert inject(inspect(pid), str(gpu_library()), str(injection_library()), [way]).way == way


def _has_helper(pid: int) -> bool:
    return HELPER_PREFIX in Path(f"/proc/{pid}/maps").read_text()


def _truth(target: Program) -> dict[str, int]:
    target.go()
    truth = target.truth()
    target.finish()
    return truth


@pytest.mark.parametrize("way", [Way.FRIDA, Way.GDB])
def test_a_thread_that_computes_keeps_its_vector_registers(way: Way, start_target: StartTarget) -> None:
    target = start_target(build.program("registers"), "1")
    for _ in range(TIMES):
        _inject(target.pid, way)
    assert _has_helper(target.pid)
    truth = _truth(target)
    assert truth["rounds"] > 0
    assert truth["changed"] == 0


@pytest.mark.parametrize("way", [Way.FRIDA, Way.GDB])
def test_nothing_is_loaded_where_every_thread_computes(
    way: Way, start_target: StartTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_injection, "PATIENCE_S", 6.0)
    target = start_target(build.program("registers"))
    with pytest.raises(UnsupportedError, match="none can be borrowed"):
        _inject(target.pid, way)
    assert not _has_helper(target.pid)
    assert _truth(target)["changed"] == 0


@pytest.mark.parametrize("way", [Way.FRIDA, Way.GDB])
def test_a_stopped_process_is_left_alone(way: Way, start_target: StartTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads are found in system calls that wait, but would not come back from what they are made to call."""
    monkeypatch.setattr(gpu_injection, "PATIENCE_S", 6.0)
    target = start_target("sleep", "600", ready=False)
    wait_for(lambda: find_quiet_thread(target.pid, 0.0), 60, "a thread that waits")
    os.kill(target.pid, signal.SIGSTOP)
    wait_for(lambda: inspect(target.pid).state == "T", 60, "the stop")
    with pytest.raises(UnsupportedError, match="none can be borrowed"):
        _inject(target.pid, way)
    assert inspect(target.pid).state == "T"
    assert not _has_helper(target.pid)


def test_the_thread_that_is_found_waits(start_target: StartTarget) -> None:
    target = start_target(build.program("registers"), "3")
    begun = time.monotonic()
    thread = find_quiet_thread(target.pid, 10.0)
    assert time.monotonic() - begun >= SETTLED_S
    assert thread is not None
    assert thread != target.pid
    assert Path(f"/proc/{target.pid}/task/{thread}/syscall").read_text().split()[0] == "7"  # poll
    assert _truth(target)["changed"] == 0


def test_of_a_process_that_is_gone_no_thread_is_found() -> None:
    assert find_quiet_thread(2**22 + 1, 0.0) is None
