"""What hits cost in the target itself, told by windows in which probes that were taken off are set for a moment.

An operation takes longer while they are set: by its hits times what one costs there. A calibration's loop says what
those hits would take if caches and branch predictors were as warm as in a loop; the ratio of both is how many times
dearer a hit is in this program. Windows alternate, so that a slow minute of the machine meets both kinds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.categories import ThreadState
from rlscope_ebpf.model.in_place import LARGEST, LEAST, InPlaceCost
from rlscope_ebpf.model.tables import Batch

Floats = NDArray[np.float64]

MOST_PAIRS = 64
"""Windows that are remembered: programs change."""

_FEWEST = 4
"""Windows before anything is concluded."""

_DRAWN = 400

_MOST_OFF = 12
"""Stretches without the probes that are held against a window, on either side of it."""

_SUREST = 0.02
"""No error is smaller: what the machine does changes by more from one hour to the next."""

PRIOR, PRIOR_SPREAD = 1.5, 0.5
"""What is expected before anything is measured: between a loop's cost and two times that, whatever the program."""


@dataclass(slots=True)
class Stretch:
    """Sums by operation path over a stretch of time, all threads together; shapes (paths,)."""

    running_ns: Floats  # on a CPU, in the operation itself
    charged_ns: Floats  # of these, what hits took at the costs in force
    ended: Floats  # instances

    @property
    def instances(self) -> int:
        """Operations that ended."""
        return int(self.ended[1:].sum())


def add_up(batch: Batch) -> Stretch:
    """One batch's sums. Time outside of operations is left out: it is in no instances."""
    intervals, spans = batch.tables.get("intervals"), batch.tables.get("spans")
    size = 1
    for table in (intervals, spans):
        if table is not None and len(table):
            size = max(size, int(table["path"].max()) + 1)
    found = Stretch(np.zeros(size), np.zeros(size), np.zeros(size))
    if intervals is not None:
        on = intervals["state"] == ThreadState.RUNNING
        path = intervals["path"][on]
        found.running_ns = np.bincount(path, intervals["duration_ns"][on], size).astype(np.float64)
        found.charged_ns = np.bincount(path, intervals["overhead_ns"][on], size).astype(np.float64)
    if spans is not None:
        found.ended = np.bincount(spans["path"], minlength=size).astype(np.float64)
    return found


def total(stretches: Sequence[Stretch]) -> Stretch:
    """Their sum."""
    size = max((len(each.ended) for each in stretches), default=1)
    found = Stretch(np.zeros(size), np.zeros(size), np.zeros(size))
    for each in stretches:
        for name in ("running_ns", "charged_ns", "ended"):
            getattr(found, name)[: len(each.ended)] += getattr(each, name)
    return found


@dataclass(frozen=True, slots=True)
class Pair:
    """One window with the probes against the time around it without them, in ns."""

    longer_ns: float  # by how much longer its operations took
    charged_ns: float  # what their hits would have taken in a loop


def compare(on: Stretch, off: Stretch) -> Pair:
    """Hold a window's operations against as many without the probes, path by path."""
    size = min(len(on.ended), len(off.ended))
    both = np.flatnonzero((on.ended[:size] > 0) & (off.ended[:size] >= on.ended[:size]))
    both = both[both > 0]
    times = on.ended[both] / off.ended[both]
    longer = on.running_ns[both] - times * off.running_ns[both]
    charged = on.charged_ns[both] - times * off.charged_ns[both]
    return Pair(float(longer.sum()), float(charged.sum()))


def expected(measured: float, error: float) -> float:
    """What to charge: what was measured and what is known of programs in general, each weighed by its certainty."""
    weight, before = 1 / max(error, _SUREST) ** 2, 1 / PRIOR_SPREAD**2
    return min(max((measured * weight + PRIOR * before) / (weight + before), LEAST), LARGEST)


def cost_of(probes: str, pairs: Sequence[Pair]) -> InPlaceCost | None:
    """The median of the pairs' ratios, each weighed by what was charged; None if there are too few.

    A median, since a window in which the machine did something else is off by many times what is looked for. Its error
    is the spread of medians of pairs drawn again and again (the bootstrap: B. Efron, 1979).
    """
    count = len(pairs)
    if count < _FEWEST:
        return None
    longer, charged = np.array([(pair.longer_ns, pair.charged_ns) for pair in pairs]).T
    drawn = np.random.default_rng(count).integers(0, count, (_DRAWN, count))
    drawn[0] = np.arange(count)
    values = longer / charged
    order = np.argsort(values[drawn], axis=1)
    weights = np.cumsum(np.take_along_axis(charged[drawn], order, axis=1), axis=1)
    middle = (weights < weights[:, -1:] / 2).sum(axis=1)
    medians = np.take_along_axis(np.take_along_axis(values[drawn], order, axis=1), middle[:, None], axis=1)[:, 0]
    measured, error = float(medians[0]), float(medians[1:].std())
    cost = InPlaceCost(probes, expected(measured, error), measured, error, count)
    return replace(cost, in_force=PRIOR) if cost.is_absurd else cost


@dataclass(slots=True)
class Comparison:
    """The windows of one kind of probes."""

    probes: str
    pairs: deque[Pair] = field(default_factory=lambda: deque(maxlen=MOST_PAIRS))
    cost: InPlaceCost | None = None
    """What the windows up to now say."""
    _before: deque[Stretch] = field(default_factory=lambda: deque(maxlen=_MOST_OFF))
    _on: Stretch | None = None
    _in_force: float = 1.0
    _after: list[Stretch] = field(default_factory=list)

    def add_off(self, stretch: Stretch) -> None:
        """Time without the probes."""
        if self._on is not None:
            self._after.append(stretch)
            if len(self._after) >= _MOST_OFF:
                self.close()
        else:
            self._before.append(stretch)

    def add_on(self, stretch: Stretch, in_force: float = 1.0) -> None:
        """A window with them, in which their hits were charged `in_force` times what a loop says."""
        self.close()
        self._on, self._in_force = stretch, in_force

    def close(self) -> None:
        """There is nothing more to come before the next window."""
        if self._on is None:
            return
        off = [*self._before, *self._after]
        if off:
            pair = compare(self._on, total(off))
            if pair.charged_ns > 0:
                self.pairs.append(Pair(pair.longer_ns, pair.charged_ns / self._in_force))
                self.cost = cost_of(self.probes, tuple(self.pairs))
        self._before = deque(self._after or self._before, maxlen=_MOST_OFF)
        self._on, self._after = None, []
