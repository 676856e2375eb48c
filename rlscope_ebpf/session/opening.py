"""Operations that threads began while the profiler attached: after their stacks were read, before they were heard."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.categories import UNKNOWN_OPERATION
from rlscope_ebpf.model.events import EventKind

MOST_ENDS = 256
"""One event ends at most so many operations; a larger number is damaged data."""

WITHIN_NS = 1_000_000_000
"""An end without a begin this soon after the attach is taken for one of theirs; later it is an error of the target."""


@dataclass(frozen=True, slots=True)
class Seed:
    """A thread's open operations at some moment, outermost first."""

    pid: int
    tid: int
    names: tuple[str, ...]
    time_ns: int


@dataclass(slots=True)
class OpenedMeanwhile:
    """What is known of threads that were not there when stacks were first read."""

    _until_ns: int = 0
    _known: set[int] = field(default_factory=set)  # threads whose stack the programs read at their first marker
    _seeds: list[Seed] = field(default_factory=list)

    def watch(self, known: Iterable[int], seeds: Iterable[Seed], now_ns: int) -> None:
        """After all hits of a process are let through: `known` threads were found before, `seeds` since."""
        self._known.update(known)
        self._seeds.extend(seeds)
        self._until_ns = now_ns + WITHIN_NS

    def take(self, events: NDArray[np.void]) -> list[Seed]:
        """Stacks that threads had before these events (EVENT_DTYPE), which are the next ones in the ring."""
        if not self._until_ns:
            return []
        first = _first_operations(events)
        # Whoever was heard before its stack was read again may have changed it before or after: not to be told.
        seeds = [seed for seed in self._seeds if seed.tid not in first or first[seed.tid][0] > seed.time_ns]
        self._seeds.clear()
        seeded = {seed.tid for seed in seeds}
        for tid, (time_ns, pid, opened) in first.items():
            if opened and tid not in self._known and tid not in seeded:
                seeds.append(Seed(pid, tid, (UNKNOWN_OPERATION,) * opened, time_ns))
        self._known.update(first, seeded)
        if len(events) and int(events["time_ns"][-1]) > self._until_ns:
            self._until_ns = 0
            self._known.clear()
        return seeds


def _first_operations(events: NDArray[np.void]) -> dict[int, tuple[int, int, int]]:
    """Thread → time and process of its first begin or end, and how many operations it ends that it did not begin."""
    rows = events[(events["kind"] == EventKind.OP_BEGIN) | (events["kind"] == EventKind.OP_END)]
    if not len(rows):
        return {}
    rows = rows[np.argsort(rows["tid"], kind="stable")]
    ended = np.clip(rows["arg"], 1, MOST_ENDS).astype(np.int64)
    steps = np.where(rows["kind"] == EventKind.OP_BEGIN, 1, -ended)
    starts = np.flatnonzero(np.diff(rows["tid"].astype(np.int64), prepend=-1))
    return {
        int(rows["tid"][start]): (
            int(rows["time_ns"][start]), int(rows["pid"][start]), max(0, -int(np.cumsum(own).min()))
        )
        for start, own in zip(starts.tolist(), np.split(steps, starts[1:]), strict=True)
    }  # fmt: skip
