"""What targets said before anyone listened: their phase, their metadata, and the operations that were open."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.capture.markers_layout import ProcessMarkers, read_process_markers, read_thread_stacks
from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.model.events import OPEN_OPS_MAX, TextKind
from rlscope_ebpf.model.rows import joined
from rlscope_ebpf.model.tables import Batch
from rlscope_ebpf.session.context import Context
from rlscope_ebpf.session.opening import OpenedMeanwhile, Seed
from rlscope_ebpf.session.seeds import process_records, text_records
from rlscope_ebpf.session.target import Target, monotonic_ns, read_names, read_text, sleeps

_ELSEWHERE = {TextKind.NAME_AT: TextKind.NAME, TextKind.VALUE_AT: TextKind.VALUE}
"""Texts that are still in a process's memory: kinds of records, and of what is there."""


class Seeding:
    """Reads it in the targets' memory as each is let through, and takes what the programs have read there later."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._opened = OpenedMeanwhile()
        self._early: list[Batch] = []
        self._said: dict[int, ProcessMarkers] = {}  # by process, in a look that is to be followed by another
        self._later: list[NDArray[np.void]] = []  # events that second looks have made

    def look(self, target: Target, time_ns: int) -> set[int]:
        """Tell programs and matcher what the target has said before: phase, metadata, open operations.

        Returns the threads that have used a marker.
        """
        matcher = self._context.matcher
        objects = target.watcher.objects.values()
        said = read_process_markers(target.pid, objects)
        if said is not None:
            self._said[target.pid] = said
            idle = sleeps(target.pid, target.pid) or not target.process.is_python
            texts, events = process_records(said, target.pid, time_ns, Category.OTHER if idle else Category.PYTHON)
            matcher.add_texts(texts)
            # Now, so that the operations seeded below begin in this phase; but what others did up to now has not been
            # read, so none of their time is handed out.
            self._early.append(matcher.process(events, 0))
        stacks = {stack.tid: stack for stack in read_thread_stacks(target.pid, objects)}
        for stack in stacks.values():
            self._context.engine.add_marker_record(target.pid, stack.tid, stack.record_address)
        main = {target.pid} if self._context.samples_all or target.is_told_of else set()
        for tid in main | {tid for tid, stack in stacks.items() if stack.depth}:
            names = stacks[tid].names if tid in stacks else ()
            # Who sleeps does not run Python, whatever it waits for.
            asleep = sleeps(target.pid, tid)
            category = Category.OTHER if asleep else None
            matcher.seed_thread(target.pid, tid, names, time_ns, category, asleep=asleep)
        return set(stacks)

    def look_again(self, target: Target, known: set[int]) -> None:
        """The same for what has come between the first look and the moment from which on the target is heard."""
        self._look_for_more(target)
        stacks = read_thread_stacks(target.pid, target.watcher.objects.values())
        new = [stack for stack in stacks if stack.tid not in known]
        for stack in new:
            self._context.engine.add_marker_record(target.pid, stack.tid, stack.record_address)
        now = monotonic_ns()
        self._opened.watch(known, [Seed(target.pid, each.tid, each.names, now) for each in new if each.depth], now)

    def _look_for_more(self, target: Target) -> None:
        known, now = self._said.pop(target.pid, None), monotonic_ns()
        said = read_process_markers(target.pid, target.watcher.objects.values())
        if said is None:
            return
        idle = sleeps(target.pid, target.pid) or not target.process.is_python
        category = Category.OTHER if idle else Category.PYTHON
        texts, events = process_records(said, target.pid, now, category, known)
        self._context.matcher.add_texts(texts)
        if len(events):  # among what its probes have sent by now, which has not been read
            self._later.append(events)

    def with_later(self, events: NDArray[np.void]) -> NDArray[np.void]:
        """EVENT_DTYPE records that have been read, and what second looks have made since the last time."""
        later, self._later = self._later, []
        return joined([events, *later]) if later else events

    def take_early(self) -> list[Batch]:
        """What was matched in looks since the last time; it comes before all that is matched from now on."""
        found, self._early = self._early, []
        return found

    def take_events(self, events: NDArray[np.void]) -> None:
        """See in EVENT_DTYPE records, the next ones in the ring, which threads had opened operations meanwhile."""
        for seed in self._opened.take(events):
            self._context.matcher.seed_thread(seed.pid, seed.tid, seed.names, seed.time_ns)

    def take_texts(self, texts: NDArray[np.void]) -> None:
        """Take TEXT_DTYPE records: names, and operations that a thread had open at its first marker."""
        if not len(texts):
            return
        matcher = self._context.matcher
        matcher.add_texts(texts)
        for text in texts[np.isin(texts["kind"], [*_ELSEWHERE])]:
            matcher.add_texts(_read_there(text))
        open_operations = texts["kind"] == TextKind.OPEN_OPS
        for text in texts[open_operations]:  # once per thread that was there at attach
            depth = min(int(text["key"]), OPEN_OPS_MAX)
            addresses = [int(address) for address in np.frombuffer(text["text"].tobytes(), "<u8")[:depth]]
            names = read_names(int(text["pid"]), addresses)
            if all(names):  # or the process has ended meanwhile: what was read of it before stands
                matcher.seed_thread(int(text["pid"]), int(text["tid"]), names, int(text["time_ns"]), None)


def _read_there(text: np.void) -> NDArray[np.void]:
    """The TEXT_DTYPE record of a text that the programs could not read; none if the process has ended."""
    address = int(np.frombuffer(text["text"].tobytes(), "<u8", 1)[0])
    found = read_text(int(text["pid"]), address) if address else ""
    if found is None:
        return text_records([])
    return text_records([(int(text["key"]), _ELSEWHERE[TextKind(text["kind"])], found)])
