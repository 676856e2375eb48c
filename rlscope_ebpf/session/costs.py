"""What the probes' hits take from the target, in all and at each event of a thread."""

from __future__ import annotations

from collections.abc import Sequence
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
_IS_ENTRY, _TELLS_SILENT = (np.zeros(256, np.bool_) for _ in range(2))
_IS_ENTRY[list(_ENTRIES)] = _TELLS_SILENT[list(_COUNTS_SILENT)] = True
_SILENT_HITS = 0xFFFFFFFF  # of `arg`
_RETURN = len(SiteClass)  # after the site classes: return probes
_CELLS = _RETURN + 1


def _cell(group: int, way: int) -> int:
    """Where hits of a group are counted, by site class or as returns; 0 is none."""
    return 1 + group * _CELLS + way


def _hits(
    kind: NDArray[np.uint8], flags: NDArray[np.uint8], arg: NDArray[np.uint64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which events came from a hit at an entry, and which from one at the end of a call."""
    # An end that came with the end of a call belongs to the hit that ended the call.
    entries = _IS_ENTRY[kind] & ~((kind == EventKind.OP_END) & (arg != 0))
    returns = (kind == EventKind.RETURN) & (flags & EventFlag.HEALED == 0)
    return entries, returns


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
        # By probe id, of a hit that sends an event: before and after its time stamp.
        self._entry: Floats = np.zeros((1, 2))
        self._exit: Floats = np.zeros((1, 2))
        # By probe id: how hits there are counted, and how many of them have sent an event.
        self._entry_cell = np.zeros(1, np.int64)
        self._exit_cell = np.zeros(1, np.int64)
        self._told: NDArray[np.int64] = np.zeros((1, 2), np.int64)  # at the entry, at the end

    def add_probes(self, first: int, sites: Sequence[ProbeSite]) -> None:
        """Learn the sites with the ids from `first` on. Exits of a function follow its entry.

        A function's end is charged to it also where others end in the same instruction, which is probed once.
        """
        count = first + len(sites)
        self._entry, self._exit = grown(self._entry, count), grown(self._exit, count)
        self._entry_cell, self._exit_cell = grown(self._entry_cell, count), grown(self._exit_cell, count)
        self._told = grown(self._told, count)
        entry = np.array([(cost.before, cost.after) for cost in self._costs.entries])
        function = first
        for number, site in enumerate(sites, first):
            cell = _cell(site.group, site.site_class)
            if site.action == Action.EXIT:
                self._exit[function] = entry[site.site_class]
                self._exit_cell[function] = cell
                continue
            function = number
            self._entry[number] = entry[site.site_class]
            self._entry_cell[number] = cell
            if site.returns:
                self._exit[number] = self._costs.returned.before, self._costs.returned.after
                self._exit_cell[number] = _cell(site.group, _RETURN)

    def charge(
        self, kind: NDArray[np.uint8], flags: NDArray[np.uint8], site: NDArray[np.uint32], arg: NDArray[np.uint64]
    ) -> tuple[Floats, Floats]:
        """What each event's hits took before its time and after it, in ns. Events that nobody hit for took nothing."""
        known = np.where(site < len(self._entry), site, 0)
        took = np.zeros((len(kind), 2))
        entries, returns = _hits(kind, flags, arg)
        took[entries] = self._entry[known[entries]]
        took[returns] = self._exit[known[returns]]
        before = took[:, 0]
        tells = _TELLS_SILENT[kind]
        before[tells] += (arg[tells] & np.uint64(_SILENT_HITS)).astype(np.float64) * self._mean_silent
        return before, took[:, 1]

    def observe(self, events: NDArray[np.void]) -> None:
        """Count the hits that sent these events (EVENT_DTYPE). All others of the counters have sent none."""
        count = len(self._told)
        for end, mask in enumerate(_hits(events["kind"], events["flags"], events["arg"])):
            sites = events["site"][mask]
            self._told[:, end] += np.bincount(sites[sites < count], minlength=count)

    def watch(self, counters: ProbeCounters) -> None:
        """See which sites are hit without sending an event: such hits are charged what they cost on average."""
        _, silent = self._told_and_silent(counters)
        if silent.any():
            self._mean_silent = float((silent @ self._silent_costs()).sum() / silent.sum())

    def spent_ns(self, counters: ProbeCounters) -> int:
        """Time that the hits so far have taken from the targets."""
        return int(self.spent_by_group_ns(counters).sum())

    def spent_by_group_ns(self, counters: ProbeCounters) -> Floats:
        """The same by `Group`, shape (groups,)."""
        told, silent = self._told_and_silent(counters)
        whole = np.append(self._whole, self._costs.returned.whole)
        spent: Floats = told @ whole + silent @ self._silent_costs()
        return spent

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
