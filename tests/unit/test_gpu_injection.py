"""Who loads the helper into a running process: in which order, and what is said if nobody can."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from rlscope_ebpf.capture import gpu_injection
from rlscope_ebpf.capture.gpu_injection import Way, inject, ways
from rlscope_ebpf.capture.process import PythonIdentity, TargetProcess, inspect
from rlscope_ebpf.errors import UnsupportedError


@pytest.fixture
def process() -> TargetProcess:
    """Somebody, whoever it is."""
    return replace(inspect(os.getppid()), python=PythonIdentity("3.11.7", "/usr/bin/python3"))


@pytest.fixture(autouse=True)
def everything_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_injection.importlib.util, "find_spec", lambda _name: object())
    monkeypatch.setattr(gpu_injection.shutil, "which", lambda name: f"/usr/bin/{name}")


def test_the_gentlest_way_comes_first(process: TargetProcess) -> None:
    assert ways(process, allow_gdb=False) == [Way.FRIDA]
    assert ways(process, allow_gdb=True) == [Way.FRIDA, Way.GDB]
    newer = replace(process, python=PythonIdentity("3.14.0", "/usr/bin/python3"), same_mount_namespace=True)
    assert ways(newer, allow_gdb=True) == [Way.REMOTE_EXEC, Way.FRIDA, Way.GDB]
    assert ways(replace(newer, same_mount_namespace=False), allow_gdb=False) == [Way.FRIDA]
    assert Way.REMOTE_EXEC not in ways(replace(newer, python=None), allow_gdb=True)


def test_nothing_is_here(process: TargetProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_injection.importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(gpu_injection.shutil, "which", lambda _name: None)
    assert ways(process, allow_gdb=True) == []


def test_a_way_that_fails_is_followed_by_the_next(process: TargetProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def fail(_process: TargetProcess, helper: str, stub: str) -> None:
        tried.append((helper, stub))
        raise UnsupportedError("It failed (reason).", "Remedy.")

    monkeypatch.setitem(gpu_injection._HOW, Way.FRIDA, fail)
    monkeypatch.setitem(gpu_injection._HOW, Way.GDB, lambda *_: None)
    assert inject(process, "/helper", "/stub", [Way.FRIDA, Way.GDB]).way == Way.GDB
    assert tried == [("/helper", "/stub")]
    with pytest.raises(UnsupportedError, match=r"could not be loaded .* It failed \(reason\)"):
        inject(process, "/helper", "/stub", [Way.FRIDA])


def test_a_command_that_hangs_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_injection, "PATIENCE_S", 0.5)
    status, output = gpu_injection._run(
        ["sh", "-c", "trap 'echo interrupted; exit 3' INT; while :; do sleep 0.05; done"]
    )
    assert status == 3
    assert output.startswith("interrupted")
