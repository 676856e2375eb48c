"""GPU records to rows of the `gpu` table: every activity finds its launch, and with it thread, operation and phase."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.gpu import GPU_DTYPE, GPU_RECORD_DTYPE, IS_WORK, GpuKind
from rlscope_ebpf.model.keys import Ints, KeyRows, grown, pair
from rlscope_ebpf.model.rows import chosen, joined
from rlscope_ebpf.model.tables import Batch, Counters, Definition, Losses
from rlscope_ebpf.session.gpu_callers import BackendCalls
from rlscope_ebpf.session.gpu_timeline import ThreadTimelines
from rlscope_ebpf.session.gpu_waiting import LAUNCH_DTYPE, SKEW_NS, WaitingLaunches
from rlscope_ebpf.session.registry import Registry

ACTIVITY_WAIT_NS = 5_000_000_000
"""An activity is handed out without its launch when that has not come for so long."""

MOST_ACTIVITIES = 1 << 18
"""That wait for their launch; with more, the oldest are handed out without."""

FUTURE_NS = 2_000_000_000
"""No record can be of a time this far ahead."""

MOST_NAMES = 1 << 16
"""Kernel names per process."""

_NEVER = np.iinfo(np.int64).max
_PENDING_DTYPE = np.dtype([("record", GPU_RECORD_DTYPE), ("process", "<i8"), ("arrived_ns", "<i8")])


class GpuMatcher:
    """Turns the records of all processes into rows, batch by batch. Times are ns of CLOCK_MONOTONIC.

    Records come in any order, up to seconds late. An activity and its launch have the same correlation id in the same
    process; ids wrap. Thread, path and phase of a row are those of the launching thread when it made the launching
    call; if it has never been in an operation, path and phase are those of the thread that waits for it inside a call
    of a backend (`BackendCalls`). An activity whose launch does not come within `ACTIVITY_WAIT_NS` becomes a row
    without thread and path: if it was launched before recording began it is `early`, else `unmatched`. Its phase is the
    process's at its start.
    """

    def __init__(self, registry: Registry, *, host_tid: Callable[[int, int], int] | None = None) -> None:
        """`registry` gives ids to kernel names. `host_tid(pid, tid)` is the thread id as the profiler sees it, of one
        that the process's own pid namespace numbers `tid`; without it, both are the same.
        """
        self.received = 0
        self.matched = 0
        self.early = 0
        self.inherited = 0
        self.behind = 0
        """Activities that are said to have begun long before the call that launched them."""
        self.most_behind_ns = 0
        self._registry = registry
        self._host_tid = host_tid
        self._threads = ThreadTimelines()
        self._calls = BackendCalls()
        self._launches = WaitingLaunches()
        self._unplaced = np.zeros(0, _PENDING_DTYPE)  # launches of a time that has not been handed out yet
        self._activities = np.zeros(0, _PENDING_DTYPE)
        self._processes = KeyRows()  # pid
        self._first_launch_ns: Ints = np.zeros(0, np.int64)  # by process
        self._streams = KeyRows()
        self._first_match_ns: Ints = np.zeros(0, np.int64)  # by stream: earliest start of an activity that was matched
        self._names: dict[int, NDArray[np.uint32]] = {}  # process -> string ids by the helper's ids
        self._lost: dict[Hashable, tuple[int, int]] = {}
        self._invalid = 0
        self._unmatched = 0
        self._ambiguous = 0

    def losses(self, others: Losses) -> Losses:
        """`others` with what is known here of the GPU."""
        lost, invalid = (sum(part) for part in zip((0, 0), *self._lost.values(), strict=True))
        return replace(
            others,
            gpu_records=lost,
            gpu_invalid=invalid + self._invalid,
            gpu_unmatched=self._unmatched,
            gpu_launches=self._launches.unmatched,
            gpu_ambiguous=self._ambiguous,
        )

    def counters(self, others: Counters) -> Counters:
        """`others` with the work done here."""
        return replace(
            others,
            gpu_records=self.received,
            gpu_matched=self.matched,
            gpu_early=self.early,
            gpu_inherited=self.inherited,
        )

    def set_lost(self, source: Hashable, records: int, invalid: int = 0) -> None:
        """Running totals of what `source` (a process's helper, the ring) could not deliver, or would not."""
        self._lost[source] = (records, invalid)

    def add_name(self, pid: int, number: int, name: str) -> None:
        """Learn a kernel's name by the id that the helper in `pid` gave it; a later one replaces it."""
        if not 0 < number < MOST_NAMES:
            return
        process = self._process(pid)
        names = self._names[process] = grown(self._names.get(process, np.zeros(64, np.uint32)), number + 1)
        names[number] = self._registry.string(name)

    def define(self, definitions: Iterable[Definition]) -> None:
        """Learn which threads there are, from a batch that is not given to `advance` as no GPU is in use yet."""
        self._threads.define(definitions)
        self._calls.define(definitions)

    def remember(self, intervals: NDArray[np.void]) -> None:
        """Learn where threads were, from such a batch: all its intervals, batches in their order."""
        self._threads.add(intervals)
        self._calls.add(intervals)

    def advance(
        self,
        batch: Batch,
        records: NDArray[np.void],
        pid: NDArray[np.uint32],
        *,
        read_ns: int = 0,
        last: bool = False,
        queued_ns: int | None = None,
    ) -> None:
        """Match records (GPU_RECORD_DTYPE) of the processes `pid`, element by element.

        `batch` is the session's of this turn, before it goes to the sinks: its definitions and intervals tell where
        threads were, and it gets the rows. `read_ns`: when the records were read, if later than `batch.now_ns`.
        `last`: nothing more comes, nothing waits any longer. Launches after `queued_ns` are then not missed: they may
        still have been in a queue.
        """
        self.define(batch.definitions)
        intervals = batch.tables.get("intervals")
        if intervals is not None:
            self.remember(intervals)
        batch.definitions.extend(self._registry.drain())
        now_ns = max(batch.now_ns, read_ns)
        if last:  # what came meanwhile and began after the end, when nobody knows what threads did
            self._unplaced = _begun(self._unplaced, batch.now_ns)
            self._activities = _begun(self._activities, batch.now_ns)
        pending = self._sound(records, pid, now_ns)
        kind = pending["record"]["kind"]
        launches = joined([self._unplaced, chosen(pending, kind == GpuKind.LAUNCH)])
        self._place(launches, _NEVER if last else batch.now_ns, now_ns)
        parts = [self._rows_without_launch(chosen(pending, kind == GpuKind.SYNC))]
        activities = joined([self._activities, chosen(pending, IS_WORK[kind])])
        parts += self._join(activities, now_ns, last)
        if last:
            self._launches.give_up(queued_ns)
        else:
            self._launches.expire(now_ns)
        rows = joined(parts)
        if len(rows):
            # Mostly in order of time: that is how they are stored best, and added up fastest.
            batch.tables["gpu"] = np.take(rows, np.argsort(rows["start_ns"], kind="stable"))
        batch.losses = self.losses(batch.losses)
        batch.counters = self.counters(batch.counters)

    def _process(self, pid: int) -> int:
        index = int(self._processes.rows(np.array([pid], np.uint64))[0])
        self._reserve()
        return index

    def _reserve(self) -> None:
        before = len(self._first_launch_ns)
        self._first_launch_ns = grown(self._first_launch_ns, len(self._processes))
        self._first_launch_ns[before:] = _NEVER

    def _sound(self, records: NDArray[np.void], pid: NDArray[np.uint32], now_ns: int) -> NDArray[np.void]:
        """Records with times that can be true and of a kind that is known."""
        self.received += len(records)
        start_ns, end_ns, kind = records["start_ns"], records["end_ns"], records["kind"]
        sound = (start_ns > 0) & (start_ns <= end_ns) & (end_ns <= now_ns + FUTURE_NS)
        sound &= IS_WORK[kind] | (kind == GpuKind.LAUNCH) | (kind == GpuKind.SYNC)
        bad = len(records) - int(np.count_nonzero(sound))
        if bad:
            self._invalid += bad
            records, pid = chosen(records, sound), pid[sound]
        pending = np.empty(len(records), _PENDING_DTYPE)
        pending["record"] = records
        pending["process"] = self._processes.rows(pid.astype(np.uint64))
        pending["arrived_ns"] = now_ns
        self._reserve()
        return pending

    def _place(self, launches: NDArray[np.void], until_ns: int, now_ns: int) -> None:
        """Find out where the launching threads were, as far as that has been handed out."""
        start_ns = launches["record"]["start_ns"].astype(np.int64)
        placeable = start_ns < until_ns
        self._unplaced = chosen(launches, ~placeable)
        if len(self._unplaced):
            launches, start_ns = chosen(launches, placeable), start_ns[placeable]
        if not len(launches):
            return
        process, record = launches["process"], launches["record"]
        np.minimum.at(self._first_launch_ns, process, start_ns)
        rows = np.zeros(len(launches), LAUNCH_DTYPE)
        rows["key"] = pair(process, record["correlation"])
        rows["start_ns"], rows["seen_ns"], rows["detail"] = start_ns, now_ns, record["detail"]
        who, group = np.unique(pair(process, record["thread"]), return_inverse=True)
        for number, key in enumerate(who.tolist()):
            pid, tid = self._processes.keys[key >> 32], key & 0xFFFFFFFF
            if self._host_tid is not None:
                tid = self._host_tid(pid, tid)
            mine = np.flatnonzero(group == number)
            where = self._threads.at(pid, tid, start_ns[mine])
            for name in ("thread", "path", "phase", "known"):
                rows[name][mine] = where[name]
            if not self._threads.is_marked(pid, tid):
                self._inherit(rows, mine, self._calls.callers(pid, tid, start_ns[mine]))
        self._launches.add(rows)

    def _inherit(self, rows: NDArray[np.void], mine: Ints, callers: NDArray[np.void]) -> None:
        """Charge launches to the operations of those for whom they were made."""
        found = np.flatnonzero(callers["found"])
        for name in ("path", "phase"):
            rows[name][mine[found]] = callers[name][found]
        rows["known"][mine[found]] = True
        rows["inherited"][mine[found]] = True
        rows["ambiguous"][mine] = callers["ambiguous"]

    def _join(self, activities: NDArray[np.void], now_ns: int, last: bool) -> list[NDArray[np.void]]:
        record = activities["record"]
        keys = pair(activities["process"], record["correlation"])
        start_ns = record["start_ns"].astype(np.int64)
        matched, launches = self._launches.match(keys, start_ns, now_ns)
        waits = np.ones(len(activities), np.bool_)
        waits[matched] = False
        unknown = ~launches["known"]
        self._unmatched += int(np.count_nonzero(unknown))
        self.matched += len(matched) - int(np.count_nonzero(unknown))
        self.inherited += int(np.count_nonzero(launches["inherited"]))
        self._ambiguous += int(np.count_nonzero(launches["ambiguous"]))
        found = np.take(activities, matched)
        self._see_streams(found, start_ns[matched])

        given_up = waits if last else waits & (activities["arrived_ns"] <= now_ns - ACTIVITY_WAIT_NS)
        excess = int(np.count_nonzero(waits & ~given_up)) - MOST_ACTIVITIES
        if excess > 0:  # the first ones came first
            given_up = given_up.copy()
            given_up[np.flatnonzero(waits & ~given_up)[:excess]] = True
        self._activities = chosen(activities, waits & ~given_up)
        return [self._matched_rows(found, launches), self._orphaned_rows(chosen(activities, given_up))]

    def _matched_rows(self, activities: NDArray[np.void], launches: NDArray[np.void]) -> NDArray[np.void]:
        rows = self._rows(activities)
        for name in ("thread", "path", "phase"):
            rows[name] = launches[name]
        # Never later than the activity's start: their clocks may differ.
        start_ns = rows["start_ns"].astype(np.int64)
        rows["launch_ns"] = np.minimum(launches["start_ns"], start_ns)
        behind_ns = launches["start_ns"] - start_ns
        far = int(np.count_nonzero(behind_ns > SKEW_NS))
        if far:
            self.behind += far
            self.most_behind_ns = max(self.most_behind_ns, int(behind_ns.max()))
        strange = np.flatnonzero(~launches["known"])
        if len(strange):
            rows["phase"][strange] = self._phases(activities[strange])
        return rows

    def _orphaned_rows(self, activities: NDArray[np.void]) -> NDArray[np.void]:
        if len(activities):
            start_ns = activities["record"]["start_ns"].astype(np.int64)
            stream = self._streams.rows(_stream_keys(activities))
            first_ns = self._reserved_streams()[stream]
            first_ns = np.where(first_ns == _NEVER, self._first_launch_ns[activities["process"]], first_ns)
            early = int(np.count_nonzero((start_ns < first_ns) & (first_ns != _NEVER)))
            self.early += early
            self._unmatched += len(activities) - early
        return self._rows_without_launch(activities)

    def _rows_without_launch(self, activities: NDArray[np.void]) -> NDArray[np.void]:
        rows = self._rows(activities)
        rows["phase"] = self._phases(activities)
        return rows

    def _rows(self, activities: NDArray[np.void]) -> NDArray[np.void]:
        """Rows of activities, without thread, path, phase and launch."""
        record, process = activities["record"], activities["process"]
        rows = np.zeros(len(activities), GPU_DTYPE)
        if not len(rows):
            return rows
        rows["pid"] = np.array(self._processes.keys, np.uint32)[process]
        for name in ("device", "context", "stream", "graph", "start_ns", "bytes", "kind", "detail"):
            rows[name] = record[name]
        rows["duration_ns"] = record["end_ns"] - record["start_ns"]
        for index in np.unique(process).tolist():
            names = self._names.get(index)
            if names is not None:
                mine = np.flatnonzero(process == index)
                number = record["name"][mine]
                rows["name"][mine] = names[np.where(number < len(names), number, 0)]
        return rows

    def _phases(self, activities: NDArray[np.void]) -> Ints:
        """The phase of each activity's process at its start."""
        process, start_ns = activities["process"], activities["record"]["start_ns"].astype(np.int64)
        phases = np.zeros(len(activities), np.int64)
        for index in np.unique(process).tolist():
            mine = np.flatnonzero(process == index)
            phases[mine] = self._threads.phase_at(self._processes.keys[index], start_ns[mine])
        return phases

    def _see_streams(self, activities: NDArray[np.void], start_ns: Ints) -> None:
        if len(activities):
            stream = self._streams.rows(_stream_keys(activities))
            np.minimum.at(self._reserved_streams(), stream, start_ns)

    def _reserved_streams(self) -> Ints:
        before = len(self._first_match_ns)
        self._first_match_ns = grown(self._first_match_ns, len(self._streams))
        self._first_match_ns[before:] = _NEVER
        return self._first_match_ns


def _begun(pending: NDArray[np.void], until_ns: int) -> NDArray[np.void]:
    return chosen(pending, pending["record"]["start_ns"] <= until_ns)


def _stream_keys(activities: NDArray[np.void]) -> NDArray[np.uint64]:
    record = activities["record"]
    context = (activities["process"] << 16) | (record["context"] & 0xFFFF)
    return pair(context, record["stream"])
