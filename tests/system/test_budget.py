"""The overhead budget on a program that makes five million boundary calls a second."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Profiler, Program, build, report

pytestmark = [pytest.mark.system, pytest.mark.slow]

LIBRARY = "libtruth_simulator_storm.so"
WORK = 100
"""Steps of work after each call that make about five million calls a second of a thread."""

HELD_S = 5
"""After so long the budget holds."""

PROFILED_S = 9
SECONDS = 16

LEAST = 0.4
"""Calls per second of CPU time, relative to when nothing profiles. With a limit of 5 % it is 0.95, on a machine with
other work a third more or less; where each call costs a hit of a probe it is 0.1 to 0.2."""


@pytest.mark.parametrize("kind", ["boundary", "nested"])
def test_the_budget_holds_five_seconds_after_the_attach(
    kind: str, start_target: Callable[..., Program], attach: Callable[..., tuple[Profiler, Path]]
) -> None:
    """`nested`: calls from within the library, which change no category and so send no event."""
    options = ("--kind", kind, "--work", str(WORK), "--seconds", str(SECONDS))
    target = start_target(build.program("storm"), "--library", build.native() / LIBRARY, *options)
    profiler, trace = attach(target, "--max-overhead", "5", "--duration", str(PROFILED_S))
    target.go()
    truth = target.truth()
    target.finish()
    assert profiler.wait() == 0
    seconds = zip(truth["by_second"], truth["cpu_by_second"], strict=True)
    speed = [calls / max(cpu_ns, 1) for calls, cpu_ns in seconds]
    profiled, plain = speed[HELD_S : PROFILED_S - 1], speed[PROFILED_S + 2 : SECONDS]
    # The best: a profiler that itself gets no CPU for a while acts later.
    assert max(profiled) >= LEAST * statistics.median(plain), speed
    counters = report(trace)["session"]
    assert counters["complete"]
