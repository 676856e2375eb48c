"""What a profiled process costs another one of the same program, that is not profiled."""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
from pathlib import Path

from benchmarks.figures import Benchmark, Effort, Figure, Goal, Results, median_interval
from benchmarks.processes import Attached, BenchmarkError, Target, need_profiler

PROGRAM = Path(__file__).with_name("outsider_loop.py")
WINDOW_S = 2.0
SHARE = 30
"""Per cent of the time in which the profiled process works: caches, and what the host gives both, change with that."""

FIGURES = (
    Figure("cpu", "more CPU time for the same work", "%", 2),
    Figure("cpu_most", "the same, upper end of the median's 95% interval", "%", 2, Goal("less than", 1)),
    Figure("cpu_least", "lower end", "%", 2),
    Figure("wall", "more time for the same work", "%", 2),
    Figure("wall_most", "the same, upper end of the median's 95% interval", "%", 2, Goal("less than", 1)),
    Figure("wall_least", "lower end", "%", 2),
)

REMARKS = (
    "Two processes of a program that calls NumPy and PyTorch within operations; one is profiled for a while, and not, "
    "in turns. The outsider has a CPU of its own: who competes for one is slower, whatever the other process is.",
    f"Each sample compares the median piece of work (some milliseconds, with a sleep) of {WINDOW_S:g} s with those of "
    "the two windows without a profiler around it.",
    f"The profiled process works {SHARE}% of the time, on the CPU where the profiler is.",
)


def measure(results: Results, effort: Effort) -> None:
    """Windows with a profiler between windows without one."""
    need_profiler()
    before = os.sched_getaffinity(0)
    cpus = sorted(before)
    if len(cpus) < 2:
        raise BenchmarkError("only one CPU")
    with _loop(cpus[-1]) as outsider, _loop(cpus[0]) as target:
        target.ask(f"share {SHARE}")
        try:
            os.sched_setaffinity(0, {cpus[0]})  # and so the profilers
            quiet = _window(outsider)
            for _ in range(effort.of(30, 6)):
                with Attached(target.pid, "--no-trace") as attached:
                    met = _window(outsider)
                    attached.detach()
                after = _window(outsider)
                for key, busy, first, second in zip(("cpu", "wall"), met, quiet, after, strict=True):
                    results.add(key, 100 * (busy / math.sqrt(first * second) - 1))
                quiet = after
        finally:
            os.sched_setaffinity(0, before)
    for key in ("cpu", "wall"):
        least, most = median_interval(results.samples[key])
        if math.isfinite(least):
            results.add(f"{key}_least", least)
            results.add(f"{key}_most", most)
    results.not_measured("too few samples", "cpu_least", "cpu_most", "wall_least", "wall_most")


def _loop(cpu: int) -> Target:
    return Target([sys.executable, PROGRAM, str(cpu)])


def _window(outsider: Target) -> tuple[float, float]:
    """The median piece of a window: CPU time and time, in ns."""
    cpu, wall = zip(*json.loads(outsider.ask(f"work {WINDOW_S}")), strict=True)
    return statistics.median(cpu), statistics.median(wall)


BENCHMARK = Benchmark("outsiders", "Cost to a process that is not profiled", FIGURES, measure, REMARKS)
