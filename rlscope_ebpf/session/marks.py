"""Phase changes, progress reports and metadata as rows of the marks table."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.events import EventKind
from rlscope_ebpf.model.tables import MARK_DTYPE, MarkKind
from rlscope_ebpf.session.registry import Ints, Registry
from rlscope_ebpf.session.stream import Stream

TOTAL_WITHIN_NS = 100_000_000
"""How long a progress report waits for the record with its total, which the same probe hit writes right after it."""


class MarkMaker:
    """Collects marks; progress reports whose total may still be in the ring are held back."""

    def __init__(self, registry: Registry) -> None:
        self.unmatched = 0  # totals without a progress report
        self._registry = registry
        self._held = np.empty(0, MARK_DTYPE)  # at most one per thread
        self._ready: list[NDArray[np.void]] = []

    def add(self, stream: Stream, at: Ints, thread_of_run: Ints) -> tuple[Ints, Ints]:
        """Take marker events at stream positions `at`; returns the positions of phase changes and the phases' ids."""
        kind = stream.kind[at]
        phase_at = at[kind == EventKind.PHASE]
        phase_id = self._registry.names(stream.arg[phase_at])
        self._ready.append(_marks(stream, phase_at, thread_of_run, MarkKind.PHASE, phase_id))

        metadata_at = at[kind == EventKind.METADATA]
        keys = self._registry.names(stream.arg[metadata_at])
        metadata = _marks(stream, metadata_at, thread_of_run, MarkKind.METADATA, keys)
        metadata["b"] = self._registry.values(stream.site[metadata_at].astype(np.uint64))
        self._ready.append(metadata)

        reports = at[(kind == EventKind.PROGRESS) | (kind == EventKind.PROGRESS_TOTAL)]
        if len(reports):
            self._add_progress(stream, reports, thread_of_run)
        return phase_at, phase_id

    def take(self, now_ns: int, ended_threads: Ints) -> NDArray[np.void]:
        """Marks to hand out, in order of time; `ended_threads` (ThreadInfo ids) have nothing more to say."""
        if len(self._held):
            wait = self._held["time_ns"].astype(np.int64) + TOTAL_WITHIN_NS > now_ns
            wait &= ~np.isin(self._held["thread"], ended_threads)
            self._ready.append(self._held[~wait])
            self._held = self._held[wait]
        if not self._ready:
            return np.empty(0, MARK_DTYPE)
        marks = np.concatenate(self._ready)
        self._ready.clear()
        return marks[np.argsort(marks["time_ns"], kind="stable")]

    def _add_progress(self, stream: Stream, at: Ints, thread_of_run: Ints) -> None:
        marks = np.concatenate([self._held, _marks(stream, at, thread_of_run, MarkKind.PROGRESS, stream.arg[at])])
        is_total = np.concatenate([np.zeros(len(self._held), np.bool_), stream.kind[at] == EventKind.PROGRESS_TOTAL])
        order = np.argsort(marks["thread"], kind="stable")  # a held report before the events of its thread
        marks, is_total = marks[order], is_total[order]
        last = np.append(marks["thread"][1:] != marks["thread"][:-1], True)
        has_total = ~is_total & ~last & np.append(is_total[1:], False)
        answered = np.flatnonzero(has_total)
        marks["b"][answered] = marks["a"][answered + 1]
        self.unmatched += int(np.count_nonzero(is_total)) - len(answered)
        held = last & ~is_total
        self._ready.append(marks[~is_total & ~held])
        self._held = marks[held]


def _marks(stream: Stream, at: Ints, thread_of_run: Ints, kind: MarkKind, a: NDArray[np.integer]) -> NDArray[np.void]:
    marks = np.zeros(len(at), MARK_DTYPE)
    marks["thread"] = thread_of_run[stream.run[at]]
    marks["kind"] = kind
    marks["time_ns"] = stream.time_ns[at]
    marks["a"] = a
    return marks
