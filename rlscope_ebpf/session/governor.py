"""Keeps the cost of the probes below the user's limit by taking off those that tell least for what they cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rlscope_ebpf.capture.cookie import Group
from rlscope_ebpf.session.worth import Unit

TURN_S = 0.5
FIRST_TURN_S = 0.05
"""Between two looks in the first `FIRST_S`: nothing is known of the target yet, and every hit counts."""

FIRST_S = 3.0
"""Of the session, and of the targets' own work: where they wait for something at first, what follows is as new."""

WORKS = 0.1
"""Targets that are on a CPU for this share of a turn work."""

_SMOOTH_S = 2.0
"""Time over which costs are averaged: a training loop does one thing for a while, then another."""

_GOAL = 0.8
"""Share of the limit to which costs are brought down, since not all that probes cost is known."""

_ROOM = 0.9
"""Share of the limit up to which probes are put back: between both nothing changes."""

_LEFT = 0.2
"""Share of the limit that probes may take in any case, also where records of the GPU's work alone take more: without
probes nothing would be known but these."""

_SURE_S = 1.0
"""After so long it is known what no probe takes; while probes take most of the time it is overrated."""

_IDLE = 0.02
"""Share of the limit below which a turn tells nothing of those that follow: the program waits for something."""

_BURST = 2.0
"""So many times the limit is acted upon after one turn, less only after two in a row."""

_SETTLE_S = 0.4
"""What is taken off is hit for a moment still, and what was set together with it is hit twice: so long at most, unless
it is known to be gone before. That it is may also become known much later, since the kernel waits for calls that are to
return to a probe."""

_CALM_S = 10.0
"""Between two changes the latter of which puts probes back."""

_FORGET_S = 60.0
"""What a probe cost before it was taken off is believed half as much after so long: programs change."""

_MOST_DOUBLINGS = 5
"""That time doubles so often at most."""

_ROUNDING = 1e-9

_LITTLE = 0.02
"""A unit that costs less than this share of what is to be saved is not worth taking off."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to take off and what to put back, and the share that led to it."""

    off: Sequence[Unit] = ()
    back: Sequence[Unit] = ()
    share: float = 0.0
    stuck: bool = False  # over the limit, and nothing is left to take off


