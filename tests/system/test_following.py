"""Children of targets: every one is found, and what they do is in the figures."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import TARGETS, Profiler, Program, footprint, report, wait_for

pytestmark = pytest.mark.system

Attach = Callable[..., tuple[Profiler, Path]]
StartTarget = Callable[..., Program]

LIVED_NS = 100_000_000
AFTERWARDS_NS = 1_000_000_000
"""The kernel wakes the parent before it stamps its message of the end: a process that loses its CPU there is late."""


@pytest.mark.slow
def test_no_process_of_a_storm_is_lost(start_target: StartTarget, attach: Attach) -> None:
    target = start_target(sys.executable, TARGETS / "storm.py", "8", "8", "1")
    profiler, trace = attach(target)
    before = footprint(profiler.pid)
    target.go()
    truth = target.truth(240)
    assert target.wait() == 0
    after = footprint(profiler.pid) if profiler.is_running() else before
    assert profiler.wait(120) == 0, profiler.stderr
    found = {each["pid"]: each for each in report(trace)["processes"]}
    lived = [each for each in truth["processes"] if each["ended"] - each["began"] > LIVED_NS]
    assert len(lived) > 20  # or the test shows nothing
    missing = [each for each in lived if each["pid"] not in found]
    assert not missing
    wrong = {each["pid"]: each for each in truth["processes"] if each["pid"] in found}
    for pid, each in wrong.items():
        assert found[pid]["ppid"] == each["parent"], each
        assert found[pid]["exit_status"] == each["status"], each
        assert each["began"] <= found[pid]["end_ns"] <= each["ended"] + AFTERWARDS_NS, each
    assert after.descriptors < before.descriptors + 200  # what is still being taken away
    assert not [line for line in profiler.stderr.splitlines() if "Traceback" in line]


def _simulated(trace: Path) -> dict[int, Any]:
    return {
        each["pid"]: operation
        for each in report(trace)["processes"]
        for operation in each["operations"]
        if operation["name"] == "simulate"
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["subproc", "async"])
def test_simulators_in_processes_of_their_own(kind: str, start_target: StartTarget, attach: Attach) -> None:
    target = start_target(sys.executable, TARGETS / "vector_envs.py", kind, "4", "200")
    profiler, trace = attach(target)
    target.go()
    truth = target.truth(240)
    assert target.wait() == 0
    assert profiler.wait(120) == 0, profiler.stderr
    simulated = _simulated(trace)
    for pid, spent_ns, around_ns, steps in truth["workers"]:
        assert pid in simulated, profiler.stderr
        assert simulated[pid]["count"] == steps
        assert spent_ns * 0.97 <= simulated[pid]["raw"]["wall_ns"] <= around_ns * 1.03


def test_children_that_are_there_already(start_target: StartTarget, attach: Attach) -> None:
    target = start_target(
        sys.executable, TARGETS / "vector_envs.py", "async", "2", "100", environment={"SETTLE_S": "25"}
    )
    target.go()
    wait_for(lambda: "WORKERS" in target.output, 60, "the workers")
    profiler, trace = attach(target)
    truth = target.truth(240)
    assert profiler.wait(120) == 0, profiler.stderr
    simulated = _simulated(trace)
    for pid, spent_ns, around_ns, steps in truth["workers"]:
        assert simulated[pid]["count"] == steps
        assert spent_ns * 0.97 <= simulated[pid]["raw"]["wall_ns"] <= around_ns * 1.03


def test_no_follow_leaves_children_alone(start_target: StartTarget, attach: Attach) -> None:
    target = start_target(sys.executable, TARGETS / "storm.py", "0.5", "2", "2")
    profiler, trace = attach(target, "--no-follow")
    target.go()
    target.finish()
    assert profiler.wait(120) == 0
    assert [each["pid"] for each in report(trace)["processes"]] == [target.pid]
