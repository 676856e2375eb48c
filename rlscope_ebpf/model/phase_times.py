"""Which phase a process was in, and for how long, by the clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rlscope_ebpf.model.keys import Ints

_KEPT = 4096
"""So many of the latest changes are known; progress reports come at most a fraction of a second late."""


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """The time that one process spent in one phase, by the clock, not summed over threads."""

    name: str
    first_ns: int  # when it first began
    entered: int  # so often
    total_ns: int
    current: bool  # it goes on


class PhaseTimes:
    """The phases of one process, told of in order of time."""

    def __init__(self) -> None:
        self.current = 0
        self._since_ns: int | None = None  # of the current one, None: from the process's start
        self._entered: dict[int, list[int]] = {}  # phase -> first begin, times entered, ns of those that are over
        self._times: Ints = np.zeros(0, np.int64)
        self._phases: Ints = np.zeros(1, np.int64)  # the one before all of these times, then those that begin at them

    def add(self, time_ns: Ints, phase: Ints, start_ns: int) -> None:
        """Add changes of a process whose profiling began at `start_ns`."""
        for at_ns, following in zip(time_ns.tolist(), phase.tolist(), strict=True):
            if following != self.current:
                self._enter(at_ns, following, start_ns)
        times = np.concatenate([self._times, time_ns])
        order = np.argsort(times, kind="stable")[-_KEPT:]
        phases = np.concatenate([self._phases[1:], phase])[np.argsort(times, kind="stable")]
        before = self._phases[:1] if len(times) <= _KEPT else phases[-_KEPT - 1 : -_KEPT]
        self._times, self._phases = times[order], np.concatenate([before, phases[-_KEPT:]])

    def at(self, time_ns: Ints) -> Ints:
        """The phase at some moments; a change holds from its own moment on."""
        return self._phases[np.searchsorted(self._times, time_ns, side="right")]

    def times(self, start_ns: int, end_ns: int, name: Callable[[int], str]) -> tuple[PhaseTime, ...]:
        """Of a process from `start_ns` until `end_ns`, in the order in which they were first entered."""
        found = {phase: (first, entered, ns) for phase, (first, entered, ns) in self._entered.items()}
        first, entered, ns = found.get(self.current, (self._begin(start_ns), 0, 0))
        found[self.current] = (first, entered + 1, ns + max(0, end_ns - self._begin(start_ns)))
        return tuple(PhaseTime(name(phase), *sums, phase == self.current) for phase, sums in found.items())

    def _begin(self, start_ns: int) -> int:
        return start_ns if self._since_ns is None else self._since_ns

    def _enter(self, at_ns: int, following: int, start_ns: int) -> None:
        begin = self._begin(start_ns)
        sums = self._entered.setdefault(self.current, [begin, 0, 0])
        sums[1] += 1
        sums[2] += max(0, at_ns - begin)
        self.current, self._since_ns = following, at_ns
