"""Processes that are no target but run the same files as one."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Profiler, Program, changed_text_bytes, report, wait_for

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


FORKS = """
import os, sys
from rlscope_ebpf import markers as rls
print("READY", os.getpid(), flush=True)
sys.stdin.readline()
def use_markers():
    rls.phase("of a child")
    for step in range(3):
        with rls.operation("child"):
            rls.progress(step)
for _ in range(20):
    for step in range(3):
        with rls.operation("own"):
            rls.progress(step)
    child = os.fork()
    if child == 0:
        use_markers()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print("STATUS", status, flush=True)
begin, end = os.pipe()
child = os.fork()
if child == 0:
    os.read(begin, 1)
    use_markers()
    os._exit(0)
print("WAITS", flush=True)
sys.stdin.readline()
os.write(end, b"x")
_, status = os.waitpid(child, 0)
print("STATUS", status, flush=True)
"""


@pytest.mark.parametrize("method", ["session", "multi", "perf"])
@pytest.mark.parametrize("follow", ["--follow", "--no-follow"])
def test_forked_children_live(method: str, follow: str, start_target: StartTarget, attach: Attach) -> None:
    """What the kernel makes of probed instructions is copied into them. The last one works only afterwards."""
    target = start_target(sys.executable, "-c", FORKS)
    profiler, _ = attach(target, "--attach-method", method, follow)
    target.go()
    wait_for(lambda: "WAITS" in target.output, 60, "the last child")
    assert profiler.stop() == 0
    target.go()
    statuses = re.findall(r"STATUS (\d+)", target.finish())
    assert statuses == ["0"] * 21
