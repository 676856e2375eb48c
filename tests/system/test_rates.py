"""Many events: none is lost at the rate that is promised, and what is lost beyond is counted to the last one."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import Profiler, Program, build, process_of, report, rlscope

from rlscope_ebpf.trace.reader import TraceReader

pytestmark = [pytest.mark.system, pytest.mark.slow]

PROMISED_PER_S = 300_000
LIBRARY = "libtruth_simulator_storm.so"


def _storm(
    start_target: Callable[..., Program], attach: Callable[..., tuple[Profiler, Path]], *options: str
) -> tuple[Program, Profiler, Path]:
    library = build.native() / LIBRARY
    target = start_target(build.program("storm"), "--library", library, *options)
    profiler, trace = attach(target)
    return target, profiler, trace


def _calls_seen(document: dict[str, Any], pid: int) -> int:
    rows = process_of(document, pid)["operations"]
    return sum(count for row in rows for kind, count in row["transitions"].items() if kind.endswith("_to_simulator"))


def test_promised_rate(start_target: Callable[..., Program], attach: Callable[..., tuple[Profiler, Path]]) -> None:
    target, profiler, trace = _storm(start_target, attach, "--rate", str(PROMISED_PER_S), "--seconds", "30")
    target.go()
    truth = target.truth()
    target.finish()
    assert profiler.wait() == 0
    assert truth["events"] > 0.95 * 30 * PROMISED_PER_S  # the storm itself kept up

    document = report(trace)
    assert document["session"]["complete"]
    assert not document["session"]["shares_refused"]
    assert not any(document["losses"][name] for name in ("events", "threads", "unmatched", "healed", "late"))
    assert _calls_seen(document, truth["pid"]) == truth["calls"]
    counters = TraceReader(trace).counters
    assert counters.sent == counters.received >= truth["events"]


def test_all_that_two_threads_can(
    start_target: Callable[..., Program], attach: Callable[..., tuple[Profiler, Path]]
) -> None:
    """The profiler gets little of a small machine's time, and falls behind: what comes last is still in its place."""
    target, profiler, trace = _storm(start_target, attach, "--threads", "2", "--seconds", "5")
    target.go()
    truth = target.truth()
    target.finish()
    assert profiler.wait(60) == 0
    reader = TraceReader(trace)
    counters, losses = reader.counters, reader.losses
    assert counters.sent == counters.received + losses.events >= truth["events"]
    assert losses.late == 0
    if not losses.events:
        assert _calls_seen(report(trace), truth["pid"]) == truth["calls"]


def test_more_than_can_be_kept(
    start_target: Callable[..., Program], attach: Callable[..., tuple[Profiler, Path]]
) -> None:
    """As fast as two threads can, while the profiler is kept from reading: its ring overflows."""
    target, profiler, trace = _storm(start_target, attach, "--threads", "2", "--seconds", "6")
    target.go()
    time.sleep(0.5)
    profiler.signal(signal.SIGSTOP)
    time.sleep(4)
    profiler.signal(signal.SIGCONT)
    truth = target.truth()
    target.finish()
    assert profiler.wait(60) == 0

    reader = TraceReader(trace)
    counters, losses = reader.counters, reader.losses
    assert losses.events > 0
    assert counters.sent == counters.received + losses.events
    assert counters.sent >= truth["events"]
    document = report(trace)
    assert document["losses"]["events"] == losses.events
    assert _calls_seen(document, truth["pid"]) < truth["calls"]
    assert document["session"]["complete"]  # nothing of the file is missing
    assert document["session"]["shares_refused"]
    text = rlscope("report", trace)
    assert text.status == 0
    assert "no percentages are given" in " ".join(text.stdout.split())
    assert "events lost" in profiler.stdout
