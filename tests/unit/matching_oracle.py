"""What the matcher must find, worked out one event at a time: slow and plain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from rlscope_ebpf.model.categories import Category, ThreadState, Wait
from rlscope_ebpf.model.events import EventFlag, EventKind
from rlscope_ebpf.model.tables import Batch, PathInfo, SpanFlag, StringInfo, ThreadInfo

OTHER = int(Category.OTHER)
SCHEDULER_KINDS = (EventKind.OFF_CPU, EventKind.WAKEUP, EventKind.ON_CPU)
HITLESS_KINDS = (*SCHEDULER_KINDS, EventKind.PROGRESS_TOTAL, EventKind.THREAD_EXIT)
COUNTING_KINDS = (EventKind.CALL, EventKind.RETURN, EventKind.GIL_RELEASE, EventKind.GIL_ACQUIRE)

Path = tuple[str, ...]
Tile = tuple[int, int, Path, str, int, int]  # start, end, path, phase, category, state and WAIT times wait
WAIT, WOKEN = 10, 3
CALLS = {203: Wait.LOCK, 231: Wait.SLEEP, 1: Wait.IO, 62: Wait.OTHER, 0: Wait.OTHER}
"""Numbers of system calls, and 1: futex, clock_nanosleep, read, wait4, none."""


@dataclass
class OracleThread:
    number: int
    pid: int
    tid: int
    cursor: int  # time up to which tiles are out
    latest: int  # no event is taken to be earlier: time of the latest one, or handed out
    category: int
    state: int = int(ThreadState.RUNNING)
    stack: list[tuple[str, int, str, int]] = field(default_factory=list)  # name, start, phase, flags
    had_operations: bool = False
    had_events: bool = False
    tiles: list[Tile] = field(default_factory=list)
    calls: Counter[tuple[int, Path, int, int, int]] = field(default_factory=Counter)  # start, path, from, to, site
    hits: int = 0

    def told_tiles(self) -> list[Tile]:
        """As they are to be handed out: who sleeps, or has just been woken, does not run Python."""
        told = []
        for start, end, path, phase, category, state in self.tiles:
            if state % WAIT in (ThreadState.BLOCKED, WOKEN) and category == Category.PYTHON:
                category = OTHER
            if state == WOKEN:
                state = ThreadState.RUNNABLE
            if state % WAIT == ThreadState.BLOCKED and category == Category.CUDA_API:
                state = ThreadState.BLOCKED + WAIT * Wait.GPU
            told.append((start, end, path, phase, category, int(state)))
        return told

    @property
    def path(self) -> Path:
        return tuple(level[0] for level in self.stack)

    def advance(self, to: int, phase: str) -> None:
        if to > self.cursor:
            self.tiles.append((self.cursor, to, self.path, phase, self.category, self.state))
            self.cursor = to

    def correct(self, since: int) -> None:
        """The time since then was of the present category, also where another thread's phase change has cut it."""
        tiles, self.tiles = self.tiles, []
        for start, end, path, phase, category, state in tiles:
            middle = min(max(since, start), end)
            self.tiles.append((start, middle, path, phase, category, state))
            self.tiles.append((middle, end, path, phase, self.category, state))


