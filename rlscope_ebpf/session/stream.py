"""One batch of events in order of thread and time, with every thread's open interval in front of its events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.events import EVENT_DTYPE, EventKind
from rlscope_ebpf.model.keys import stable_order
from rlscope_ebpf.session.registry import Ints
from rlscope_ebpf.session.threads import ThreadTable

OPEN_ROW = 0
"""Kind of the record in front of a live thread's events; it stands for the interval left open by the last batch."""

ASSUMED = 0x80
"""Flag of records made here: what they say of the category was followed, not seen by a probe."""

_WORDS = EVENT_DTYPE.itemsize // 8
_SCHEDULER = (EventKind.OFF_CPU, EventKind.WAKEUP, EventKind.ON_CPU)
_NEEDS_LIFE = (OPEN_ROW, *_SCHEDULER, EventKind.THREAD_EXIT)

# Does an event of this kind bring a thread to life? The scheduler goes on moving a thread that has already exited.
_STARTS = np.ones(256, np.bool_)
_STARTS[list(_NEEDS_LIFE)] = False
_SCHEDULES = np.zeros(256, np.bool_)
_SCHEDULES[list(_SCHEDULER)] = True


@dataclass(slots=True)
class Stream:
    """Events by run; a run is one thread's life within the batch. Never empty."""

    # Per event
    time_ns: Ints  # never decreasing within a slot
    kind: NDArray[np.uint8]
    category: NDArray[np.uint8]
    origin: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    arg: NDArray[np.uint64]
    site: NDArray[np.uint32]
    run: Ints
    # Per run
    first: Ints  # its first event
    last: Ints  # its last event
    slot: Ints
    continued: NDArray[np.bool_]  # alive before the batch: its first event is an OPEN_ROW
    exited: NDArray[np.bool_]  # its last event is a THREAD_EXIT
    # Of the batch
    late: int  # events that came after their time had been handed out


def arrange(
    events: NDArray[np.void], event_slots: Ints, exits: tuple[Ints, Ints], threads: ThreadTable, handed_ns: int
) -> Stream | None:
    """Sort events by thread, drop those of threads that are gone; None if there is no thread at all.

    `event_slots` are the slots of the events' threads; `exits` are slots of threads that end although the ring did not
    say so, and the times at which they do. All time before `handed_ns` has been handed out.

    A time earlier than the one before it on the same thread is moved to that one: a program on a probe takes the time,
    may then be preempted, and its event follows those of the scheduler. That is how the thread's time went. Only what
    comes after its time has been handed out is late.
    """
    live = threads.live_slots()
    exit_slots, exit_ns = exits
    slot = np.concatenate([live, event_slots, exit_slots])
    if not len(slot):
        return None
    records = np.empty((len(slot), _WORDS), np.uint64)
    opened, seen = len(live), len(live) + len(events)
    records[opened:seen] = np.ascontiguousarray(events).view(np.uint64).reshape(-1, _WORDS)
    made = records.view(EVENT_DTYPE)[:, 0]
    _fill_made(made[:opened], OPEN_ROW, threads.slots[live], threads.slots["handed_ns"][live])
    _fill_made(made[seen:], EventKind.THREAD_EXIT, threads.slots[exit_slots], exit_ns)

    order = stable_order(slot, len(threads.slots) - 1)
    ordered = records.take(order, axis=0).view(EVENT_DTYPE)[:, 0]
    slot = slot[order]
    new_slot = np.concatenate([[True], slot[1:] != slot[:-1]])
    kind = np.ascontiguousarray(ordered["kind"])
    first = np.flatnonzero(new_slot)
    time_ns = ordered["time_ns"].astype(np.int64)
    late = 0
    falls = np.flatnonzero((time_ns[1:] < time_ns[:-1]) & ~new_slot[1:]) + 1
    if len(falls):
        early = np.flatnonzero((time_ns < handed_ns) & (ordered["flags"] & ASSUMED == 0))
        rows = np.take(threads.slots, slot[early])
        late = int(np.count_nonzero(rows["alive"] & (time_ns[early] < rows["handed_ns"])))
        _put_in_order(time_ns, first, falls)
    np.maximum(time_ns, threads.start_ns, out=time_ns)
    if len(first) > opened or (kind == EventKind.THREAD_EXIT).any():
        keep, new_run = _lives(kind, slot, new_slot, threads.slots["exited"])
        threads.slots["exited"][slot[kind == EventKind.THREAD_EXIT]] = True
        if not len(keep):
            return None
        ordered, kind, time_ns, slot = np.take(ordered, keep), kind[keep], time_ns[keep], slot[keep]
        first = np.flatnonzero(new_run)
    last = np.append(first[1:], len(kind)) - 1
    return Stream(
        time_ns=time_ns,
        kind=kind,
        category=np.ascontiguousarray(ordered["category"]),
        origin=np.ascontiguousarray(ordered["origin"]),
        flags=np.ascontiguousarray(ordered["flags"]),
        arg=np.ascontiguousarray(ordered["arg"]),
        site=np.ascontiguousarray(ordered["site"]),
        run=np.repeat(np.arange(len(first)), last - first + 1),
        first=first,
        last=last,
        slot=slot[first],
        continued=kind[first] == OPEN_ROW,
        exited=kind[last] == EventKind.THREAD_EXIT,
        late=late,
    )


def _fill_made(records: NDArray[np.void], kind: int, rows: NDArray[np.void], time_ns: Ints) -> None:
    records["time_ns"] = time_ns
    records["kind"] = kind
    records["flags"] = ASSUMED
    records["category"], records["origin"] = rows["category"], rows["origin"]
    records["site"], records["arg"] = rows["site"], rows["hits"]


def _put_in_order(time_ns: Ints, first: Ints, falls: Ints) -> None:
    """Make times never decrease within a slot, in place; `falls` are positions that are earlier than the one before."""
    bounds = np.append(first, len(time_ns))
    for segment in np.unique(np.searchsorted(first, falls, side="right") - 1).tolist():
        part = time_ns[int(bounds[segment]) : int(bounds[segment + 1])]
        np.maximum.accumulate(part, out=part)


def _lives(
    kind: NDArray[np.uint8], slot: Ints, new_slot: NDArray[np.bool_], exited: NDArray[np.bool_]
) -> tuple[Ints, NDArray[np.bool_]]:
    """Events that belong to a living thread, and which of those begin a run."""
    new_run = new_slot.copy()
    new_run[1:] |= kind[:-1] == EventKind.THREAD_EXIT
    run = np.cumsum(new_run) - 1
    first = np.flatnonzero(new_run)
    continued = kind[first] == OPEN_ROW
    unheard_of = ~continued & new_slot[first] & ~exited[slot[first]]
    starts = _STARTS[kind] | (_SCHEDULES[kind] & unheard_of[run])
    started = np.cumsum(starts)
    started -= (started[first] - starts[first])[run]
    keep = np.flatnonzero((started > 0) | continued[run])
    kept_run = run[keep]
    return keep, np.concatenate([[True], kept_run[1:] != kept_run[:-1]])
