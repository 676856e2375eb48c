"""New processes get their probes side by side, and begin in order. The kernel and the session are stand-ins."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

import pytest

from rlscope_ebpf.capture.cookie import Group
from rlscope_ebpf.capture.placement import Job, Setting
from rlscope_ebpf.capture.process_events import Happened, ProcessEvent, ProcessEvents
from rlscope_ebpf.model.tables import ProcessInfo
from rlscope_ebpf.session import following
from rlscope_ebpf.session.following import SETTLE_NS, Following
from rlscope_ebpf.session.processes import Beginning
from rlscope_ebpf.session.target import Target, monotonic_ns

FIRST, SECOND, THIRD = 4_000_001, 4_000_002, 4_000_003  # more than a process id can be


class FakeEvents:
    """Tells what it is told to."""

    polls = False

    def __init__(self) -> None:
        self.told: deque[list[ProcessEvent]] = deque()
        self.woken = 0
        self.at_waits: deque[Callable[[], None]] = deque()

    def add(self, pids: object) -> None:
        """Whoever."""

    def take(self) -> list[ProcessEvent]:
        return self.told.popleft() if self.told else []

    def wait(self, _seconds: float) -> bool:
        if self.at_waits:
            self.at_waits.popleft()()
        return True

    def wake(self) -> None:
        self.woken += 1


class FakeSession:
    """Notes what is asked of it. `work` is what the kernel does, by process."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.work: dict[int, Future[list[Any]]] = {}

    def prepare_process(self, pid: int, parent: int, *, executed: bool) -> Beginning:
        self.said.append(f"prepare {pid} of {parent}{' executed' if executed else ''}")
        self.work[pid] = Future()
        setting = Setting(pid, set(), [(Job(pid, "file", Group.MARKER, False), self.work[pid])])
        return Beginning(cast(Target, pid), alike=[setting])

    def begin_process(self, beginning: Beginning) -> int:
        self.said.append(f"begin {beginning.target}")
        return monotonic_ns()

    def has_process(self, pid: int) -> bool:
        return False

    def note_process(self, info: ProcessInfo) -> None:
        self.said.append(f"note {info.pid}")

    def process_executed(self, pid: int) -> None:
        self.said.append(f"executed {pid}")

    def process_ended(self, pid: int, time_ns: int, status: int | None) -> None:
        self.said.append(f"ended {pid}")


@pytest.fixture
def events() -> FakeEvents:
    return FakeEvents()


@pytest.fixture
def session() -> FakeSession:
    return FakeSession()


@pytest.fixture
def follows(session: FakeSession, events: FakeEvents) -> Following:
    return Following(session, [], cast(ProcessEvents, events))


def fork(pid: int, parent: int = 1, age_ns: int = SETTLE_NS) -> ProcessEvent:
    return ProcessEvent(Happened.FORK, pid, monotonic_ns() - age_ns, parent)


def test_the_kernel_works_for_all_at_once(follows: Following, session: FakeSession, events: FakeEvents) -> None:
    events.told.append([fork(FIRST), fork(SECOND)])
    events.at_waits += [lambda: session.work[SECOND].set_result([]), lambda: session.work[FIRST].set_result([])]
    follows.turn()
    assert session.said == [f"prepare {FIRST} of 1", f"prepare {SECOND} of 1", f"begin {SECOND}", f"begin {FIRST}"]
    assert events.woken == 2  # so that it need not have been looked for
    assert not follows.waits


def test_who_comes_meanwhile_does_not_wait(follows: Following, session: FakeSession, events: FakeEvents) -> None:
    events.told += [[fork(FIRST)], [fork(SECOND)]]
    events.at_waits += [
        lambda: None,
        lambda: session.work[SECOND].set_result([]),
        lambda: session.work[FIRST].set_result([]),
    ]
    follows.turn()
    assert session.said[:3] == [f"prepare {FIRST} of 1", f"prepare {SECOND} of 1", f"begin {SECOND}"]


def test_a_child_of_one_that_is_being_probed_comes_after_it(
    follows: Following, session: FakeSession, events: FakeEvents
) -> None:
    events.told.append([fork(FIRST), fork(SECOND, FIRST)])
    events.at_waits.append(lambda: session.work[SECOND].set_result([]))
    follows.turn()
    assert session.said == [
        f"prepare {FIRST} of 1",
        f"begin {FIRST}",
        f"prepare {SECOND} of {FIRST}",
        f"begin {SECOND}",
    ]


@pytest.mark.parametrize(("what", "said"), [(Happened.EXEC, "executed"), (Happened.EXIT, "ended")])
def test_what_happens_to_one_that_is_being_probed_is_told_once_it_has_begun(
    what: Happened, said: str, follows: Following, session: FakeSession, events: FakeEvents
) -> None:
    events.told += [[fork(FIRST)], [ProcessEvent(what, FIRST, monotonic_ns())]]
    follows.turn()
    assert session.said == [f"prepare {FIRST} of 1", f"begin {FIRST}", f"{said} {FIRST}"]


def test_the_rest_of_the_session_is_not_kept_waiting(
    follows: Following, session: FakeSession, events: FakeEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "TURN_NS", 1_000_000)
    events.told.append([fork(FIRST)])
    follows.turn()  # the kernel never is done
    assert follows.waits
    session.work[FIRST].set_result([])
    follows.turn()
    assert session.said[-1] == f"begin {FIRST}"


def test_one_that_is_forked_to_execute_gets_the_probes_of_its_program(
    follows: Following, session: FakeSession, events: FakeEvents
) -> None:
    events.told.append([fork(FIRST, age_ns=0), ProcessEvent(Happened.EXEC, FIRST, monotonic_ns())])
    events.at_waits.append(lambda: session.work[FIRST].set_result([]))
    follows.turn()
    assert session.said == [f"prepare {FIRST} of 1 executed", f"begin {FIRST}"]


def test_all_that_were_begun_begin_before_the_end(follows: Following, session: FakeSession, events: FakeEvents) -> None:
    events.told.append([fork(FIRST), fork(SECOND), fork(THIRD, age_ns=0)])
    events.at_waits.append(follows.finish)
    follows.turn()
    assert {f"begin {FIRST}", f"begin {SECOND}", f"note {THIRD}"} <= set(session.said)


def test_in_a_storm_some_come_after_others(
    follows: Following, session: FakeSession, events: FakeEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "AT_ONCE", 1)
    events.told.append([fork(FIRST), fork(SECOND), fork(THIRD)])
    events.told.append([])
    ended = ProcessEvent(Happened.EXIT, SECOND, monotonic_ns(), status=0)
    events.told.append([ended])
    events.at_waits += [
        lambda: None,
        lambda: session.work[FIRST].set_result([]),
        lambda: session.work[THIRD].set_result([]),
    ]
    follows.turn()
    third = [f"prepare {THIRD} of 1", f"begin {THIRD}"]
    assert session.said == [f"prepare {FIRST} of 1", f"note {SECOND}", f"begin {FIRST}", *third]
