"""How long a person waits: for the attach, for the first figures, for help."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import hits
from benchmarks.engines import loaded_engine
from benchmarks.figures import Benchmark, Effort, Figure, Goal, Results
from benchmarks.processes import PROFILER, BenchmarkError, Child, Target, compile_program, need_profiler, wait_for
from benchmarks.training import TARGET
from rlscope_ebpf.capture.engine import Engine, ProbeSite
from rlscope_ebpf.capture.maps import MappedObject, MapsWatcher
from rlscope_ebpf.capture.plan import Planner
from rlscope_ebpf.capture.probe_sites import probe_sites
from rlscope_ebpf.session.options import LibraryPattern, parse_library

STAMPED_CLI = Path(__file__).with_name("stamped_cli.py")
FOREVER = 1_000_000  # iterations: until it is killed
FEW, MANY = 1_000, 3_000

VERBS = ("", "attach", "run", "report", "view", "doctor", "demo")

FIGURES = (
    Figure("attached", "attach: from its start until every probe is set", "s", 2),
    Figure("first_data", "attach: from its start until the first data", "s", 2, Goal("at most", 2)),
    Figure("probes", "probes that such an attach sets", "probes"),
    Figure("planned", "of which: finding functions and sites", "s", 2),
    Figure("few", "attaching 1,000 sites, returns included (PyTorch)", "s", 3, Goal("at most", 0.5)),
    Figure("many", "attaching 3,000 sites, returns included (generated)", "s", 3),
    Figure("many_detached", "detaching 3,000 sites (generated)", "s", 3),
    Figure("help", "--help, the slowest verb", "s", 2, Goal("less than", 0.5)),
)

REMARKS = (
    "The target is the PPO loop of the next table, training meanwhile on one of the cores. First data: the first batch "
    "with intervals in the live model, which is what the screen shows.",
    "Sites: PyTorch's operators in that process, and the functions of a generated library in another one; through the "
    "session's engine, each checked to be armed.",
)


def measure(results: Results, effort: Effort) -> None:
    """Help first: it needs nothing."""
    for _ in range(effort.of(5, 1)):
        results.add("help", max(_help_seconds(verb) for verb in VERBS))
    need_profiler()
    with Target([sys.executable, TARGET]) as target:
        target.ask("1")
        target.tell(str(FOREVER))
        for _ in range(effort.of(5, 1)):
            attached, first_data = attach_seconds("--pid", target.pid)
            results.add("attached", attached)
            results.add("first_data", first_data)
        rounds = effort.of(5, 2)
        sites = _planned(results, target.pid, rounds)
        with loaded_engine() as engine:
            for _ in range(rounds):
                results.add("few", _attach_and_detach(engine, target.pid, sites[:FEW], FEW)[0])
    _many(results, rounds)


def _help_seconds(verb: str) -> float:
    begun = time.perf_counter()
    subprocess.run([PROFILER, *([verb] if verb else []), "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begun


def attach_seconds(which: str, pid: int) -> tuple[float, float]:
    """The real command, until it has attached and until its live model gets data: it says both on stderr.

    `which`: --pid or --tree.
    """
    begun = time.monotonic()
    command: list[str | Path] = [sys.executable, STAMPED_CLI, "attach", which, str(pid), "--no-tui", "--no-trace"]
    with Child(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as child:

        def stamps() -> dict[str, float]:
            if child.process.poll() is not None:
                raise child.failure("the profiler ended")
            lines = (line.split() for line in child.errors.splitlines() if line.startswith("STAMP "))
            return {words[1]: float(words[2]) for words in lines if len(words) == 3}

        wait_for(lambda: len(stamps()) == 2, 60, "first data")
        found = stamps()
        if child.stop() != 0:
            raise child.failure("the profiler failed")
    return found["attached"] - begun, found["data"] - begun


def _sites(pid: int, objects: Sequence[MappedObject], *rules: LibraryPattern) -> list[ProbeSite]:
    plan = Planner(pid, rules).plan(objects)
    return [site for planned in plan.targets for site in probe_sites(planned, allow_returns=True)]


def _planned(results: Results, pid: int, rounds: int) -> list[ProbeSite]:
    """The default sites of a process that have their returns probed."""
    objects = MapsWatcher(pid).poll() or []
    sites: list[ProbeSite] = []
    for _ in range(rounds):
        begun = time.perf_counter()
        sites = _sites(pid, objects)
        results.add("planned", time.perf_counter() - begun)
    results.add("probes", len(sites))
    return [site for site in sites if site.returns]


def _attach_and_detach(engine: Engine, pid: int, sites: Sequence[ProbeSite], count: int) -> tuple[float, float]:
    """Seconds of each."""
    if len(sites) < count:
        raise BenchmarkError(f"the target has {len(sites)} functions to probe, not {count}")
    begun = time.perf_counter()
    infos = engine.attach(pid, sites)
    attached = time.perf_counter()
    armed = sum(info.armed for info in infos)
    if armed != count:
        raise BenchmarkError(f"{armed} of {count} sites are armed")
    again = time.perf_counter()
    engine.detach()
    return attached - begun, time.perf_counter() - again


def _many(results: Results, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "many.c"
        source.write_text("".join(f"int many_{index}(int x) {{ return x + {index}; }}\n" for index in range(MANY)))
        library = compile_program(source, folder, "-shared", "-fPIC")
        program = compile_program(hits.SOURCE, folder)
        with Target([program, library]) as target, loaded_engine() as engine:
            rule = parse_library(f"backend={library}")
            sites = _sites(target.pid, MapsWatcher(target.pid).poll() or [], rule)
            for _ in range(rounds):
                attached, detached = _attach_and_detach(engine, target.pid, sites[:MANY], MANY)
                results.add("many", attached)
                results.add("many_detached", detached)


BENCHMARK = Benchmark("attaching", "Waiting", FIGURES, measure, REMARKS)
