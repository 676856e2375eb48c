"""What each probe that can be spared costs, and what of the target's time it tells apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.capture.cookie import Action, Group
from rlscope_ebpf.capture.engine import ProbeSite
from rlscope_ebpf.model.categories import Category, ThreadState
from rlscope_ebpf.model.keys import grown

Floats = NDArray[np.float64]

SPARED_TOGETHER = (Group.GIL, Group.REENTRY)
"""Groups whose probes mean something only together."""

SPARED_SINGLY = (Group.BOUNDARY, Group.CUDA)
"""Groups of which each function can be spared by itself."""

_NOTHING = -1
_RELEASES = (Action.GIL_RELEASE, Action.GIL_UNENSURE)


@dataclass(frozen=True, slots=True)
class Unit:
    """Probes that are taken off together: those of a group, or of one function.

    `cost`: share of the target's time that their hits take; `worth`: that without them would count as something else.
    """

    group: Group
    function: int  # id of the entry; 0: all of the group
    cost: float
    worth: float

    @property
    def key(self) -> tuple[Group, int]:
        """Which probes these are."""
        return self.group, self.function


class Worth:
    """Adds up, by probe id, the time on a CPU that the calls seen there have opened; of CUDA's also that in which they
    wait for the GPU."""

    def __init__(self) -> None:
        self._category: NDArray[np.int64] = np.full(1, _NOTHING, np.int64)  # what a hit of a probe opens
        self._group: NDArray[np.int64] = np.full(1, _NOTHING, np.int64)
        self._told_ns: Floats = np.zeros(1)
        self._function: NDArray[np.int64] = np.zeros(1, np.int64)  # whose probe it is: the id of its entry

    def add_probes(self, first: int, sites: Sequence[ProbeSite]) -> None:
        """Learn the sites with the ids from `first` on."""
        count = first + len(sites)
        self._category, self._group = grown(self._category, count), grown(self._group, count)
        self._told_ns = grown(self._told_ns, len(self._category))
        self._function = grown(self._function, count)
        function = first
        for number, site in enumerate(sites, first):
            function = function if site.action == Action.EXIT else number
            self._function[number] = function
            self._group[number] = _NOTHING if site.action == Action.EXIT else site.group
            self._category[number] = _NOTHING
            if site.action == Action.CALL:
                self._category[number] = site.category
            elif site.action in _RELEASES:
                self._category[number] = Category.OTHER

    def add(self, intervals: NDArray[np.void]) -> None:
        """Take INTERVAL_DTYPE rows into account."""
        site = intervals["site"]
        known = np.where(site < len(self._category), site, 0)
        told = intervals["state"] == ThreadState.RUNNING
        told |= (intervals["state"] == ThreadState.BLOCKED) & (intervals["category"] == Category.CUDA_API)
        opened = (self._category[known] == intervals["category"]) & told
        duration = intervals["duration_ns"].astype(np.int64) - intervals["overhead_ns"]
        self._told_ns += np.bincount(known[opened], np.maximum(duration[opened], 0), len(self._told_ns))

    def totals(self) -> Floats:
        """Copy of the running totals, in ns, by probe id."""
        copy: Floats = self._told_ns.copy()
        return copy

    def function_probes(self, group: Group) -> tuple[list[int], NDArray[np.int64]]:
        """Ids of a group's probes, ends of functions too; and for each the id of its function's entry."""
        ids = np.flatnonzero(self._group[self._function] == group)
        return ids.tolist(), self._function[ids]

    def functions_told(self, group: Group, cost: Floats) -> float:
        """Sum over a group's functions of what is given by probe id."""
        count = min(len(cost), len(self._group))
        return float(cost[:count][self._group[:count] == group].sum())

    def units(self, cost: Floats, worth: Floats, by_group: Floats) -> list[Unit]:
        """What can be spared.

        All are shares of the target's time: `cost` and `worth` by probe id, `by_group` the cost of all hits of a group,
        also of those that sent no event.
        """
        found = [
            Unit(group, 0, float(by_group[group]), float(worth[self._group[: len(worth)] == group].sum()))
            for group in SPARED_TOGETHER
            if by_group[group] > 0
        ]
        count = min(len(cost), len(worth), len(self._group))
        hit = np.flatnonzero(np.isin(self._group[:count], SPARED_SINGLY) & (cost[:count] > 0))
        return found + [Unit(Group(int(self._group[at])), at, float(cost[at]), float(worth[at])) for at in hit.tolist()]

    def functions(self, unit: Unit) -> list[int]:
        """Ids of the entries of a unit's functions."""
        if unit.function:
            return [unit.function]
        return [int(at) for at in np.flatnonzero(self._group == unit.group)]
