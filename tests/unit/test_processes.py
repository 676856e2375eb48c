"""Processes of a session that come and go: their begins and ends. The BPF programs are a stand-in."""

from __future__ import annotations

import fcntl
import os
import resource
import select
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, cast

import pytest

from rlscope_ebpf.capture.engine import Engine
from rlscope_ebpf.capture.maps import MapsWatcher
from rlscope_ebpf.capture.process import inspect, open_pidfd
from rlscope_ebpf.model.tables import ProcessInfo
from rlscope_ebpf.session.budget import Budget
from rlscope_ebpf.session.context import Context
from rlscope_ebpf.session.delivery import Delivery
from rlscope_ebpf.session.matching import Matcher
from rlscope_ebpf.session.options import CaptureOptions
from rlscope_ebpf.session.probing import Probing
from rlscope_ebpf.session.processes import Processes
from rlscope_ebpf.session.returns import ReturnProbes
from rlscope_ebpf.session.sample_clock import SampleClock
from rlscope_ebpf.session.seeding import Seeding
from rlscope_ebpf.session.target import Target, monotonic_ns

MS = 1_000_000


class FakeEngine:
    """Nothing is loaded, nothing is sent."""

    def loads(self, pid: int) -> int:
        return 0


@pytest.fixture
def context() -> Context:
    made = Context(CaptureOptions())
    made.loaded = cast(Engine, FakeEngine())
    made.started = Matcher(monotonic_ns())
    return made


@pytest.fixture
def processes(context: Context) -> Processes:
    clock, seeding, probing = SampleClock(context), Seeding(context), Probing(context)
    returns = ReturnProbes(context, probing.tally)
    delivery = Delivery(context, probing, seeding, clock, [])
    budget = Budget(context, probing, clock, delivery)
    return Processes(context, probing, returns, seeding, clock, delivery, budget)


@pytest.fixture
def ended(context: Context) -> Iterator[Target]:
    """A followed process that ended before its probes were all set, 15 ms before it is said to begin."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = inspect(child.pid)
        target = Target(process, MapsWatcher(child.pid), open_pidfd(process), parent=1)
        child.kill()
        select.select([target.pidfd], [], [])
        target.start_ns = monotonic_ns()
        context.by_pid[target.pid] = target
        context.matcher.add_process(target.info())
        yield target
        target.close()


def told(context: Context, target: Target) -> list[ProcessInfo]:
    """What the sinks get to know of a process."""
    batch = context.matcher.finish(monotonic_ns())
    infos: list[Any] = [each for each in batch.definitions if isinstance(each, ProcessInfo) and each.pid == target.pid]
    return infos


def test_the_kernel_tells_the_end_before_it_is_seen(context: Context, processes: Processes, ended: Target) -> None:
    processes.process_ended(ended.pid, ended.start_ns - 15 * MS, -9)
    processes.look(monotonic_ns())
    assert ended.end_ns == ended.start_ns
    assert [(info.end_ns, info.exit_status) for info in told(context, ended)][-1] == (ended.start_ns, -9)


def test_the_kernel_tells_the_end_after_it_was_seen(context: Context, processes: Processes, ended: Target) -> None:
    processes.look(monotonic_ns())
    processes.process_ended(ended.pid, ended.start_ns - 15 * MS, -9)
    assert ended.end_ns == ended.start_ns


def test_a_turn_that_began_before_the_process_did(context: Context, processes: Processes, ended: Target) -> None:
    """The clock is read once a turn; processes begin in the middle of it."""
    processes.look(ended.start_ns - 15 * MS)
    assert ended.end_ns == ended.start_ns


def test_an_end_is_when_the_kernel_says(context: Context, processes: Processes, ended: Target) -> None:
    ended.start_ns -= 20 * MS
    processes.process_ended(ended.pid, ended.start_ns + 5 * MS, 0)
    processes.look(monotonic_ns())
    assert ended.end_ns == ended.start_ns + 5 * MS


def test_an_end_is_seen_with_any_number_of_descriptors(ended: Target) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, limits[1]), limits[1]))
    few = ended.pidfd
    try:
        ended.pidfd = fcntl.fcntl(few, fcntl.F_DUPFD_CLOEXEC, 1024)
        assert ended.has_ended()
        os.close(ended.pidfd)
    finally:
        ended.pidfd = few
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
