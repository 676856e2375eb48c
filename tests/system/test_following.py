"""Children of targets: every one is found, and what they do is in the figures."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import TARGETS, Profiler, Program, footprint, report, wait_for

pytestmark = pytest.mark.system

Attach = Callable[..., tuple[Profiler, Path]]
StartTarget = Callable[..., Program]
StartProfiler = Callable[..., Profiler]

AFTERWARDS_NS = 1_000_000_000
"""The kernel wakes the parent before it stamps its message of the end: a process that loses its CPU there is late."""


ONCE = 16  # descriptors, and threads, that are made with the first processes and then kept
PROCESS_BYTES = 16 << 10
CACHES_BYTES = 16 << 20


@pytest.mark.slow
def test_no_process_of_a_storm_is_lost(start_target: StartTarget, attach: Attach) -> None:
    seconds = os.environ.get("RLSCOPE_STORM_SECONDS", "5")  # each of two storms; 60 make it two minutes
    target = start_target(sys.executable, TARGETS / "storm.py", seconds, "64", "1", "2")
    profiler, trace = attach(target)
    before = footprint(profiler.pid)

    def is_calm() -> bool:
        now = footprint(profiler.pid)
        return now.descriptors <= before.descriptors + ONCE and now.threads <= before.threads + ONCE

    target.go()
    patience = 60 + 10 * float(seconds)
    wait_for(lambda: "CALM" in target.output, patience, "the end of the first storm")
    wait_for(is_calm, patience, "the end of what belongs to processes that have ended")
    between = footprint(profiler.pid)
    target.go()
    truth = target.truth(patience)
    wait_for(is_calm, patience, "the end of what belongs to processes that have ended")
    after = footprint(profiler.pid)
    target.go()
    assert target.wait() == 0
    assert profiler.wait(patience) == 0, profiler.stderr

    found = {each["pid"]: each for each in report(trace)["processes"]}
    assert len(truth["processes"]) > 100  # or the test shows nothing
    assert not [each for each in truth["processes"] if each["pid"] not in found]
    for each in truth["processes"]:
        told = found[each["pid"]]
        assert told["ppid"] == each["parent"], each
        assert told["exit_status"] == each["status"], each
        assert each["began"] <= told["end_ns"] <= each["ended"] + AFTERWARDS_NS, each
    # What is remembered of a process, for the report's sake, is its name and the like.
    assert after.resident - between.resident < len(truth["processes"]) * PROCESS_BYTES + CACHES_BYTES


TOLERANCE = 0.03  # of what a worker measures itself: the probes' time is taken out by what they cost on average


def _check_simulators(trace: Path, workers: list[tuple[int, int, int, int]]) -> None:
    """Compare each worker's simulation time: its pid, its time in ns without and with the markers, and its steps."""
    found = {
        each["pid"]: operation
        for each in report(trace)["processes"]
        for operation in each["operations"]
        if operation["name"] == "simulate"
    }
    for pid, spent_ns, around_ns, steps in workers:
        assert found[pid]["count"] == steps
        # The worker reads the same clock before and after each marker, so that what is between the markers' hits is
        # between what the worker measures inside them and around them: whatever else the machine does, to a nanosecond.
        assert spent_ns <= found[pid]["raw"]["wall_ns"] <= around_ns
        assert spent_ns * (1 - TOLERANCE) <= found[pid]["corrected"]["wall_ns"] <= around_ns * (1 + TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["subproc", "ppo", "async"])
def test_simulators_in_processes_of_their_own(kind: str, start_target: StartTarget, attach: Attach) -> None:
    words = (sys.executable, TARGETS / "vector_envs.py", kind, "8", "200")
    target = start_target(
        *words, environment={"SETTLE_S": "15"}
    )  # so that all have their probes: counts are exact then
    profiler, trace = attach(target)
    target.go()
    truth = target.truth(240)
    assert target.wait() == 0
    assert profiler.wait(120) == 0, profiler.stderr
    _check_simulators(trace, truth["workers"])


def test_children_that_are_there_already(start_target: StartTarget, attach: Attach) -> None:
    target = start_target(
        sys.executable, TARGETS / "vector_envs.py", "async", "2", "100", environment={"SETTLE_S": "25"}
    )
    target.go()
    wait_for(lambda: "WORKERS" in target.output, 60, "the workers")
    profiler, trace = attach(target)
    truth = target.truth(240)
    assert profiler.wait(120) == 0, profiler.stderr
    _check_simulators(trace, truth["workers"])


def test_no_follow_leaves_children_alone(start_target: StartTarget, attach: Attach) -> None:
    target = start_target(sys.executable, TARGETS / "storm.py", "0.5", "2", "2")
    profiler, trace = attach(target, "--no-follow")
    target.go()
    target.finish()
    assert profiler.wait(120) == 0
    assert [each["pid"] for each in report(trace)["processes"]] == [target.pid]


def test_processes_of_a_name_are_profiled_as_they_come(
    start_target: StartTarget, start_profiler: StartProfiler, tmp_path: Path
) -> None:
    script = tmp_path / f"worker_{os.getpid()}.py"
    script.write_text((TARGETS / "family.py").read_text())
    first = start_target(sys.executable, script, "0")
    profiler = start_profiler("attach", "--name", script.stem, "-o", tmp_path / "t.rlscope").wait_until_attached()
    second = start_target(sys.executable, script, "1")  # no child of the first
    other = start_target(sys.executable, TARGETS / "family.py", "0")
    for each in (other, second, first):
        time.sleep(0.5)
        each.go()
        each.finish()
    assert profiler.wait(120) == 0, profiler.stderr
    found = {each["pid"]: each["ppid"] for each in report(tmp_path / "t.rlscope")["processes"]}
    assert {first.pid, second.pid} <= found.keys()
    assert second.pid in found.values()  # its child
    assert other.pid not in found


def test_a_tree_that_is_there_already(start_target: StartTarget, start_profiler: StartProfiler, tmp_path: Path) -> None:
    target = start_target(sys.executable, TARGETS / "family.py", "16")
    trace = tmp_path / "t.rlscope"
    profiler = start_profiler("attach", "--tree", str(target.pid), "-o", trace).wait_until_attached()
    time.sleep(1)
    target.go()
    target.finish()
    assert profiler.wait(120) == 0, profiler.stderr
    document = report(trace)
    children = [each for each in document["processes"] if each["ppid"] == target.pid]
    assert len(children) == 16
    assert {each["exit_status"] for each in children} == {-signal.SIGTERM}
    for child in children:
        assert sum(row["raw"]["wall_ns"] for row in child["operations"]) > 0
