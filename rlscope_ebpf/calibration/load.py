"""How busy other programs keep the processors while something is measured."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")
_BUSY = slice(0, 3), slice(5, 8)  # user, nice, system; irq, softirq, steal
_TICK = os.sysconf("SC_CLK_TCK")

NOTICEABLE = 0.2
"""Processors kept busy by others from which on a measurement is not taken on an idle host."""


def busy_s(stat: str) -> float:
    """CPU time, of all processors and programs, that /proc/stat tells of. Raises ValueError."""
    for line in stat.splitlines():
        name, *fields = line.split()
        if name == "cpu":
            return sum(int(field) for part in _BUSY for field in fields[part]) / _TICK
    raise ValueError("no line of all processors")


class OtherLoad:
    """Processors that were kept busy, on average since it was made, by neither this process nor its ended children."""

    def __init__(self) -> None:
        self._before = self._look()

    def processors(self) -> float:
        """0 also where it cannot be told."""
        now = self._look()
        if now is None or self._before is None:
            return 0.0
        passed, busy, own = (after - before for after, before in zip(now, self._before, strict=True))
        return max(0.0, busy - own) / passed if passed > 0 else 0.0

    @staticmethod
    def _look() -> tuple[float, float, float] | None:
        """Moment, CPU time of all, and of our own."""
        try:
            busy = busy_s(_STAT.read_text())
        except (OSError, ValueError):
            return None
        return time.monotonic(), busy, sum(os.times()[:4])
