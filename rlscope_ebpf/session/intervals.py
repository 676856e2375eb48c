"""Rows of the intervals table: from a stream of events to stretches of a thread's time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.capture.waits import waits_of
from rlscope_ebpf.model.categories import Category, Opened, ThreadState, Wait
from rlscope_ebpf.model.events import OFF_STATE, EventFlag, EventKind
from rlscope_ebpf.model.rows import chosen
from rlscope_ebpf.model.tables import INTERVAL_DTYPE
from rlscope_ebpf.session.costs import ProbeCosts, silent_hits
from rlscope_ebpf.session.operations import OperationStep, Runs
from rlscope_ebpf.session.phases import PhaseTimeline
from rlscope_ebpf.session.registry import Ints
from rlscope_ebpf.session.stream import ASSUMED, Stream

_OPENED_BY = {
    EventKind.CALL: Opened.CALL,
    EventKind.RETURN: Opened.RETURN,
    EventKind.GIL_RELEASE: Opened.GIL_RELEASE,
    EventKind.GIL_ACQUIRE: Opened.GIL_ACQUIRE,
    EventKind.OP_BEGIN: Opened.OP_BEGIN,
    EventKind.OP_END: Opened.OP_END,
    EventKind.PHASE: Opened.PHASE,
    EventKind.OFF_CPU: Opened.SCHEDULER,
    EventKind.WAKEUP: Opened.SCHEDULER,
    EventKind.ON_CPU: Opened.SCHEDULER,
}
# By kind of event: what it opens an interval as, CONTINUED: it opens none; is it a probe hit of its own.
_OPENED = np.full(256, Opened.CONTINUED, np.uint8)
_OPENED[list(_OPENED_BY)] = list(_OPENED_BY.values())
_WOKEN = len(ThreadState)
"""Until rows are handed out: runnable, but not because it was preempted."""

_OWN_HIT = np.zeros(256, np.bool_)
_HITLESS = {
    EventKind.PROGRESS_TOTAL,
    EventKind.OFF_CPU,
    EventKind.WAKEUP,
    EventKind.ON_CPU,
    EventKind.THREAD_EXIT,
}
_OWN_HIT[[*(set(EventKind) - _HITLESS)]] = True


@dataclass(frozen=True, slots=True)
class Rows:
    """Intervals in the making; rows of a run are contiguous and in order of time."""

    table: NDArray[np.void]  # INTERVAL_DTYPE without phase and duration
    run: Ints
    end_ns: Ints
    healed: int  # contradictions found


def make_rows(
    stream: Stream, runs: Runs, carried: NDArray[np.void], step: OperationStep, costs: ProbeCosts | None = None
) -> Rows:
    """One row per event that opens an interval; `carried` (SLOT_DTYPE) holds each run's slot before the batch.

    With `costs`, every row gets what probe hits took of its time.
    """
    continued = stream.first[runs.continued]
    opened = np.take(_OPENED, stream.kind)
    opens = opened != Opened.CONTINUED
    opened[continued] = carried["opened"][runs.continued]
    ignored = step.unmatched
    if len(ignored):
        ignored = np.setdiff1d(ignored, step.at)
    opened[ignored] = Opened.CONTINUED
    state, wait = _states(stream)
    state[continued], wait[continued] = carried["state"][runs.continued], carried["wait"][runs.continued]
    category, healed = _followed_categories(stream)

    opens[ignored] = False
    # Where events were lost, one that opens nothing may still find its thread elsewhere.
    opens[1:] |= (category[1:] != category[:-1]) | (state[1:] != state[:-1])
    opens[stream.first] = True
    opens[stream.last[stream.exited]] = False

    at = np.flatnonzero(opens)
    row = np.cumsum(opens) - 1  # in which each event lies
    run, first, start_ns = stream.run[at], row[stream.first], stream.time_ns[at]
    opened_as, in_category = opened[at], category[at]
    table = np.zeros(len(at), INTERVAL_DTYPE)
    table["thread"] = runs.thread[run]
    table["path"] = _paths(len(at), first, np.where(runs.continued, carried["path"], 0), row[step.at], step.path)
    site = stream.site[at]
    site[stream.kind[at] == EventKind.METADATA] = 0  # what stands there is the value's hash
    table["site"] = _sites(site, opened_as, first)
    table["start_ns"] = start_ns
    others = np.flatnonzero(~opens)  # they add to the rows they lie in
    table["hits"] = _sums(_hits(stream, continued), at, others, row)
    if costs is not None:
        overhead = _overhead_ns(stream, costs)
        overhead[continued] += carried["overhead_ns"][runs.continued]
        table["overhead_ns"] = _sums(overhead, at, others, row) + 0.5
    table["category"] = in_category
    table["opened"] = opened_as
    origin = _callers(stream)[at]
    uncalled = np.flatnonzero(opened_as == Opened.CONTINUED)
    origin[uncalled] = in_category[uncalled]
    table["origin"] = origin
    table["state"], table["wait"] = state[at], wait[at]
    end_ns = np.append(start_ns[1:], 0)
    end_ns[np.append(first[1:], len(at)) - 1] = runs.end_ns
    rows = Rows(table, run, end_ns, healed)
    if category is stream.category:  # no contradiction
        return rows
    told = stream.category[at]
    return _tear(rows, (opened_as == Opened.CALL) & (in_category != told), told)


def cut_at_phases(rows: Rows, phases: PhaseTimeline, process_of_run: Ints) -> Rows:
    """Cut rows where another thread changed the phase of the process, and fill in the phase."""
    process = process_of_run[rows.run]
    start_ns = rows.table["start_ns"].astype(np.int64)
    pieces = phases.cut(process, start_ns, rows.end_ns)
    if pieces is not None:
        table = np.take(rows.table, pieces.source)
        table["start_ns"] = start_ns = pieces.start_ns
        table["hits"][pieces.cut] = table["overhead_ns"][pieces.cut] = 0
        table["opened"][pieces.cut] = Opened.PHASE
        table["origin"][pieces.cut] = table["category"][pieces.cut]
        end_ns = rows.end_ns[pieces.source]
        end_ns[:-1][pieces.cut[1:]] = start_ns[1:][pieces.cut[1:]]
        process = process[pieces.source]
        rows = Rows(table, rows.run[pieces.source], end_ns, rows.healed)
    rows.table["phase"] = phases.at(process, start_ns)
    return rows


def hand_out(rows: Rows, exited: NDArray[np.bool_]) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """Rows to hand out, and per run the row that stays open (of no meaning where `exited`, by run).

    Rows without duration are left out unless a call opened them; their hits go to the next row of the run. The last
    row of a living run stays open: what the next batch must still say of it is in the second array.
    """
    table = rows.table
    duration = rows.end_ns - table["start_ns"].astype(np.int64)
    table["duration_ns"] = duration
    last = np.append(rows.run[1:] != rows.run[:-1], True)
    emit = (duration > 0) | (table["opened"] == Opened.CALL)
    held = emit | last
    if not held.all():
        kept = np.flatnonzero(held)
        upto = np.append(0, kept[:-1] + 1)
        hits, overhead = (np.add.reduceat(table[name], upto) for name in ("hits", "overhead_ns"))
        table, duration, emit, last = np.take(table, kept), duration[kept], emit[kept], last[kept]
        table["hits"], table["overhead_ns"] = hits, overhead
    ends = np.flatnonzero(last)
    instant = duration[ends] == 0
    emit[ends] = np.where(instant, exited & (emit[ends] | (table["hits"][ends] > 0)), True)
    still_open = table[ends]
    handed = ~instant
    still_open["hits"][handed] = still_open["overhead_ns"][handed] = 0
    still_open["opened"][handed] = Opened.CONTINUED
    still_open["origin"][handed] = still_open["category"][handed]
    table = _without_waiting_python(table if emit.all() else chosen(table, emit))
    mark_gpu_waits(table)
    return table, still_open


def mark_gpu_waits(table: NDArray[np.void]) -> None:
    """Whoever is blocked in a CUDA call waits for the GPU, whatever it called the kernel for. Changes `table`."""
    table["wait"][(table["state"] == ThreadState.BLOCKED) & (table["category"] == Category.CUDA_API)] = Wait.GPU


def _without_waiting_python(table: NDArray[np.void]) -> NDArray[np.void]:
    """`table`, changed: a thread that sleeps does not run the interpreter, whatever its last probe said.

    It waits for the interpreter lock in the middle of its loop, or has released it where no probe is. Nor has it the
    lock back while it has only been woken. Who was preempted has it still.
    """
    woken = table["state"] == _WOKEN
    waiting = (woken | (table["state"] == ThreadState.BLOCKED)) & (table["category"] == Category.PYTHON)
    if waiting.any():
        table["category"][waiting] = table["origin"][waiting] = Category.OTHER
    table["state"][woken] = ThreadState.RUNNABLE
    return table


def _states(stream: Stream) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """State and, where it is blocked, wait after each event. Who meets a probe runs until it goes off its CPU."""
    state = np.full(len(stream.kind), ThreadState.RUNNING, np.uint8)
    wait = np.full(len(stream.kind), Wait.OTHER, np.uint8)
    off = np.flatnonzero(stream.kind == EventKind.OFF_CPU)
    arg = stream.arg[off]
    state[off] = np.where(arg & np.uint64(OFF_STATE) == 0, ThreadState.RUNNABLE, ThreadState.BLOCKED)
    wait[off] = waits_of(arg)
    state[stream.kind == EventKind.WAKEUP] = _WOKEN
    return state, wait


def _followed_categories(stream: Stream) -> tuple[NDArray[np.uint8], int]:
    """Category after each event as the next one tells it, and how often that contradicts the event's own word."""
    wrong = stream.category[:-1] != stream.origin[1:]
    wrong[stream.first[1:] - 1] = False
    at = np.flatnonzero(wrong)
    if not len(at):
        return stream.category, 0
    at = at[stream.flags[at + 1] & ASSUMED == 0]
    category = stream.category.copy()
    category[at] = stream.origin[at + 1]
    return category, int(np.count_nonzero(stream.flags[at + 1] & EventFlag.FIRST == 0))


