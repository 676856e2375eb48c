"""Corrected times against the same program's truth without a profiler."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import TRUTH, Profiler, Program, compare, process_of, report, until_it_agrees

pytestmark = [pytest.mark.system, pytest.mark.slow]

# Boundary calls per second of each thread: ten times the known-truth program's usual rate.
WORK = ("--seconds", "6", "--rate", "7400")

TOLERANCE = 0.02
"""Of all wall time that the truth knows exactly."""

ATTEMPTS = 6
"""A virtual machine may be half as fast for seconds at a time, and the calibration or one of the runs meets that."""


def _exact(document: dict[str, Any]) -> dict[tuple[str, ...], dict[str, int]]:
    return {tuple(row["path"]): row["cpu_ns"] for row in document["operations"] if row["exact"]["wall"]}


@pytest.mark.timeout(600)
def test_ten_times_the_calls(
    start_target: Callable[..., Program], attach: Callable[..., tuple[Profiler, Path]]
) -> None:
    """Half a million calls and eight threads that wait for the interpreter lock: hits take a tenth of the time."""

    def plain() -> dict[tuple[str, ...], dict[str, int]]:
        target = start_target(sys.executable, TRUTH, *WORK, realtime=True)
        target.go()
        truth = _exact(target.truth())
        target.finish()
        return truth

    def attempt() -> tuple[Counter[str], list[Any]]:
        before = plain()
        target = start_target(sys.executable, TRUTH, *WORK, realtime=True)
        profiler, trace = attach(target, "--max-overhead", "0")
        target.go()
        target.truth()
        target.finish()
        assert profiler.wait() == 0
        after = plain()
        document = report(trace)
        assert document["overhead"]["calibrated"]
        raw, corrected = Counter[str](), Counter[str]()
        for row in process_of(document, target.pid)["operations"]:
            if tuple(row["path"]) in before:
                raw.update(row["raw"]["cpu_ns"])
                corrected.update(row["corrected"]["cpu_ns"])
        earlier, later = (sum(map(Counter, truth.values()), Counter[str]()) for truth in (before, after))
        want = {name: (earlier[name] + later[name]) / 2 for name in corrected}
        assert raw["python"] > 1.1 * want["python"]  # there is something to correct
        mismatches = []
        for name, found in corrected.items():
            # What the program needs without a profiler is known no better than its two runs agree.
            allowed = TOLERANCE * sum(want.values()) + abs(earlier[name] - later[name]) / 2
            if abs(found - want[name]) > allowed:
                mismatches.append(compare.Mismatch("(all)", f"cpu_ns.{name}", want[name], found, int(allowed)))
        return corrected, mismatches

    until_it_agrees(attempt, ATTEMPTS)
