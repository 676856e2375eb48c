"""Iterations of training loops, added up batch by batch: from one progress report of a process to its next.

What an iteration's figures are of is said in `rlscope_ebpf.model.iteration_figures.IterationTotal`. An interval that
goes on over the end of an iteration is divided there by time; its hits' cost and its transition belong to the iteration
in which it began.

Only iterations that may still get time are kept one by one. Of those that are over there are sums per process and
phase, histograms, the slowest, and the buckets of a trend: memory does not grow with the length of a session.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.categories import Category, Opened, ThreadState
from rlscope_ebpf.model.iteration_scopes import ScopeSums, Slow
from rlscope_ebpf.model.keys import Ints, grown
from rlscope_ebpf.model.sampling import split
from rlscope_ebpf.model.unions import clipped

_CATEGORIES = len(Category)
_KINDS = _CATEGORIES * _CATEGORIES
_FOREVER = np.iinfo(np.int64).max

# Columns of an iteration's sums.
TIME = slice(0, _CATEGORIES)
COST = slice(_CATEGORIES, 2 * _CATEGORIES)
SAMPLES = slice(2 * _CATEGORIES, 3 * _CATEGORIES)
SAMPLED, SAMPLED_COST, OTHERS = (3 * _CATEGORIES + offset for offset in range(3))
COLUMNS = 3 * _CATEGORIES + 3


@dataclass(slots=True)
class _Rows:
    """Intervals as columns, as far as possible those of the table itself."""

    pid: NDArray[np.uint32]
    thread: Ints
    start_ns: Ints
    end_ns: Ints
    cost_ns: NDArray[np.uint32]
    path: NDArray[np.uint32]
    category: NDArray[np.uint8]
    origin: NDArray[np.uint8]
    opened: NDArray[np.uint8]
    state: NDArray[np.uint8]
    sampled: NDArray[np.uint8]

    def take(self, at: Ints) -> _Rows:
        return _Rows(*(getattr(self, name)[at] for name in self.__slots__))

    def __add__(self, other: _Rows) -> _Rows:
        return _Rows(*(np.concatenate([getattr(self, name), getattr(other, name)]) for name in self.__slots__))


class _Process:
    """The iterations of one process that are not over, and sums by phase of those that are."""

    def __init__(self) -> None:
        # By report: its time, phase, thread and step. The first one here begins the oldest iteration that may still
        # get time; the latest one begins the iteration that goes on now.
        self.time_ns: Ints = np.zeros(0, np.int64)
        self.phase: Ints = np.zeros(0, np.int64)
        self.thread: Ints = np.zeros(0, np.int64)
        self.step: Ints = np.zeros(0, np.int64)
        self.over = 0
        """Iterations that are over."""
        self.sums: Ints = np.zeros((0, COLUMNS), np.int64)  # by report, of the iteration that it begins
        self.transitions: NDArray[np.uint32] = np.zeros((0, _KINDS), np.uint32)
        self.paths: list[tuple[Ints, Ints, Ints]] = []  # (iteration, counted from 0 over all time; path; ns)
        self.scopes: dict[int, ScopeSums] = {}  # by phase
        # Ends of iterations of which it is not settled how long GPUs had worked by then; the first may be a mere begin.
        self.queued = 0
        """Of the reports above, so many are in the queue, or have been."""
        self.queue: list[tuple[Ints, Ints]] = []  # times, phases (-1: it ends none)
        self.gpu_over = 0  # iterations of which it is settled
        self.gpu_until_ns = 0  # how long GPUs had worked until their end


class Iterations:
    """Adds up marks, intervals and samples. Not thread-safe."""

    def __init__(self) -> None:
        self._processes: dict[int, _Process] = {}
        self._known_ns = 0
        self._held: _Rows | None = None
        self._held_samples: list[tuple[NDArray[np.uint32], Ints, Ints, Ints]] = []

    def __bool__(self) -> bool:
        return bool(self._processes)

    def add_reports(self, pid: int, time_ns: Ints, phase: Ints, thread: Ints, step: Ints) -> None:
        """Progress reports of a process, in any order, with the phase it was in."""
        if not len(time_ns):
            return
        process = self._processes.setdefault(pid, _Process())
        # What comes later than it should cannot divide what has been added already.
        times = np.concatenate([process.time_ns, np.maximum(time_ns, self._known_ns)])
        order = np.argsort(times, kind="stable")
        process.time_ns = times[order]
        process.phase = np.concatenate([process.phase, phase])[order]
        process.thread = np.concatenate([process.thread, thread])[order]
        process.step = np.concatenate([process.step, step])[order]

    def reports_known(self, until_ns: int | None) -> None:
        """All reports before this moment have been added; None: all there are.

        What lies beyond it waits: which iterations it belongs to is not known yet.
        """
        self._known_ns = _FOREVER if until_ns is None else max(self._known_ns, until_ns)

    def add_intervals(self, pid: NDArray[np.uint32], thread: Ints, rows: NDArray[np.void]) -> None:
        """Add intervals (INTERVAL_COLUMNS) with their processes and threads."""
        start_ns = clipped(rows["start_ns"])
        end_ns = start_ns + clipped(rows["duration_ns"])
        late = end_ns > self._known_ns
        some_late = bool(late.any())
        if not self._processes and not some_late:
            return
        columns = _Rows(
            pid=pid,
            thread=thread,
            start_ns=start_ns,
            end_ns=end_ns,
            cost_ns=rows["overhead_ns"],
            path=rows["path"],
            category=rows["category"],
            origin=rows["origin"],
            opened=rows["opened"],
            state=rows["state"],
            sampled=rows["sampled"],
        )
        if some_late:
            columns = self._hold(columns, late)
        self._add(columns)

    def add_samples(self, pid: NDArray[np.uint32], thread: Ints, rows: NDArray[np.void]) -> None:
        """Add samples (SAMPLE_ROW_DTYPE) with their processes and threads."""
        category = np.minimum(rows["category"], Category.OTHER).astype(np.int64)
        self._held_samples.append((pid, thread, clipped(rows["time_ns"]), category))

    def advance(self, now_ns: int) -> None:
        """Every interval has been added as far as it lies before this moment."""
        if self._held is not None:
            held, self._held = self._held, None
            late = held.end_ns > self._known_ns
            self._add(self._hold(held, late) if late.any() else held)
        self._add_samples()
        until_ns = min(now_ns, self._known_ns)
        for process in self._processes.values():
            reached = int(np.searchsorted(process.time_ns, until_ns, side="right"))
            if reached > process.queued:
                phase = process.phase[process.queued : reached].copy()
                if not process.queued:
                    phase[0] = -1  # the very first report
                process.queue.append((process.time_ns[process.queued : reached].copy(), phase))
                process.queued = reached
            if reached > 1:
                _finish(process, reached - 1)

    def settle_gpu(self, until_ns: int, gpu_until: Callable[[int, Ints], Ints]) -> None:
        """Find out how long GPUs worked in the iterations that ended before a moment.

        `gpu_until` says of a process how long they had worked for it by some moments.
        """
        for pid, process in self._processes.items():
            if not process.queue:
                continue
            times, phases = (np.concatenate(parts) for parts in zip(*process.queue, strict=True))
            due = int(np.searchsorted(times, until_ns, side="right"))
            process.queue = [(times[due:], phases[due:])] if due < len(times) else []
            if not due:
                continue
            reached_ns = gpu_until(pid, times[:due])
            gpu_ns = np.diff(reached_ns, prepend=process.gpu_until_ns)
            process.gpu_until_ns = int(reached_ns[-1])
            ended = phases[:due] >= 0
            gpu_ns, phase = gpu_ns[ended], phases[:due][ended]
            for one in np.unique(phase).tolist():
                scope, mine = process.scopes[one], np.flatnonzero(phase == one)
                scope.gpu_ns += int(gpu_ns[mine].sum())
                scope.gpu_iterations += len(mine)
                for slow in scope.slowest:
                    at = slow.number - 1 - process.gpu_over
                    if 0 <= at < len(gpu_ns):
                        slow.gpu_ns = int(gpu_ns[at])
            process.gpu_over += len(gpu_ns)

    def scopes(self) -> list[tuple[int, int, ScopeSums]]:
        """(pid, phase, sums), in the order in which they were first seen."""
        return [
            (pid, phase, sums) for pid, process in self._processes.items() for phase, sums in process.scopes.items()
        ]

    def _hold(self, rows: _Rows, late: NDArray[np.bool_]) -> _Rows:
        """Keep what lies beyond the known reports for later; returns the rest."""
        waiting = rows.take(np.flatnonzero(late))
        begun = waiting.start_ns < self._known_ns
        cut = waiting.take(np.flatnonzero(begun))
        waiting.start_ns = np.maximum(waiting.start_ns, self._known_ns)
        waiting.cost_ns[begun] = 0
        waiting.opened[begun] = Opened.CONTINUED
        cut.end_ns = np.full(len(cut.pid), self._known_ns, np.int64)
        self._held = waiting if self._held is None else self._held + waiting
        return rows.take(np.flatnonzero(~late)) + cut

    def _add(self, rows: _Rows) -> None:
        for pid, process in self._processes.items():
            mine = rows.pid == pid
            if mine.any():
                _add_rows(process, rows, np.arange(len(mine)) if mine.all() else np.flatnonzero(mine))

    def _add_samples(self) -> None:
        held, self._held_samples = self._held_samples, []
        for pid, thread, time_ns, category in held:
            late = time_ns >= self._known_ns
            if late.any():
                self._held_samples.append((pid[late], thread[late], time_ns[late], category[late]))
            for one, process in self._processes.items():
                at = np.searchsorted(process.time_ns, time_ns, side="right") - 1
                ours = np.flatnonzero(~late & (pid == one) & (at >= 0))
                ours = ours[process.thread[at[ours]] == thread[ours]]
                if len(ours):
                    _reserve(process, int(at[ours].max()) + 1)
                    np.add.at(process.sums, (at[ours], SAMPLES.start + category[ours]), 1)


def _reserve(process: _Process, iterations: int) -> None:
    process.sums, process.transitions = grown(process.sums, iterations), grown(process.transitions, iterations)


def _add_rows(process: _Process, rows: _Rows, mine: Ints) -> None:
    """Add what one process's threads did: the rows of these numbers."""
    bounds = process.time_ns
    start_ns, end_ns, thread = rows.start_ns[mine], rows.end_ns[mine], rows.thread[mine]
    first = np.searchsorted(bounds, start_ns, side="right") - 1
    following_ns = np.append(bounds, _FOREVER)[first + 1]
    beyond = np.flatnonzero(end_ns > following_ns)
    last = np.searchsorted(bounds, end_ns[beyond], side="left") - 1
    highest = int(max(first.max(initial=-1), last.max(initial=-1)))
    if highest < 0:
        return
    _reserve(process, highest + 1)

    begun = first >= 0
    calls = np.flatnonzero((rows.opened[mine] == Opened.CALL) & begun)
    category, origin = (
        np.minimum(column[mine[calls]], Category.OTHER).astype(np.int64) for column in (rows.category, rows.origin)
    )
    changes = np.flatnonzero(category != origin)
    _count(process.transitions, first[calls[changes]], (origin * _CATEGORIES + category)[changes])

    duration_ns = np.minimum(end_ns, following_ns) - start_ns
    ours = process.thread[first] == thread
    own = np.flatnonzero(begun & ours)  # of the thread that reports
    rest = np.flatnonzero(begun & ~ours & (rows.state[mine] == ThreadState.RUNNING))
    low = int(max(0, first.min()))
    _sum(process.sums[:, OTHERS], first[rest], duration_ns[rest], low)
    _add_own(process, first[own], rows, mine[own], duration_ns[own], rows.cost_ns[mine[own]].astype(np.int64), low)
    if not len(beyond):
        return
    # The further pieces of what goes on over ends of iterations.
    pieces = last - first[beyond]
    source = np.repeat(beyond, pieces)
    at = first[source] + 1 + np.arange(len(source)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    duration_ns = np.minimum(np.append(bounds[1:], _FOREVER)[at], end_ns[source]) - bounds[at]
    ours = process.thread[at] == thread[source]
    rest = np.flatnonzero(~ours & (rows.state[mine[source]] == ThreadState.RUNNING))
    own = np.flatnonzero(ours)
    _sum(process.sums[:, OTHERS], at[rest], duration_ns[rest], 0)
    _add_own(process, at[own], rows, mine[source[own]], duration_ns[own], np.zeros(len(own), np.int64), 0)


def _add_own(process: _Process, at: Ints, rows: _Rows, which: Ints, duration_ns: Ints, cost_ns: Ints, low: int) -> None:
    """Add pieces of the reporting thread's time, of the rows `which`, to iterations `at`, none below `low`."""
    if not len(at):
        return
    number = int(at.max()) + 1 - low
    sampled, path = rows.sampled[which] != 0, rows.path[which]
    exact_ns, exact_cost = duration_ns, cost_ns
    if sampled.any():
        for column, values in ((SAMPLED, duration_ns), (SAMPLED_COST, cost_ns)):
            _sum(process.sums[:, column], at, np.where(sampled, values, 0), low)
        exact_ns, exact_cost = np.where(sampled, 0, duration_ns), np.where(sampled, 0, cost_ns)
    cell = (at - low) * _CATEGORIES + np.minimum(rows.category[which], Category.OTHER)
    for columns, values in ((TIME, exact_ns), (COST, exact_cost)):
        sums = np.bincount(cell, values, number * _CATEGORIES).astype(np.int64)
        process.sums[low : low + number, columns] += sums.reshape(number, _CATEGORIES)
    # A thread passes many rows in the same operation: they are one piece.
    begins = np.flatnonzero(np.append(True, (at[1:] != at[:-1]) | (path[1:] != path[:-1])))
    process.paths.append(
        (process.over + at[begins], path[begins].astype(np.int64), np.add.reduceat(duration_ns, begins))
    )


def _sum(column: Ints, at: Ints, values: Ints, low: int) -> None:
    if len(at):
        sums = np.bincount(at - low, values).astype(np.int64)
        column[low : low + len(sums)] += sums


def _count(table: NDArray[np.uint32], at: Ints, kind: Ints) -> None:
    if len(at):
        low = int(at.min())
        number = int(at.max()) + 1 - low
        counts = np.bincount((at - low) * _KINDS + kind, minlength=number * _KINDS)
        table[low : low + number] += counts.reshape(number, _KINDS).astype(np.uint32)


def _finish(process: _Process, over: int) -> None:
    """The oldest `over` iterations get no more time."""
    _reserve(process, over)
    duration_ns = np.diff(process.time_ns[: over + 1])
    phase, step = process.phase[1 : over + 1], process.step[1 : over + 1]
    sums = process.sums[:over]
    category_ns, cost_ns = sums[:, TIME], sums[:, COST]
    if sums[:, (SAMPLED, SAMPLED_COST)].any():
        samples = sums[:, SAMPLES]
        category_ns = category_ns + split(sums[:, SAMPLED, None], samples)[:, :, 0]
        cost_ns = cost_ns + split(sums[:, SAMPLED_COST, None], samples)[:, :, 0]
    numbers, paths, path_ns = _operations(process, over)
    for one in np.unique(phase).tolist():
        mine = np.flatnonzero(phase == one)
        scope = process.scopes.setdefault(one, ScopeSums())
        kept = scope.add_iterations(
            duration_ns[mine], category_ns[mine], cost_ns[mine], sums[mine], process.transitions[mine], step[mine]
        )
        ours = phase[numbers - process.over] == one
        scope.add_operations(paths[ours], path_ns[ours])
        for index in mine[kept].tolist():
            part = slice(*np.searchsorted(numbers, [process.over + index, process.over + index + 1]).tolist())
            scope.add_slow(
                Slow(
                    number=process.over + index + 1,
                    step=int(step[index]),
                    start_ns=int(process.time_ns[index]),
                    duration_ns=int(duration_ns[index]),
                    category_ns=category_ns[index].copy(),
                    cost_ns=cost_ns[index].copy(),
                    others_running_ns=int(sums[index, OTHERS]),
                    sampled_ns=int(sums[index, SAMPLED]),
                    samples=sums[index, SAMPLES].copy(),
                    transitions=process.transitions[index].copy(),
                    operations=dict(zip(paths[part].tolist(), path_ns[part].tolist(), strict=True)),
                )
            )
    process.over += over
    process.queued -= over
    for name in ("time_ns", "phase", "thread", "step"):
        setattr(process, name, getattr(process, name)[over:].copy())
    process.sums, process.transitions = process.sums[over:].copy(), process.transitions[over:].copy()


def _operations(process: _Process, over: int) -> tuple[Ints, Ints, Ints]:
    """(iteration, path, ns) of the oldest `over` iterations, each pair once, in this order; the others stay."""
    empty: Ints = np.zeros(0, np.int64)
    number, path, ns = (np.concatenate(parts) for parts in zip((empty, empty, empty), *process.paths, strict=True))
    later = number >= process.over + over
    process.paths = [(number[later], path[later], ns[later])] if later.any() else []
    number, path, ns = number[~later], path[~later], ns[~later]
    if not len(number):
        return number, path, ns
    width = int(path.max()) + 1
    key = (number - process.over) * width + path
    order = np.argsort(key, kind="stable")
    key, ns = key[order], ns[order]
    begins = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    key, ns = key[begins], np.add.reduceat(ns, begins)
    some = ns > 0
    key, ns = key[some], ns[some]
    return process.over + key // width, key % width, ns