def _callers(stream: Stream) -> NDArray[np.uint8]:
    """Category before each event; a call that released the interpreter on its way is still Python's call."""
    released = (stream.flags & EventFlag.PYTHON != 0) & (stream.kind == EventKind.CALL)
    released &= stream.origin == Category.OTHER
    if not released.any():
        return stream.origin
    return np.where(released, np.uint8(Category.PYTHON), stream.origin)


def _sums(values: NDArray[Any], at: Ints, others: Ints, row: Ints) -> NDArray[Any]:
    """Sum of the values of all events of each row: of those at `at`, which open the rows, and of the others."""
    sums: NDArray[Any] = values[at]
    if len(others):
        sums += np.bincount(row[others], values[others], len(at)).astype(values.dtype)
    return sums


def _hits(stream: Stream, continued: Ints) -> Ints:
    """Probe hits charged to the time right after each event."""
    own = np.take(_OWN_HIT, stream.kind)
    # Frames found dead and operations whose frame went belong to a hit that has an event of its own, or was silent.
    own &= stream.flags & EventFlag.HEALED == 0
    own &= (stream.kind != EventKind.OP_END) | (stream.arg == 0)
    hits = own.astype(np.int64)
    silent = silent_hits(stream.kind, stream.arg)
    if silent.any():
        hits[stream.first] += silent[stream.first]  # nothing of this thread is known before it
        silent[stream.first] = 0
        hits[:-1] += silent[1:]
    hits[continued] = hits[continued] + stream.arg[continued].astype(np.int64)
    return hits


