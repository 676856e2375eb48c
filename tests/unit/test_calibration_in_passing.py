"""Which calibration an attach uses, and what it keeps of one that it has measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlscope_ebpf.calibration import in_passing, store
from rlscope_ebpf.errors import ProfilerError
from rlscope_ebpf.model.calibration import Calibration, HitCost, MethodCosts
from rlscope_ebpf.paths import STATE_VARIABLE

COSTS = MethodCosts((HitCost(1, 3, 5, 1), HitCost(2, 4, 7, 1), HitCost(10, 5, 9, 1)), HitCost(3, 8, 4, 1))
Ask = Callable[[str], Calibration | None]


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Methods that were measured, in a state folder that is empty at first."""
    methods: list[str] = []

    def measure(engine: Any, _calls: int) -> MethodCosts:
        methods.append(engine.method)
        return COSTS

    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(in_passing, "measure", measure)
    return methods


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def ask(said: list[str]) -> Ask:
    def ask_for(method: str) -> Calibration | None:
        engine: Any = SimpleNamespace(method=method)
        return in_passing.calibration_for(engine, said.append)

    return ask_for


def test_measured_once(measured: list[str], said: list[str], ask: Ask) -> None:
    first = ask("session")
    assert first is not None
    assert first.short
    assert ask("session") == first
    assert measured == ["session"]
    assert not said


def test_the_other_method_is_kept_beside_it(measured: list[str], ask: Ask) -> None:
    for method in ("session", "multi", "session", "multi"):
        assert ask(method) is not None
    assert measured == ["session", "multi"]


def test_a_full_one_that_holds_comes_first(measured: list[str], said: list[str], ask: Ask) -> None:
    ask("session")
    full = store.this_host({"session": COSTS})
    store.save(full)
    assert ask("session") == full
    assert not said


def test_one_that_does_not_hold_is_named_and_kept_and_a_short_one_stands_in(
    measured: list[str], said: list[str], ask: Ask
) -> None:
    stale = replace(store.this_host({"session": COSTS}), kernel="5.4.0")
    store.save(stale)
    for times in (1, 2):
        found = ask("session")
        assert found is not None
        assert found.short
        assert len(said) == times
        assert "under kernel 5.4.0" in said[-1]
    assert measured == ["session"]  # not at each attach
    assert store.load() == stale


def test_a_short_one_that_does_not_hold_is_measured_anew(measured: list[str], said: list[str], ask: Ask) -> None:
    old = store.this_host({"session": COSTS, "multi": COSTS}, short=True)
    store.save(replace(old, programs="others"), store.short_calibration_path())
    found = ask("session")
    assert found is not None
    assert set(found.methods) == {"session"}
    assert measured == ["session"]
    assert not said


def test_where_it_fails_nothing_is_corrected(
    measured: list[str], said: list[str], ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: Any) -> MethodCosts:
        raise ProfilerError("It sent 0 events.", "Try again.")

    monkeypatch.setattr(in_passing, "measure", fail)
    assert ask("session") is None
    assert "not corrected" in said[-1]
    assert ask("perf") is None  # would take minutes
    assert "not calibrated for this attach method" in said[-1]
    assert store.load(store.short_calibration_path()) is None
