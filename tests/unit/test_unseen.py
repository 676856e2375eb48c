"""CPU time of threads that no probe ever heard of is said at the end."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from rlscope_ebpf.model.categories import ThreadState
from rlscope_ebpf.model.tables import INTERVAL_DTYPE, Batch, Counters, Losses, ThreadInfo
from rlscope_ebpf.session import unseen as module
from rlscope_ebpf.session.unseen import LOOK_NS, UnseenThreads

PID = 100
S = 1_000_000_000


@dataclass
class FakeKernel:
    """CPU times of a process and of the threads that it has now."""

    whole: int | None = 0
    threads: dict[int, int] = field(default_factory=dict)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> FakeKernel:
    fake = FakeKernel()
    monkeypatch.setattr(module, "read_cpu_ns", lambda _pid: fake.whole)
    monkeypatch.setattr(module, "_threads_ns", lambda _pid: list(fake.threads.items()))
    return fake


def _batch(heard: dict[int, int]) -> Batch:
    """Threads, and for how long each is known to have been on a CPU; then each sleeps as long."""
    batch = Batch(0, losses=Losses(), counters=Counters())
    batch.definitions.extend(ThreadInfo(number, PID, tid, "") for number, tid in enumerate(heard, start=1))
    rows = np.zeros(2 * len(heard), INTERVAL_DTYPE)
    rows["thread"] = np.repeat(np.arange(1, len(heard) + 1), 2)
    rows["duration_ns"] = np.repeat(list(heard.values()), 2)
    rows["state"] = np.tile([ThreadState.RUNNING, ThreadState.BLOCKED], len(heard))
    batch.tables["intervals"] = rows
    return batch


def _said(
    kernel: FakeKernel, *, whole: int, threads: dict[int, int], heard: dict[int, int], certain: bool = True
) -> list[str]:
    found = UnseenThreads()
    found.begin(PID)
    kernel.whole, kernel.threads = whole, threads
    found.look(PID, LOOK_NS, tells=True)
    kernel.whole, kernel.threads = None, {}  # it has ended
    found.look(PID, LOOK_NS + 1, tells=True, last=True)
    found.add(_batch(heard))
    return [str(notice) for notice in found.said(certain=certain)]


def test_threads_of_a_pool_are_counted(kernel: FakeKernel) -> None:
    kernel.whole, kernel.threads = 50 * S, {1: 30 * S, 2: 10 * S, 3: 0}
    (text,) = _said(
        kernel, whole=60 * S, threads={1: 33 * S, 2: 15 * S, 3: 2 * S, 4: 1000}, heard={1: 3 * S}, certain=False
    )
    assert text == (
        "7.00 s of CPU time, 70.0 % of the process's, are not in the figures: 2 more threads ran that never entered "
        "Python, an operation or a probed library."
    )


def test_threads_that_have_ended_meanwhile_are_known_from_the_process(kernel: FakeKernel) -> None:
    (text,) = _said(kernel, whole=10 * S, threads={1: 6 * S}, heard={1: 6 * S})
    assert text.startswith("4.00 s of CPU time, 40.0 % of the process's, are not in the figures: threads ran that had ")
    assert not _said(kernel, whole=10 * S, threads={1: 6 * S}, heard={1: 6 * S}, certain=False)


@pytest.mark.parametrize("off", [-0.04, 0.0, 0.04])
def test_nothing_is_said_of_what_is_in_the_figures(kernel: FakeKernel, off: float) -> None:
    heard = {1: int(6 * S * (1 + off)), 2: int(3 * S * (1 + off))}
    assert not _said(kernel, whole=9 * S, threads={1: 6 * S, 2: 3 * S}, heard=heard)


def test_a_thread_that_hardly_runs_is_not_worth_a_word(kernel: FakeKernel) -> None:
    assert not _said(kernel, whole=10 * S, threads={1: 10 * S, 2: S // 20}, heard={1: 10 * S})
    assert _said(kernel, whole=10 * S, threads={1: 10 * S, 2: S // 5}, heard={1: 10 * S})


def test_a_process_of_which_nothing_is_told_is_left_out(kernel: FakeKernel) -> None:
    found = UnseenThreads()
    found.begin(PID)
    kernel.whole, kernel.threads = S, {PID: S}
    found.look(PID, 0, tells=False)
    assert not found.said(certain=True)
