"""Targets that are stopped, that live in namespaces of their own, or that become another program meanwhile."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import TARGETS, Profiler, Program, report, wait_for

pytestmark = pytest.mark.system

StartTarget = Callable[..., Program]
StartProfiler = Callable[..., Profiler]

ANNOTATED = """
import os, sys, time
from rlscope_ebpf import markers as rls
print("READY", os.getpid(), flush=True)
sys.stdin.readline()
for _ in range(20):
    with rls.operation("step"):
        time.sleep(0.01)
"""
CHAIN = """
import os, sys
left = int(sys.argv[1])
if left:
    os.execv(sys.executable, [sys.executable, __file__, str(left - 1)])
exec(open({last!r}).read())
"""


def test_a_stopped_process(start_target: StartTarget, start_profiler: StartProfiler, tmp_path: Path) -> None:
    target = start_target(sys.executable, "-c", ANNOTATED)
    os.kill(target.pid, signal.SIGSTOP)
    profiler = start_profiler("attach", "--pid", str(target.pid), "-o", tmp_path / "t.rlscope", "--max-overhead", "0")
    profiler.wait_until_attached()
    assert "T" in Path(f"/proc/{target.pid}/stat").read_text().rpartition(")")[2].split()[0]  # nobody has woken it
    os.kill(target.pid, signal.SIGCONT)
    target.go()
    target.finish()
    assert profiler.wait(120) == 0
    (process,) = report(tmp_path / "t.rlscope")["processes"]
    assert [row["count"] for row in process["operations"] if row["name"] == "step"] == [20]


def test_a_stopped_process_is_left_as_it_is(
    start_target: StartTarget, start_profiler: StartProfiler, tmp_path: Path
) -> None:
    target = start_target(sys.executable, "-c", ANNOTATED)
    os.kill(target.pid, signal.SIGSTOP)
    profiler = start_profiler("attach", "--pid", str(target.pid), "-o", tmp_path / "t.rlscope", "--duration", "1")
    assert profiler.wait(120) == 0
    assert Path(f"/proc/{target.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    os.kill(target.pid, signal.SIGCONT)


def test_a_tree_in_namespaces_of_its_own(
    start_target: StartTarget, start_profiler: StartProfiler, tmp_path: Path
) -> None:
    """Its pids there are others than here: 1 is a good one."""
    words = ("unshare", "--pid", "--fork", "--mount-proc", sys.executable, TARGETS / "family.py", "2")
    target = start_target(*words, ready=False)
    wait_for(lambda: "READY" in target.output, 60, "READY of the target")
    assert re.search(r"READY 1$", target.output, re.MULTILINE)
    inner = int(Path(f"/proc/{target.process.pid}/task/{target.process.pid}/children").read_text().split()[0])
    profiler = start_profiler("attach", "--tree", str(inner), "-o", tmp_path / "t.rlscope").wait_until_attached()
    time.sleep(0.5)
    target.go()
    target.finish()
    assert profiler.wait(120) == 0
    processes = {each["pid"]: each for each in report(tmp_path / "t.rlscope")["processes"]}
    assert inner in processes
    assert sum(each["ppid"] == inner for each in processes.values()) == 2


def test_a_process_that_executes_again_and_again(
    start_target: StartTarget, start_profiler: StartProfiler, tmp_path: Path
) -> None:
    last, chain = tmp_path / "last.py", tmp_path / "chain.py"
    last.write_text(ANNOTATED)
    chain.write_text(CHAIN.format(last=str(last)))
    target = start_target(sys.executable, chain, "60", ready=False)
    profiler = start_profiler(
        "attach", "--pid", str(target.process.pid), "-o", tmp_path / "t.rlscope", "--max-overhead", "0"
    ).wait_until_attached()
    target.wait_until_ready()
    time.sleep(3)  # until its last program has its probes
    target.go()
    target.finish()
    assert profiler.wait(120) == 0
    (process,) = report(tmp_path / "t.rlscope")["processes"]
    assert [row["count"] for row in process["operations"] if row["name"] == "step"] == [20]
