"""The governor: what is given up when probes cost too much, and how that is said."""

from __future__ import annotations

import numpy as np
import pytest

from rlscope_ebpf.capture.cookie import Group
from rlscope_ebpf.model.tables import ImportantNotice
from rlscope_ebpf.session.governor import GROUP_NAMES, SHED_ORDER, TURN_S, WHAT_IS_LOST, Governor

TARGET_NS = 1e9


def spent(**groups: float) -> np.ndarray:
    """Nanoseconds by group."""
    found = np.zeros(len(Group))
    for name, value in groups.items():
        found[Group[name]] = value
    return found


def test_every_group_that_can_be_shed_is_explained() -> None:
    assert set(SHED_ORDER) == set(GROUP_NAMES) == set(WHAT_IS_LOST)


@pytest.mark.parametrize("group", SHED_ORDER)
def test_what_is_counted_differently_is_said_first(group: Group) -> None:
    governor = Governor(0.05)
    costs = spent(**{group.name: 0.1234e9})
    assert governor.decide(costs, TARGET_NS) == (None, None)  # once is no trend
    shed, notice = governor.decide(costs, TARGET_NS)
    assert shed == group
    assert isinstance(notice, ImportantNotice)
    assert notice.startswith(WHAT_IS_LOST[group])
    assert GROUP_NAMES[group] in notice
    assert group.name not in notice
    assert "12.3 %" in notice
    assert "5.0 %" in notice
    assert f"in the last {TURN_S} s" in notice  # the figures on the screen are averages


def test_a_limit_that_cannot_be_kept_is_said_once() -> None:
    governor = Governor(0.05)
    said = [governor.decide(spent(BOUNDARY=0.2e9), TARGET_NS) for _ in range(8)]
    assert all(group is None for group, _ in said)
    (notice,) = [notice for _, notice in said if notice]
    assert "none are left" in notice


def test_no_limit_sheds_nothing() -> None:
    governor = Governor(0)
    assert all(governor.decide(spent(GIL=1e9), TARGET_NS) == (None, None) for _ in range(5))
