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
    EventKind.METADATA,
)
_COUNTS_SILENT = (EventKind.CALL, EventKind.RETURN, EventKind.GIL_RELEASE, EventKind.GIL_ACQUIRE)
_IS_ENTRY, _TELLS_SILENT = (np.zeros(256, np.bool_) for _ in range(2))
_IS_ENTRY[list(_ENTRIES)] = _TELLS_SILENT[list(_COUNTS_SILENT)] = True
_ALWAYS_TELL = (Group.MARKER, Group.GIL)  # those on the interpreter lock do unless inside another call
_SILENT_HITS = 0xFFFFFFFF  # of `arg`


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

    def add_probes(self, first: int, sites: Sequence[ProbeSite]) -> None:
        """Learn the sites with the ids from `first` on. Exits of a function follow its entry."""
        self._entry = grown(self._entry, first + len(sites))
        self._exit = grown(self._exit, first + len(sites))
        entry = np.array([(cost.before, cost.after) for cost in self._costs.entries])
        function = first
        for number, site in enumerate(sites, first):
            if site.action == Action.EXIT:
                self._exit[function] = entry[site.site_class]
                continue
            function = number
            self._entry[number] = entry[site.site_class]
            if site.returns:
                self._exit[number] = self._costs.returned.before, self._costs.returned.after

    def charge(
        self, kind: NDArray[np.uint8], flags: NDArray[np.uint8], site: NDArray[np.uint32], arg: NDArray[np.uint64]
    ) -> tuple[Floats, Floats]:
        """What each event's hits took before its time and after it, in ns. Events that nobody hit for took nothing."""
        known = np.where(site < len(self._entry), site, 0)
        took = np.zeros((len(kind), 2))
        entries, returns = _IS_ENTRY[kind], kind == EventKind.RETURN
        # An end that came with the end of a call belongs to the hit that ended the call.
        entries &= ~((kind == EventKind.OP_END) & (arg != 0))
        returns &= flags & EventFlag.HEALED == 0
        took[entries] = self._entry[known[entries]]
        took[returns] = self._exit[known[returns]]
        before = took[:, 0]
        tells = _TELLS_SILENT[kind]
        before[tells] += (arg[tells] & np.uint64(_SILENT_HITS)).astype(np.float64) * self._mean_silent
        return before, took[:, 1]

    def watch(self, counters: ProbeCounters) -> None:
        """See which sites are hit how often: silent hits cost what those do on average."""
        by_class = counters.hits.sum(axis=0).astype(np.float64)
        if by_class.any():
            self._mean_silent = float(by_class @ self._silent / by_class.sum())

    def spent_ns(self, counters: ProbeCounters) -> int:
        """Time that the hits so far have taken from the targets."""
        return int(self.spent_by_group_ns(counters).sum())

    def spent_by_group_ns(self, counters: ProbeCounters) -> Floats:
        """The same by `Group`, shape (groups,)."""
        hits, returns = counters.hits.astype(np.float64), counters.returns.astype(np.float64)
        spent: Floats = hits @ self._silent + returns * self._costs.returned.whole
        # An entry whose return is seen sent an event, too.
        telling = np.minimum(returns, hits.sum(axis=1))
        for group in _ALWAYS_TELL:
            telling[group] = hits[group].sum()
        share = hits / np.maximum(hits.sum(axis=1, keepdims=True), 1)
        event: Floats = telling * (share @ (self._whole - self._silent))
        return np.maximum(spent + event, 0)

    def as_dict(self) -> dict[str, Any]:
        """For the trace header."""
        found: dict[str, Any] = {"calibrated": self.calibrated, "ns_per_hit": self._costs.as_dict()}
        if self._calibration is not None:
            found |= {"measured_at": self._calibration.measured_at, "cpu": self._calibration.cpu}
        return found
