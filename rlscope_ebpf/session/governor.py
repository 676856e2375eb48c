"""Keeps the cost of the probes below the user's limit by giving up what matters least."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.capture.cookie import Group
from rlscope_ebpf.model import format as fmt
from rlscope_ebpf.model.tables import ImportantNotice

SHED_ORDER: tuple[Group, ...] = (Group.GIL, Group.REENTRY)
"""What is given up, in order. Markers, CUDA and boundary calls are what the figures are made of: they stay."""

GROUP_NAMES: dict[Group, str] = {
    Group.GIL: "the probes on the interpreter lock",
    Group.REENTRY: "the probes on callbacks into Python",
}

WHAT_IS_LOST: dict[Group, str] = {
    Group.GIL: "Native code that runs without the lock now counts as python instead of other",
    Group.REENTRY: "Python code called from native code now counts as part of the native call",
}
"""How the figures change without a group: the beginning of a sentence."""

TURN_S = 0.5
"""Between two decisions."""

_OVER_TURNS = 2
"""Turns in a row over the limit before something is given up: one burst is not a trend."""


@dataclass(slots=True)
class Governor:
    """Decides once a turn (`TURN_S`). `limit` is a share of the targets' time; 0: none."""

    limit: float
    _over: int = 0
    _left: tuple[Group, ...] = SHED_ORDER
    _warned: bool = False

    def decide(self, spent_ns: NDArray[np.float64], target_ns: float) -> tuple[Group | None, str | None]:
        """What to shed now, and a sentence for the user.

        `spent_ns` is what each group's probes took since the last turn, shape (groups,); `target_ns` is the targets'
        time in that turn.
        """
        if self.limit <= 0 or target_ns <= 0:
            return None, None
        share = float(spent_ns.sum()) / target_ns
        if share <= self.limit:
            self._over = 0
            return None, None
        self._over += 1
        if self._over < _OVER_TURNS:
            return None, None
        self._over = 0
        # A group that costs next to nothing is not worth giving up.
        for group in self._left:
            if spent_ns[group] > 0.1 * (float(spent_ns.sum()) - self.limit * target_ns):
                self._left = tuple(other for other in self._left if other != group)
                return group, ImportantNotice(
                    f"{WHAT_IS_LOST[group]}: {GROUP_NAMES[group]} were taken off, since in the last {TURN_S:g} s "
                    f"all probes together took {fmt.percent(share)} of the target's time, over the limit of "
                    f"{fmt.percent(self.limit)}."
                )
        if self._warned:
            return None, None
        self._warned = True
        return None, (
            f"In the last {TURN_S:g} s probes took {fmt.percent(share)} of the target's time, over the limit of "
            f"{fmt.percent(self.limit)}, and none are left that the figures can do without."
        )