@dataclass(slots=True)
class Governor:
    """Decides once a turn. `limit` is a share of the targets' time; 0: none."""

    limit: float
    reserved: float = 0.0
    """Of the limit, the part that is not given to probes: something else takes it."""
    share: float = 0.0
    """Share of the targets' time that is taken, averaged."""
    fixed: float = 0.0
    """Part of it that no probe takes."""
    _units: dict[tuple[Group, int], Unit] = field(default_factory=dict)
    _off: dict[tuple[Group, int], tuple[float, Unit]] = field(default_factory=dict)  # when, and what it cost then
    _times_off: Counter[tuple[Group, int]] = field(default_factory=Counter)
    _seen_s: float = 0.0
    _over: int = 0
    _changed_s: float = -math.inf
    _took_off_s: float = -math.inf
    _settled: bool = True

    @property
    def off(self) -> list[Unit]:
        """What is off now, with its cost and worth from before."""
        return [unit for _, unit in self._off.values()]

    @property
    def is_crowded(self) -> bool:
        """Whether what no probe takes leaves less of the limit to probes than they may take in any case."""
        return self._seen_s >= _SURE_S and self.fixed > (1 - _LEFT) * self.limit > 0

    def decide(
        self,
        now_s: float,
        turn_s: float,
        share: float,
        units: Sequence[Unit],
        *,
        settled: bool = True,
        fixed: float = 0.0,
    ) -> Decision:
        """`share` and `units` are what was found in the last `turn_s`, relative to the time that the targets needed.

        `settled`: what was taken off is gone. `fixed`: part of `share` that no probe takes.
        """
        if self.limit <= 0 or turn_s <= 0:
            return Decision()
        if not self._settled:
            # The turn in which it settles is still one of both.
            self._settled = settled or now_s - self._took_off_s >= _SETTLE_S
            return Decision()
        self._average(turn_s, share, units, fixed)
        if self.share > self._level(1.0):
            self._over += 1
            if self._over < 2 and self.share < self._level(_BURST):
                return Decision()
            self._over = 0
            taken = self._to_take_off(self.share - self._level(_GOAL))
            if not taken:
                return Decision(share=self.share, stuck=True)
            decision = Decision(off=taken, share=self.share)
            for unit in taken:
                self._off[unit.key] = now_s, unit
                self._times_off[unit.key] += 1
                self._units.pop(unit.key, None)
            self.share = max(0.0, self.share - sum(unit.cost for unit in taken))
            self._changed_s = self._took_off_s = now_s
            self._settled = False
            return decision
        self._over = 0
        if self._off and now_s - self._changed_s >= _CALM_S:
            back = self._to_put_back(now_s)
            if back:
                self._changed_s = now_s
                self._seen_s = 0.0  # what they cost shows from now on
                for unit in back:
                    del self._off[unit.key]
                return Decision(back=back, share=self.share)
        return Decision()

    def _level(self, part: float) -> float:
        """So much of the limit; more where what no probe takes leaves too little of it to them."""
        return max(part * (1 - self.reserved) * self.limit, self.fixed + part * _LEFT * self.limit)

    def _average(self, turn_s: float, share: float, units: Sequence[Unit], fixed: float) -> None:
        """Plain averages until there is enough for ones that forget."""
        self._seen_s = min(self._seen_s + turn_s, _SMOOTH_S)
        weight = min(turn_s / self._seen_s, 1.0)
        self.share += weight * (share - self.share)
        self.fixed += weight * (fixed - self.fixed)
        if max(share, self.share) < _IDLE * self.limit:
            self._seen_s = 0.0
        found = {unit.key: unit for unit in units if unit.key not in self._off}
        for key, old in self._units.items():
            new = found.get(key, replace(old, cost=0.0, worth=0.0))
            found[key] = replace(
                old, cost=old.cost + weight * (new.cost - old.cost), worth=old.worth + weight * (new.worth - old.worth)
            )
        for key in found.keys() - self._units.keys():
            found[key] = replace(found[key], cost=weight * found[key].cost, worth=weight * found[key].worth)
        self._units = {key: unit for key, unit in found.items() if key not in self._off}

    def _to_take_off(self, need: float) -> list[Unit]:
        """Those that tell least for their cost until `need` is saved; of these the ones that are not needed stay."""
        order = sorted(
            (unit for unit in self._units.values() if unit.cost > 0), key=lambda unit: unit.worth / unit.cost
        )
        taken: list[Unit] = []
        for little in (_LITTLE * need, 0.0):
            for unit in order:
                if sum(each.cost for each in taken) >= need - _ROUNDING:
                    break
                if unit.cost > little and unit not in taken:
                    taken.append(unit)
        if sum(unit.cost for unit in taken) < _LITTLE * need:
            return []
        for unit in sorted(taken, key=lambda unit: -unit.worth):
            if sum(each.cost for each in taken) - unit.cost >= need - _ROUNDING:
                taken.remove(unit)
        return taken

    def _patience_s(self, unit: Unit) -> float:
        """After how long a unit's cost is believed half as much: twice as long after each vain try."""
        doublings = min(self._times_off[unit.key] - 1, _MOST_DOUBLINGS)
        return _FORGET_S * float(1 << doublings)

    def _to_put_back(self, now_s: float) -> list[Unit]:
        """Those that tell most for their cost and fit, if they make a difference."""
        believed = [
            (replace(unit, cost=unit.cost * 0.5 ** ((now_s - when) / self._patience_s(unit))), unit)
            for when, unit in self._off.values()
        ]
        room = self._level(_ROOM) - self.share
        back: list[Unit] = []
        used = 0.0
        for guess, unit in sorted(believed, key=lambda pair: -pair[1].worth / max(pair[1].cost, 1e-12)):
            if used + guess.cost <= room:
                back.append(unit)
                used += guess.cost
        return back if used >= (1 - _ROOM) * self.limit or len(back) == len(self._off) else []
