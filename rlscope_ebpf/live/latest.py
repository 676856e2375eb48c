"""The latest progress reports of every process: how long its training loop's last iterations took, and its rate."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.tables import Batch, MarkKind, ThreadInfo

KEPT = 256
"""Reports that are kept of each process."""

RATE_NS = 10_000_000_000
"""The rate is that of the last ten seconds, or of as many reports as are kept."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The latest reports of one process, oldest first."""

    time_ns: tuple[int, ...]
    step: tuple[int, ...]

    @property
    def durations_ns(self) -> tuple[int, ...]:
        """Of the iterations between them."""
        return tuple(after - before for before, after in zip(self.time_ns, self.time_ns[1:], strict=False))

    def steps_per_s(self) -> float:
        """Lately; 0 while it cannot be told, or if steps do not grow."""
        if len(self.time_ns) < 2:
            return 0.0
        since_ns = self.time_ns[-1] - RATE_NS
        first = next(n for n, time_ns in enumerate(self.time_ns) if time_ns >= since_ns)
        first = min(first, len(self.time_ns) - 2)
        passed_ns = self.time_ns[-1] - self.time_ns[first]
        return max(0, self.step[-1] - self.step[first]) * 1e9 / passed_ns if passed_ns > 0 else 0.0


class LatestReports:
    """Adds up batches. Not thread-safe."""

    def __init__(self) -> None:
        self._pid: dict[int, int] = {}  # by thread id
        self._reports: dict[int, deque[tuple[int, int]]] = {}

    def add(self, batch: Batch) -> None:
        """Add what one turn of a session produced."""
        for definition in batch.definitions:
            if isinstance(definition, ThreadInfo):
                self._pid[definition.id] = definition.pid
        marks = batch.tables.get("marks")
        if marks is not None:
            self._add(marks[marks["kind"] == MarkKind.PROGRESS])

    def _add(self, rows: NDArray[np.void]) -> None:
        for thread in np.unique(rows["thread"]).tolist():
            mine = rows[rows["thread"] == thread][-KEPT:]
            reports = self._reports.setdefault(self._pid.get(thread, 0), deque(maxlen=KEPT))
            reports.extend(zip(mine["time_ns"].tolist(), mine["a"].tolist(), strict=True))

    def latest(self) -> dict[int, Latest]:
        """By pid."""
        found: dict[int, Latest] = {}
        for pid, reports in self._reports.items():
            times, steps = zip(*sorted(reports), strict=True)
            found[pid] = Latest(times, steps)
        return found
