"""Whether what the profiler takes out of its figures is what it put in: training of a fixed seed, profiled and not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np

import rlscope_ebpf
from benchmarks.figures import Benchmark, Effort, Figure, Goal, Results
from benchmarks.metronome import Floats, Pace, pace
from benchmarks.processes import PROFILER, Attached, BenchmarkError, Target, need_profiler
from rlscope_ebpf.paths import STATE_VARIABLE

TARGET = Path(__file__).with_name("repeated_target.py")
REALTIME = ("chrt", "--fifo", "1")
TOLERANCE = 0.03
STRETCH_S = 5.0
SETTLING_STEPS = {"ppo": 1000, "a2c": 1000, "dqn": 3000, "sac": 200}
"""Of a stretch that is profiled but not measured, a second or two: the governor may need that long, and caches."""

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
MODES = {"default": (), "sparing": ("--max-overhead", "1"), "full": ("--max-overhead", "0")}
_NAMES = {"default": "default limit", "sparing": "--max-overhead 1", "full": "without a limit"}
_EVERY = {"default": 1, "sparing": 1, "full": 2}
"""Each mode comes in every so many rounds: without a limit, what is to be told is large."""

_SLOWEST = {"default": 1.06, "sparing": 1.02}
_WARM_UP_CHUNKS = 3
_FLOOR = "floor"


def _key(algorithm: str, environment: str, mode: str, what: str) -> str:
    return f"{algorithm} {environment} {mode} {what}"


def _figures(algorithm: str, environment: str) -> Iterator[Figure]:
    name = f"{algorithm.upper()} {environment}"
    yield Figure(f"{algorithm} {environment} {_FLOOR}", f"{name}: stretches without the profiler to their mean", "x", 3)
    for mode in MODES:
        slowest = _SLOWEST.get(mode)
        yield Figure(
            _key(algorithm, environment, mode, "raw"),
            f"{name}, {_NAMES[mode]}: time to time without the profiler",
            "x",
            3,
            Goal("at most", slowest) if slowest else None,
        )
        yield Figure(
            _key(algorithm, environment, mode, "corrected"),
            f"{name}, {_NAMES[mode]}: corrected time to it",
            "x",
            3,
            Goal("within", TOLERANCE),
        )


FIGURES = tuple(figure for algorithm, environment in PROGRAMS for figure in _figures(algorithm, environment))

REMARKS = (
    "One process per program trains the same steps again and again, each time with a new model of the same seed, on "
    "one PyTorch thread and before all other programs (SCHED_FIFO). Every other stretch is profiled, about five "
    "seconds of it after a settling of one or two.",
    "All time is CPU time of the training thread, held against the machine's speed in the same moments: a piece of "
    "work that no probe touches is timed a thousand times a second (`benchmarks/metronome.py`), and how long a rollout "
    "with its training takes at which speed is learnt from the stretches without the profiler.",
    "Corrected: that, less the share of its operations that the report takes out as the probes' cost.",
    "The profiler's own work takes another core. The host is calibrated once, before.",
)


def measure(results: Results, effort: Effort) -> None:
    """All programs one after the other, with a calibration of this host, as the README asks for one."""
    need_profiler()
    with tempfile.TemporaryDirectory() as state, patch.dict(os.environ, {STATE_VARIABLE: state}):
        subprocess.run([PROFILER, "calibrate"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _measure_all(results, effort)


def _measure_all(results: Results, effort: Effort) -> None:
    for algorithm, environment in PROGRAMS:
        print(f"\n  {algorithm} {environment}", end="", file=sys.stderr, flush=True)
        try:
            _measure_one(results, algorithm, environment, effort.of(5, 1))
        except BenchmarkError as error:
            keys = [_key(algorithm, environment, mode, what) for mode in MODES for what in ("raw", "corrected")]
            results.not_measured(str(error), *keys)


@dataclass(frozen=True, slots=True)
class _Profiled:
    mode: str
    chunks: Floats
    corrected_share: float  # corrected to raw time


def _measure_one(results: Results, algorithm: str, environment: str, rounds: int) -> None:
    command: list[str | Path] = [*REALTIME, sys.executable, TARGET, algorithm, environment]
    plain: list[Floats] = []
    profiled: list[_Profiled] = []
    with tempfile.TemporaryDirectory() as name, Target(command) as target:
        settling = SETTLING_STEPS[algorithm]
        _stretch(target, settling)
        steps = max(settling, int(settling * STRETCH_S / _stretch(target, settling)[0]))
        plain.append(_chunks(target, steps))
        for number in range(rounds):
            for mode, options in MODES.items():
                if number % _EVERY[mode]:
                    continue
                profiled.append(_profiled(target, settling, steps, Path(name) / "stretch.rlscope", mode, options))
                plain.append(_chunks(target, steps))
                print(".", end="", file=sys.stderr, flush=True)
    usual = pace(np.array(plain))
    for chunks in plain:
        results.add(f"{algorithm} {environment} {_FLOOR}", _slowdown(chunks, usual))
    for each in profiled:
        raw = _slowdown(each.chunks, usual)
        results.add(_key(algorithm, environment, each.mode, "raw"), raw)
        results.add(_key(algorithm, environment, each.mode, "corrected"), raw * each.corrected_share)
        print(f" {each.mode} {raw:.3f} {raw * each.corrected_share:.3f}", end="", file=sys.stderr, flush=True)


def _slowdown(chunks: Floats, usual: Pace) -> float:
    return float(chunks[:, 0].sum()) / usual.expected_s(chunks)


def _stretch(target: Target, steps: int, name: str = "stretch") -> tuple[float, Floats]:
    """Seconds that so many steps took, in an operation of this name, and their chunks without those of the warm-up."""
    answer = json.loads(target.ask(f"{steps} {name}"))
    return answer["seconds"], np.array(answer["chunks"])[_WARM_UP_CHUNKS:]


def _chunks(target: Target, steps: int) -> Floats:
    return _stretch(target, steps)[1]


def _profiled(target: Target, settling: int, steps: int, trace: Path, mode: str, options: tuple[str, ...]) -> _Profiled:
    """A profiled stretch as the program saw it, and how the report corrects it."""
    profiler = Attached(target.pid, "--output", trace, "--force", *options)
    try:
        _stretch(target, settling, "settling")
        chunks = _chunks(target, steps)
        profiler.detach()
    finally:
        profiler.close()
    return _Profiled(mode, chunks, _corrected_share(trace))


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
