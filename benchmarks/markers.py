"""What a Python marker costs while nobody listens, beside what others offer, and while the profiler does."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from benchmarks.figures import Benchmark, Effort, Figure, Goal, Results
from benchmarks.processes import Attached, BenchmarkError, Target

SCRIPT = Path(__file__).with_name("marker_loop.py")
LOOPS = 100_000
SLOW_LOOPS = 10_000
SETTLE_S = 1.5
"""Right after its attach the profiler still looks for further libraries, again and again."""

FIGURES = (
    Figure("marker", "with operation(name)", "ns", 1, Goal("less than", "nullcontext")),
    Figure("nullcontext", "with contextlib.nullcontext()", "ns", 1),
    Figure("nvtx", "with nvtx.annotate(name)", "ns", 1),
    Figure("record_function", "with torch.profiler.record_function(name)", "ns", 1),
    Figure("marker_kept", "with an operation made before", "ns", 1, Goal("less than", "nullcontext_kept")),
    Figure("nullcontext_kept", "with a nullcontext made before", "ns", 1),
    Figure("attached", "with operation(name), profiler attached (two hits)", "ns"),
)

REMARKS = (
    "An empty block in a loop of Python, less the loop; all in one process, in turns. No tool listens to NVTX, and no "
    "torch.profiler runs.",
    "Attached: the difference to the same process before the attach; both hits send an event.",
)

_SLOW = frozenset({"record_function"})
_ALONE = ("marker", "nullcontext", "marker_kept", "nullcontext_kept")
_OTHERS = {"nvtx": "pip install nvtx", "record_function": "pip install torch"}


def measure(results: Results, effort: Effort) -> None:
    """All candidates that can be imported, in turns; then the marker before and during an attach."""
    names = [*_ALONE, *(name for name in _OTHERS if _is_there(results, name))]
    with Target([sys.executable, SCRIPT, *names]) as target:
        for _ in range(effort.of(21, 5)):
            for name in names:
                results.add(name, _ns(target, name, SLOW_LOOPS if name in _SLOW else LOOPS))
    for _ in range(effort.of(5, 2)):
        with Target([sys.executable, SCRIPT, "marker"]) as target:
            plain = _ns(target, "marker", LOOPS)
            with Attached(target.pid, "--no-trace", "--max-overhead", "0") as profiler:
                _ns(target, "marker", 1000)
                time.sleep(SETTLE_S)
                results.add("attached", _ns(target, "marker", LOOPS) - plain)
                profiler.detach()


def _is_there(results: Results, name: str) -> bool:
    try:
        Target([sys.executable, SCRIPT, name]).close()
    except BenchmarkError as error:
        results.not_measured(f"{error} ({_OTHERS[name]})", name)
        return False
    return True


def _ns(target: Target, name: str, loops: int) -> float:
    return float(target.ask(f"{name} {loops}"))


BENCHMARK = Benchmark("markers", "Python markers, per block", FIGURES, measure, REMARKS)
