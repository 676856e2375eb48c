"""What the profiler has to say is in the trace and in its report, once."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import TARGETS, Profiler, Program, report

import rlscope_ebpf

pytestmark = pytest.mark.system

StartTarget = Callable[..., Program]
StartProfiler = Callable[..., Profiler]

LOOP = TARGETS / "loop.py"


def test_probes_that_were_taken_off_are_known_from_the_trace(
    start_target: StartTarget, start_profiler: StartProfiler, tmp_path: Path
) -> None:
    target = start_target(sys.executable, LOOP)
    trace = tmp_path / "a.rlscope"
    profiler = start_profiler(
        "attach", "--pid", str(target.pid), "-o", str(trace), "--no-tui", "--max-overhead", "0.0001"
    )
    profiler.wait_until_attached()
    target.go()
    time.sleep(3)
    profiler.signal(signal.SIGINT)
    assert profiler.wait() == 0
    document = report(trace)
    texts = [notice["text"] for notice in document["notices"]]
    assert len(texts) == len(set(texts))
    shed = [notice for notice in document["notices"] if notice["important"]]
    assert any("interpreter lock were taken off" in notice["text"] for notice in shed)
    assert all(profiler.stderr.count(text) == 1 for text in texts)
    assert all(notice["time_ns"] > rlscope_ebpf.open(trace).info.start_ns for notice in shed)
    session, overhead = document["session"], document["overhead"]
    assert overhead["probes_shed"] > 0
    assert session["probes_armed"] <= session["probes_attached"] - overhead["probes_shed"]
