"""What threads do off their CPU, on a program that waits in every way that there is and knows for how long."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from harness import TARGETS, Profiler, Program, operations_of, report

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]

Attach = Callable[..., tuple[Profiler, Path]]
StartTarget = Callable[..., Program]

KINDS = {"sleep": "sleep", "lock": "lock", "io": "io", "disk": "disk", "compete": "sleep", "run": "sleep"}
"""Operation → the kind of all its waits."""

SHARE = 0.05
"""How far a figure may be off, of the operation's wall time: what is asked for of the kernel's accounts."""

TICK_NS = 10_000_000
"""Accounts of a running thread are brought up to date at ticks, of which the slowest kernels have 100 a second."""

ATTEMPTS = 3
"""Where a hypervisor takes the CPU away, the kernel takes that time out of its accounts."""

_DELAY_ACCOUNTING = Path("/proc/sys/kernel/task_delayacct")


@pytest.fixture
def accounts_for_disks() -> Iterator[bool]:
    """Whether the kernel accounts for waits for block I/O: it is switched on where that can be done."""
    try:
        before = _DELAY_ACCOUNTING.read_text()
        _DELAY_ACCOUNTING.write_text("1")
    except OSError:
        before = None
    yield _DELAY_ACCOUNTING.exists() and _DELAY_ACCOUNTING.read_text().strip() == "1"
    if before is not None:
        with suppress(OSError):
            _DELAY_ACCOUNTING.write_text(before)


def _mismatches(truth: dict[str, Any], document: dict[str, Any]) -> Iterator[str]:
    operations = operations_of(document, truth["pid"])
    for name, known in truth["operations"].items():
        told = operations[name]["activities_ns"]
        wall = known["wall"]
        allowed = SHARE * wall + TICK_NS
        expected = {"running": known["cpu"], "runnable": known["delay"]}
        expected[KINDS[name]] = wall - known["cpu"] - known["delay"]
        for activity, ns in told.items():
            if abs(ns - expected.get(activity, 0)) > allowed:
                yield f"{name}: {activity} for {ns:,}, expected {expected.get(activity, 0):,} of {wall:,}"
        if sum(told.values()) != operations[name]["raw"]["wall_ns"]:
            yield f"{name}: {told} does not add up"


def _accounts(document: dict[str, Any], disks: bool) -> Iterator[str]:
    found = document["quality"]["scheduler"]
    assert found is not None
    assert disks or "disk" not in found
    if not found["threads"] >= 1:
        yield f"no thread was compared: {found}"
    # Kernels from 6.12 on may say that a thread has waited for its disk since they themselves began.
    for name in ("running", "runnable", *(("disk",) if "disk" in found else ())):
        if found[name]["off"] > 0.05:
            yield f"the kernel's accounts: {name}: {found[name]}"
    if not found["agrees"]:
        yield "they do not agree"


def test_waits_and_the_kernels_accounts(start_target: StartTarget, attach: Attach, accounts_for_disks: bool) -> None:
    contradictions = []
    for _ in range(ATTEMPTS):
        target = start_target(sys.executable, TARGETS / "waits.py")
        profiler, trace = attach(target)
        target.go()
        truth = target.truth()
        assert profiler.stop() == 0
        target.say("\n")
        assert target.finish()
        document = report(trace)
        assert document["losses"]["events"] == 0
        found = [*_mismatches(truth, document), *_accounts(document, accounts_for_disks)]
        if document["losses"]["late"]:  # where the profiler itself does not get a CPU for long
            found.append(f"{document['losses']['late']} late events")
        if not found:
            return
        contradictions.append("\n".join(found))
    pytest.fail("\n--\n".join(contradictions))
