"""The guard that allows return probes again while the session is busy."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from rlscope_ebpf.capture.engine import Engine
from rlscope_ebpf.session import guard as module
from rlscope_ebpf.session.guard import ReturnGuard

PATIENCE_S = 30.0


class FakeEngine:
    """Counts loads as it is told to."""

    def __init__(self) -> None:
        self.loaded = 2
        self.allowed: list[int] = []
        self.asked = threading.Semaphore(0)
        self.told = threading.Semaphore(0)

    def loads(self, pid: int) -> int:
        assert pid == os.getpid()
        self.asked.release()
        return self.loaded

    def allow_returns(self, pid: int, loads: int) -> None:
        assert pid == os.getpid()
        self.allowed.append(loads)
        self.told.release()


@pytest.fixture
def start() -> Iterator[Callable[[FakeEngine], ReturnGuard]]:
    started: list[ReturnGuard] = []

    def begin(engine: FakeEngine) -> ReturnGuard:
        started.append(ReturnGuard(cast(Engine, engine), os.getpid()))
        return started[-1]

    yield begin
    for guard in started:
        guard.end()


def _wait(semaphore: threading.Semaphore, times: int = 1) -> None:
    for _ in range(times):
        assert semaphore.acquire(timeout=PATIENCE_S)


def test_what_is_harmless_is_allowed_each_time(
    start: Callable[[FakeEngine], ReturnGuard], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.KnownObject, "switches", property(lambda _self: False))
    engine = FakeEngine()
    start(engine)
    _wait(engine.told)
    engine.loaded = 4
    _wait(engine.told)
    _wait(engine.asked, 10)
    assert engine.allowed == [2, 4]  # and not again at each look


@pytest.mark.parametrize("how", ["library", "stacks"])
def test_what_may_switch_stacks_is_left_to_the_session(
    how: str, start: Callable[[FakeEngine], ReturnGuard], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.KnownObject, "switches", property(lambda _self: how == "library"))
    engine = FakeEngine()
    if how == "stacks":
        engine.loaded += 1 << 32
    guard = start(engine)
    cast(Any, guard)._thread.join(PATIENCE_S)
    assert not cast(Any, guard)._thread.is_alive()
    assert engine.allowed == []
