"""The profiler's own priority."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from rlscope_ebpf.capture import priority


def nice() -> int:
    """Of the calling thread."""
    return os.getpriority(os.PRIO_PROCESS, 0)


def in_a_thread(work: Callable[[], object]) -> None:
    """A priority belongs to a thread: that of the tests stays as it is."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_threads_that_are_started_come_first_as_well_and_it_can_be_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to, found = [], []
    monkeypatch.setattr(os, "getpriority", lambda *_: 0)
    monkeypatch.setattr(os, "setpriority", lambda *which: set_to.append(which[-1]))
    monkeypatch.setattr(os, "sched_getscheduler", lambda _: os.SCHED_OTHER)
    found.append(priority.come_first())
    priority.come_as_usual()
    assert (found, set_to) == ([True], [priority.NICE, 0])


@pytest.mark.parametrize("chosen", [5, 19])
def test_a_chosen_priority_stays(chosen: int) -> None:
    found: list[object] = []

    def look() -> None:
        os.setpriority(os.PRIO_PROCESS, 0, chosen)
        found.append(priority.come_first())
        found.append(nice())

    in_a_thread(look)
    assert found == [False, chosen]


def test_where_it_is_not_permitted_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    before = nice()
    assert not priority.come_first()
    assert nice() == before
