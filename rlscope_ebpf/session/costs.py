"""What a probe hit costs, by site class: the figures used until this host has been calibrated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlscope_ebpf.capture.cookie import SiteClass
from rlscope_ebpf.capture.counters import ProbeCounters


@dataclass(frozen=True, slots=True)
class ProbeCosts:
    """ns per hit, our programs included, as a target feels them."""

    nop5: float = 900.0
    emulated: float = 1100.0
    stepped: float = 4600.0
    returned: float = 800.0  # what a return adds to an entry
    calibrated: bool = False

    def spent_ns(self, counters: ProbeCounters) -> int:
        """Time that the hits so far have taken from the targets."""
        by_class = counters.hits.sum(axis=0).astype(np.float64)
        entries = by_class @ self._of_classes()
        return int(entries + float(counters.returns.sum()) * self.returned)

    def spent_by_group_ns(self, counters: ProbeCounters) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """The same by `Group`, shape (groups,)."""
        spent: np.ndarray[tuple[int], np.dtype[np.float64]] = (
            counters.hits.astype(np.float64) @ self._of_classes() + counters.returns.astype(np.float64) * self.returned
        )
        return spent

    def _of_classes(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        costs = np.zeros(len(SiteClass))
        costs[SiteClass.NOP5] = self.nop5
        costs[SiteClass.EMULATED] = self.emulated
        costs[SiteClass.STEPPED] = self.stepped
        return costs

    def as_dict(self) -> dict[str, Any]:
        """For the trace header."""
        return {
            "calibrated": self.calibrated,
            "ns_per_hit": {
                "nop5": self.nop5,
                "emulated": self.emulated,
                "stepped": self.stepped,
                "return": self.returned,
            },
        }
