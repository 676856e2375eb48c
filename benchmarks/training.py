"""How much slower a real training loop runs while it is profiled, and how large its trace is."""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from benchmarks.figures import Benchmark, Effort, Figure, Goal, Results
from benchmarks.processes import Attached, BenchmarkError, Child, Target, need_profiler
from rlscope_ebpf.trace.reader import TraceReader

TARGET = Path(__file__).with_name("sb3_target.py")

SETTLING = 2
"""Iterations after a change that are not measured: the governor may need that long, and caches."""

MEASURED = 4
TRACED_S = 20.0
PY_SPY_START_S = 1.5
_NO_LIMIT = ("--max-overhead", "0")
_SPARING = ("--max-overhead", "1")

FIGURES = (
    Figure("plain", "not profiled", "steps/s"),
    Figure("floor", "time without the profiler to time without it before and after: what chance does", "x", 3),
    Figure("default", "time with the profiler, default options, to time without", "x", 3, Goal("at most", 1.06)),
    Figure("sparing", "time with the profiler, --max-overhead 1, to time without", "x", 3, Goal("at most", 1.02)),
    Figure("unlimited", "time with the profiler, --max-overhead 0, to time without", "x", 3),
    Figure("py_spy", "time with py-spy record (100 samples/s) to time without", "x", 3),
    Figure("hits", "probe hits, --max-overhead 0", "k hits/s", 1),
    Figure("events", "events of the profiler, --max-overhead 0", "k events/s", 1),
    Figure("bytes", "bytes per event in the trace, --max-overhead 0", "bytes", 2, Goal("at most", 8)),
    Figure("trace", "trace per second of training, --max-overhead 0", "kB/s"),
)

REMARKS = (
    "tests/targets/sb3_loop.py: CartPole, n_steps 512, 4 epochs, CPU, one PyTorch thread, fixed seed. One process "
    "trains all the time, and is profiled every other window of a few iterations; each such window is compared with "
    "the mean of the unprofiled ones before and after it. A window counts by its median iteration.",
    "The profiler's own work takes another core.",
    "Events: all that were received, the scheduler's too. The trace also holds the names of all probes, written once, "
    "so a longer one has fewer bytes per event.",
)


def measure(results: Results, effort: Effort) -> None:
    """Plain and profiled windows in turns; then one longer profiled stretch for its trace."""
    need_profiler()
    with tempfile.TemporaryDirectory() as name, Target([sys.executable, TARGET]) as target:
        folder = Path(name)
        steps = int(target.greeting.split()[2])
        modes: dict[str, Callable[[], AbstractContextManager[object]]] = {
            "default": lambda: _Profiled(target.pid, folder),
            "sparing": lambda: _Profiled(target.pid, folder, *_SPARING),
            "unlimited": lambda: _Profiled(target.pid, folder, *_NO_LIMIT),
        }
        py_spy = Path(sys.executable).with_name("py-spy")
        if py_spy.exists():
            modes["py_spy"] = lambda: _Sampled(py_spy, target.pid, folder)
        else:
            results.not_measured("py-spy is missing (pip install py-spy)", "py_spy")
        windows = [("plain", _window(target, nullcontext()))]
        for _ in range(effort.of(6, 2)):
            for mode, profiled in list(modes.items()):
                try:
                    windows.append((mode, _window(target, profiled())))
                except BenchmarkError as error:
                    if target.process.poll() is not None:
                        raise
                    results.not_measured(str(error), mode)
                    del modes[mode]
                windows.append(("plain", _window(target, nullcontext())))
        for at, (mode, seconds) in enumerate(windows):
            if mode == "plain":
                results.add("plain", steps / seconds)
                if 2 <= at < len(windows) - 2:  # every other window is a plain one
                    results.add("floor", seconds / statistics.fmean((windows[at - 2][1], windows[at + 2][1])))
            else:
                results.add(mode, seconds / statistics.fmean((windows[at - 1][1], windows[at + 1][1])))
        _trace(results, target, folder, effort.of(int(TRACED_S), 4), steps)


def _window(target: Target, profiled: AbstractContextManager[object]) -> float:
    """Seconds per iteration."""
    with profiled:
        return statistics.median(_iterations(target, SETTLING + MEASURED)[SETTLING:])


def _iterations(target: Target, count: int) -> list[float]:
    return [float(word) for word in target.ask(str(count)).split()]


class _Profiled:
    """The profiler as a person runs it, with a trace."""

    def __init__(self, pid: int, folder: Path, *options: str) -> None:
        self.trace = folder / "training.rlscope"
        self._pid, self._options = pid, options
        self._profiler: Attached | None = None

    def __enter__(self) -> None:
        self._profiler = Attached(self._pid, "--output", self.trace, "--force", *self._options)

    def __exit__(self, *_: object) -> None:
        assert self._profiler is not None
        try:
            self._profiler.detach()
        finally:
            self._profiler.close()


class _Sampled:
    """py-spy on the target."""

    def __init__(self, program: Path, pid: int, folder: Path) -> None:
        self._command: list[str | Path] = [
            program,
            "record",
            "--pid",
            str(pid),
            "--format",
            "raw",
            "--output",
            folder / "py-spy.txt",
        ]
        self._child: Child | None = None

    def __enter__(self) -> None:
        self._child = Child(self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        time.sleep(PY_SPY_START_S)
        if self._child.process.poll() is not None:
            error = self._child.failure("py-spy ended")
            self._child.close()
            raise error

    def __exit__(self, *_: object) -> None:
        assert self._child is not None
        self._child.stop(signal.SIGINT)
        self._child.close()


def _trace(results: Results, target: Target, folder: Path, seconds: int, steps: int) -> None:
    """A stretch of about so many seconds."""
    per_iteration = steps / (results.median("plain") or steps)
    profiled = _Profiled(target.pid, folder, *_NO_LIMIT)
    with profiled:
        spent = sum(_iterations(target, max(2, round(seconds / per_iteration))))
    reader = TraceReader(profiled.trace)
    if not reader.complete:
        raise BenchmarkError("the trace is not complete")
    received = reader.counters.received
    size = profiled.trace.stat().st_size
    results.add("hits", reader.counters.hits / spent / 1e3)
    results.add("events", received / spent / 1e3)
    results.add("bytes", size / received)
    results.add("trace", size / spent / 1e3)


BENCHMARK = Benchmark("training", "Stable-Baselines3 PPO while profiled", FIGURES, measure, REMARKS)
