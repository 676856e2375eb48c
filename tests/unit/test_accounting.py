"""What is told of threads is compared with the kernel's accounts only where both are of the same time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from rlscope_ebpf.capture.task_accounts import TaskAccount, TaskAccounts
from rlscope_ebpf.model.categories import ThreadState, Wait
from rlscope_ebpf.model.tables import INTERVAL_DTYPE, Batch, Counters, ThreadInfo
from rlscope_ebpf.session import accounting
from rlscope_ebpf.session.accounting import AccountingCheck

S = 1_000_000_000
PID = os.getpid()
RUN, READY, BLOCKED = ThreadState


class FakeAccounts:
    """By thread, what the next look finds."""

    now: dict[int, TaskAccount]

    def read(self, tid: int) -> TaskAccount | None:
        return self.now.get(tid)

    def close(self) -> None:
        pass


@pytest.fixture
def accounts(monkeypatch: pytest.MonkeyPatch) -> FakeAccounts:
    found = FakeAccounts()
    found.now = {}
    monkeypatch.setattr(accounting, "TaskAccounts", lambda: found)
    monkeypatch.setattr(accounting, "thread_ids", lambda pid: list(found.now))
    return found


def begun(accounts: FakeAccounts, now_ns: int) -> AccountingCheck:
    check = AccountingCheck()
    check.begin([PID], now_ns)
    assert check._importing is not None
    check._importing.join()
    check.begin([PID], now_ns)
    return check


def rows(thread: int, *stretches: tuple[int, int, ThreadState, Wait]) -> Batch:
    table = np.zeros(len(stretches), INTERVAL_DTYPE)
    for row, (start, end, state, wait) in zip(table, stretches, strict=True):
        row["thread"], row["state"], row["wait"] = thread, state, wait
        row["start_ns"], row["duration_ns"] = start, end - start
    return Batch(0, tables={"intervals": table})


def known(number: int, tid: int) -> Batch:
    return Batch(0, [ThreadInfo(number, PID, tid, "")])


def test_from_the_first_look_to_the_last(accounts: FakeAccounts) -> None:
    check = AccountingCheck()
    check.add(known(1, 7))
    check.add(rows(1, (1 * S, 9 * S, RUN, Wait.OTHER)))  # before the first look
    accounts.now = {7: TaskAccount(10 * S, 20 * S, 5 * S, 1 * S, 0)}
    check.begin([PID], 10 * S)
    assert check._importing is not None
    check._importing.join()
    check.begin([PID], 10 * S)
    check.begin([PID], 11 * S)  # nothing more
    check.add(rows(1, (9 * S, 11 * S, RUN, Wait.OTHER), (11 * S, 12 * S, READY, Wait.OTHER)))
    check.add(rows(1, (12 * S, 14 * S, BLOCKED, Wait.DISK), (14 * S, 20 * S, BLOCKED, Wait.LOCK)))
    accounts.now = {7: TaskAccount(20 * S, 30 * S, 6 * S + 5, 2 * S + 6, 2 * S + 7)}
    check.read_end()
    found = check.compare(Counters(received=3))
    assert (found.received, found.accounted_threads, found.unaccounted_threads) == (3, 1, 0)
    assert found.accounted_time_ns == 10 * S
    assert (found.told_running_ns, found.accounted_running_ns) == (1 * S, 1 * S + 5)
    assert (found.told_runnable_ns, found.accounted_runnable_ns) == (1 * S, 1 * S + 6)
    assert (found.told_disk_ns, found.accounted_disk_ns) == (2 * S, 2 * S + 7)
    check.close()


def test_threads_of_the_same_time_alone(accounts: FakeAccounts) -> None:
    first = TaskAccount(10 * S, 10 * S, 0, 0, 0)
    accounts.now = {7: first, 8: first, 9: first}
    check = begun(accounts, 10 * S)
    last = TaskAccount(20 * S, 20 * S, 4 * S, 0, 0)
    for number, tid, start in (
        (1, 7, 10 * S),  # whole
        (2, 8, 11 * S),  # heard of too late
        (3, 9, 10 * S),  # will be gone
        (4, 20, 15 * S),  # began meanwhile
        (5, 21, 15 * S),  # began long before it was heard of
        (6, 22, 19 * S + S // 2),  # too short
    ):
        check.add(known(number, tid))
        check.add(rows(number, (start, 20 * S, RUN, Wait.OTHER)))
    accounts.now = {
        7: last,
        8: last,
        20: TaskAccount(20 * S, 5 * S, 4 * S, 0, 0),
        21: TaskAccount(20 * S, 8 * S, 4 * S, 0, 0),
        22: TaskAccount(20 * S, S // 2, S // 2, 0, 0),
    }
    check.read_end()
    found = check.compare(Counters())
    assert (found.accounted_threads, found.unaccounted_threads) == (2, 4)
    assert (found.accounted_time_ns, found.told_running_ns, found.accounted_running_ns) == (15 * S, 15 * S, 8 * S)


@pytest.mark.parametrize(("on", "disk_ns", "counts"), [(True, 9 * S, 1), (True, 11 * S, 0), (False, 0, 0)])
def test_disks_only_where_the_account_can_be_true(
    accounts: FakeAccounts, monkeypatch: pytest.MonkeyPatch, on: bool, disk_ns: int, counts: int
) -> None:
    # A thread cannot have waited for longer than there was time, but the kernel may say so.
    monkeypatch.setattr(accounting, "accounts_for_disks", lambda: on)
    accounts.now = {7: TaskAccount(10 * S, 10 * S, 0, 0, 0)}
    check = begun(accounts, 10 * S)
    check.add(known(1, 7))
    check.add(rows(1, (10 * S, 20 * S, BLOCKED, Wait.DISK)))
    accounts.now = {7: TaskAccount(20 * S, 20 * S, 0, 0, disk_ns)}
    check.read_end()
    found = check.compare(Counters())
    assert (found.accounted_disk, found.accounted_threads) == (counts, 1)


def test_a_number_that_another_thread_has_now(accounts: FakeAccounts) -> None:
    accounts.now = {7: TaskAccount(10 * S, 10 * S, 0, 0, 0)}
    check = begun(accounts, 10 * S)
    check.add(known(1, 7))
    check.add(rows(1, (10 * S, 12 * S, RUN, Wait.OTHER)))
    check.add(known(2, 7))
    check.add(rows(2, (15 * S, 20 * S, RUN, Wait.OTHER)))
    accounts.now = {7: TaskAccount(20 * S, 5 * S, 5 * S, 0, 0)}
    check.read_end()
    found = check.compare(Counters())
    assert (found.accounted_threads, found.told_running_ns, found.accounted_running_ns) == (1, 5 * S, 5 * S)


def test_nothing_was_read(accounts: FakeAccounts) -> None:
    check = AccountingCheck()
    check.add(known(1, 7))
    check.add(rows(1, (1 * S, 9 * S, RUN, Wait.OTHER)))
    check.read_end()
    assert check.compare(Counters()) == Counters()
    check.close()


def test_no_such_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> TaskAccounts:
        raise OSError("no such family")

    monkeypatch.setattr(accounting, "TaskAccounts", refused)
    check = AccountingCheck()
    for now in (1, 2):
        check.begin([PID], now)
        assert check._importing is not None
        check._importing.join()
    check.read_end()
    assert check.compare(Counters()) == Counters()
    check.close()


@pytest.fixture
def real() -> Iterator[TaskAccounts]:
    found = TaskAccounts()
    yield found
    found.close()


def test_the_kernel_answers(real: TaskAccounts) -> None:
    tid = threading.get_native_id()
    before = real.read(tid)
    start = time.thread_time_ns()
    while time.thread_time_ns() < start + 200_000_000:
        pass
    after = real.read(tid)
    assert before is not None
    assert after is not None
    assert after.running_ns - before.running_ns >= 190_000_000  # a tick may be missing at either end
    assert after.age_ns > before.age_ns
    assert before.time_ns < after.time_ns <= time.monotonic_ns()
    assert real.read(0x3FFFFFF) is None  # no thread has such a number


USED_IN_SEVERAL_THREADS = """
import os, threading
from rlscope_ebpf.capture.task_accounts import TaskAccounts
box = []
maker = threading.Thread(target=lambda: box.append(TaskAccounts()))
maker.start()
maker.join()
reader = threading.Thread(target=lambda: box[0].read(os.getpid()))
reader.start()
reader.join()
box[0].close()
"""


def test_nothing_is_left_open_whichever_threads_used_it() -> None:
    words = [sys.executable, "-X", "dev", "-c", USED_IN_SEVERAL_THREADS]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
