"""Events of a family of processes, from the kernel and from /proc."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from rlscope_ebpf.capture.process_events import Happened, ProcessEvent, ProcessEvents, descendants_among

CHILDREN = """
import os, sys, time
sys.stdin.readline()
for status in (3, 4):
    pid = os.fork()
    if pid == 0:
        time.sleep(0.5)
        os._exit(status)
    os.waitpid(pid, 0)
pid = os.fork()
if pid == 0:
    time.sleep(0.5)
    os.execv("/bin/sleep", ["sleep", "0.5"])
os.kill(os.waitpid(pid, 0)[0] and os.getpid(), 9)
"""

PATIENCE_S = 60.0


def _collect(events: ProcessEvents, enough: Callable[[list[ProcessEvent]], bool]) -> list[ProcessEvent]:
    found: list[ProcessEvent] = []
    deadline = time.monotonic() + PATIENCE_S
    while not enough(found):
        assert time.monotonic() < deadline, found
        events.wait(0.2)
        found += events.take()
    return found


@pytest.mark.parametrize("connector", [False, pytest.param(True, marks=pytest.mark.system)], ids=["proc", "connector"])
def test_a_family(connector: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", CHILDREN], stdin=subprocess.PIPE) as process:
        events = ProcessEvents(connector=connector)
        try:
            assert events.polls is not connector, events.problem
            events.add([process.pid])
            other = subprocess.run(["/bin/true"], check=True)  # no process of the family
            assert other.returncode == 0
            process.communicate(b"go\n")
            found = _collect(events, lambda seen: any(e.pid == process.pid for e in seen if e.what == Happened.EXIT))
        finally:
            events.close()
    forks = [event for event in found if event.what == Happened.FORK]
    assert len(forks) == 3
    assert {event.parent for event in forks} == {process.pid}
    assert [event.pid for event in found if event.what == Happened.EXEC] == [forks[2].pid]
    exits = {event.pid: event for event in found if event.what == Happened.EXIT}
    assert exits.keys() == {process.pid, *(event.pid for event in forks)}
    if connector:
        statuses = [exits[event.pid].status for event in forks]
        assert statuses == [3, 4, 0]
        assert exits[process.pid].status == -signal.SIGKILL
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        assert all(0 < event.time_ns < now for event in found)
        times = [event.time_ns for event in found]
        assert times == sorted(times)


def test_who_is_forgotten_is_not_told_of() -> None:
    events = ProcessEvents(connector=False)
    try:
        events.add([os.getpid()])
        events.forget(os.getpid())
        subprocess.run([sys.executable, "-c", "import time; time.sleep(0.3)"], check=True)
        assert events.take() == []
    finally:
        events.close()


def test_close_twice() -> None:
    events = ProcessEvents(connector=False)
    events.close()
    events.close()


def test_descendants() -> None:
    parents = {1: 0, 2: 1, 3: 2, 4: 2, 5: 1, 6: 5}
    assert descendants_among(parents, [2]) == {3, 4}
    assert descendants_among(parents, [1, 5]) == {2, 3, 4, 6}
    assert descendants_among({7: 7}, [7]) == set()
