"""A program that spends known time in Python, in a "simulator" and in a "backend" library, and prints its truth.

    python truth.py [--scenario NAME …] [--seconds S] [--rate CALLS_PER_S]

Protocol: prints `READY pid` and waits for a line on stdin, so that a profiler can attach; works; prints `TRUTH json`;
exits with status 0. With `--linger` it waits for another line (or the end of stdin) before it exits. `--timeline FILE`
writes what every thread noted down, entry by entry, to see where a figure comes from.

The truth, schema "rlscope-ebpf.truth/1" (compare.py reads it): `operations` lists every operation path with its phase
(null: any), count, self wall time and categories in ns, and transitions. Transitions are calls: `python_to_simulator`
counts entries from Python into the simulator whether or not the interpreter lock was released on the way, and
`simulator_to_python` counts callbacks. `exact` says what of it may be compared: an operation that was open before the
profiler came has no exact wall time. `unsure_ns` is how far the
truth itself may be off (truth_recorder.py says why). `threads` holds the same per thread.

How time is stamped, and why probes do not distort it: truth_recorder.py.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from time import monotonic_ns
from typing import Any

try:
    import rlscope_ebpf.markers as rls
except ModuleNotFoundError:  # not installed: the checkout that this file lies in
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    import rlscope_ebpf.markers as rls

import truth_native
import truth_scenarios
from truth_recorder import BACKEND, CATEGORIES, OTHER, PYTHON, SIMULATOR, Key, Recorder, Replay, Sums, merged
from truth_scenarios import SCENARIOS, Crew, Pace, Work

UNTRACKED = "(untracked)"
OPEN_BEFORE = "open_before"
OPEN_AT_END = "open_at_end"
EXTRA = ("threads", "late", "open_before", "open_at_end")
ALL_CATEGORIES = list(CATEGORIES.values())
LIBRARY_CATEGORIES = [CATEGORIES[SIMULATOR], CATEGORIES[BACKEND]]


class Early(threading.Thread):
    """Opens an operation before the profiler attaches and closes it after some work."""

    def __init__(self) -> None:
        super().__init__(name="early")
        self.recorder: Recorder | None = None
        self.go: tuple[truth_native.Natives, Pace] | None = None
        self._wake = threading.Event()
        self._opened = threading.Event()

    def wait_until_open(self) -> None:
        self.start()
        self._opened.wait()

    def finish(self, natives: truth_native.Natives, pace: Pace) -> None:
        """Lets it work, and waits for its end."""
        self.go = natives, pace
        self._wake.set()
        self.join()

    def run(self) -> None:
        self.recorder = recorder = Recorder(self.name)
        with recorder.operation(OPEN_BEFORE):
            self._opened.set()
            start = monotonic_ns()
            self._wake.wait()  # not os.read: some interpreters have the release of their lock inlined there
            recorder.elsewhere(start, monotonic_ns())
            assert self.go is not None
            work = Work(recorder, self.go[0], "early", self.go[1], 60e6)
            simulate, infer = work.ctypes_spins()
            for _ in work.rounds():
                work.python()
                simulate(work.stretch())
                with recorder.operation("inside"):
                    infer(work.stretch())
                    work.python()


def row(path: tuple[str, ...], phase: str | None, sums: Sums) -> dict[str, Any]:
    """One operation of the truth."""
    exact: dict[str, Any] = {"wall": True, "count": True, "categories": ALL_CATEGORIES}
    if not path:
        path = (UNTRACKED,)
        exact = {"wall": False, "count": False, "categories": LIBRARY_CATEGORIES}
    elif path == (OPEN_BEFORE,):  # before the profiler came, and until it noticed the thread, who knows
        exact = {"wall": False, "count": False, "categories": [*LIBRARY_CATEGORIES, CATEGORIES[PYTHON]]}
    elif path == (OPEN_AT_END,):
        exact = {"wall": False, "count": False, "categories": LIBRARY_CATEGORIES}
    return {
        "path": list(path),
        "phase": phase,
        "count": sums.count,
        "wall_ns": sums.wall_ns,
        "spans_ns": sums.spans_ns,
        "unsure_ns": sums.unsure_ns,
        "cpu_ns": {name: sums.cpu_ns.get(number, 0) for number, name in CATEGORIES.items()},
        "transitions": dict(sums.transitions),
        "exact": exact,
    }


def rows(parts: Iterable[dict[Key, Sums]]) -> list[dict[str, Any]]:
    """The operations of several threads together. Without a phase where the program cannot know it."""
    total: dict[tuple[tuple[str, ...], str | None], Sums] = defaultdict(Sums)
    for part in parts:
        for (path, phase), sums in part.items():
            any_phase = not path or path[0] in (OPEN_BEFORE, OPEN_AT_END)
            into = total[path, None if any_phase else phase]
            into.count += sums.count
            into.spans_ns += sums.spans_ns
            into.unsure_ns += sums.unsure_ns
            for category, ns in sums.cpu_ns.items():
                into.cpu_ns[category] += ns
            for name, count in sums.transitions.items():
                into.transitions[name] += count
    return [row(path, phase, sums) for (path, phase), sums in total.items()]


class Program:
    """Runs the scenarios and keeps what they note down."""

    def __init__(self, options: argparse.Namespace, natives: truth_native.Natives) -> None:
        self.options = options
        self.natives = natives
        self.pace = Pace(truth_scenarios.DEFAULT_RATE / options.rate, options.shortest * 1e3)
        self.main = Recorder("main")
        self.recorders = [self.main]
        self.phases: list[tuple[int, str]] = []
        self.since_ns = 0

    def phase(self, name: str) -> None:
        before = monotonic_ns()
        rls.phase(name)
        self.phases.append(((before + monotonic_ns()) >> 1, name))

    def work(self, name: str, budget_ns: float) -> Work:
        return Work(self.main, self.natives, name, self.pace, budget_ns)

    def run(self, early: Early | None) -> None:
        """Everything that was asked for."""
        chosen = self.options.scenario
        budget_ns = 1e9 * self.options.seconds / len(chosen)
        self.since_ns = monotonic_ns()
        rls.metadata(algorithm="truth", environment="none")
        self.phase("one thread")
        if early is not None:
            early.finish(self.natives, self.pace)
            assert early.recorder is not None
            self.recorders.append(early.recorder)
        for name in chosen:
            if name in SCENARIOS:
                SCENARIOS[name](self.work(name, budget_ns))
        if "late" in chosen:
            truth_scenarios.late(self.work("late", budget_ns), self.options.late_wait)
        if "threads" in chosen:
            self.phase("many threads")
            crew = Crew()
            crew.run(self.natives, self.pace, budget_ns)
            self.recorders.extend(crew.recorders)
        if "open_at_end" in chosen:
            self.main.operation(OPEN_AT_END).__enter__()
            work = self.work("open_at_end", budget_ns)
            simulate, _ = work.ctypes_spins()
            for _ in work.rounds():
                work.python()
                simulate(work.stretch())

    def _write_timeline(self) -> None:
        """Per thread id its entries: time in ns, kind, value."""
        if self.options.timeline is None:
            return
        native = self.natives.stamps()
        logs = {recorder.tid: recorder for recorder in self.recorders}
        entries = {tid: list(merged(logs.get(tid), native.get(tid, []))) for tid in {*logs, *native}}
        self.options.timeline.write_text(json.dumps(entries))

    def truth(self) -> dict[str, Any]:
        """The sums, once all threads have ended."""
        until = monotonic_ns()
        native = self.natives.stamps()
        threads = []
        parts = []
        for recorder in self.recorders:
            replay = Replay(base=0, phases=self.phases, since_ns=self.since_ns, until_ns=until)
            part = replay.run(merged(recorder, native.pop(recorder.tid, [])))
            parts.append(part)
            threads.append({"tid": recorder.tid, "name": recorder.name, "operations": rows([part])})
        for tid, stamps in native.items():
            replay = Replay(base=OTHER, phases=self.phases, since_ns=self.since_ns, until_ns=stamps[-1][0])
            part = replay.run(stamps)
            parts.append(part)
            threads.append({"tid": tid, "name": "native", "operations": rows([part])})
        clock = self.natives.clock
        self._write_timeline()
        return {
            "schema": "rlscope-ebpf.truth/1",
            "pid": os.getpid(),
            "python": platform.python_version(),
            "elapsed_ns": until - self.since_ns,
            "operations": rows(parts),
            "threads": threads,
            "requested_ns": {CATEGORIES[each]: clock.truth_requested_ns(each) for each in (SIMULATOR, BACKEND)},
            "skipped": self.natives.skipped,
        }


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    names = [*SCENARIOS, *EXTRA]
    parser = argparse.ArgumentParser(description="Spends known time and prints its truth.")
    parser.add_argument("--scenario", action="append", choices=names, help="repeatable; default: all")
    parser.add_argument("--seconds", type=float, default=8.0, help="planned work in all")
    parser.add_argument(
        "--rate",
        type=float,
        default=truth_scenarios.DEFAULT_RATE,
        help="boundary calls per second of a busy thread (default: %(default).0f); stretches shrink as it grows",
    )
    parser.add_argument(
        "--shortest",
        type=float,
        default=0.0,
        metavar="US",
        help="no stretch is drawn shorter than so many us, so that an operation of one short stretch does not consist "
        "of the probes around it",
    )
    parser.add_argument("--late-wait", type=float, default=1.5, help="seconds between loading the late library and use")
    parser.add_argument(
        "--switch-interval",
        type=float,
        default=1.0,
        help="sys.setswitchinterval: long enough that the lock changes hands only where a thread releases it, so that "
        "waiting for it is never part of what this program takes for Python time",
    )
    parser.add_argument("--timeline", type=Path, help="file for every entry of every thread, as JSON")
    parser.add_argument("--linger", action="store_true", help="wait for a second line before exiting")
    parsed = parser.parse_args(arguments)
    parsed.scenario = parsed.scenario or names
    return parsed


def main() -> int:
    chosen = options()
    natives = truth_native.load()
    for name in natives.skipped:
        scenario = {"pybind": "pybind11"}.get(name, name)
        if scenario in chosen.scenario:
            chosen.scenario.remove(scenario)
    if not chosen.scenario:
        print(f"truth: nothing left to do: {natives.skipped}", file=sys.stderr)
        return 4
    sys.setswitchinterval(chosen.switch_interval)
    natives.released["truth_glue"].glue_throwing(0)  # the first exception of a process loads the unwinder's tables
    program = Program(chosen, natives)
    early = None
    if "open_before" in chosen.scenario:
        early = Early()
        early.wait_until_open()
    print(f"READY {os.getpid()}", flush=True)
    if not sys.stdin.readline():
        os._exit(1)  # nobody is there; the early thread may still wait
    gc.collect()
    program.run(early)
    print("TRUTH", json.dumps(program.truth()), flush=True)
    if chosen.linger:
        sys.stdin.readline()
    return 0


if __name__ == "__main__":
    sys.exit(main())
