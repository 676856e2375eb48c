"""What a probe hit costs the thread that makes it: figures that `calibrate` measures and corrections are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NOP5, EMULATED, STEPPED = SITE_CLASSES = ("nop5", "emulated", "stepped")
"""How the kernel executes the probed instruction, by SiteClass."""


@dataclass(frozen=True, slots=True)
class HitCost:
    """ns of one hit. `silent`: it sends no event. If it does: `before` its time stamp and `after` it."""

    silent: float
    before: float
    after: float
    spread: float = 0.0  # half the distance between the quartiles, of the whole hit

    @property
    def whole(self) -> float:
        """ns of a hit that sends an event."""
        return self.before + self.after

    def as_dict(self) -> dict[str, float]:
        """For a file; `hit_cost` reads it."""
        return {"silent": self.silent, "before": self.before, "after": self.after, "spread": self.spread}


@dataclass(frozen=True, slots=True)
class MethodCosts:
    """Of one attach method."""

    entries: tuple[HitCost, HitCost, HitCost]  # by SiteClass
    returned: HitCost  # what the return adds

    def as_dict(self) -> dict[str, dict[str, float]]:
        """For a file; `method_costs` reads it."""
        found = {name: cost.as_dict() for name, cost in zip(SITE_CLASSES, self.entries, strict=True)}
        return found | {"return": self.returned.as_dict()}


def hit_cost(values: Mapping[str, Any]) -> HitCost:
    """The inverse of `HitCost.as_dict`. Raises KeyError, TypeError or ValueError."""
    found = HitCost(*(float(values[name]) for name in ("silent", "before", "after", "spread")))
    if not all(0 <= value < 1e9 for value in (found.silent, found.before, found.after, found.spread)):
        raise ValueError("a hit of a probe takes no such time")
    return found


def method_costs(values: Mapping[str, Any]) -> MethodCosts:
    """The inverse of `MethodCosts.as_dict`. Raises KeyError, TypeError or ValueError."""
    nop5, emulated, stepped = (hit_cost(values[name]) for name in SITE_CLASSES)
    return MethodCosts((nop5, emulated, stepped), hit_cost(values["return"]))


@dataclass(frozen=True, slots=True)
class Calibration:
    """Costs by attach method, and what they were measured with."""

    host: str
    kernel: str
    cpu: str
    programs: str  # a digest of the BPF programs' sources
    measured_at: str  # RFC 3339
    short: bool  # taken in passing while attaching
    methods: Mapping[str, MethodCosts]


BUILT_IN = MethodCosts(
    entries=(HitCost(1300, 900, 600), HitCost(1800, 1100, 850), HitCost(6300, 1150, 5500)),
    returned=HitCost(0, 700, 550),
)
"""Rounded figures of one virtual machine, for hosts of which nothing is known."""
