"""What to probe for PyTorch: what each choice tells, held against the program's own stamps, and what it costs.

As a compact table, one row a choice: `python -m benchmarks.boundaries [--device cuda] [--rounds 8]`.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import re
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import rlscope_ebpf
from benchmarks.engines import loaded_engine
from benchmarks.figures import Benchmark, Effort, Figure, Results, median_interval
from benchmarks.machine import software, this_machine
from benchmarks.processes import Attached, BenchmarkError, Target, need_profiler
from rlscope_ebpf.calibration.in_passing import calibration_for
from rlscope_ebpf.capture.catalogue import Entry, Library, builtin_catalogue
from rlscope_ebpf.capture.cookie import Group
from rlscope_ebpf.capture.engine import Engine, ProbeSite
from rlscope_ebpf.capture.maps import MapsWatcher
from rlscope_ebpf.capture.plan import ALL_GROUPS, Planner
from rlscope_ebpf.capture.probe_sites import probe_sites
from rlscope_ebpf.model.calibration import Calibration
from rlscope_ebpf.model.categories import Category, Opened
from rlscope_ebpf.model.events import EVENT_DTYPE
from rlscope_ebpf.model.tables import PathInfo, ProcessInfo, StringInfo
from rlscope_ebpf.session.costs import ProbeCosts
from rlscope_ebpf.session.matching import Matcher

TARGET = Path(__file__).with_name("boundary_target.py")
REALTIME = ("chrt", "--fifo", "1")
TORCH = "PyTorch"

ITERATIONS = {"mlp": 80, "ppo": 5}
"""Of a window: some 0.4 s on the slower of the machines at hand."""

STEPS = {"mlp": 16, "ppo": 64}
"""Of the environment in an iteration, as `boundary_target` has them."""

WORKLOADS = {"mlp": "small network and Adam", "ppo": "Stable-Baselines3 PPO"}
DEVICES = {"cpu": "CPU", "cuda": "GPU"}
OPERATIONS = ("predict", "train")

ROUNDS = 15
_STAMPED_WINDOWS = 2  # of a round
_SESSION_WINDOWS = 12
_SETTLING_S = 4.0
_READ_S = 0.05


def _any(name: str) -> bool:
    return True


def _as_it_is(catalogue: Sequence[Library]) -> Sequence[Library]:
    return catalogue


def _of_torch(catalogue: Sequence[Library], entries: Iterable[Entry]) -> tuple[Library, ...]:
    """With other functions of PyTorch."""
    return tuple(replace(each, entries=tuple(entries)) if each.name == TORCH else each for each in catalogue)


def _torch(catalogue: Sequence[Library]) -> Library:
    return next(each for each in catalogue if each.name == TORCH)


def _with_trivial(catalogue: Sequence[Library]) -> Sequence[Library]:
    return _of_torch(catalogue, (replace(entry, unless=None) for entry in _torch(catalogue).entries))


def _dispatcher(catalogue: Sequence[Library]) -> Sequence[Library]:
    return _of_torch(catalogue, [Entry(dispatcher=True, noexcept=True, from_python=True)])


def _with_frames(catalogue: Sequence[Library]) -> Sequence[Library]:
    """The interpreter's frame function always."""
    return tuple(
        replace(each, entries=tuple(replace(entry, when="always") for entry in each.entries), callbacks=False)
        for each in catalogue
        if each.group != Group.REENTRY or any(entry.when == "frame" for entry in each.entries)
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """What is probed, and which of the time that it tells apart counts as PyTorch's."""

    key: str
    what: str
    groups: Collection[Group]
    change: Callable[[Sequence[Library]], Sequence[Library]] = _as_it_is
    only: Callable[[str], bool] = _any  # of the operators, by their names
    ends: bool = True
    tells: Category | None = Category.BACKEND
    samples: bool = False


MAY_COPY = frozenset(
    (
        *("as_tensor", "contiguous", "cpu", "cuda", "flatten", "pin_memory", "ravel", "reshape", "reshape_as"),
        *("resolve_conj", "resolve_neg", "to"),
    )
)
"""Of what PyTorch declares a view: these copy where they must."""

_MARKERS = frozenset({Group.MARKER})
_OPERATORS = _MARKERS | {Group.BOUNDARY}

CHOICES = (
    Choice("markers", "markers alone", _MARKERS, tells=None),
    Choice("operators", "operators, entry and return", _OPERATORS),
    Choice("entries", "operators, entry only", _OPERATORS, ends=False),
    Choice("no_views", "operators but those that make views", _OPERATORS, only=lambda name: not is_view(name)),
    Choice("trivial", "operators and those left out as trivial", _OPERATORS, _with_trivial),
    Choice("gil", "interpreter lock", _MARKERS | {Group.GIL}, tells=Category.OTHER),
    Choice("frames", "interpreter entry", _MARKERS | {Group.REENTRY}, _with_frames),
    Choice("dispatcher", "pybind11 dispatcher", _OPERATORS, _dispatcher),
    Choice("operators_gil", "operators and interpreter lock", _OPERATORS | {Group.GIL}),
    Choice("operators_frames", "operators and interpreter entry", _OPERATORS | {Group.REENTRY}, _with_frames),
    Choice("all", "all that a session sets", ALL_GROUPS),
    Choice("clock", "clock, no probes but markers", _MARKERS, tells=None, samples=True),
)

SESSIONS = {"sample": ("--mode", "sample", "--max-overhead", "0"), "default": ()}
"""Told by the profiler as a person runs it: accuracy only."""

_SESSION_NAMES = {"sample": "--mode sample", "default": "default options"}


# What is found in one window -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Operation:
    """Of a window, or of several together. Times in ns."""

    count: int
    wall_ns: float
    backend_ns: float = 0.0
    calls: int = 0

    @property
    def share(self) -> float:
        return self.backend_ns / self.wall_ns


@dataclass(frozen=True, slots=True)
class Told:
    """What the probes said of a window."""

    raw: Mapping[str, Operation]
    corrected: Mapping[str, Operation]
    hits: int
    silent: int


def _operations(answer: Mapping[str, Any]) -> dict[str, Operation]:
    """As the target tells. What its stamps take is taken out; `calls` are those that are to be found by probes."""
    found = {}
    for name, row in answer["operations"].items():
        functions = row.get("functions", {})
        stamped = sum(count for count, _ in functions.values())
        backend_ns = sum(took_ns for _, took_ns in functions.values()) - stamped * answer.get("between_ns", 0.0)
        wall_ns = row["wall_ns"] - stamped * answer.get("more_ns", 0.0)
        if row["count"]:
            calls = sum(count for function, (count, _) in functions.items() if is_probed(function))
            found[name] = Operation(row["count"], wall_ns, backend_ns, calls)
    return found


@functools.cache
def _operators() -> Entry:
    return next(entry for entry in _torch(builtin_catalogue()).entries if entry.contains == "THPVariable_")


def is_probed(name: str) -> bool:
    """Whether the catalogue takes what Python calls by this name: `add`, `__add__`."""
    if name in ("run_backward", "apply"):  # of the engine, and of functions with a backward pass of their own
        return True
    name = re.sub(r"__i?(\w+)__", r"\1", name)
    text = f"THPVariable_{name}"
    return _operators().takes(f"_ZN5torch8autogradL{len(text)}{text}EP7_objectS2_S2_")


def is_view(name: str) -> bool:
    """Whether the function of this name only makes a view of a tensor, and never has to copy it."""
    return name.rstrip("_") in _views() - MAY_COPY


@functools.cache
def _views() -> frozenset[str]:
    from benchmarks.torch_floors import views  # PyTorch takes long to import, and may be missing

    return views()


def _operator(symbol: str) -> str:
    """`_ZN5torch8autogradL15THPVariable_mmE…` → `mm`; others as they are."""
    found = re.search(r"\d+THPVariable_(\w+?)EP7_object", symbol)
    return found.group(1) if found else symbol


class Capture:
    """Sets the probes of a choice for one window, and adds up what they say."""

    def __init__(self, engine: Engine, target: Target, calibration: Calibration | None) -> None:
        self._engine, self._target, self._calibration = engine, target, calibration
        self._objects = MapsWatcher(target.pid).poll() or []
        self._sites: dict[str, list[ProbeSite]] = {}
        self._texts: list[NDArray[np.void]] = []  # a process sends each name once

    def sites(self, choice: Choice) -> list[ProbeSite]:
        """Planned once."""
        if choice.key not in self._sites:
            catalogue = tuple(choice.change(builtin_catalogue()))
            plan = Planner(self._target.pid, groups=choice.groups, catalogue=catalogue).plan(self._objects)
            self._sites[choice.key] = [
                site
                for planned in plan.targets
                for site in probe_sites(planned, allow_returns=choice.ends)
                if choice.only(_operator(planned.symbol))
            ]
        return self._sites[choice.key]

    def window(self, choice: Choice, line: str) -> tuple[dict[str, Any], Told]:
        """The target's answer to a line while it is probed."""
        engine, pid, sites = self._engine, self._target.pid, self.sites(choice)
        engine.next_probe = 1
        costs = ProbeCosts(self._calibration, engine.method)
        costs.add_probes(1, sites)
        engine.add_target(pid, is_python=True, assume_held=Group.GIL not in choice.groups)
        engine.assume_gil(Group.GIL not in choice.groups)
        engine.attach(pid, sites)
        if choice.samples:
            engine.sample(follow=True)
        begun_ns = time.monotonic_ns()
        try:
            self._target.tell(line)
            events = self._read_until_answered()
            answer: dict[str, Any] = json.loads(self._target.answer(60))
            events += self._drain()
            counters = engine.counters()
            self._texts.append(engine.read_texts())
        finally:
            engine.forget_targets()
            engine.assume_gil(False)
        if counters.lost_events:
            raise BenchmarkError(f"{counters.lost_events:,} events were lost")
        matcher = Matcher(begun_ns, costs=costs)
        matcher.add_process(ProcessInfo(pid, None, "target", (), begun_ns))
        matcher.add_texts(np.concatenate(self._texts))
        received = np.concatenate(events) if events else np.empty(0, EVENT_DTYPE)
        costs.observe(received)
        costs.watch(counters)
        own = received[received["tid"] == pid]
        batch = matcher.process(own, time.monotonic_ns())
        rows = batch.tables.get("intervals")
        raw, corrected = _add_up(rows, _paths(batch.definitions), choice.tells, answer)
        hits = counters.total_hits + counters.samples
        return answer, Told(raw, corrected, hits, hits - len(received))

    def _read_until_answered(self) -> list[NDArray[np.void]]:
        stdout = self._target.process.stdout
        assert stdout is not None
        events: list[NDArray[np.void]] = []
        deadline = time.monotonic() + 120
        while not select.select([stdout], [], [], _READ_S)[0]:
            events += self._drain()
            self._engine.read_samples()
            if time.monotonic() > deadline:
                raise BenchmarkError("the target did not answer within 120 s")
        return events

    def _drain(self) -> list[NDArray[np.void]]:
        events = []
        while self._engine.pending_events():
            events.append(self._engine.read_events())
        return events


def _paths(definitions: Iterable[object]) -> dict[int, str]:
    definitions = list(definitions)
    strings = {each.id: each.text for each in definitions if isinstance(each, StringInfo)}
    return {each.id: strings[each.name] for each in definitions if isinstance(each, PathInfo)}


def _add_up(
    rows: NDArray[np.void] | None, paths: Mapping[int, str], tells: Category | None, answer: Mapping[str, Any]
) -> tuple[dict[str, Operation], dict[str, Operation]]:
    """By operation, as measured and with the probes' cost taken out."""
    raw: dict[str, Operation] = {}
    corrected: dict[str, Operation] = {}
    if rows is None:
        return raw, corrected
    duration = rows["duration_ns"].astype(np.float64)
    less = np.maximum(duration - rows["overhead_ns"], 0)
    is_backend = rows["category"] == (tells if tells is not None else 255)
    is_call = is_backend & (rows["opened"] == Opened.CALL)
    for number, name in paths.items():
        inside = rows["path"] == number
        count = answer["operations"].get(name, {}).get("count", 0)
        for table, times in ((raw, duration), (corrected, less)):
            wall = float(times[inside].sum())
            if wall and count:
                backend = float(times[inside & is_backend].sum())
                table[name] = Operation(count, wall, backend, int(np.count_nonzero(inside & is_call)))
    return raw, corrected


# The measurement -----------------------------------------------------------------------------------------------------


def _key(workload: str, choice: str, what: str) -> str:
    return f"{workload} {choice} {what}"


def _figures(workload: str, device: str) -> Iterable[Figure]:
    about = f"{WORKLOADS[workload]}, {DEVICES[device]}"

    def figure(choice: str, what: str, text: str, unit: str, digits: int) -> Figure:
        return Figure(_key(workload, choice, what), f"{about}: {text}", unit, digits)

    yield figure("reference", "slowdown", "CPU time with the reference's stamps to time without", "x", 3)
    yield figure("reference", "trivial calls", "calls of functions that are not probed, of all", "%", 1)
    yield figure("reference", "trivial time", "time in these, of all in PyTorch", "%", 1)
    for operation in OPERATIONS:
        yield figure(
            "reference", f"{operation} others", f"functions of {operation} that concern no tensor, of it", "%", 1
        )
        yield figure("reference", f"{operation} share", f"PyTorch's share of {operation}, by its own stamps", "%", 1)
    for choice in CHOICES:
        yield figure(choice.key, "slowdown", f"{choice.what}: CPU time to time without", "x", 3)
        yield figure(choice.key, "hits", f"{choice.what}: hits", "per step", 1)
        yield figure(choice.key, "per hit", f"{choice.what}: CPU time of a hit, in place", "ns", 0)
        if choice.tells == Category.BACKEND:
            yield figure(choice.key, "found", f"{choice.what}: calls found, of those that the stamps tell", "%", 1)
        if choice.tells is not None:
            for operation in OPERATIONS:
                yield figure(choice.key, f"{operation} raw", f"{choice.what}: {operation}, raw, off by", "points", 1)
                yield figure(
                    choice.key, f"{operation} corrected", f"{choice.what}: {operation}, corrected, off by", "points", 1
                )
    for key, name in _SESSION_NAMES.items():
        for operation in OPERATIONS:
            yield figure(key, f"{operation} raw", f"{name}: {operation}, raw, off by", "points", 1)
            yield figure(key, f"{operation} corrected", f"{name}: {operation}, corrected, off by", "points", 1)


class Measurement:
    """Of one workload: windows in turns, all in one process."""

    def __init__(self, results: Results, workload: str, engine: Engine, target: Target) -> None:
        self._results, self._workload, self._target = results, workload, target
        said: list[str] = []
        self._capture = Capture(engine, target, calibration_for(engine, said.append))
        self._line = f"run {ITERATIONS[workload]}"
        self._last: dict[str, Any] = {}
        self._truth: dict[str, list[float]] = defaultdict(list)  # shares, by operation
        self._made: dict[str, list[float]] = defaultdict(list)  # calls in one operation, by its name
        self._found: dict[str, list[float]] = defaultdict(list)  # calls in one of each operation, by choice
        self._shares: dict[tuple[str, str, str], list[float]] = defaultdict(list)

    def _add(self, choice: str, what: str, value: float) -> None:
        self._results.add(_key(self._workload, choice, what), value)

    def _run_plain(self) -> dict[str, Any]:
        self._last = json.loads(self._target.ask(self._line))
        return self._last

    def rounds(self, count: int) -> None:
        """Each with one window of every choice, and plain ones between them."""
        self._run_plain()
        for number in range(count):
            for _ in range(_STAMPED_WINDOWS):
                self._reference()
            self._others()
            # In another order each time: what a window leaves behind (caches, the machine's mood) meets all alike.
            order = [*CHOICES[number % len(CHOICES) :], *CHOICES[: number % len(CHOICES)]]
            for choice in order:
                self._one(choice)
            print(".", end="", file=sys.stderr, flush=True)

    def _reference(self) -> None:
        """PyTorch's true share of each operation, and its calls."""
        before = self._last
        answer = json.loads(self._target.ask(f"{self._line} reference"))
        after = self._run_plain()
        self._add("reference", "slowdown", 2 * answer["cpu_s"] / (before["cpu_s"] + after["cpu_s"]))
        calls, times = Counter[bool](), Counter[bool]()
        for row in answer["operations"].values():
            for name, (count, took_ns) in row.get("functions", {}).items():
                probed = is_probed(name)
                calls[probed] += count
                times[probed] += max(0, round(took_ns - count * answer["between_ns"]))
        self._add("reference", "trivial calls", 100 * calls[False] / calls.total())
        self._add("reference", "trivial time", 100 * times[False] / times.total())
        for name, each in _operations(answer).items():
            if name in OPERATIONS:
                self._truth[name].append(each.share)
                self._made[name].append(each.calls / each.count)
                self._add("reference", f"{name} share", 100 * each.share)

    def _others(self) -> None:
        answer = json.loads(self._target.ask(f"{self._line} others"))
        self._run_plain()
        for name, each in _operations(answer).items():
            if name in OPERATIONS:
                self._add("reference", f"{name} others", 100 * each.share)

    def _one(self, choice: Choice) -> None:
        before = self._last
        answer, told = self._capture.window(choice, self._line)
        after = self._run_plain()
        plain_s = (before["cpu_s"] + after["cpu_s"]) / 2
        steps = ITERATIONS[self._workload] * STEPS[self._workload]
        self._add(choice.key, "slowdown", answer["cpu_s"] / plain_s)
        self._add(choice.key, "hits", told.hits / steps)
        self._add(choice.key, "per hit", (answer["cpu_s"] - plain_s) / max(told.hits, 1) * 1e9)
        if choice.tells is None:
            return
        for name in OPERATIONS:
            for what, found in (("raw", told.raw), ("corrected", told.corrected)):
                self._shares[choice.key, name, what].append(found[name].share if name in found else 0.0)
        calls = {name: each.calls / each.count for name, each in told.raw.items()}
        self._found[choice.key].append(sum(calls.get(name, 0.0) for name in OPERATIONS))

    def judge(self) -> None:
        """Hold what was told against the truth, which all rounds together tell best."""
        truth = {name: statistics.median(shares) for name, shares in self._truth.items()}
        for (key, name, what), shares in self._shares.items():
            for share in shares:
                self._add(key, f"{name} {what}", 100 * (share - truth[name]))
        made = sum(statistics.median(self._made[name]) for name in OPERATIONS)
        for choice in CHOICES:
            if choice.tells == Category.BACKEND:
                for found in self._found[choice.key]:
                    self._add(choice.key, "found", 100 * found / made)

    def sessions(self, count: int) -> None:
        """The profiler as a person runs it."""
        for key, options in SESSIONS.items():
            for _ in range(count):
                found = self._session(options)
                for name in OPERATIONS:
                    for what, share in zip(("raw", "corrected"), found.get(name, (0.0, 0.0)), strict=True):
                        self._shares[key, name, what].append(share)

    def _session(self, options: Sequence[str]) -> dict[str, tuple[float, float]]:
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "session.rlscope"
            with Attached(self._target.pid, "--output", trace, *options) as profiler:
                begun = time.monotonic()
                while time.monotonic() - begun < _SETTLING_S:
                    self._target.ask(self._line)
                for _ in range(_SESSION_WINDOWS):
                    self._target.ask(self._line)
                profiler.detach()
            table = rlscope_ebpf.open(trace).operations()
        found = {}
        for name in OPERATIONS:
            rows = table[[path == (name,) for path in table["path"]]]
            if len(rows):
                found[name] = (
                    float(rows["backend_ns"].sum() / rows["wall_ns"].sum()),
                    float(rows["corrected_backend_ns"].sum() / rows["corrected_wall_ns"].sum()),
                )
        return found


def _before_others() -> tuple[str, ...]:
    """How to start a program that nobody else preempts; not at all where that is not allowed."""
    try:
        allowed = subprocess.run([*REALTIME, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    except FileNotFoundError:
        allowed = False
    return REALTIME if allowed else ()


def _measure(results: Results, device: str, rounds: int, sessions: int, workloads: Iterable[str]) -> None:
    need_profiler()
    for workload in workloads:
        print(f"\n  {workload} ", end="", file=sys.stderr, flush=True)
        keys = [figure.key for figure in _figures(workload, device)]
        try:
            command: list[str | Path] = [*_before_others(), sys.executable, TARGET, workload, device]
            with Target(command) as target, loaded_engine() as engine:
                measurement = Measurement(results, workload, engine, target)
                measurement.rounds(rounds)
                measurement.sessions(sessions)
                measurement.judge()
        except BenchmarkError as error:
            results.not_measured(str(error), *keys)


def measure_cpu(results: Results, effort: Effort) -> None:
    """On the CPU."""
    _measure(results, "cpu", effort.of(ROUNDS, 2), effort.of(3, 1), WORKLOADS)


def measure_gpu(results: Results, effort: Effort) -> None:
    """With the network on a GPU."""
    _measure(results, "cuda", effort.of(ROUNDS, 2), effort.of(3, 1), WORKLOADS)


# The compact table ---------------------------------------------------------------------------------------------------


def interval(values: Sequence[float]) -> float:
    """Half the width of the interval that holds the median in 95 % of all cases or more, between two of the values.

    NaN for less than 6 values, of which no two do.
    """
    least, most = median_interval(values)
    return (most - least) / 2


def _cell(results: Results, key: str, digits: int) -> str:
    values = results.samples.get(key)
    if not values:
        return ""
    half = interval(values)
    spread = f" ± {half:.{digits}f}" if not math.isnan(half) else ""
    return f"{statistics.median(values):.{digits}f}{spread}"


def compact(results: Results, workload: str) -> str:
    """Markdown, one row a choice; medians, with the 95 % interval of the median."""
    heading = ["probed", "CPU time", "hits a step", "ns a hit", "calls found, %"]
    columns = [("slowdown", 3), ("hits", 1), ("per hit", 0), ("found", 1)]
    for operation in OPERATIONS:
        heading += [f"{operation}, raw", f"{operation}, corrected"]
        columns += [(f"{operation} raw", 1), (f"{operation} corrected", 1)]
    lines = ["| " + " | ".join(heading) + " |", "| " + " | ".join("---" for _ in heading) + " |"]
    rows = [(choice.key, choice.what) for choice in CHOICES]
    for key, what in [("reference", "the stamps themselves"), *rows, *_SESSION_NAMES.items()]:
        cells = [_cell(results, _key(workload, key, column), digits) for column, digits in columns]
        lines.append("| " + " | ".join((what, *cells)) + " |")
    return "\n".join(lines)


def _summary(results: Results, workload: str) -> str:
    cells = {
        what: _cell(results, _key(workload, "reference", what), 1)
        for what in ("predict share", "train share", "predict others", "train others", "trivial calls", "trivial time")
    }
    return ", ".join(f"{what} {cell} %" for what, cell in cells.items())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.boundaries", description=__doc__)
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="some twenty seconds each, per program")
    parser.add_argument("--program", action="append", choices=WORKLOADS)
    options = parser.parse_args()
    results = Results([figure for workload in WORKLOADS for figure in _figures(workload, options.device)])
    programs = options.program or list(WORKLOADS)
    _measure(results, options.device, options.rounds, 1 + (options.rounds > 2), programs)
    print(f"{this_machine()}; {software()}")
    for workload in programs:
        about = f"{WORKLOADS[workload]}, {DEVICES[options.device]}"
        print(f"\n{about}: {_summary(results, workload)}\n\n{compact(results, workload)}")
    for key, reason in results.reasons.items():
        print(f"{key}: {reason}", file=sys.stderr)


REMARKS = (
    "One process per program, on one PyTorch thread and before all other programs (SCHED_FIFO), in windows of about "
    "0.4 s: plain, probed, plain, probed otherwise. A window is compared with the plain ones before and after it.",
    "Truth: the time between two stamps of the program's own clock right before and right after each call of a C "
    "function of PyTorch, less what is between two stamps for nothing, of an operation's time without stamps "
    "(benchmarks/torch_reference.py).",
    "The lock's probes tell when the interpreter is released; that a thread on a CPU without it is in PyTorch is "
    "assumed, which the return address would have to show.",
    "A step: one of the environment, with its share of the training that follows.",
)

BENCHMARK = Benchmark(
    "boundaries",
    "Boundary choices for PyTorch on the CPU",
    tuple(figure for workload in WORKLOADS for figure in _figures(workload, "cpu")),
    measure_cpu,
    REMARKS,
    by_name_only=True,
)
GPU_BENCHMARK = Benchmark(
    "boundaries-gpu",
    "Boundary choices for PyTorch with a GPU",
    tuple(figure for workload in WORKLOADS for figure in _figures(workload, "cuda")),
    measure_gpu,
    REMARKS,
    by_name_only=True,
)


if __name__ == "__main__":
    main()
