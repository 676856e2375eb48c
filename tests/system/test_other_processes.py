"""Processes that are no target but run the same files as one."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Profiler, Program, changed_text_bytes, report

pytestmark = pytest.mark.system

Attach = Callable[..., tuple[Profiler, Path]]
StartTarget = Callable[..., Program]

IDLE = """
import os, sys
print("READY", os.getpid(), flush=True)
sys.stdin.readline()
"""
BUSY = "import os\nwhile True: os.sched_yield()"  # releases the interpreter lock again and again


@pytest.mark.parametrize("method", ["session", "multi", "perf"])
def test_their_hits_are_not_the_targets_overhead(method: str, start_target: StartTarget, attach: Attach) -> None:
    target = start_target(sys.executable, "-c", IDLE)
    other = subprocess.Popen(["nice", "-n", "10", sys.executable, "-c", BUSY])
    try:
        profiler, trace = attach(target, "--attach-method", method)
        assert changed_text_bytes(target.pid) > 0
        assert changed_text_bytes(other.pid) == 0  # no probe is set in it at all
        time.sleep(2.5)  # several turns of whoever watches the overhead
    finally:
        other.kill()
        other.wait()
    target.go()
    target.finish()
    assert profiler.wait(120) == 0
    overhead = report(trace)["overhead"]
    assert overhead["probe_hits"] < 1000
    assert overhead["probes_shed"] == 0
    assert "over the limit" not in profiler.stderr
