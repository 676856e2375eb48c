"""For whom a thread without operations of its own launches: a library's worker, while its caller waits.

PyTorch's backward pass launches from threads of its autograd engine, TensorFlow's graphs from a pool. Their caller
stays inside the call of the library meanwhile, and that is what is looked for here. Nothing is ever guessed: if two
threads could be the caller, none is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.categories import Category, ThreadState
from rlscope_ebpf.model.keys import Ints
from rlscope_ebpf.model.rows import chosen, copied, joined
from rlscope_ebpf.model.tables import Definition, ThreadInfo

HORIZON_NS = 10_000_000_000
"""Calls that ended longer ago are forgotten: launches are told of within a second."""

MOST_CALLS = 1 << 18
"""Of one thread that are remembered."""

OWN_SHARE = 16
"""A thread works for itself once one in so many of its launches was made while nobody could be waiting for it."""

OWN_WINDOW = 2048
"""So many launches of a thread, roughly, are looked back on: calls that were not followed for a while (libraries were
being loaded) must not tell against it for ever."""

_SMALL = 1 << 12  # rows that wait before they are put in place, unless somebody asks

_CALL_DTYPE = np.dtype([("start_ns", "<i8"), ("end_ns", "<i8"), ("path", "<u4"), ("phase", "<u4"), ("blocked", "?")])

CALLER_DTYPE = np.dtype([("path", "<u4"), ("phase", "<u4"), ("found", "?"), ("ambiguous", "?"), ("nobody", "?")])
"""Of each launch: `found`: there is one caller, and it is in operation `path`. `ambiguous`: several may be it, at least
one of them in an operation. `nobody`: no other thread of the process was in a call of a backend."""


@dataclass(slots=True)
class _Calls:
    """One thread's time inside calls of a backend."""

    calls: NDArray[np.void] = field(default_factory=lambda: np.zeros(0, _CALL_DTYPE))
    new: list[NDArray[np.void]] = field(default_factory=list)
    waiting: int = 0

    def add(self, calls: NDArray[np.void]) -> None:
        self.new.append(calls)
        self.waiting += len(calls)
        if self.waiting >= _SMALL:
            self.collect()

    def collect(self) -> NDArray[np.void]:
        if self.new:
            calls = joined([self.calls, *self.new])
            self.new.clear()
            self.waiting = 0
            first = int(np.searchsorted(calls["end_ns"], int(calls["end_ns"][-1]) - HORIZON_NS))
            self.calls = copied(calls[max(first, len(calls) - MOST_CALLS) :])
        return self.calls


class BackendCalls:
    """Which threads were inside a call of a backend, when, and in which operation."""

    def __init__(self) -> None:
        self._pid: dict[int, int] = {}  # by thread id
        self._tid: dict[int, int] = {}
        self._of_process: dict[int, dict[int, _Calls]] = {}  # pid -> tid -> calls
        self._launches: dict[tuple[int, int], list[int]] = {}  # (pid, tid) -> of its own, all

    def define(self, definitions: Iterable[Definition]) -> None:
        """Learn which threads there are."""
        for info in definitions:
            if isinstance(info, ThreadInfo):
                self._pid[info.id], self._tid[info.id] = info.pid, info.tid

    def add(self, rows: NDArray[np.void]) -> None:
        """Follow intervals (INTERVAL_DTYPE), those of one thread in order of time and next to one another."""
        rows = chosen(rows, (rows["category"] == Category.BACKEND) & (rows["duration_ns"] > 0))
        if not len(rows):
            return
        calls = np.empty(len(rows), _CALL_DTYPE)
        calls["start_ns"] = rows["start_ns"]
        calls["end_ns"] = rows["start_ns"] + rows["duration_ns"]
        calls["path"], calls["phase"] = rows["path"], rows["phase"]
        calls["blocked"] = rows["state"] == ThreadState.BLOCKED
        bounds = np.append(0, np.flatnonzero(rows["thread"][1:] != rows["thread"][:-1]) + 1)
        for first, part in zip(bounds.tolist(), np.split(calls, bounds[1:]), strict=True):
            thread = int(rows["thread"][first])
            if thread in self._pid:
                of_process = self._of_process.setdefault(self._pid[thread], {})
                of_process.setdefault(self._tid[thread], _Calls()).add(part)

    def callers(self, pid: int, tid: int, time_ns: Ints) -> NDArray[np.void]:
        """For whom a thread without operations launched something at each moment (CALLER_DTYPE).

        A caller is inside a call of a backend, in an operation or asleep: a thread in no operation that runs there
        works itself. The main thread of a process is nobody's worker. Nor is a thread of whose latest launches more
        than one in `OWN_SHARE` was made while no thread was inside such a call.
        """
        found = np.zeros(len(time_ns), CALLER_DTYPE)
        if pid == tid:
            return found
        inside, candidates, in_operation = (np.zeros(len(time_ns), np.int64) for _ in range(3))
        for other, calls in self._of_process.get(pid, {}).items():
            known = calls.collect() if other != tid else calls.calls[:0]
            if not len(known):
                continue
            at = np.searchsorted(known["start_ns"], time_ns, side="right") - 1
            call = np.take(known, np.maximum(at, 0))
            there = (at >= 0) & (time_ns < call["end_ns"])
            named = there & (call["path"] != 0)
            inside += there
            in_operation += named
            candidates += named | (there & call["blocked"])
            found["path"][named], found["phase"][named] = call["path"][named], call["phase"][named]
        found["nobody"] = inside == 0
        launches = self._launches.setdefault((pid, tid), [0, 0])
        launches[0] += int(np.count_nonzero(found["nobody"]))
        launches[1] += len(time_ns)
        while launches[1] > 2 * OWN_WINDOW:
            launches[:] = [launches[0] // 2, launches[1] // 2]
        if launches[0] * OWN_SHARE <= launches[1]:
            found["found"] = (candidates == 1) & (in_operation == 1)
            found["ambiguous"] = (candidates > 1) & (in_operation > 0)
        return found