def _overhead_ns(stream: Stream, costs: ProbeCosts) -> NDArray[np.float64]:
    """What probe hits took of the time from each event to the next one of its thread."""
    before, overhead = costs.charge(stream.kind, stream.flags, stream.site, stream.arg)
    before[stream.first] = 0  # that was before the thread's time, or is known from the last batch
    overhead[:-1] += before[1:]
    overhead[stream.last] = np.where(stream.exited, 0, overhead[stream.last])
    return overhead


def _paths(count: int, first: Ints, first_path: NDArray[np.integer], changes: Ints, path: Ints) -> Ints:
    """Path of every row: that of its run's begin until the innermost operation changes."""
    values = np.zeros(count, np.int64)
    known = np.zeros(count, np.bool_)
    values[first], known[first] = first_path, True
    values[changes], known[changes] = path, True  # of several ends in one event the last one counts
    paths: Ints = values[np.flatnonzero(known)][np.cumsum(known) - 1]
    return paths


def _sites(site: NDArray[np.uint32], opened: NDArray[np.uint8], first: Ints) -> NDArray[np.uint32]:
    """Site of every row, in place; one opened by the scheduler, or by nothing, goes on at the site before it."""
    own = (opened != Opened.SCHEDULER) & (opened != Opened.CONTINUED)
    own[first] = True
    at, others = np.flatnonzero(own), np.flatnonzero(~own)  # these are few
    site[others] = site[at[at.searchsorted(others) - 1]]
    return site


def _tear(rows: Rows, torn: NDArray[np.bool_], told: NDArray[np.uint8]) -> Rows:
    """Let a call whose return was lost stand as an instant, and the time after it as the thread really spent it."""
    source = np.repeat(np.arange(len(torn)), 1 + torn)
    rest = np.append(False, source[1:] == source[:-1])
    call = np.append(rest[1:], False)
    table, end_ns = np.take(rows.table, source), rows.end_ns[source]
    table["category"][call] = told[source[call]]
    table["hits"][call] = table["overhead_ns"][call] = 0
    end_ns[call] = table["start_ns"][call]
    table["opened"][rest] = Opened.CONTINUED
    table["origin"][rest] = table["category"][rest]
    return Rows(table, rows.run[source], end_ns, rows.healed)
