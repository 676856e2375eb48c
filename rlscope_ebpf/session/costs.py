"""What the probes' hits take from the target, in all and at each event of a thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.capture.cookie import Action, Group, SiteClass
from rlscope_ebpf.capture.counters import ProbeCounters
from rlscope_ebpf.capture.engine import ProbeSite
from rlscope_ebpf.model.calibration import BUILT_IN, Calibration, MethodCosts
from rlscope_ebpf.model.events import EventFlag, EventKind
from rlscope_ebpf.model.keys import grown

Floats = NDArray[np.float64]

_ENTRIES = (
    EventKind.CALL,
    EventKind.GIL_RELEASE,
    EventKind.GIL_ACQUIRE,
    EventKind.OP_BEGIN,
    EventKind.OP_END,
    EventKind.PHASE,
    EventKind.PROGRESS,
)  # METADATA carries a hash where others carry their site: its few hits are counted as such that sent nothing
_COUNTS_SILENT = (EventKind.CALL, EventKind.RETURN, EventKind.GIL_RELEASE, EventKind.GIL_ACQUIRE)
_NO_HIT, _ENTRY, _EXIT = range(3)
_HIT = np.full(256, _NO_HIT, np.uint8)  # by kind of event
_HIT[list(_ENTRIES)], _HIT[EventKind.RETURN] = _ENTRY, _EXIT
_TELLS_SILENT = np.zeros(256, np.bool_)
_TELLS_SILENT[list(_COUNTS_SILENT)] = True
_RETURN = len(SiteClass)  # after the site classes: return probes
_CELLS = _RETURN + 1
_ONES: Floats = np.ones(len(Group))


def _cell(group: int, way: int) -> int:
    """Where hits of a group are counted, by site class or as returns; 0 is none."""
    return 1 + group * _CELLS + way


def _hits(kind: NDArray[np.uint8], flags: NDArray[np.uint8], arg: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Whether each event came from a hit: `_ENTRY` or, at the end of a call, `_EXIT`."""
    hits: NDArray[np.uint8] = np.take(_HIT, kind)
    # An end that came with the end of a call belongs to the hit that ended the call.
    hits *= (kind != EventKind.OP_END) | (arg == 0)
    hits *= (kind != EventKind.RETURN) | (flags & EventFlag.HEALED == 0)
    return hits


