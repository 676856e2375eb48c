"""What the profiler has to say is in the trace and in its report, once."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import TARGETS, Profiler, Program, report, wait_for

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


def test_options_that_match_nothing_are_said(
    start_target: StartTarget, start_profiler: StartProfiler, tmp_path: Path
) -> None:
    target = start_target(sys.executable, LOOP)
    trace = tmp_path / "a.rlscope"
    words = ("--library", "simulator=*libmissing*", "--marker", "nothing=libc.so*:no_such_function")
    profiler = start_profiler("attach", "--pid", str(target.pid), "-o", str(trace), "--no-tui", *words)
    profiler.wait_until_attached()
    target.go()
    wait_for(lambda: "simulator=*libmissing*" in profiler.stderr, 30, "the notice, while the profiler runs")
    profiler.signal(signal.SIGINT)
    assert profiler.wait() == 0
    texts = [notice["text"] for notice in report(trace)["notices"]]
    assert len([text for text in texts if "simulator=*libmissing* matches no file" in text]) == 1
    assert len([text for text in texts if "no_such_function" in text]) == 1
    assert all(profiler.stderr.count(text) == 1 for text in texts)


def test_library_that_comes_later_takes_the_complaint_back(
    start_target: StartTarget, start_profiler: StartProfiler
) -> None:
    script = "import sys, time\nprint('READY', __import__('os').getpid(), flush=True)\nsys.stdin.readline()\n"
    script += "import _bz2\nsys.stdin.readline()\n"
    target = start_target(sys.executable, "-c", script)
    profiler = start_profiler(
        "attach", "--pid", str(target.pid), "--no-trace", "--no-tui", "--library", "backend=_bz2*"
    )
    wait_for(lambda: "backend=_bz2* matches no file" in profiler.stderr, 60, "the complaint")
    target.go()
    wait_for(lambda: "backend=_bz2* matches now" in profiler.stderr, 30, "its end")
    assert profiler.stop() == 0
    target.go()
