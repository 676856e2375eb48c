"""What hits cost in the program itself, found out while it runs, against what the program sees of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import Profiler, Program, build, process_of, report

from rlscope_ebpf.paths import marker_library
from rlscope_ebpf.trace.reader import TraceReader

pytestmark = [pytest.mark.system, pytest.mark.slow]

LIBRARY = "libtruth_simulator_storm.so"
WORK = 2000
"""Steps after each call: without probes it takes 2 µs, with them twice that or more."""

LIMIT = 20
"""So that windows come often: a tenth of that, and as much as eight seconds at the limit at once."""

STRETCH_NS = 100_000_000

SETTING_NS = 1_500_000_000
"""Probes are set, and hit, at most so long before a session begins."""


def _session(trace: Path) -> tuple[int, int]:
    with_ends = TraceReader(trace)
    assert with_ends.end is not None
    return with_ends.info.start_ns, with_ends.end.end_ns


def _per_operation(truth: dict[str, Any], since_ns: int, until_ns: int) -> float:
    """CPU time of an operation, in ns: the median of the tenths of a second that lie within."""
    found = [
        cpu_ns / operations
        for begun_ns, operations, cpu_ns in truth["stretches"]
        if operations and begun_ns > since_ns and begun_ns + STRETCH_NS < until_ns
    ]
    assert len(found) >= 5
    return statistics.median(found)


def test_windows_find_what_hits_cost_here(
    start_target: Callable[..., Program], attach: Callable[..., tuple[Profiler, Path]]
) -> None:
    options = (
        "--markers",
        marker_library(),
        "--library",
        build.native() / LIBRARY,
        "--work",
        str(WORK),
        "--seconds",
        "300",
    )
    target = start_target(build.program("paced"), *options)
    target.go()
    time.sleep(3)
    # All hits, all of the time: what they cost the target, and what they are charged.
    profiler, trace = attach(target, "--max-overhead", "0", "--duration", "3")
    assert profiler.wait() == 0
    begun_ns, ended_ns = _session(trace)
    document = report(trace)
    assert document["overhead"]["in_place"] == []  # nothing is ever off, so nothing is tried
    (row,) = [each for each in process_of(document, target.pid)["operations"] if each["name"] == "paced"]
    charged_ns = (row["raw"]["wall_ns"] - row["corrected"]["wall_ns"]) / row["count"]
    # The same within a limit.
    profiler, trace = attach(target, "--max-overhead", str(LIMIT), "--duration", "20")
    assert profiler.wait() == 0
    target.say("end\n")
    truth = target.truth()
    target.finish()
    plain_ns = _per_operation(truth, 0, begun_ns - SETTING_NS)
    slower_ns = _per_operation(truth, begun_ns, ended_ns) - plain_ns
    document = report(trace)
    # Calls that were in flight when their function was taken off have ended all the same.
    (row,) = [each for each in process_of(document, target.pid)["operations"] if each["name"] == "paced"]
    assert row["raw"]["cpu_ns"]["simulator"] < 0.5 * row["raw"]["wall_ns"]
    (cost,) = document["overhead"]["in_place"]
    assert cost["probes"] == "boundary"
    assert cost["windows"] >= 4
    assert slower_ns > 0.5 * plain_ns
    true_ratio = slower_ns / charged_ns
    # Within half of it: other work on the machine makes both differ by a third from one second to the next.
    assert 0.5 * true_ratio <= cost["measured"] <= 2 * true_ratio, (true_ratio, cost)
    assert 0.5 <= cost["in_force"] <= 2.5
