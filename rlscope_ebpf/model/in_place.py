"""What hits cost in the profiled program, against a calibration's loop: figures of a session, as it carries them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

LEAST, LARGEST = 0.5, 6.0
"""Ratios beyond these are no cost of a hit: something else went on."""

_THOUSANDTHS = 1000
_PARTS = ("in_force", "measured", "error", "windows")


@dataclass(frozen=True, slots=True)
class InPlaceCost:
    """Of one kind of probes: ratios to what the calibration's loop says."""

    probes: str  # boundary, gil: those that were set and taken off in turns, and stand for others like them
    in_force: float  # what hits are charged
    measured: float  # what the windows say by themselves; may be absurd
    error: float  # standard error of that
    windows: int

    @property
    def is_absurd(self) -> bool:
        """Whether what was measured cannot be what a hit costs."""
        return self.measured + 2 * self.error < LEAST or self.measured - 2 * self.error > LARGEST


def as_counts(costs: Iterable[InPlaceCost]) -> dict[str, int]:
    """For `Counters.in_place`: "<probes>/<figure>" → thousandths, and the number of windows."""
    found: dict[str, int] = {}
    for cost in costs:
        for part in _PARTS[:-1]:
            found[f"{cost.probes}/{part}"] = round(getattr(cost, part) * _THOUSANDTHS)
        found[f"{cost.probes}/{_PARTS[-1]}"] = cost.windows
    return found


def in_place_costs(counts: Mapping[str, int]) -> tuple[InPlaceCost, ...]:
    """The inverse of `as_counts`; what is incomplete is left out."""
    names = dict.fromkeys(key.rpartition("/")[0] for key in counts)
    complete = [name for name in names if all(f"{name}/{part}" in counts for part in _PARTS)]
    found = []
    for name in complete:
        in_force, measured, error = (counts[f"{name}/{part}"] / _THOUSANDTHS for part in _PARTS[:-1])
        found.append(InPlaceCost(name, in_force, measured, error, counts[f"{name}/{_PARTS[-1]}"]))
    return tuple(found)
