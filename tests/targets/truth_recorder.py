"""What a known-truth program notes down while it runs, and the sums that follow from it.

Two logs per thread, both in ns of CLOCK_MONOTONIC, merged afterwards:

* the native log (native/truth_clock.h): each boundary function stamps its own entry and exit, as its first and last
  action. The cost of a probe at the entry or at the exit lies outside these stamps.
* the Python log (`Recorder`): where operations begin and end, sleeps, waits for the interpreter lock.

An operation begins (ends) halfway through the call of its marker: one stamp is taken just before the call and one
just after, and the middle of both counts. A probe on the marker takes its own time stamp somewhere inside, so at most
half of its cost can fall on the wrong side, and a parent operation and its child share that cost evenly.

Where a preemption lies between a stamp and the probe that it stands for, nobody can say on which side it belongs. So
where two stamps that should follow each other at once are more than `SURE_NS` apart, all that time is `unsure_ns` of
the operations on both sides. (Not so where the thread had to wait until it got the interpreter lock back: that it went
to sleep shows in the kernel's count of its voluntary switches.)

What is left of an operation's wall time when native stretches, sleeps and waits are taken out is `python`.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import merge
from resource import RUSAGE_THREAD, getrusage
from time import monotonic_ns
from types import TracebackType
from typing import Any

import rlscope_ebpf.markers as rls

CATEGORIES = {0: "python", 1: "simulator", 2: "backend", 3: "cuda_api", 4: "other"}
PYTHON, SIMULATOR, BACKEND, CUDA_API, OTHER = CATEGORIES

SURE_NS = 200_000
"""A cold probe and what lies around it take some ten thousand ns; more than this is a preemption."""

Path = tuple[str, ...]


class Note(IntEnum):
    """Kinds of entries of both logs; the first three are those of `enum truth_kind`."""

    ENTER = 1  # value: category
    LEAVE = 2
    UNWIND = 3  # value: remaining depth
    BEGIN = 4  # value: operation name
    END = 5
    WAITED = 6  # since the previous entry, the thread was without the interpreter lock; value: whether it slept
    PHASE = 7  # value: name
    RELEASING = 8  # until the next entry, the thread is without the interpreter lock
    UNSURE = 9  # value: ns around this moment that may belong to either side


Entry = tuple[int, int, Any]  # time, Note, value


class Recorder:
    """The Python log of one thread. Made in that thread."""

    __slots__ = ("_switches", "entries", "name", "tid")

    def __init__(self, name: str) -> None:
        self.name = name
        self.tid = threading.get_native_id()
        self.entries: list[Entry] = []
        self._switches = -1

    def operation(self, name: str) -> Operation:
        """A context manager: the marker and its stamps."""
        return Operation(self, name)

    def begun(self, name: str, time: int, unsure_ns: int) -> None:
        """An operation that somebody else marks began, give or take `unsure_ns`."""
        self._note(time, Note.BEGIN, name, unsure_ns)

    def ended(self, time: int, unsure_ns: int) -> None:
        """The innermost operation, which somebody else marks, ended, give or take `unsure_ns`."""
        self._note(time, Note.END, None, unsure_ns)

    def marked(self, before: int, after: int, kind: Note, name: str | None) -> None:
        """A marker was called between the two times."""
        self._note((before + after) >> 1, kind, name, after - before if after - before > SURE_NS else 0)

    def _note(self, time: int, kind: Note, name: str | None, unsure_ns: int) -> None:
        """On both sides, for what was before and what is after may either have that time."""
        unsure = [(time, Note.UNSURE, unsure_ns)] if unsure_ns else []
        self.entries += [*unsure, (time, kind, name), *unsure]

    def elsewhere(self, start: int, end: int) -> None:
        """The thread slept, or waited without the interpreter lock, from start to end."""
        self.entries.append((start, Note.ENTER, OTHER))
        self.entries.append((end, Note.LEAVE, None))

    def releasing(self) -> None:
        """A native function that runs without the interpreter lock is about to be called: until its entry is `other`.

        Giving up the lock wakes another thread, which may well take this one's CPU before the function is entered.
        """
        self.entries.append((monotonic_ns(), Note.RELEASING, None))

    def waited(self) -> None:
        """A native function that ran without the interpreter lock has just come back: since its exit was `other`."""
        time = monotonic_ns()
        switches = getrusage(RUSAGE_THREAD).ru_nvcsw
        self.entries.append((time, Note.WAITED, switches != self._switches))
        self._switches = switches


class Operation:
    """`rls.operation` between two pairs of stamps. `begin_ns` is what the latest call of its begin marker took."""

    __slots__ = ("_marker", "_name", "_recorder", "begin_ns")

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder = recorder
        self._name = name
        self._marker = rls.operation(name)
        self.begin_ns = 0

    def __enter__(self) -> None:
        before = monotonic_ns()
        self._marker.__enter__()
        after = monotonic_ns()
        self.begin_ns = after - before
        self._recorder.marked(before, after, Note.BEGIN, self._name)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        before = monotonic_ns()
        self._marker.__exit__(kind, value, traceback)
        self._recorder.marked(before, monotonic_ns(), Note.END, None)


@dataclass
class Sums:
    """What one operation path amounts to."""

    count: int = 0
    spans_ns: int = 0  # self time by its spans' ends, without looking at any category
    unsure_ns: int = 0  # so much of it may just as well be somebody else's, or of another category
    cpu_ns: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    transitions: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def wall_ns(self) -> int:
        return sum(self.cpu_ns.values())


Key = tuple[Path, str]  # operation path, phase


class Replay:
    """Goes through the merged logs of one thread and adds up. `base` is the category outside of everything."""

    def __init__(self, base: int, phases: list[tuple[int, str]], since_ns: int, until_ns: int) -> None:
        self.sums: dict[Key, Sums] = defaultdict(Sums)
        self._base = base
        self._phases = phases
        self._since = since_ns
        self._until = until_ns
        self._names: list[str] = []
        self._starts: list[list[int]] = []  # of each open operation: its start, and the time of its children
        self._categories: list[int] = []

    def run(self, entries: Iterable[Entry]) -> dict[Key, Sums]:
        """Key → sums; what is open at the end is cut at `until_ns`."""
        previous: int | None = None
        released = False
        for time, kind, value in entries:
            if previous is not None:
                category = OTHER if released or kind == Note.WAITED else self._category()
                self._add(previous, time, category)
                at_once = released or (kind == Note.WAITED and not value)
                if at_once and time - previous > SURE_NS and time > self._since:
                    self.sums[self._key(time)].unsure_ns += time - previous
            self._apply(time, kind, value)
            previous = time
            released = kind == Note.RELEASING
        if previous is not None:
            self._add(previous, self._until, self._category())
        while self._names:
            self._close(self._until)
        return dict(self.sums)

    def _category(self) -> int:
        return self._categories[-1] if self._categories else self._base

    def _key(self, time: int) -> Key:
        phase = ""
        for start, name in self._phases:
            if start > time:
                break
            phase = name
        return tuple(self._names), phase

    def _add(self, start: int, end: int, category: int) -> None:
        start = max(start, self._since)
        if end > start:
            self.sums[self._key(start)].cpu_ns[category] += end - start

    def _apply(self, time: int, kind: int, value: Any) -> None:
        if kind == Note.ENTER:
            current = self._category()
            self._categories.append(value)
            if value not in (current, OTHER) and time >= self._since:
                name = f"{CATEGORIES[current]}_to_{CATEGORIES[value]}"
                self.sums[self._key(time)].transitions[name] += 1
        elif kind == Note.LEAVE:
            self._categories.pop()
        elif kind == Note.UNWIND:
            del self._categories[value:]
        elif kind == Note.BEGIN:
            self._names.append(value)
            self._starts.append([time, 0])
        elif kind == Note.END:
            self._close(time)
        elif kind == Note.UNSURE and time > self._since:
            self.sums[self._key(time)].unsure_ns += value

    def _close(self, time: int) -> None:
        start, children = self._starts.pop()
        sums = self.sums[self._key(start)]
        self._names.pop()
        duration = max(0, time - max(start, self._since))
        sums.count += 1
        sums.spans_ns += duration - children
        if self._starts:
            self._starts[-1][1] += duration


def merged(recorder: Recorder | None, native: Iterable[tuple[int, int, int]]) -> Iterator[Entry]:
    """Both logs of one thread in order of time."""
    own: list[Entry] = recorder.entries if recorder else []
    return merge(own, native, key=lambda entry: entry[0])
