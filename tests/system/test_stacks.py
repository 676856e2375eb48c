"""Calls that are left neither by a return nor down the stack: none of it may harm the target, whatever comes when."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import (
    STOP_S,
    TARGETS,
    TRUTH,
    Profiler,
    Program,
    build,
    compare,
    interpreters,
    process_of,
    report,
    total,
    until_it_agrees,
    wait_for,
)

pytestmark = pytest.mark.system

StartTarget = Callable[..., Program]
Attach = Callable[..., tuple[Profiler, Path]]

METHODS = ("session", "multi", "perf")
STACKS_LIBRARY = "libstacks_library.so"
LIBRARIES = ("--library", f"simulator=*{STACKS_LIBRARY}")
PLAIN_CALLS, ROUNDS = 300, 1500  # of stacks.c


def _start_stacks(start_target: StartTarget, plugin: str, *words: str) -> Program:
    native = build.native()
    return start_target(build.program("stacks"), native / STACKS_LIBRARY, native / f"libstacks_{plugin}.so", *words)


def _rounds(target: Program) -> int:
    """Of a target that must be well."""
    return int(target.finish().split("ROUNDS ")[1])


def _calls(trace: Path, target: Program) -> int:
    rows = process_of(report(trace), target.pid)["operations"]
    return sum(count for row in rows for kind, count in row["transitions"].items() if kind.endswith("_to_simulator"))


@pytest.mark.parametrize("when", [("now",), ("late",), ("late", "700"), ("inside",)], ids=" ".join)
@pytest.mark.parametrize("method", METHODS)
def test_contexts_switched_inside_of_calls(
    method: str, when: tuple[str, ...], start_target: StartTarget, attach: Attach
) -> None:
    target = _start_stacks(start_target, "contexts", *when)
    profiler, trace = attach(target, "--attach-method", method, libraries=LIBRARIES)
    target.go()
    assert _rounds(target) >= ROUNDS
    assert profiler.wait() == 0, profiler.stderr
    assert _calls(trace, target) >= PLAIN_CALLS


@pytest.mark.parametrize("when", ["now", "late"])
@pytest.mark.parametrize("method", ["session", "multi"])
def test_contexts_saved_and_taken_up_one_by_one(
    method: str, when: str, start_target: StartTarget, attach: Attach
) -> None:
    target = _start_stacks(start_target, "halves", when, "700")
    profiler, trace = attach(target, "--attach-method", method, libraries=LIBRARIES)
    target.go()
    assert _rounds(target) >= ROUNDS
    assert profiler.wait() == 0, profiler.stderr
    assert "can switch stacks" in profiler.stderr
    assert _calls(trace, target) >= PLAIN_CALLS


@pytest.mark.parametrize("when", ["now", "late"])
@pytest.mark.parametrize("method", ["session", "multi"])
def test_threads_cancelled_inside_of_calls(method: str, when: str, start_target: StartTarget, attach: Attach) -> None:
    target = _start_stacks(start_target, "cancels", when, "700")
    profiler, _ = attach(target, "--attach-method", method, libraries=LIBRARIES)
    target.go()
    assert _rounds(target) == ROUNDS
    assert profiler.wait() == 0, profiler.stderr


def test_contexts_made_by_functions_that_nothing_names(start_target: StartTarget, attach: Attach) -> None:
    target = _start_stacks(start_target, "hidden", "late", "300", "linger")
    profiler, _ = attach(target, libraries=LIBRARIES)
    target.go()
    wait_for(lambda: "makes stacks to switch to" in profiler.stderr, STOP_S, "the notice")
    target.say("end\n")
    assert _rounds(target) >= ROUNDS
    assert profiler.wait() == 0


@pytest.mark.parametrize("when", [("now",), ("late",), ("late", "700"), ("inside",)], ids=" ".join)
@pytest.mark.parametrize("method", METHODS)
def test_exceptions_of_a_caller_that_no_import_shows(
    method: str, when: tuple[str, ...], start_target: StartTarget, attach: Attach
) -> None:
    """The program found the function by name; the code that throws was there before the attach, or is not there yet."""
    target = _start_stacks(start_target, "exceptions", *when)
    profiler, trace = attach(target, "--attach-method", method, libraries=LIBRARIES)
    target.go()
    assert _rounds(target) == ROUNDS
    assert profiler.wait() == 0, profiler.stderr
    if when == ("now",):
        assert _calls(trace, target) == PLAIN_CALLS + ROUNDS + PLAIN_CALLS


@pytest.mark.parametrize("when", ["now", "late"])
@pytest.mark.parametrize("method", METHODS)
def test_greenlets_switched_inside_of_calls(method: str, when: str, start_target: StartTarget, attach: Attach) -> None:
    target = start_target(sys.executable, TARGETS / "greenlets.py", build.native() / STACKS_LIBRARY, when)
    profiler, trace = attach(target, "--attach-method", method, libraries=LIBRARIES)
    target.go()
    assert _rounds(target) > 100
    assert profiler.wait() == 0, profiler.stderr
    assert "greenlet" in profiler.stderr
    assert _calls(trace, target) > PLAIN_CALLS


@pytest.mark.parametrize("method", ["session", "multi"])
def test_greenlets_among_the_functions_of_a_python_module(
    method: str, start_target: StartTarget, attach: Attach
) -> None:
    """Functions that only the interpreter calls, and its frames: what switches inside of them is Python."""
    target = start_target(sys.executable, TARGETS / "greenlets.py", build.native() / STACKS_LIBRARY, "late")
    libraries = ("--library", "simulator=*_ctypes.*")
    profiler, _ = attach(target, "--attach-method", method, libraries=libraries)
    target.go()
    assert _rounds(target) > 100
    assert profiler.wait() == 0, profiler.stderr


def test_another_profiler_sets_return_probes_on_the_same_functions(start_target: StartTarget, attach: Attach) -> None:
    """In another process; but the kernel asks only what is wanted of an instruction, not for whom."""
    library = build.native() / STACKS_LIBRARY
    libraries = (*LIBRARIES, "--library", "backend=*_decimal*", "--library", "simulator=*_ctypes.*")
    other = start_target(sys.executable, TARGETS / "deep.py", library, "1", "1", "1000")
    target = start_target(sys.executable, TARGETS / "greenlets.py", library, "now")
    profilers = [attach(each, libraries=libraries)[0] for each in (other, target)]
    target.go()
    assert _rounds(target) > 100
    other.go()
    assert _rounds(other) == 1
    for profiler in profilers:
        assert profiler.wait() == 0, profiler.stderr


DEPTH, DEEP_CALLS, SPIN_NS = 100, 100, 2_000_000


@pytest.mark.parametrize("python", interpreters().values(), ids=interpreters())
@pytest.mark.parametrize("method", ["session", "multi"])
def test_calls_below_more_returns_than_the_kernel_keeps(
    method: str, python: str, start_target: StartTarget, attach: Attach
) -> None:
    words = (build.native() / STACKS_LIBRARY, str(DEPTH), str(DEEP_CALLS), str(SPIN_NS))
    target = start_target(python, TARGETS / "deep.py", *words, realtime=True)
    libraries = (*LIBRARIES, "--library", "backend=*_decimal*")
    profiler, trace = attach(target, "--attach-method", method, libraries=libraries)
    target.go()
    assert _rounds(target) == DEEP_CALLS
    assert profiler.wait() == 0, profiler.stderr
    document = report(trace)
    spent = total(document, target.pid, "simulator")
    lost = document["losses"]["not_followed"]
    # Each call is seen, as long as it was or longer where it was preempted; or it is counted as one that is not.
    assert spent < 1.2 * SPIN_NS * DEEP_CALLS
    assert spent >= 0.97 * SPIN_NS * (DEEP_CALLS - lost)
    assert total(document, target.pid, "python") > 1.9 * SPIN_NS * DEEP_CALLS


def test_return_probes_of_an_older_kernel(start_target: StartTarget, attach: Attach) -> None:
    """Where nothing can switch stacks they are used, and right; the environment of these tests has greenlet."""
    python = next((path for path in interpreters().values() if not _has_greenlet(path)), None)
    assert python is not None, "every interpreter here has greenlet: nothing to try it with"
    work = ("--seconds", "2", "--rate", "150", "--shortest", "3000", "--scenario", "ctypes_held", "--scenario", "sleep")

    def attempt() -> tuple[None, list[Any]]:
        target = start_target(python, TRUTH, *work, realtime=True)
        profiler, trace = attach(target, "--attach-method", "multi")
        target.go()
        truth = target.truth()
        target.finish()
        assert profiler.wait() == 0
        assert "switch" not in profiler.stderr
        return None, compare.compare(truth, report(trace))

    until_it_agrees(attempt)


def _has_greenlet(python: str) -> bool:
    return subprocess.run([python, "-c", "import greenlet"], capture_output=True).returncode == 0
