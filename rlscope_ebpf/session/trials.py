"""When probes that were taken off are set for a moment, to see what their hits cost in this program.

The time without them is the rule. Windows come often at first, since one that doubles the program's time tells much
while it takes little, and then so rarely that they take a stated part of the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.capture.cookie import Group
from rlscope_ebpf.capture.placement import RETURN_S
from rlscope_ebpf.model.in_place import InPlaceCost
from rlscope_ebpf.model.tables import Batch
from rlscope_ebpf.session.governor import Decision
from rlscope_ebpf.session.in_place import PRIOR, Comparison, Stretch, add_up, total
from rlscope_ebpf.session.worth import Unit

WINDOW_S = 0.08
"""How long probes are set: some dozens of operations, of which each takes a millisecond or two."""

SHORTEST_WINDOW_S = 0.02
"""How long, where they take nearly all of the time, so that much is told at once."""

_FULL_LENGTH_SHARE = 0.25
"""Probes that take this share of the time or less are set for all of `WINDOW_S`."""

LONGEST_WINDOW_S = 0.4
"""How long, where so few operations end in that time that they tell nothing: others are at work on the machine."""

GUARD_S = 0.015
"""After a change, before time counts again: what happened up to then has been read."""

LONGEST_FALL_S = 3.0
"""After so long the probes are taken for gone, whatever the kernel says."""

PART_OF_LIMIT = 0.2
"""Of the limit, what windows may take of a session, in the long run."""

AT_ONCE_S = 2.0
"""What they may take beforehand: as if the session had lasted so long at its whole limit."""

_CERTAIN = 0.05
"""A ratio known so well, relative to itself, is only looked at again every `_AGAIN_S`."""

_AGAIN_S = 30.0

_FEWEST_INSTANCES = 8
"""Operations that must have ended in the time before a window: where there are none nothing can be compared."""


STANDS_FOR: dict[Group, tuple[Group, ...]] = {
    Group.BOUNDARY: (Group.BOUNDARY, Group.CUDA, Group.REENTRY),
    Group.GIL: (Group.GIL, Group.MARKER),
}
"""Groups that are switched, and those whose hits cost alike: with a return to be seen, and without."""


class _State(Enum):
    OFF = auto()  # probes are off, as the governor wants
    RISING = auto()
    ON = auto()
    FALLING = auto()


@dataclass(slots=True)
class _Class:
    """Probes whose hits cost alike, and what is known of them."""

    comparison: Comparison
    latest_s: float = float("-inf")  # when its latest window ended
    taken: float = 0.0  # of its latest window, the share that its hits took

    @property
    def _usual(self) -> float:
        """How many times what a loop says a hit is likely to take."""
        return PRIOR if self.comparison.cost is None else self.comparison.cost.in_force

    def add_window(self, window: Stretch, in_force: float, window_s: float) -> None:
        """A window of so many seconds in which hits were charged `in_force` times what a loop says."""
        took_s = float(window.charged_ns.sum()) / 1e9 * self._usual / in_force
        self.taken = min(took_s / window_s, 1.0)
        self.comparison.add_on(window, in_force)


class Trials:
    """Call `turn` whenever `due`; give it every batch between.

    Not used while there is no limit: probes stay on then.
    """

    def __init__(
        self, limit: float, carry_out: Callable[[Decision], None], settled: Callable[[], bool], begun_s: float
    ) -> None:
        """`limit`: share of the targets' time. `carry_out` takes off and puts back; `settled`: that has been done."""
        self._limit = limit
        self._carry_out = carry_out
        self._settled = settled
        self._begun_s = begun_s
        self._classes = {group: _Class(Comparison(group.name.lower())) for group in STANDS_FOR}
        self._state = _State.OFF
        self._since_s = begun_s
        self._begun_on_s = self._until_s = begun_s  # of a window
        self._took_s = 0.0
        self._instances = 0
        self._now: tuple[Group, Sequence[Unit]] | None = None
        self._window: list[Stretch] = []
        self._in_force = 1.0  # of the class in the window

    @property
    def is_open(self) -> bool:
        """Whether probes are, or were a moment ago, other than the governor wants."""
        return self._state is not _State.OFF

    def due_s(self) -> float:
        """When `turn` has something to do next; the past: now."""
        if self._state is _State.OFF:
            return float("inf")
        if self._state is _State.ON:
            return self._until_s
        return self._since_s + GUARD_S

    def add(self, batch: Batch, in_force: NDArray[np.float64]) -> None:
        """Take a batch into account. `in_force`: how many times a loop's costs its hits were charged, by Group."""
        if self._state in (_State.RISING, _State.FALLING):
            return
        stretch = add_up(batch)
        if self._state is _State.ON and self._now is not None:
            self._window.append(stretch)
            self._in_force = float(in_force[self._now[0]])
            return
        self._instances += stretch.instances
        for each in self._classes.values():
            each.comparison.add_off(stretch)

    def costs(self) -> dict[Group, InPlaceCost]:
        """What is known by now, by the group that was switched."""
        found = {group: each.comparison.cost for group, each in self._classes.items()}
        return {group: cost for group, cost in found.items() if cost is not None}

    def wants(self, now_s: float, off: Sequence[Unit]) -> bool:
        """Whether it is time for a window."""
        return (
            self._state is _State.OFF
            and now_s - self._since_s >= 2 * WINDOW_S
            and self._instances >= _FEWEST_INSTANCES
            and self._settled()
            and self._choose(now_s, off) is not None
        )

    def begin(self, now_s: float, off: Sequence[Unit]) -> None:
        """Set probes for a window, which is wanted. Everything up to now has been handed out."""
        self._now = self._choose(now_s, off)
        if self._now is not None:
            self._carry_out(Decision(back=self._now[1]))
            self._enter(_State.RISING, now_s)

    def turn(self, now_s: float) -> bool:
        """Go on with a window; whether it is over now. Everything up to now has been handed out."""
        if self._now is None or now_s < self.due_s():
            return False
        group, units = self._now
        if self._state is _State.RISING:
            self._begun_on_s = self._since_s
            self._enter(_State.ON, now_s)
            self._until_s = now_s + _window_s(self._taken(group, units))
        elif self._state is _State.ON and self._goes_on(now_s):
            self._until_s = now_s + WINDOW_S / 2
        elif self._state is _State.ON:
            self._carry_out(Decision(off=units))
            window = self._classes[group]
            window.add_window(total(self._window), self._in_force, now_s - self._since_s)
            self._window.clear()
            self._took_s += window.taken * (now_s - self._begun_on_s + RETURN_S + GUARD_S)
            self._enter(_State.FALLING, now_s)
        elif self._settled() or now_s - self._since_s > LONGEST_FALL_S:
            self._classes[group].latest_s = now_s
            self._now = None
            self._instances = 0
            self._enter(_State.OFF, now_s)
            return True
        return False

    def end(self) -> None:
        """The session ends: the latest window counts as well."""
        for each in self._classes.values():
            each.comparison.close()

    def _goes_on(self, now_s: float) -> bool:
        """Whether a window is to be longer: too little has happened in it."""
        ended = sum(stretch.instances for stretch in self._window)
        return ended < _FEWEST_INSTANCES and now_s - self._since_s < LONGEST_WINDOW_S

    def _enter(self, state: _State, now_s: float) -> None:
        self._state, self._since_s = state, now_s

    def _choose(self, now_s: float, off: Sequence[Unit]) -> tuple[Group, Sequence[Unit]] | None:
        """The class of which least is known, if its window can be afforded."""
        allowed_s = self._limit * (AT_ONCE_S + PART_OF_LIMIT * (now_s - self._begun_s))
        best: tuple[float, Group, Sequence[Unit]] | None = None
        for group, each in self._classes.items():
            units = [unit for unit in off if unit.group == group]
            cost = self._taken(group, units)
            if cost <= 0 or self._took_s + cost * (_window_s(cost) + RETURN_S + 2 * GUARD_S) > allowed_s:
                continue
            known = each.comparison.cost
            doubt = known.error / max(abs(known.measured), 1e-3) if known else float("inf")
            if doubt <= _CERTAIN and now_s - each.latest_s < _AGAIN_S:
                continue
            rank = doubt * cost if known else float("inf")
            if best is None or rank > best[0] or (rank == best[0] and each.latest_s < self._classes[best[1]].latest_s):
                best = rank, group, units
        return None if best is None else (best[1], best[2])

    def _taken(self, group: Group, units: Sequence[Unit]) -> float:
        """Of the time in which these probes are set, the share that they take: 0 if there are none.

        As the governor saw it before it took them off, or as the latest window did, if that was more: they are taken
        off in the first moments of a session, of which little is known.
        """
        cost = sum(unit.cost for unit in units)  # relative to what is left to the target
        return max(cost / (1 + cost), self._classes[group].taken) if cost > 0 else 0.0


def _window_s(taken: float) -> float:
    return max(SHORTEST_WINDOW_S, WINDOW_S * min(1.0, _FULL_LENGTH_SHARE / taken))
