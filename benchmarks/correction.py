"""Whether what the profiler takes out of its figures is what it put in: training of a fixed seed, profiled and not."""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

import rlscope_ebpf
from benchmarks.figures import Benchmark, Effort, Figure, Goal, Results
from benchmarks.processes import Attached, BenchmarkError, Target, need_profiler

TARGET = Path(__file__).with_name("repeated_target.py")
REALTIME = ("chrt", "--fifo", "1")
TOLERANCE = 0.03
STRETCH_S = 5.0
TRIAL_STEPS = 600
SETTLING_STEPS = 300
"""Of a stretch that is profiled but not measured: the governor may need that long, and caches."""

PROGRAMS = tuple(
    (algorithm, environment)
    for algorithm, environments in {
        "ppo": ("CartPole-v1", "Hopper-v5"),
        "a2c": ("CartPole-v1", "Hopper-v5"),
        "dqn": ("CartPole-v1", "InvertedPendulum-v5"),
        "sac": ("Pendulum-v1", "Hopper-v5"),
    }.items()
    for environment in environments
)
MODES = {"full": ("--max-overhead", "0"), "default": ()}
_NAMES = {"full": "without a limit", "default": "default limit"}


def _key(algorithm: str, environment: str, mode: str, what: str) -> str:
    return f"{algorithm} {environment} {mode} {what}"


FIGURES = tuple(
    figure
    for algorithm, environment in PROGRAMS
    for mode in MODES
    for figure in (
        Figure(
            _key(algorithm, environment, mode, "raw"),
            f"{algorithm.upper()} {environment}, {_NAMES[mode]}: time to time without the profiler",
            "x",
            3,
        ),
        Figure(
            _key(algorithm, environment, mode, "corrected"),
            f"{algorithm.upper()} {environment}, {_NAMES[mode]}: corrected time to it",
            "x",
            3,
            Goal("within", TOLERANCE),
        ),
    )
)

REMARKS = (
    "One process per program trains the same steps again and again, each time with a new model of the same seed, on "
    "one PyTorch thread and before all other programs (SCHED_FIFO). Every other stretch is profiled, and compared with "
    "the mean of the ones before and after it.",
    "Corrected: all operations of that stretch in the report, after what the probes cost has been taken out.",
    "The profiler's own work takes another core.",
)


def measure(results: Results, effort: Effort) -> None:
    """All programs one after the other."""
    need_profiler()
    for algorithm, environment in PROGRAMS:
        print(f"\n  {algorithm} {environment}", end="", file=sys.stderr, flush=True)
        try:
            _measure_one(results, algorithm, environment, effort.of(5, 1))
        except BenchmarkError as error:
            keys = [_key(algorithm, environment, mode, what) for mode in MODES for what in ("raw", "corrected")]
            results.not_measured(str(error), *keys)


def _measure_one(results: Results, algorithm: str, environment: str, pairs: int) -> None:
    command: list[str | Path] = [*REALTIME, sys.executable, TARGET, algorithm, environment]
    with tempfile.TemporaryDirectory() as name, Target(command) as target:
        _stretch(target, SETTLING_STEPS)
        steps = max(SETTLING_STEPS, int(TRIAL_STEPS * STRETCH_S / _stretch(target, TRIAL_STEPS)))
        before = _stretch(target, steps)
        for _ in range(pairs):
            for mode, options in MODES.items():
                raw, corrected = _profiled(target, steps, Path(name) / "stretch.rlscope", options)
                after = _stretch(target, steps)
                plain = statistics.fmean((before, after))
                results.add(_key(algorithm, environment, mode, "raw"), raw / plain)
                results.add(_key(algorithm, environment, mode, "corrected"), corrected / plain)
                print(f" {mode} {raw / plain:.2f} {corrected / plain:.3f}", end="", file=sys.stderr, flush=True)
                before = after


def _stretch(target: Target, steps: int, name: str = "stretch") -> float:
    """Seconds that so many steps took, in an operation of this name."""
    return float(target.ask(f"{steps} {name}"))


def _profiled(target: Target, steps: int, trace: Path, options: tuple[str, ...]) -> tuple[float, float]:
    """Seconds of a profiled stretch as the program saw them, and as the report corrects them."""
    profiler = Attached(target.pid, "--output", trace, "--force", *options)
    try:
        _stretch(target, SETTLING_STEPS, "settling")
        seconds = _stretch(target, steps)
        profiler.detach()
    finally:
        profiler.close()
    return seconds, seconds * _corrected_share(trace)


def _corrected_share(trace: Path) -> float:
    """Corrected to raw time of the measured stretch in a trace."""
    table = rlscope_ebpf.open(trace).operations()
    inside = table[[path[:1] == ("stretch",) for path in table["path"]]]
    raw = float(inside["wall_ns"].sum())
    if not raw:
        raise BenchmarkError("the report has no stretch")
    return float(inside["corrected_wall_ns"].sum()) / raw


BENCHMARK = Benchmark(
    "correction", "Corrected time of Stable-Baselines3 training", FIGURES, measure, REMARKS, by_name_only=True
)
