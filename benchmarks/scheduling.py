"""What it costs to follow the scheduler: those whose threads are followed, and everybody else."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.engines import loaded_engine
from benchmarks.figures import Benchmark, Effort, Figure, Results
from benchmarks.processes import BenchmarkError, Target, compile_program, need_root
from rlscope_ebpf.capture.cookie import Group
from rlscope_ebpf.capture.engine import Engine
from rlscope_ebpf.capture.maps import MapsWatcher
from rlscope_ebpf.capture.plan import Planner
from rlscope_ebpf.capture.probe_sites import probe_sites
from rlscope_ebpf.paths import marker_library

SOURCE = Path(__file__).parent / "native" / "turns.c"
REALTIME = ("chrt", "--fifo", "1")
"""Nobody else gets the CPU meanwhile."""

TURNS = 20_000
WARM_TURNS = 1_000

_EVENTS = 4
"""Of a turn of followed threads, at least: both leave their CPU and come back; who is not preempted is woken, too."""

FIGURES = (
    Figure("plain", "two threads wake each other, there and back, nothing followed", "ns"),
    Figure("others", "the same, of a process that is not profiled: more, while the scheduler is followed", "ns"),
    Figure("target", "the same, of a target's followed threads: more", "ns"),
)

REMARKS = (
    "Two switches and two wake-ups, on one CPU. Each sample is the difference between 20,000 turns while the scheduler "
    "is followed and, right before, as many without.",
)


def measure(results: Results, effort: Effort) -> None:
    """Alternate plain and followed."""
    need_root()
    with tempfile.TemporaryDirectory() as folder:
        program = compile_program(SOURCE, Path(folder))
        command: list[str | Path] = [*REALTIME, program, marker_library()]
        with Target(command) as other, Target(command) as own, loaded_engine() as engine:
            _follow(engine, own)
            for _ in range(effort.of(25, 3)):
                for key, target, events in (("others", other, 0), ("target", own, _EVENTS)):
                    plain = _per_turn(target)
                    results.add("plain", plain)
                    results.add(key, _followed(engine, target, events) - plain)


def _follow(engine: Engine, target: Target) -> None:
    """Let both of its threads be known."""
    objects = MapsWatcher(target.pid).poll() or []
    planned = Planner(target.pid, groups={Group.MARKER}).plan(objects).targets
    sites = [site for each in planned for site in probe_sites(each, allow_returns=True)]
    engine.add_target(target.pid, is_python=False, assume_held=False)
    engine.attach(target.pid, sites)
    target.ask("mark 1")
    _drain(engine)
    engine.detach()


def _followed(engine: Engine, target: Target, events: int) -> float:
    engine.follow_scheduler()
    try:
        found = _per_turn(target)
        sent = _drain(engine)
    finally:
        engine.detach()
        _drain(engine)
    # Whoever else profiles, or a thread that was preempted, adds a few.
    least = events * TURNS
    if sent < least or (not events and sent > TURNS):
        raise BenchmarkError(f"{sent:,} events of {TURNS:,} turns, not {events} or more each")
    return found


def _per_turn(target: Target) -> float:
    target.ask(f"turns {WARM_TURNS}")
    return int(target.ask(f"turns {TURNS}")) / TURNS


def _drain(engine: Engine) -> int:
    read = 0
    while engine.pending_events():
        read += len(engine.read_events())
    return read


BENCHMARK = Benchmark("scheduling", "Cost of following the scheduler", FIGURES, measure, REMARKS)
