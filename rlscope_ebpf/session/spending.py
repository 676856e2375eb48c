"""What the profiler takes from the targets, as shares of the time that they would need without it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.capture.cookie import Group
from rlscope_ebpf.capture.counters import ProbeCounters
from rlscope_ebpf.session.costs import ProbeCosts
from rlscope_ebpf.session.target import Target
from rlscope_ebpf.session.worth import SPARED_SINGLY, Unit, Worth

Floats = NDArray[np.float64]

_IN_PLACE: dict[Group, float] = {Group.BOUNDARY: 2.0, Group.CUDA: 2.0, Group.REENTRY: 2.0}
_IN_PLACE_ELSE = 1.4
IN_PLACE: Floats = np.array([_IN_PLACE.get(group, _IN_PLACE_ELSE) for group in Group])
"""How many times dearer a hit is in a real program than in a calibration's loop, by `Group`: caches, branch predictors
and translations are colder, and afterwards the program finds them colder, too. Measured in a training loop."""

_MATTERS = 0.005
"""Share of the targets' time from which on it is worth asking which functions take it."""

_LEAST_USEFUL = 0.05
"""Share of the targets' time that is left to them whatever is thought to be taken: a cost may be overrated."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Running totals at a time, in ns. The costs are those of the calibration."""

    time_ns: int
    by_group_ns: Floats  # what hits took
    sampled_ns: int  # what samples took
    told_ns: Floats  # what hits took by probe id, of those that sent an event
    worth_ns: Floats  # time that they told apart
    cpu_ns: int
    waited_ns: int  # for a CPU
    gpu_ns: float = 0.0  # what records of the GPU's work took: not of the calibration, but as they cost in a program


@dataclass(frozen=True, slots=True)
class Shares:
    """Of the time that the targets needed for themselves in a turn: by how much they were slower."""

    turn_s: float
    whole: float
    units: Sequence[Unit]
    fixed: float = 0.0
    """Part of `whole` that no probe takes: records of the GPU's work."""


class SilentHits:
    """At which functions the hits were that sent no event: looked at only when there is a reason to."""

    def __init__(self, read: Callable[[Sequence[int]], NDArray[np.uint64]], worth: Worth) -> None:
        """`read`: such hits so far, by probe id."""
        self._read = read
        self._worth = worth
        self._seen: dict[Group, Floats] = {}

    def weights(self, group: Group, size: int) -> Floats:
        """Shares of a group's hits since the last time, by the id of the function's entry; shape (size,)."""
        ids, functions = self._worth.function_probes(group)
        now = np.zeros(size)
        inside = functions < size
        np.add.at(now, functions[inside], self._read(ids)[inside].astype(np.float64))
        new = now.copy()
        seen = self._seen.get(group, np.zeros(0))
        new[: len(seen)] -= seen[:size]
        self._seen[group] = now
        weights: Floats = new / max(float(new.sum()), 1.0)
        return weights


def read_spent(
    now_ns: int,
    costs: ProbeCosts,
    worth: Worth,
    counters: ProbeCounters,
    sampled_ns: int,
    targets: Iterable[Target],
    gpu_ns: float = 0.0,
) -> Spent:
    """Take stock."""
    targets = tuple(targets)
    return Spent(
        now_ns,
        costs.spent_by_group_ns(counters),
        sampled_ns,
        costs.told_by_probe_ns(),
        worth.totals(),
        sum(target.cpu_time_ns() for target in targets),
        sum(target.waited_ns() for target in targets),
        gpu_ns,
    )


def shares(
    previous: Spent,
    spent: Spent,
    worth: Worth,
    ticks_share: float = 0.0,
    in_place: Floats = IN_PLACE,
    silent: SilentHits | None = None,
) -> Shares:
    """What was taken between two moments.

    `ticks_share`: of the time on a CPU, what looks take that are not counted. `in_place`: by `Group`, see `IN_PLACE`.
    With `silent`, hits that sent no event count for their functions, if they matter.

    What is taken does not count as the targets' time: a probe that makes them twice as slow takes all of the time that
    they need, not half of it. So shares of different probes add up, and what one saves does not depend on the others.
    """
    wall_ns = spent.time_ns - previous.time_ns
    # A program that has to wait for a CPU is not slowed down less by its probes. Of several, the least counts.
    ready_ns = max(wall_ns - (spent.waited_ns - previous.waited_ns), wall_ns // 10)
    target_ns = max(ready_ns, spent.cpu_ns - previous.cpu_ns)
    by_group = (spent.by_group_ns - previous.by_group_ns) * in_place
    clocks_ns = spent.sampled_ns - previous.sampled_ns + ticks_share * target_ns
    fixed_ns = spent.gpu_ns - previous.gpu_ns
    taken_ns = float(by_group.sum()) + clocks_ns + fixed_ns
    useful_ns = max(target_ns - taken_ns, _LEAST_USEFUL * target_ns)
    cost, told = spent.told_ns.copy(), spent.worth_ns.copy()
    cost[: len(previous.told_ns)] -= previous.told_ns
    told[: len(previous.worth_ns)] -= previous.worth_ns
    cost *= in_place[Group.BOUNDARY]  # CUDA's are the same; of other groups only the sum is asked for
    if silent is not None:
        for group in SPARED_SINGLY:
            untold_ns = float(by_group[group]) - worth.functions_told(group, cost)
            if untold_ns > _MATTERS * useful_ns:
                cost += untold_ns * silent.weights(group, len(cost))
    units = worth.units(cost / useful_ns, told / target_ns, by_group / useful_ns)
    return Shares(wall_ns / 1e9, taken_ns / useful_ns, units, fixed_ns / useful_ns)