class Oracle:
    """Same input as the matcher; the result stays in the public attributes."""

    def __init__(self, start_ns: int, names: dict[int, str]) -> None:
        self.names = names
        self.now = start_ns
        self.live: dict[tuple[int, int], OracleThread] = {}
        self.exited: set[tuple[int, int]] = set()
        self.threads: list[OracleThread] = []
        self.phases: dict[int, str] = {}
        self.spans: list[tuple[int, Path, str, int, int, int]] = []  # thread, path, phase, flags, start, end
        self.marks: list[tuple[int, str, int, object, object]] = []
        self.unmatched = 0
        self.healed = 0
        self.late = 0
        self._latest_in_batch: dict[tuple[int, int], int] = {}
        self._progress: dict[int, list[object]] = {}

    def seed(self, pid: int, tid: int, operations: Sequence[str], time: int, category: int) -> None:
        thread = self.live.get((pid, tid))
        if thread is None:
            thread = self._start(pid, tid, time, category)
        elif thread.had_operations:
            return
        elif not thread.had_events:
            thread.category = category
        old, shared = thread.stack, True
        thread.stack = []
        for level, name in enumerate(operations):
            shared = shared and level < len(old) and old[level][0] == name
            new = (name, thread.cursor, self._phase(pid), int(SpanFlag.OPEN_AT_START))
            thread.stack.append(old[level] if shared else new)

    def process(self, events: np.ndarray, now: int) -> None:
        handed_before, self.now = self.now, max(self.now, now)
        self._latest_in_batch.clear()
        old_cursors = {key: thread.cursor for key, thread in self.live.items()}
        for event in events:
            self._event(event, min(handed_before, old_cursors.get((int(event["pid"]), int(event["tid"])), 0)))
        for thread in self.live.values():
            thread.latest = max(self.now, thread.latest)
            thread.advance(thread.latest, self._phase(thread.pid))

    def finish(self, now: int) -> None:
        self.process(np.empty(0), now)
        for thread in list(self.live.values()):
            self._exit(thread)
        self.live.clear()

    def _start(self, pid: int, tid: int, time: int, category: int) -> OracleThread:
        thread = OracleThread(len(self.threads), pid, tid, time, time, category)
        self.threads.append(thread)
        self.live[pid, tid] = thread
        return thread

    def _phase(self, pid: int) -> str:
        return self.phases.get(pid, "")

    def _event(self, event: np.void, handed: int) -> None:
        kind, pid, tid = int(event["kind"]), int(event["pid"]), int(event["tid"])
        time, arg = int(event["time_ns"]), int(event["arg"])
        if time < handed:  # of whoever had the tid when the batch began
            self.late += 1
        thread = self.live.get((pid, tid))
        earliest = max(self._latest_in_batch.get((pid, tid), 0), thread.latest if thread else 0)
        self._latest_in_batch[pid, tid] = max(time, earliest)
        if thread is None:
            if kind == EventKind.THREAD_EXIT:
                self.exited.add((pid, tid))
                return
            if kind in SCHEDULER_KINDS and (pid, tid) in self.exited:
                return
            thread = self._start(pid, tid, max(time, earliest), int(event["origin"]))
        time = max(time, earliest)
        if int(event["origin"]) != thread.category:
            if not event["flags"] & EventFlag.FIRST:
                self.healed += 1
            thread.category = int(event["origin"])
            thread.correct(thread.latest)
        thread.advance(time, self._phase(pid))
        thread.latest = time
        thread.had_events = True
        if kind in COUNTING_KINDS:
            thread.hits += arg & 0xFFFFFFFF
        if kind not in HITLESS_KINDS and not event["flags"] & EventFlag.HEALED:
            thread.hits += not (kind == EventKind.OP_END and arg)
        if kind == EventKind.THREAD_EXIT:
            self.exited.add((pid, tid))
            self._exit(thread)
            del self.live[pid, tid]
            return
        thread.category = int(event["category"])
        thread.state = ThreadState.RUNNING
        if kind == EventKind.OFF_CPU:
            thread.state = ThreadState.RUNNABLE
            if arg:
                thread.state = ThreadState.BLOCKED + WAIT * CALLS[arg >> 16]
        elif kind == EventKind.WAKEUP:
            thread.state = WOKEN
        elif kind == EventKind.CALL:
            caller = int(event["origin"])
            if caller == Category.OTHER and event["flags"] & EventFlag.PYTHON:
                caller = int(Category.PYTHON)
            thread.calls[time, thread.path, caller, thread.category, int(event["site"])] += 1
        elif kind == EventKind.OP_BEGIN:
            thread.had_operations = True
            thread.stack.append((self.names[arg], time, self._phase(pid), 0))
        elif kind == EventKind.OP_END:
            thread.had_operations = True
            for _ in range(max(1, arg)):
                if thread.stack:
                    self._close(thread, time, 0)
                else:
                    self.unmatched += 1
        elif kind == EventKind.PHASE:
            for other in self.live.values():
                if other.pid == pid:
                    other.advance(time, self._phase(pid))
            self.phases[pid] = self.names[arg]
            self.marks.append((thread.number, "phase", time, self.names[arg], 0))
        elif kind == EventKind.PROGRESS:
            self._progress[thread.number] = [thread.number, "progress", time, arg, 0]
            self.marks.append(self._progress[thread.number])  # type: ignore[arg-type]
        elif kind == EventKind.PROGRESS_TOTAL:
            report = self._progress.pop(thread.number, None)
            if report is None:
                self.unmatched += 1
            else:
                report[4] = arg
        elif kind == EventKind.METADATA:
            self.marks.append((thread.number, "metadata", time, self.names[arg], self.names[int(event["site"])]))

    def _close(self, thread: OracleThread, time: int, flags: int) -> None:
        path = thread.path
        _, start, phase, opened = thread.stack.pop()
        self.spans.append((thread.number, path, phase, flags | opened, start, time))

    def _exit(self, thread: OracleThread) -> None:
        end = max(thread.cursor, thread.latest)
        while thread.stack:
            self._close(thread, end, int(SpanFlag.CUT_AT_END))


