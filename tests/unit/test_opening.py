"""Threads that come while the profiler attaches: what they had open when they were first heard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.events import EVENT_DTYPE, EventKind
from rlscope_ebpf.session.opening import WITHIN_NS, OpenedMeanwhile, Seed

PID, NOW = 7, 1_000
BEGIN, END, CALL = EventKind.OP_BEGIN, EventKind.OP_END, EventKind.CALL


def events(*rows: tuple[int, int, EventKind]) -> NDArray[Any]:
    """Of (time, thread, kind)."""
    made = np.zeros(len(rows), EVENT_DTYPE)
    for record, (time_ns, tid, kind) in zip(made, rows, strict=True):
        record["time_ns"], record["pid"], record["tid"], record["kind"] = time_ns, PID, tid, kind
        record["arg"] = 99 if kind == BEGIN else 0
    return made


def watching(known: Sequence[int] = (), seeds: Sequence[Seed] = ()) -> OpenedMeanwhile:
    opened = OpenedMeanwhile()
    opened.watch(known, seeds, NOW)
    return opened


def test_an_end_without_a_begin_right_after_the_attach_had_an_operation_open() -> None:
    opened = watching()
    assert opened.take(events((NOW + 5, 1, CALL), (NOW + 6, 1, END), (NOW + 7, 2, BEGIN), (NOW + 8, 2, END))) == [
        Seed(PID, 1, ("(unknown)",), NOW + 6)
    ]
    assert opened.take(events((NOW + 9, 1, END))) == []  # it is known by now: an error of the target


def test_several_operations_were_open() -> None:
    rows = [(NOW + 1, 1, BEGIN), (NOW + 2, 1, END), (NOW + 3, 1, END), (NOW + 4, 1, BEGIN), (NOW + 5, 1, END)]
    assert watching().take(events(*rows, (NOW + 6, 1, END))) == [Seed(PID, 1, ("(unknown)",) * 2, NOW + 1)]


def test_threads_whose_record_is_read_by_the_programs_are_left_alone() -> None:
    assert watching(known=[1]).take(events((NOW + 5, 1, END))) == []


def test_a_stack_that_was_read_again_counts_unless_the_thread_changed_it_meanwhile() -> None:
    seeds = [Seed(PID, tid, ("rollout",), NOW) for tid in (1, 2, 3)]
    opened = watching(seeds=seeds)
    assert opened.take(events((NOW - 5, 1, BEGIN), (NOW + 5, 2, END))) == seeds[1:]
    assert opened.take(events((NOW + 6, 3, END))) == []


def test_later_it_is_an_error_of_the_target() -> None:
    opened = watching()
    assert opened.take(events((NOW + WITHIN_NS + 1, 1, CALL))) == []
    assert opened.take(events((NOW + WITHIN_NS + 2, 2, END))) == []


def test_nothing_is_watched_before_the_attach() -> None:
    assert OpenedMeanwhile().take(events((5, 1, END))) == []
