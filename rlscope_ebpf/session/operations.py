"""Which operation is innermost: begins and ends of many threads matched at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.keys import stable_order
from rlscope_ebpf.model.tables import SPAN_DTYPE, SpanFlag
from rlscope_ebpf.session.registry import Ints, Registry

MAX_PATH_DEPTH = 1024
"""Operations nested deeper than this share the path of the level above, or a leak of begins would fill the trace."""

_OPEN_DTYPE = np.dtype([("slot", "<i8"), ("path", "<i8"), ("start_ns", "<i8"), ("phase", "<i8"), ("flags", "<i8")])


@dataclass(frozen=True, slots=True)
class Nesting:
    """How begins and ends belong together. Indices are into the arrays given to `nest`."""

    matched: Ints  # everything but the ends without a begin
    begins: Ints  # all begins, by run, level and time
    level: Ints  # of each of `begins`, outermost 1
    end: Ints  # of each of `begins`: its end, or -1
    parent: Ints  # of each of `begins`: the begin around it, or -1


def nest(run: Ints, begin: NDArray[np.bool_]) -> Nesting:
    """Match begins and ends; `run` (non-decreasing) tells threads apart, each in order of time.

    Raises nothing: an end with nothing open is left out, a begin without an end has end -1.
    """
    count = len(run)
    raw = np.cumsum(np.where(begin, 1, -1))
    starts = np.flatnonzero(np.concatenate([[True], run[1:] != run[:-1]]))
    lengths = np.diff(starts, append=count)
    raw -= np.repeat(raw[starts] - np.where(begin[starts], 1, -1), lengths)
    # Running minimum per run in one pass: each run is shifted below everything that the runs before it can reach.
    shift = np.repeat(np.arange(len(starts)) * (2 * count + 2), lengths)
    low = np.minimum(np.minimum.accumulate(raw - shift) + shift, 0)
    low_before = np.concatenate([[0], low[:-1]])
    low_before[starts] = 0
    matched = np.flatnonzero(low == low_before)  # an end that reaches a new minimum had nothing to close
    begin = begin[matched]
    run = run[matched]
    level = (raw - low)[matched] + ~begin
    deepest = int(level.max(initial=0))
    # The begins and ends of one level of one run alternate, beginning with a begin.
    group = run * (deepest + 1) + level
    order = stable_order(group, int(group[-1]) + deepest if len(group) else 0)
    is_begin = begin[order]
    at = np.flatnonzero(is_begin)
    begins = order[at]
    after = np.append(order, 0)[at + 1]
    closed = ~np.append(is_begin, True)[at + 1]
    end = np.where(closed, after, -1)
    # The event before a begin is the begin around it or the end of a sibling, which has the same begin around it.
    levels = level[begins]
    direct = (levels == 1) | begin[begins - 1]
    parent = np.where(levels == 1, -1, begins - 1)
    parent = parent[np.maximum.accumulate(np.where(direct, np.arange(len(at)), 0))]
    return Nesting(
        matched,
        matched[begins],
        levels,
        np.where(closed, matched[end], -1),
        np.where(parent >= 0, matched[parent], -1),
    )


@dataclass(frozen=True, slots=True)
class OperationEvents:
    """Begins and ends of one batch, by run (thread), each run in order of time; one event may end several."""

    at: Ints  # position in the stream
    run: Ints
    begin: NDArray[np.bool_]
    name: Ints  # string id, of begins
    time_ns: Ints
    phase: Ints  # of the process then


@dataclass(frozen=True, slots=True)
class Runs:
    """The threads of one batch."""

    slot: Ints
    thread: Ints
    continued: NDArray[np.bool_]  # alive before the batch
    exited: NDArray[np.bool_]  # ends in this batch
    end_ns: Ints  # when it ends or up to when its time is handed out


@dataclass(frozen=True, slots=True)
class OperationStep:
    """What a batch did to the stacks."""

    at: Ints  # positions in the stream where the innermost operation changes, ascending; as often as it changes
    path: Ints  # the path from there on
    unmatched: Ints  # positions of ends without a begin
    spans: NDArray[np.void]  # SPAN_DTYPE


def _in_order_of_closing(
    nesting: Nesting, closed: Ints, cut: Ints, run: Ints, time_ns: Ints, runs: Runs
) -> tuple[Ints, Ints]:
    """Those of `nesting.begins` that end, `closed` or `cut`, in order of time, inner ones first; and when they end."""
    begin_of = np.full(len(run), -1)
    begin_of[nesting.end[closed]] = closed
    ends = np.flatnonzero(begin_of >= 0)
    cut = cut[np.argsort(-nesting.level[cut], kind="stable")]
    span = np.concatenate([begin_of[ends], cut])
    end_ns = np.concatenate([time_ns[ends], runs.end_ns[run[nesting.begins[cut]]]])
    order = np.argsort(end_ns, kind="stable")  # one sorted stretch per run: nearly linear
    return span[order], end_ns[order]


class OperationStacks:
    """The open operations of all threads between batches."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._open = np.empty(0, _OPEN_DTYPE)  # of one slot: outermost first

    def seed(self, slot: int, names: Sequence[str], start_ns: int, phase: int) -> int:
        """Replace a thread's stack by operations found open, outermost first; returns the innermost path.

        Levels that the old stack had as well keep their begin.
        """
        mine = self._open["slot"] == slot
        old = self._open[mine]
        new = np.zeros(len(names), _OPEN_DTYPE)
        new["slot"] = slot
        new["path"] = self._registry.path_of(names[:MAX_PATH_DEPTH]) + [0] * (len(names) - MAX_PATH_DEPTH)
        new["path"][MAX_PATH_DEPTH:] = new["path"][MAX_PATH_DEPTH - 1 : MAX_PATH_DEPTH]
        new["start_ns"], new["phase"], new["flags"] = start_ns, phase, SpanFlag.OPEN_AT_START
        shared = min(len(old), len(new))
        same = np.logical_and.accumulate(old["path"][:shared] == new["path"][:shared])
        new[:shared][same] = old[:shared][same]
        self._open = np.concatenate([self._open[~mine], new])
        return int(new["path"][-1]) if len(new) else 0

    def advance(self, events: OperationEvents, runs: Runs) -> OperationStep:
        """Apply a batch; spans come out in order of closing."""
        touched = runs.exited.copy()
        touched[events.run] = True
        run_of_slot = np.full(int(runs.slot.max(initial=-1)) + 1, -1, np.int64)
        run_of_slot[runs.slot[runs.continued]] = np.flatnonzero(runs.continued)
        carried_run = run_of_slot[self._open["slot"]]
        involved = touched[carried_run]
        carried, carried_run = self._open[involved], carried_run[involved]
        kept = len(carried)
        if not kept and not len(events.at):
            nothing = events.at[:0]
            return OperationStep(nothing, nothing, nothing, np.empty(0, SPAN_DTYPE))

        run = np.concatenate([carried_run, events.run])
        order = np.argsort(run, kind="stable")  # carried ones before the events of their run
        run = run[order]
        at = np.concatenate([np.full(kept, -1), events.at])[order]
        begin = np.concatenate([np.ones(kept, np.bool_), events.begin])[order]
        time_ns = np.concatenate([carried["start_ns"], events.time_ns])[order]
        phase = np.concatenate([carried["phase"], events.phase])[order]
        flags = np.concatenate([carried["flags"], np.zeros(len(events.at), np.int64)])[order]
        name = np.concatenate([np.zeros(kept, np.int64), events.name])[order]
        path = np.concatenate([carried["path"], np.zeros(len(events.at), np.int64)])[order]

        nesting = nest(run, begin)
        self._resolve_paths(nesting, path, name, new=at >= 0)
        begins, end = nesting.begins, nesting.end
        parent_path = np.where(nesting.parent >= 0, path[nesting.parent], 0)
        closed = end >= 0
        path[end[closed]] = parent_path[closed]  # after an end, the operation around it is innermost again
        own_path = path[begins]

        cut = ~closed & runs.exited[run[begins]]
        span, end_ns = _in_order_of_closing(nesting, np.flatnonzero(closed), np.flatnonzero(cut), run, time_ns, runs)
        closing = begins[span]
        rows = np.empty(len(span), SPAN_DTYPE)
        rows["thread"] = runs.thread[run[closing]]
        rows["path"] = own_path[span]
        rows["phase"] = phase[closing]
        rows["flags"] = flags[closing] | cut[span] * int(SpanFlag.CUT_AT_END)
        rows["start_ns"] = time_ns[closing]
        rows["end_ns"] = end_ns

        left = begins[~closed & ~cut]
        still_open = np.zeros(len(left), _OPEN_DTYPE)
        still_open["slot"], still_open["path"] = runs.slot[run[left]], path[left]
        still_open["start_ns"], still_open["phase"], still_open["flags"] = time_ns[left], phase[left], flags[left]
        self._open = np.concatenate([self._open[~involved], still_open])

        changes = nesting.matched[at[nesting.matched] >= 0]
        lost = np.ones(len(at), np.bool_)
        lost[nesting.matched] = False
        return OperationStep(at[changes], path[changes], at[lost], rows)

    def _resolve_paths(self, nesting: Nesting, path: Ints, name: Ints, new: NDArray[np.bool_]) -> None:
        """Fill in the paths of new begins, from the outermost level inwards."""
        chosen = np.flatnonzero(new[nesting.begins])
        begins, parent, level = nesting.begins[chosen], nesting.parent[chosen], nesting.level[chosen]
        order = stable_order(level, int(level.max(initial=0)))
        begins, parent, level = begins[order], parent[order], level[order]
        bounds = np.concatenate([[0], np.flatnonzero(level[1:] != level[:-1]) + 1, [len(level)]])
        for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            if low == high:
                continue
            around = np.where(parent[low:high] >= 0, path[parent[low:high]], 0)
            if level[low] > MAX_PATH_DEPTH:
                path[begins[low:high]] = around
            else:
                path[begins[low:high]] = self._registry.paths(around, name[begins[low:high]])
