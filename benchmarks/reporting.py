"""`report` on a large trace."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks import bench_report
from benchmarks.figures import Benchmark, Effort, Figure, Goal, Results
from benchmarks.processes import PROFILER, BenchmarkError

FULL_ROWS, QUICK_ROWS = 10_000_000, 2_000_000
FORMATS = ("text", "json", "csv")

FIGURES = (
    *(
        Figure(form, f"report --format {form}, 10 million events", "s", 2, Goal("at most", bench_report.GOAL_S))
        for form in FORMATS
    ),
    Figure("memory", "most memory of these", "MB"),
    Figure("size", "the trace", "MB"),
)

REMARKS = (
    "A synthetic trace of ten million intervals (each comes from one event) and two million spans: two processes, "
    "eight threads, nine operations, two phases. A quick run has a fifth of it and multiplies its seconds, those of "
    "starting up included.",
)


def measure(results: Results, effort: Effort) -> None:
    """Write the trace, then run the command on it."""
    if not PROFILER.exists():
        raise BenchmarkError(f"{PROFILER.name} is not installed in this environment (make setup)")
    rows = effort.of(FULL_ROWS, QUICK_ROWS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.rlscope"
        bench_report.write(path, rows)
        results.add("size", path.stat().st_size / 1e6 * FULL_ROWS / rows)
        memory = 0
        for _ in range(effort.of(2, 1)):
            for form in FORMATS:
                seconds, peak = _report(path, form)
                results.add(form, seconds * FULL_ROWS / rows)
                memory = max(memory, peak)
        results.add("memory", memory / 1e6)


def _report(path: Path, form: str) -> tuple[float, int]:
    """Seconds, and bytes of memory at the most."""
    begun = time.perf_counter()
    process = subprocess.Popen([PROFILER, "report", path, "--format", form], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise BenchmarkError(f"report ended with status {process.returncode}")
    return seconds, usage.ru_maxrss * 1024


BENCHMARK = Benchmark("reporting", "Reports", FIGURES, measure, REMARKS)
