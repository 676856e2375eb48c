"""When the budget looks at what was spent, and when it tries costs out."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlscope_ebpf.capture.cookie import Group
from rlscope_ebpf.session import budget
from rlscope_ebpf.session.budget import Budget
from rlscope_ebpf.session.governor import Decision
from rlscope_ebpf.session.spending import Shares, Spent


class EagerTrials:
    """Windows without a pause, each of which is over at the next turn."""

    is_open = False
    opened = 0

    def wants(self, now_s: float, off: Sequence[Any]) -> bool:
        return True

    def begin(self, now_s: float, off: Sequence[Any]) -> None:
        self.is_open = True
        self.opened += 1

    def turn(self, now_s: float) -> bool:
        self.is_open = False
        return True

    def costs(self) -> dict[Group, Any]:
        return {}


def test_windows_in_which_costs_are_tried_out_do_not_keep_it_from_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = np.zeros(len(Group))
    monkeypatch.setattr(budget, "read_spent", lambda now_ns, *_: Spent(now_ns, nothing, 0, nothing, nothing, 0, 0))
    monkeypatch.setattr(budget, "shares", lambda *_: Shares(0.5, 0.2, ()))
    trials = EagerTrials()
    context: Any = SimpleNamespace(
        options=SimpleNamespace(max_overhead=5.0),
        trials=trials,
        costs=SimpleNamespace(ratios=lambda *_: np.ones(len(Group))),
        worth=None,
        gpu=None,
        targets=(),
        by_pid={},
        notices=[],
        engine=SimpleNamespace(ticks_share=0.0, probes_to_detach=0),
    )
    probing: Any = SimpleNamespace(tally=SimpleNamespace(sparable=None))
    delivery: Any = SimpleNamespace(read_counters=lambda: None)
    clock: Any = SimpleNamespace(spent_ns=lambda _: 0)
    looks: list[int] = []
    made = Budget(context, probing, clock, delivery)

    def decide(*_: Any, **__: Any) -> Decision:
        looks.append(trials.opened)
        return Decision()

    monkeypatch.setattr(made, "_governor", SimpleNamespace(decide=decide, off=[]))
    monkeypatch.setattr(made, "_carry_out", lambda _: None)
    monkeypatch.setattr(made, "_notices", SimpleNamespace(tell=lambda *_: []))
    for number in range(100):
        made.try_out(number)
        if number % 5 == 4:  # much rarer than windows could be
            made.turn()
    assert looks == list(range(len(looks)))  # one between two windows
    assert len(looks) >= 15