class Collected:
    """The matcher's batches, with ids replaced by names and slices put together again."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.strings = {0: ""}
        self.paths: dict[int, Path] = {0: ()}
        self.threads: dict[int, ThreadInfo] = {}
        self.rows: dict[int, list[np.void]] = {}
        self.spans: list[tuple[int, Path, str, int, int, int]] = []
        self.marks: list[tuple[int, str, int, object, object]] = []
        self.losses = batches[-1].losses
        for batch in batches:
            for definition in batch.definitions:
                match definition:
                    case ThreadInfo():
                        assert definition.id == len(self.threads) + 1
                        self.threads[definition.id] = definition
                        self.rows[definition.id] = []
                    case StringInfo():
                        assert definition.id not in self.strings
                        self.strings[definition.id] = definition.text
                    case PathInfo():
                        assert definition.id not in self.paths
                        self.paths[definition.id] = (*self.paths[definition.parent], self.strings[definition.name])
            for row in batch.tables.get("intervals", ()):
                self.rows[int(row["thread"])].append(row.copy())
            for row in batch.tables.get("spans", ()):
                thread, path, phase, flags, start, end = row.tolist()
                self.spans.append((thread, self.paths[path], self.strings[phase], flags, start, end))
            for row in batch.tables.get("marks", ()):
                thread, kind, time, a, b = row.tolist()
                kind = {1: "phase", 2: "progress", 3: "metadata"}[kind]
                first = a if kind == "progress" else self.strings[a]
                self.marks.append((thread, kind, time, first, self.strings[b] if kind == "metadata" else b))

    def tiles(self, thread: int) -> list[Tile]:
        """Merged; checks that the rows follow one another without gap."""
        rows = self.rows[thread]
        for before, after in pairwise(rows):
            assert before["start_ns"] + before["duration_ns"] == after["start_ns"]
        return merged(
            (
                int(row["start_ns"]),
                int(row["start_ns"] + row["duration_ns"]),
                self.paths[int(row["path"])],
                self.strings[int(row["phase"])],
                int(row["category"]),
                int(row["state"] + WAIT * row["wait"]),
            )
            for row in rows
        )

    def calls(self, thread: int) -> Counter[tuple[int, Path, int, int, int]]:
        return Counter(
            (
                int(row["start_ns"]),
                self.paths[int(row["path"])],
                int(row["origin"]),
                int(row["category"]),
                int(row["site"]),
            )
            for row in self.rows[thread]
            if row["opened"] == 1
        )

    def hits(self, thread: int) -> int:
        return sum(int(row["hits"]) for row in self.rows[thread])


def merged(tiles: Sequence[Tile]) -> list[Tile]:
    result: list[Tile] = []
    for tile in tiles:
        if tile[0] == tile[1]:
            continue
        if result and result[-1][1] == tile[0] and result[-1][2:] == tile[2:]:
            result[-1] = (result[-1][0], *tile[1:])
        else:
            result.append(tile)
    return result
