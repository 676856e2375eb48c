"""Which operations are open now, told from the rows alone.

An operation instance is one level of its thread's path, so the path of a thread's latest interval names all operations
open on it, one instance per level. Only the very last moment needs the spans: an operation that ended exactly where
its thread's latest interval did has a span that says so. Nothing is counted up and down, so nothing can drift.

(The matcher lets operations nested deeper than its limit share one path; those count as one.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.categories import Opened
from rlscope_ebpf.model.keys import Ints, grown, last_of_each, pair

Chain = Callable[[int], tuple[int, ...]]
"""Path id to the path ids of its levels, outermost first, itself last."""


class OpenOperations:
    """The stack of every thread, with the phase in which each operation began."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._end_ns: NDArray[np.uint64] = np.zeros(0, np.uint64)  # of the latest interval, by thread id
        self._stacks: dict[int, list[tuple[int, int]]] = {}  # thread -> (path, phase) per level; no empty ones

    def counts(self) -> Counter[tuple[int, int, int]]:
        """Open instances by (thread, phase, path)."""
        return Counter(
            (thread, phase, path) for thread, stack in self._stacks.items() for path, phase in stack
        )  # fmt: skip

    def add_intervals(self, thread: Ints, rows: NDArray[np.void]) -> None:
        """Follow rows in order (per thread). `thread` are their thread ids, all known."""
        last = last_of_each(thread)
        latest = rows[last]
        threads = thread[last]
        self._end_ns = grown(self._end_ns, int(threads[-1]) + 1)
        self._end_ns[threads] = latest["start_ns"] + latest["duration_ns"]

        phase = rows["phase"]
        uniform = bool((phase == phase[0]).all())
        begins: NDArray[np.uint64] | None = None
        begin_phases: NDArray[np.uint32] | None = None
        current = zip(threads.tolist(), latest["path"].tolist(), latest["phase"].tolist(), strict=True)
        for number, path, phase_now in current:
            old = self._stacks.get(number, [])
            if not path:
                if old:
                    del self._stacks[number]
                continue
            chain = self._chain(path)
            if uniform and all(began == phase_now for _, began in old):
                if len(old) != len(chain) or old[-1][0] != path:
                    self._stacks[number] = [(level, phase_now) for level in chain]
                continue
            if begins is None or begin_phases is None:
                begins, begin_phases = _latest_begins(thread, rows)
            if not old:  # whatever did not begin here was open when the thread was first heard of
                phase_now = int(phase[np.argmax(thread == number)])
            self._stacks[number] = _with_phases(number, chain, old, phase_now, begins, begin_phases)

    def add_spans(self, thread: Ints, rows: NDArray[np.void]) -> None:
        """Take spans that closed, in order of closing, after the intervals up to their end."""
        last = last_of_each(thread)
        threads = thread[last]
        self._end_ns = grown(self._end_ns, int(threads[-1]) + 1)
        latest = rows[last]
        at_end = latest["end_ns"] >= self._end_ns[threads]
        for number, path in zip(threads[at_end].tolist(), latest["path"][at_end].tolist(), strict=True):
            stack = self._stacks.get(number)
            if stack is None:
                continue
            del stack[len(self._chain(path)) - 1 :]
            if not stack:
                del self._stacks[number]


def _latest_begins(thread: Ints, rows: NDArray[np.void]) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """Keys (thread, path) of operations that began in these rows, ascending, and the phase at the latest begin."""
    at = np.flatnonzero(rows["opened"] == Opened.OP_BEGIN)[::-1]
    keys, first = np.unique(pair(thread[at], rows["path"][at]), return_index=True)
    return keys, rows["phase"][at[first]]


def _with_phases(
    thread: int,
    chain: tuple[int, ...],
    old: list[tuple[int, int]],
    phase_now: int,
    begins: NDArray[np.uint64],
    begin_phases: NDArray[np.uint32],
) -> list[tuple[int, int]]:
    stack: list[tuple[int, int]] = []
    same = True
    for level, path in enumerate(chain):
        same = same and level < len(old) and old[level][0] == path
        key = np.uint64(thread << 32 | path)
        at = int(begins.searchsorted(key))
        if at < len(begins) and begins[at] == key:
            same = False  # it began again, so whatever was inside it before has ended
            stack.append((path, int(begin_phases[at])))
        else:
            stack.append((path, old[level][1] if same else phase_now))
    return stack
