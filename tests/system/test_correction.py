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


def _exact(document: dict[str, Any]) -> dict[tuple[str, ...], dict[str, int]]:
    return {tuple(row["path"]): row["cpu_ns"] for row in document["operations"] if row["exact"]["wall"]}


@pytest.mark.timeout(600)
def test_ten_times_the_calls(
    start_target: Callable[..., Program], attach: Callable[..., tuple[Profiler, Path]]
) -> None:
    """Half a million calls and eight threads that wait for the interpreter lock: hits take a tenth of the time."""

    def attempt() -> tuple[Counter[str], list[Any]]:
        plain = start_target(sys.executable, TRUTH, *WORK, realtime=True)
        plain.go()
        truth = _exact(plain.truth())
        plain.finish()
        target = start_target(sys.executable, TRUTH, *WORK, realtime=True)
        profiler, trace = attach(target, "--max-overhead", "0")
        target.go()
        target.truth()
        target.finish()
        assert profiler.wait() == 0
        document = report(trace)
        assert document["overhead"]["calibrated"]
        found = {each: Counter[str]() for each in ("raw", "corrected")}
        for row in process_of(document, target.pid)["operations"]:
            if tuple(row["path"]) in truth:
                for each, sums in found.items():
                    sums.update(row[each]["cpu_ns"])
        want = sum(map(Counter, truth.values()), Counter[str]())
        assert found["raw"]["python"] > 1.1 * want["python"]  # there is something to correct
        allowed = TOLERANCE * sum(want.values())
        corrected = found["corrected"]
        return corrected, [
            compare.Mismatch("(all)", f"cpu_ns.{name}", want[name], corrected[name], int(allowed))
            for name in corrected
            if abs(corrected[name] - want[name]) > allowed
        ]

    until_it_agrees(attempt)
