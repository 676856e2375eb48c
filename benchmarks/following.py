"""Many processes: attaching to a whole tree, and how long a new child runs before it is profiled."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.attaching import attach_seconds
from benchmarks.figures import Benchmark, Effort, Figure, Goal, Results
from benchmarks.processes import PROFILER, ROOT, Attached, BenchmarkError, Target, need_profiler

FAMILY = ROOT / "tests" / "targets" / "family.py"
FORKING = Path(__file__).with_name("fork_loop.py")
TREE = 64

FIGURES = (
    Figure("tree", f"attach to a tree of {TREE}: from its start until every probe is set", "s", 2, Goal("at most", 3)),
    Figure("unseen", "a forked child: until its probes are set", "ms", 1),
    Figure("longest", "the same, the longest of a session", "ms", 1, Goal("at most", 50)),
)

REMARKS = (
    f"The tree: a Python process and {TREE} children that it has forked, each of which works a little now and then. "
    "Children that come: one every 0.15 s, from the call of fork in the parent.",
)


def measure(results: Results, effort: Effort) -> None:
    """The tree, then children."""
    need_profiler()
    with Target([sys.executable, FAMILY, str(TREE)]) as target:
        for _ in range(effort.of(5, 1)):
            results.add("tree", attach_seconds("--tree", target.pid)[0])
        target.tell("end")
    for _ in range(effort.of(3, 1)):
        unseen = _unseen_ms(effort.of(30, 5))
        results.add("unseen", *unseen)
        results.add("longest", max(unseen))


def _unseen_ms(children: int) -> list[float]:
    with tempfile.TemporaryDirectory() as folder, Target([sys.executable, FORKING]) as target:
        trace = Path(folder) / "t.rlscope"
        with Attached(target.pid, "-o", trace) as attached:
            forked = dict(json.loads(target.ask(str(children))))
            attached.detach()
        done = subprocess.run([PROFILER, "report", trace, "--format", "json"], capture_output=True, check=True)
    processes: list[dict[str, Any]] = json.loads(done.stdout)["processes"]
    found = [(each["start_ns"] - forked[each["pid"]]) / 1e6 for each in processes if each["pid"] in forked]
    if len(found) != children:
        raise BenchmarkError(f"{len(found)} of {children} children are in the trace")
    return found


BENCHMARK = Benchmark("following", "Many processes", FIGURES, measure, REMARKS)
