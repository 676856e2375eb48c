"""Raw events to intervals, operation spans and marks, whole batches at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.categories import Category, ThreadState
from rlscope_ebpf.model.events import EVENT_DTYPE, EventKind
from rlscope_ebpf.model.tables import Batch, Losses, ProcessInfo
from rlscope_ebpf.session.costs import ProbeCosts
from rlscope_ebpf.session.intervals import cut_at_phases, hand_out, make_rows
from rlscope_ebpf.session.lock_waits import charge_lock_waits
from rlscope_ebpf.session.marks import MarkMaker
from rlscope_ebpf.session.opening import MOST_ENDS
from rlscope_ebpf.session.operations import OperationEvents, OperationStacks, Runs
from rlscope_ebpf.session.phases import PhaseTimeline
from rlscope_ebpf.session.registry import Ints, Registry
from rlscope_ebpf.session.stream import Stream, arrange
from rlscope_ebpf.session.threads import ThreadTable

_IS_OPERATION = np.zeros(256, np.bool_)
_IS_OPERATION[[EventKind.OP_BEGIN, EventKind.OP_END]] = True
_IS_MARK = np.zeros(256, np.bool_)
_IS_MARK[[EventKind.PHASE, EventKind.PROGRESS, EventKind.PROGRESS_TOTAL, EventKind.METADATA]] = True


class Matcher:
    """Turns the raw events of all threads into intervals, operation spans and marks.

    Times are ns of CLOCK_MONOTONIC. Every call hands out the time of every known thread up to `now_ns`, or up to the
    thread's latest event if that is later: events beyond `now_ns` are processed at once. An event whose time has been
    handed out is moved to that moment and counted as late. Choose `now_ns` before reading the ring, so that what
    happened before it has been read.

    A phase belongs to its process: a change cuts the intervals of all its threads. A span's phase is the one at its
    begin. An interval opened by the scheduler, by another thread's phase change or as a further slice keeps the site
    of the interval before it, so that a long call can be summed up by site.

    A call's `origin` is who made it: Python also where the call released the interpreter on its way, although the time
    before it is then `Category.OTHER`.

    Intervals without duration are dropped and their hits go to the thread's next interval; those opened by a call stay,
    so that calls can be counted. If an event's `origin` contradicts what its thread was thought to do (events
    were lost), the time since the thread's previous event gets that origin, and it counts as healed. (Calls that the
    probes found gone by stack pointer are counted by them.)
    """

    def __init__(
        self,
        start_ns: int,
        *,
        thread_name: Callable[[int, int], str] | None = None,
        base_category: Callable[[int], int] | None = None,
        costs: ProbeCosts | None = None,
    ) -> None:
        """`thread_name(pid, tid)` names new threads; `base_category(pid)` is what a main thread does until it says so.

        Without it a Python process's main thread runs Python. Any other thread starts as `Category.OTHER`.
        `costs` tells what probe hits took; without it, nothing.
        """
        self._costs = costs
        self._now_ns = start_ns
        self._base_category = base_category
        self._registry = Registry()
        self._threads = ThreadTable(self._registry, start_ns, thread_name)
        self._operations = OperationStacks(self._registry)
        self._phases = PhaseTimeline()
        self._marks = MarkMaker(self._registry)
        self._seeds: list[tuple[int, int, tuple[str, ...], int, int | None, bool]] = []
        self._unmatched = 0
        self._healed = 0
        self._late = 0

    @property
    def registry(self) -> Registry:
        """What its ids mean; others may add to it, and hand out what they added."""
        return self._registry

    @property
    def losses(self) -> Losses:
        """Running totals of the losses noticed here; the other fields are 0."""
        return Losses(
            unmatched=self._unmatched + self._marks.unmatched,
            healed=self._healed,
            truncated_names=self._registry.truncated_names,
            late=self._late,
        )

    @property
    def unknown_names(self) -> int:
        """Uses of a name whose text was lost; they are called "(unknown)"."""
        return self._registry.unknown_names

    def add_process(self, info: ProcessInfo) -> None:
        """Define a process, in the default phase; a pid may come again once its process has ended."""
        self._phases.reset(self._threads.set_process(info))

    def update_process(self, info: ProcessInfo) -> None:
        """Define a process anew. With `end_ns`, its threads end then, once the time up to it is handed out."""
        self._threads.set_process(info)

    def add_name(self, key: int, text: str) -> None:
        """Learn one name by the `arg` that its events carry."""
        self._registry.add_name(key, text)

    def add_texts(self, texts: NDArray[np.void]) -> None:
        """Learn names (TEXT_DTYPE records); call before `process` with the events that use them."""
        self._registry.add_texts(texts)

    def seed_thread(
        self,
        pid: int,
        tid: int,
        open_operations: Sequence[str],
        time_ns: int,
        category: int | None = None,
        *,
        asleep: bool = False,
    ) -> None:
        """Announce a thread found at attach, with its open operations, outermost first.

        A second call replaces the stack for the time not yet handed out, unless the thread has opened or closed an
        operation since; then it is ignored. `category` is what the thread does now, if known; `asleep`: it waits. The
        next batch begins with it: events of the thread in there that are older than `time_ns` make it begin with them.
        """
        self._seeds.append((pid, tid, tuple(open_operations), time_ns, category, asleep))

    def process(self, events: NDArray[np.void], now_ns: int) -> Batch:
        """Match one batch of EVENT_DTYPE records, in the order of the ring."""
        return self._advance(events, now_ns, last=False)

    def finish(self, now_ns: int) -> Batch:
        """End all threads at `now_ns`; operations still open are cut."""
        return self._advance(np.empty(0, EVENT_DTYPE), now_ns, last=True)

    def _assumed_category(self, pid: int, tid: int) -> int:
        if pid != tid:
            return Category.OTHER
        if self._base_category is not None:
            return self._base_category(pid)
        return Category.PYTHON if self._threads.process(pid).is_python else Category.OTHER

    def _sow(self, events: NDArray[np.void], event_slots: Ints) -> None:
        """Apply the seeds that came since the last batch."""
        if not self._seeds:
            return
        slots = [self._threads.slot(pid, tid) for pid, tid, *_ in self._seeds]
        first_ns = np.full(len(self._threads.slots), np.iinfo(np.int64).max)
        np.minimum.at(first_ns, event_slots, events["time_ns"].astype(np.int64))
        rows = self._threads.slots
        for slot, (pid, tid, names, time_ns, category, asleep) in zip(slots, self._seeds, strict=True):
            if not rows["alive"][slot]:
                self._threads.start_thread(slot)
                rows["handed_ns"][slot] = max(min(time_ns, int(first_ns[slot])), self._threads.start_ns)
                if category is None:
                    category = self._assumed_category(pid, tid)
            elif rows["had_operations"][slot]:
                continue
            if category is not None and not rows["had_events"][slot]:
                rows["category"][slot] = rows["origin"][slot] = category
                if asleep:
                    rows["state"][slot] = ThreadState.BLOCKED
            handed = rows["handed_ns"][slot : slot + 1]
            phase = int(self._phases.at(rows["process"][slot : slot + 1].astype(np.int64), handed)[0])
            rows["path"][slot] = self._operations.seed(slot, names, int(handed[0]), phase)
        self._seeds.clear()

    def _advance(self, events: NDArray[np.void], now_ns: int, *, last: bool) -> Batch:
        handed_ns, self._now_ns = self._now_ns, max(self._now_ns, now_ns)
        event_slots = self._threads.slots_of(events)
        self._sow(events, event_slots)
        exits = self._threads.ended_slots(self._now_ns)
        if last:
            live = self._threads.live_slots()
            end_ns = np.full(len(live), self._now_ns)
            end_ns[live.searchsorted(exits[0])] = exits[1]
            exits = live, end_ns
        tables: dict[str, NDArray[np.void]] = {}
        ended = np.empty(0, np.int64)
        stream = arrange(events, event_slots, exits, self._threads, handed_ns)
        if stream is not None:
            carried = self._threads.slots[stream.slot]
            process = carried["process"].astype(np.int64)
            runs = self._start_runs(stream)
            self._take_marks(stream, runs, process)
            operations = self._operation_events(stream, process)
            step = self._operations.advance(operations, runs)
            rows = cut_at_phases(make_rows(stream, runs, carried, step, self._costs), self._phases, process)
            tables["intervals"], still_open = hand_out(rows, runs.exited)
            if self._costs is not None:
                charge_lock_waits(tables["intervals"], _of_threads(tables["intervals"]["thread"], runs.thread, process))
            tables["spans"] = step.spans
            self._carry(runs, still_open, heard=stream.last > stream.first, operated=operations.run)
            self._phases.settle(self._now_ns)
            self._late += stream.late
            self._unmatched += len(step.unmatched)
            self._healed += rows.healed
            ended = runs.thread[runs.exited]
        tables["marks"] = self._marks.take(self._now_ns, ended)
        return Batch(
            self._now_ns,
            self._registry.drain(),
            {name: table for name, table in tables.items() if len(table)},
            self.losses,
        )

    def _start_runs(self, stream: Stream) -> Runs:
        thread = self._threads.slots["thread"][stream.slot].astype(np.int64)
        for run in np.flatnonzero(~stream.continued).tolist():
            thread[run] = self._threads.start_thread(int(stream.slot[run]))
        end_ns = stream.time_ns[stream.last]
        end_ns = np.where(stream.exited, end_ns, np.maximum(end_ns, self._now_ns))
        return Runs(stream.slot, thread, stream.continued, stream.exited, end_ns)

    def _take_marks(self, stream: Stream, runs: Runs, process: Ints) -> None:
        at = np.flatnonzero(_IS_MARK[stream.kind])
        if len(at):
            phase_at, phase = self._marks.add(stream, at, runs.thread)
            self._phases.add(process[stream.run[phase_at]], stream.time_ns[phase_at], phase)

    def _operation_events(self, stream: Stream, process: Ints) -> OperationEvents:
        at = np.flatnonzero(_IS_OPERATION[stream.kind])
        begin = stream.kind[at] == EventKind.OP_BEGIN
        several = ~begin & (stream.arg[at] > 1)
        if several.any():
            times = np.where(several, np.minimum(stream.arg[at], MOST_ENDS), 1).astype(np.int64)
            at, begin = np.repeat(at, times), np.repeat(begin, times)
        name = np.zeros(len(at), np.int64)
        name[begin] = self._registry.names(stream.arg[at[begin]])
        run, time_ns = stream.run[at], stream.time_ns[at]
        return OperationEvents(at, run, begin, name, time_ns, self._phases.at(process[run], time_ns))

    def _carry(self, runs: Runs, still_open: NDArray[np.void], heard: NDArray[np.bool_], operated: Ints) -> None:
        """Remember each thread's open interval for the next batch."""
        final = np.append(runs.slot[1:] != runs.slot[:-1], True)
        slot = runs.slot[final]
        rows = self._threads.slots
        rows["alive"][slot] = ~runs.exited[final]
        rows["handed_ns"][slot] = runs.end_ns[final]
        for name in ("path", "site", "hits", "overhead_ns", "category", "origin", "state", "opened", "wait"):
            rows[name][slot] = still_open[name][final]
        rows["had_events"][slot] |= (heard | ~runs.continued)[final]
        had_operations = np.zeros(len(runs.slot), np.bool_)
        had_operations[operated] = True
        rows["had_operations"][slot] |= had_operations[final]


def _of_threads(rows: NDArray[np.uint32], thread: Ints, process: Ints) -> Ints:
    """The process of each row; `thread` and `process` are those of the runs."""
    order = np.argsort(thread, kind="stable")
    found: Ints = process[order][thread[order].searchsorted(rows)]
    return found