def silent_hits(kind: NDArray[np.uint8], arg: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Hits without an event of their own that each event tells of: those of its thread since the event before."""
    silent: NDArray[np.uint32] = arg.astype(np.uint32) * np.take(_TELLS_SILENT, kind)  # the lower half of `arg`
    return silent


class ProbeCosts:
    """ns per hit, our programs included, as a target feels them."""

    def __init__(self, calibration: Calibration | None = None, method: str = "") -> None:
        """Without a calibration that has the attach method, with figures that hold roughly anywhere."""
        measured = calibration.methods.get(method) if calibration is not None else None
        self.calibrated = measured is not None
        self._calibration = calibration if measured is not None else None
        self._costs: MethodCosts = measured or BUILT_IN
        self._silent = np.array([cost.silent for cost in self._costs.entries])
        self._whole = np.array([cost.whole for cost in self._costs.entries])
        self._mean_silent = float(self._silent[SiteClass.EMULATED])
        # By probe id and kind of hit (none, at the entry, at the end): what one that sends an event takes before its
        # time stamp and after it.
        self._before: Floats = np.zeros((1, 3))
        self._after: Floats = np.zeros((1, 3))
        # By probe id: how hits there are counted, and how many of them have sent an event.
        self._entry_cell = np.zeros(1, np.int64)
        self._exit_cell = np.zeros(1, np.int64)
        self._told: NDArray[np.int64] = np.zeros((1, 2), np.int64)  # at the entry, at the end
        # How many times dearer hits are in this program, by Group: nan where that has not been measured.
        self._ratio: Floats = np.full(len(Group), np.nan)
        self._entry_group = np.zeros(1, np.int64)
        self._counted_before: Floats = np.zeros(len(Group))  # what hits before a ratio was known count for otherwise

    def add_probes(self, first: int, sites: Sequence[ProbeSite]) -> None:
        """Learn the sites with the ids from `first` on. Exits of a function follow its entry.

        A function's end is charged to it also where others end in the same instruction, which is probed once.
        """
        count = first + len(sites)
        self._before, self._after = grown(self._before, count), grown(self._after, count)
        self._entry_cell, self._exit_cell = grown(self._entry_cell, count), grown(self._exit_cell, count)
        self._told = grown(self._told, count)
        self._entry_group = grown(self._entry_group, count)
        in_force = self.ratios()
        function = first
        for number, site in enumerate(sites, first):
            cost, cell = self._costs.entries[site.site_class], _cell(site.group, site.site_class)
            times = in_force[site.group]
            self._entry_group[number] = site.group
            if site.action == Action.EXIT:
                self._before[function, _EXIT], self._after[function, _EXIT] = times * cost.before, times * cost.after
                self._exit_cell[function] = cell
                continue
            function = number
            self._before[number, _ENTRY], self._after[number, _ENTRY] = times * cost.before, times * cost.after
            self._entry_cell[number] = cell
            if site.returns:
                returned = self._costs.returned
                self._before[number, _EXIT], self._after[number, _EXIT] = (
                    times * returned.before,
                    times * returned.after,
                )
                self._exit_cell[number] = _cell(site.group, _RETURN)

    def ratios(self, otherwise: Floats = _ONES) -> Floats:
        """How many times dearer hits are here than in a loop, by Group; `otherwise` where that is not known."""
        known: Floats = np.where(np.isnan(self._ratio), otherwise, self._ratio)
        return known

    def set_ratios(self, ratios: Mapping[Group, float], counters: ProbeCounters) -> None:
        """Charge hits from now on so many times what the calibration says.

        What has been charged stays. `counters`: now.
        """
        before = self.ratios()
        spent = self.spent_by_group_ns(counters)
        self._ratio[list(ratios)] = list(ratios.values())
        change = (self.ratios() / before)[self._entry_group][:, None]
        self._before[: len(change)] *= change
        self._after[: len(change)] *= change
        self._counted_before += spent - self.spent_by_group_ns(counters)

    def charge(
        self, kind: NDArray[np.uint8], flags: NDArray[np.uint8], site: NDArray[np.uint32], arg: NDArray[np.uint64]
    ) -> tuple[Floats, Floats]:
        """What each event's hits took before its time and after it, in ns. Events that nobody hit for took nothing."""
        known = np.where(site < len(self._before), site, np.uint32(0))
        at = known * np.uint32(self._before.shape[1]) + _hits(kind, flags, arg)
        before, after = np.take(self._before, at), np.take(self._after, at)
        silent = silent_hits(kind, arg)
        if silent.any():
            before += silent * self._mean_silent
        return before, after

    def observe(self, events: NDArray[np.void]) -> None:
        """Count the hits that sent these events (EVENT_DTYPE). All others of the counters have sent none."""
        count = len(self._told)
        kind, flags, site, arg = (np.ascontiguousarray(events[name]) for name in ("kind", "flags", "site", "arg"))
        hits = _hits(kind, flags, arg)
        at = np.where(site < count, site, np.uint32(0)) * np.uint32(3) + np.where(site < count, hits, _NO_HIT)
        self._told += np.bincount(at, minlength=3 * count).reshape(count, 3)[:, 1:]

    def watch(self, counters: ProbeCounters) -> None:
        """See which sites are hit without sending an event: such hits are charged what they cost on average."""
        _, silent = self._told_and_silent(counters)
        if silent.any():
            took = silent @ self._silent_costs() * self.ratios()
            self._mean_silent = float(took.sum() / silent.sum())

    def spent_ns(self, counters: ProbeCounters) -> int:
        """Time that the hits so far have taken from the targets."""
        return int(self.spent_by_group_ns(counters).sum())

    def spent_by_group_ns(self, counters: ProbeCounters) -> Floats:
        """The same by `Group`, shape (groups,)."""
        told, silent = self._told_and_silent(counters)
        whole = np.append(self._whole, self._costs.returned.whole)
        spent: Floats = (told @ whole + silent @ self._silent_costs()) * self.ratios()
        spent += self._counted_before
        return spent

    def told_by_probe_ns(self) -> Floats:
        """What hits that sent an event have taken so far, by probe id; a function's exits count for its entry."""
        took: Floats = (self._told * (self._before + self._after)[:, [_ENTRY, _EXIT]]).sum(axis=1)
        return took

    def _silent_costs(self) -> Floats:
        return np.append(self._silent, self._costs.returned.silent)

    def _told_and_silent(self, counters: ProbeCounters) -> tuple[Floats, Floats]:
        """Hits that sent an event, and those that sent none, shape (group, site class and, last, return probe)."""
        size = 1 + len(Group) * _CELLS
        told = np.bincount(self._entry_cell, self._told[:, 0], size) + np.bincount(
            self._exit_cell, self._told[:, 1], size
        )
        found: Floats = told.astype(np.float64)[1:].reshape(len(Group), _CELLS)
        hits = np.column_stack((counters.hits, counters.returns)).astype(np.float64)
        # Events are read after their hits were counted, and a moment of them may be in one of both only.
        return np.minimum(found, hits), np.maximum(hits - found, 0)

    def as_dict(self) -> dict[str, Any]:
        """For the trace header."""
        found: dict[str, Any] = {"calibrated": self.calibrated, "ns_per_hit": self._costs.as_dict()}
        if self._calibration is not None:
            found |= {"measured_at": self._calibration.measured_at, "cpu": self._calibration.cpu}
        return found
