"""The matcher: against an oracle on random events, and case by case."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(FilePath(__file__).parent))

from matching_oracle import CALLS, WAIT, Collected, Oracle, merged

from rlscope_ebpf.model.categories import UNKNOWN_OPERATION, Category, Opened, ThreadState, Wait
from rlscope_ebpf.model.events import (
    EVENT_DTYPE,
    OFF_ARG0_ZERO,
    OFF_ARG1_ZERO,
    OFF_CALL_SHIFT,
    TEXT_DTYPE,
    TEXT_MAX,
    EventFlag,
    EventKind,
    TextKind,
)
from rlscope_ebpf.model.tables import Batch, PathInfo, ProcessInfo, SpanFlag, StringInfo, ThreadInfo
from rlscope_ebpf.session.matching import Matcher

START = 1000
PID = 7
NAMES = {100 + number: name for number, name in enumerate(["a", "b", "train", "predict"])}
A, B, TRAIN, PREDICT = NAMES
KIND = EventKind
PYTHON, SIMULATOR, BACKEND, CUDA, OTHER = Category


def event(
    time: int,
    kind: int,
    *,
    category: int = PYTHON,
    origin: int | None = None,
    pid: int = PID,
    tid: int = PID,
    site: int = 0,
    flags: int = 0,
    arg: int = 0,
) -> tuple[int, ...]:
    return (time, pid, tid, site, kind, category, category if origin is None else origin, flags, arg)


def call(time: int, origin: int, category: int, **more: int) -> tuple[int, ...]:
    return event(time, KIND.CALL, category=category, origin=origin, **more)


def back(time: int, origin: int, category: int, **more: int) -> tuple[int, ...]:
    return event(time, KIND.RETURN, category=category, origin=origin, **more)


def begin(time: int, name: int, **more: int) -> tuple[int, ...]:
    return event(time, KIND.OP_BEGIN, arg=name, **more)


def end(time: int, **more: int) -> tuple[int, ...]:
    return event(time, KIND.OP_END, **more)


def array(events: Sequence[tuple[int, ...]]) -> np.ndarray:
    return np.array(list(events), EVENT_DTYPE)


def texts(entries: dict[int, str], kind: int = TextKind.NAME) -> np.ndarray:
    result = np.zeros(len(entries), TEXT_DTYPE)
    for record, (key, text) in zip(result, entries.items(), strict=True):
        data = text.encode()[: TEXT_MAX - 1]
        record["key"], record["kind"], record["length"] = key, kind, len(data)
        record["text"] = np.void(data.ljust(TEXT_MAX, b"\0"))
    return result


def new_matcher(**more: Any) -> Matcher:
    matcher = Matcher(START, **more)
    matcher.add_texts(texts(NAMES))
    matcher.add_texts(texts({key & 0xFFFFFFFF: name for key, name in NAMES.items()}, TextKind.VALUE))
    return matcher


def collect(matcher: Matcher, events: Sequence[tuple[int, ...]], now: int, *more: Batch) -> Collected:
    return Collected([*more, matcher.process(array(events), now), matcher.finish(now)])


def spans_of(found: Collected) -> list[tuple[tuple[str, ...], int, int, int]]:
    return [(path, flags, start, stop) for _, path, _, flags, start, stop in found.spans]


# Against the oracle

THREADS = [(1, 1), (1, 2), (2, 5), (2, 6)]
STEP = st.tuples(
    st.integers(0, len(THREADS) - 1),
    st.sampled_from([*KIND, KIND.CALL, KIND.RETURN, KIND.OP_BEGIN, KIND.OP_END, KIND.OP_BEGIN, KIND.OP_END]),
    st.integers(0, 3),  # ns since the event before
    st.integers(0, 7),  # name, category, argument
    st.sampled_from([0, 0, 0, 0, 0, 0, 1]),  # whether the event before was lost
    st.sampled_from([None, None, None, 0, 1, 5]),  # whether a batch ends here, and how long after this event
)
SEEDS = st.lists(
    st.tuples(st.integers(0, len(THREADS) - 1), st.lists(st.sampled_from(sorted(NAMES.values())), max_size=3)),
    max_size=3,
)


def make_stream(steps: Sequence[tuple[Any, ...]]) -> tuple[list[tuple[int, ...]], list[tuple[int, int]]]:
    """Events in order of time and, per batch, the index after its last event and its `now`."""
    time = START
    category = dict.fromkeys(range(len(THREADS)), int(OTHER))
    events: list[tuple[int, ...]] = []
    cuts: list[tuple[int, int]] = []
    for thread, kind, gap, choice, lost, cut in steps:
        # A phase change has a moment of its own: at equal times its order among other threads means nothing.
        alone = kind == KIND.PHASE or (events and events[-1][4] == KIND.PHASE)
        time += max(gap, 1) if alone else gap
        origin = (category[thread] + choice) % len(Category) if lost else category[thread]
        arg, site, flags = choice, choice, 0
        if kind in (KIND.CALL, KIND.RETURN, KIND.GIL_RELEASE, KIND.GIL_ACQUIRE):
            category[thread] = choice % len(Category)
            arg += (choice % 2) << 32
            flags = EventFlag.HEALED if kind == KIND.RETURN and choice == 7 else 0
            flags |= EventFlag.PYTHON if kind == KIND.CALL and choice % 3 == 2 else 0
        elif kind in (KIND.OP_BEGIN, KIND.PHASE, KIND.METADATA):
            arg, site = A + choice % len(NAMES), A + choice % 3
        elif kind == KIND.OP_END:
            arg = max(0, choice - 4)
        elif kind == KIND.OFF_CPU:
            arg = choice % 2 and 1 | list(CALLS)[choice % len(CALLS)] << OFF_CALL_SHIFT
        else:
            category[thread] = origin
        if choice == 6:
            flags |= EventFlag.FIRST
        pid, tid = THREADS[thread]
        events.append(
            event(
                time, kind, category=category[thread], origin=origin, pid=pid, tid=tid, site=site, flags=flags, arg=arg
            )
        )
        if cut is not None:
            cuts.append((len(events), time + cut - 2))
            time += max(0, cut - 2)
    cuts.append((len(events), time))
    return events, cuts


def run_both(
    seeds: Sequence[tuple[int, list[str]]],
    events: Sequence[tuple[int, ...]],
    cuts: Sequence[tuple[int, int]],
    last: int,
) -> tuple[Oracle, Collected]:
    oracle = Oracle(START, NAMES)
    matcher = new_matcher()
    for thread, names in seeds:
        pid, tid = THREADS[thread]
        oracle.seed(pid, tid, names, START, int(OTHER))
        matcher.seed_thread(pid, tid, names, START, int(OTHER))
    batches = []
    done = 0
    for stop, now in cuts:
        batch = array(events[done:stop])
        oracle.process(batch, now)
        batches.append(matcher.process(batch, now))
        done = stop
    oracle.finish(last)
    batches.append(matcher.finish(last))
    return oracle, Collected(batches)


def assert_agree(oracle: Oracle, found: Collected) -> None:
    by_key = _numbers(oracle, found)
    assert len(found.threads) == len(oracle.threads)
    for number, thread in enumerate(oracle.threads):
        mine = by_key[number]
        assert found.tiles(mine) == merged(thread.told_tiles())
        assert found.calls(mine) == thread.calls
        assert found.hits(mine) == thread.hits
    number_of = {mine: number for number, mine in by_key.items()}
    assert sorted((number_of[span[0]], *span[1:]) for span in found.spans) == sorted(oracle.spans)
    for number in by_key.values():
        ends = [span[5] for span in found.spans if span[0] == number]
        assert ends == sorted(ends)
    assert sorted((number_of[mark[0]], *map(str, mark[1:])) for mark in found.marks) == sorted(
        (mark[0], *map(str, mark[1:])) for mark in oracle.marks
    )
    losses = found.losses
    assert (losses.unmatched, losses.healed, losses.late) == (oracle.unmatched, oracle.healed, oracle.late)


def _numbers(oracle: Oracle, found: Collected) -> dict[int, int]:
    """Oracle thread -> thread id: the first, second, ... thread that had a (pid, tid)."""
    ids: dict[tuple[int, int], list[int]] = {}
    for info in found.threads.values():
        ids.setdefault((info.pid, info.tid), []).append(info.id)
    return {thread.number: ids[thread.pid, thread.tid].pop(0) for thread in oracle.threads}


@settings(max_examples=120, deadline=None)
@given(SEEDS, st.lists(STEP, max_size=60))
def test_agrees_with_the_oracle(seeds: Any, steps: Any) -> None:
    events, cuts = make_stream(steps)
    assert_agree(*run_both(seeds, events, cuts, cuts[-1][1] + 5))


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.lists(STEP, max_size=60), st.data())
def test_agrees_with_the_oracle_out_of_order(seeds: Any, steps: Any, data: Any) -> None:
    events, cuts = make_stream([step for step in steps if step[1] != KIND.PHASE])
    back_by = data.draw(st.lists(st.integers(0, 6), min_size=len(events), max_size=len(events)))
    moved = [(max(START, one[0] - back), *one[1:]) for one, back in zip(events, back_by, strict=True)]
    assert_agree(*run_both(seeds, moved, cuts, cuts[-1][1] + 5))


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.lists(STEP, max_size=60))
def test_batches_do_not_matter(seeds: Any, steps: Any) -> None:
    events, cuts = make_stream([(*step[:4], 0, step[5]) for step in steps])
    last = cuts[-1][1] + 5
    # What FIRST says of the time before holds only where that time has not been handed out.
    events = [(*one[:7], one[7] & ~EventFlag.FIRST, one[8]) for one in events]
    whole = run_both(seeds, events, [(len(events), cuts[-1][1])], last)[1]
    parts = run_both(seeds, events, cuts, last)[1]
    assert parts.losses == whole.losses
    for thread, info in whole.threads.items():
        other = next(i for i, o in parts.threads.items() if (o.pid, o.tid) == (info.pid, info.tid))
        if sum((o.pid, o.tid) == (info.pid, info.tid) for o in whole.threads.values()) > 1:
            continue
        assert parts.tiles(other) == whole.tiles(thread)
        assert parts.calls(other) == whole.calls(thread)
        assert parts.hits(other) == whole.hits(thread)
    assert sorted(span[1:] for span in parts.spans) == sorted(span[1:] for span in whole.spans)
    assert sorted(map(str, (mark[1:] for mark in parts.marks))) == sorted(map(str, (mark[1:] for mark in whole.marks)))


# Operations and calls


def test_attach_in_the_middle_of_an_operation() -> None:
    matcher = new_matcher()
    matcher.seed_thread(PID, PID, ["train", "a"], 1100, PYTHON)
    found = collect(matcher, [end(1300), end(1500)], 1600)
    assert spans_of(found) == [
        (("train", "a"), SpanFlag.OPEN_AT_START, 1100, 1300),
        (("train",), SpanFlag.OPEN_AT_START, 1100, 1500),
    ]
    assert [(tile[0], tile[1], tile[2]) for tile in found.tiles(1)] == [
        (1100, 1300, ("train", "a")),
        (1300, 1500, ("train",)),
        (1500, 1600, ()),
    ]
    assert found.losses.unmatched == 0


def test_the_first_event_tells_the_stack_better_than_the_seed() -> None:
    matcher = new_matcher()
    matcher.seed_thread(PID, PID, ["train", "a"], 1100, PYTHON)
    early = matcher.process(array([]), 1200)
    matcher.seed_thread(PID, PID, ["train", "b"], 1250, None)
    found = collect(matcher, [end(1250), end(1300)], 1400, early)
    # What was handed out stays; "train" was open all along.
    assert spans_of(found) == [
        (("train", "b"), SpanFlag.OPEN_AT_START, 1200, 1250),
        (("train",), SpanFlag.OPEN_AT_START, 1100, 1300),
    ]
    assert [tile[:3] for tile in found.tiles(1)] == [
        (1100, 1200, ("train", "a")),
        (1200, 1250, ("train", "b")),
        (1250, 1300, ("train",)),
        (1300, 1400, ()),
    ]


def test_a_seed_after_operation_events_is_ignored() -> None:
    matcher = new_matcher()
    first = matcher.process(array([begin(1100, A)]), 1150)
    matcher.seed_thread(PID, PID, ["train", "b"], 1160, None)
    found = collect(matcher, [end(1200)], 1300, first)
    assert spans_of(found) == [(("a",), 0, 1100, 1200)]


def test_a_seed_does_not_cut_off_older_events_of_its_batch() -> None:
    # Open operations are told at a thread's first marker, which may come long after its first call.
    matcher = new_matcher()
    matcher.seed_thread(PID, PID, ["train"], 1500, None)
    found = collect(matcher, [call(1100, PYTHON, BACKEND), back(1200, BACKEND, PYTHON), end(1500)], 1600)
    assert [tile[:3] + tile[4:5] for tile in found.tiles(1)] == [
        (1100, 1200, ("train",), BACKEND),
        (1200, 1500, ("train",), PYTHON),
        (1500, 1600, (), PYTHON),
    ]
    assert found.losses.late == 0


def test_attach_in_the_middle_of_a_call() -> None:
    matcher = new_matcher()
    matcher.add_process(ProcessInfo(PID, None, "python", (), START))
    matcher.seed_thread(PID, PID, [], 1100)
    found = collect(matcher, [back(1400, BACKEND, PYTHON, flags=EventFlag.FIRST)], 1500)
    assert [(tile[0], tile[1], tile[4]) for tile in found.tiles(1)] == [(1100, 1400, BACKEND), (1400, 1500, PYTHON)]
    assert found.losses.healed == 0


@pytest.mark.parametrize(
    ("tid", "is_python", "base", "expected"),
    [
        (PID, True, None, PYTHON),
        (PID, False, None, OTHER),
        (PID + 1, True, None, OTHER),
        (PID, True, SIMULATOR, SIMULATOR),
    ],
)
def test_assumed_category(tid: int, is_python: bool, base: int | None, expected: int) -> None:
    matcher = Matcher(START, base_category=None if base is None else lambda pid: base)
    matcher.add_process(ProcessInfo(PID, None, "p", (), START, is_python=is_python))
    matcher.seed_thread(PID, tid, [], START)
    assert [tile[4] for tile in collect(matcher, [], 1200).tiles(1)] == [expected]


def test_an_end_without_a_begin_is_counted_and_ignored() -> None:
    found = collect(new_matcher(), [end(1100), begin(1200, A), end(1300), end(1400)], 1500)
    assert spans_of(found) == [(("a",), 0, 1200, 1300)]
    assert found.losses.unmatched == 2
    assert [int(row["opened"]) for row in found.rows[1]] == [Opened.CONTINUED, Opened.OP_BEGIN, Opened.OP_END]


def test_an_operation_without_an_end_is_cut_at_thread_exit() -> None:
    events = [begin(1100, TRAIN), begin(1200, A), event(1300, KIND.THREAD_EXIT)]
    found = collect(new_matcher(), events, 2000)
    assert spans_of(found) == [
        (("train", "a"), SpanFlag.CUT_AT_END, 1200, 1300),
        (("train",), SpanFlag.CUT_AT_END, 1100, 1300),
    ]
    assert found.tiles(1)[-1][1] == 1300


def test_one_event_may_end_several_operations() -> None:
    events = [begin(1100, TRAIN), begin(1200, A), begin(1300, B), end(1400, arg=2), end(1500, arg=3)]
    found = collect(new_matcher(), events, 1600)
    assert [(path, stop) for path, _, _, stop in spans_of(found)] == [
        (("train", "a", "b"), 1400),
        (("train", "a"), 1400),
        (("train",), 1500),
    ]
    assert found.losses.unmatched == 2
    # Operations that end because their call is gone are no probe hit of their own.
    assert found.hits(1) == 3


def test_a_damaged_number_of_ends_does_no_harm() -> None:
    found = collect(new_matcher(), [begin(1100, A), end(1200, arg=(1 << 64) - 1)], 1300)
    assert spans_of(found) == [(("a",), 0, 1100, 1200)]


def test_recursion_and_deep_nesting() -> None:
    depth = 400
    events = [begin(2000 + level, A) for level in range(depth)] + [end(3000 + level) for level in range(depth)]
    found = collect(new_matcher(), events, 4000)
    assert [(len(path), start, stop) for path, _, start, stop in spans_of(found)] == [
        (depth - level, 2000 + depth - 1 - level, 3000 + level) for level in range(depth)
    ]
    assert max(len(tile[2]) for tile in found.tiles(1)) == depth
    assert found.losses.unmatched == 0


def test_begins_that_leak_do_not_make_paths_forever() -> None:
    found = collect(new_matcher(), [begin(2000 + number, A) for number in range(3000)], 6000)
    assert len(found.spans) == 3000
    assert max(map(len, found.paths.values())) == 1024


# Threads


def test_a_reused_tid_is_another_thread() -> None:
    events = [
        begin(1100, A),
        event(1200, KIND.THREAD_EXIT),
        # The scheduler takes the dead thread off its CPU.
        event(1210, KIND.OFF_CPU, arg=0x40),
        begin(1400, B),
        event(1500, KIND.THREAD_EXIT),
    ]
    for cut in range(len(events) + 1):
        matcher = new_matcher()
        now = events[cut - 1][0] if cut else START
        first = matcher.process(array(events[:cut]), now)
        found = collect(matcher, events[cut:], 1600, first)
        assert [(info.id, info.pid, info.tid) for info in found.threads.values()] == [(1, PID, PID), (2, PID, PID)]
        assert [(tile[0], tile[1]) for tile in found.tiles(1)] == [(1100, 1200)]
        assert [(tile[0], tile[1]) for tile in found.tiles(2)] == [(1400, 1500)]


def test_threads_of_an_ended_process_end_with_it() -> None:
    matcher = new_matcher()
    info = ProcessInfo(PID, 1, "p", (), START)
    matcher.add_process(info)
    first = matcher.process(array([begin(1100, A)]), 1200)
    matcher.update_process(ProcessInfo(PID, 1, "p", (), START, end_ns=1250, exit_status=0))
    second = matcher.process(array([]), 1300)
    found = collect(matcher, [], 2000, first, second)
    assert spans_of(found) == [(("a",), SpanFlag.CUT_AT_END, 1100, 1250)]
    assert found.tiles(1)[-1][1] == 1250
    assert found.losses.late == 0


def test_definitions_come_before_their_use_and_once() -> None:
    matcher = new_matcher(thread_name=lambda pid, tid: f"{pid}/{tid}")
    first = matcher.process(array([begin(1100, A), begin(1200, B, tid=9)]), 1300)
    kinds = [type(definition) for definition in first.definitions]
    assert kinds.index(ProcessInfo) < kinds.index(ThreadInfo)
    assert kinds.index(StringInfo) < kinds.index(PathInfo)
    assert [info.name for info in first.definitions if isinstance(info, ThreadInfo)] == [f"{PID}/{PID}", f"{PID}/9"]
    assert matcher.process(array([begin(1400, A, tid=9)]), 1500).definitions == [PathInfo(3, 2, 1)]


# Phases


def test_a_phase_change_cuts_every_thread_of_its_process_only() -> None:
    matcher = new_matcher()
    events = [
        begin(1100, A),
        begin(1100, B, tid=8),
        begin(1100, B, pid=50, tid=50),
        event(1200, KIND.PHASE, arg=TRAIN),
        end(1300, tid=8),
    ]
    found = collect(matcher, events, 1400)
    by_tid = {info.tid: found.tiles(info.id) for info in found.threads.values()}
    assert [tile[:4] for tile in by_tid[8]] == [
        (1100, 1200, ("b",), ""),
        (1200, 1300, ("b",), "train"),
        (1300, 1400, (), "train"),
    ]
    assert [tile[:4] for tile in by_tid[PID]] == [(1100, 1200, ("a",), ""), (1200, 1400, ("a",), "train")]
    assert [tile[:4] for tile in by_tid[50]] == [(1100, 1400, ("b",), "")]
    # A span belongs to the phase of its begin.
    assert {span[2] for span in found.spans} == {""}
    assert [mark[1:4] for mark in found.marks] == [("phase", 1200, "train")]


def test_a_phase_change_beyond_now_waits_for_the_other_threads() -> None:
    matcher = new_matcher()
    first = matcher.process(array([begin(1100, A), begin(1100, B, tid=8), event(1300, KIND.PHASE, arg=TRAIN)]), 1200)
    found = collect(matcher, [end(1400, tid=8)], 1500, first)
    tid8 = next(info.id for info in found.threads.values() if info.tid == 8)
    assert [tile[:4] for tile in found.tiles(tid8)][:2] == [(1100, 1300, ("b",), ""), (1300, 1400, ("b",), "train")]


def test_a_call_at_the_moment_of_a_phase_change_keeps_its_time() -> None:
    events = [begin(1100, A), call(1200, PYTHON, BACKEND), event(1200, KIND.PHASE, arg=TRAIN, tid=8)]
    found = collect(new_matcher(), events, 1400)
    row = found.rows[1][-1]
    assert (int(row["opened"]), int(row["duration_ns"]), int(row["hits"])) == (Opened.CALL, 200, 1)
    assert found.tiles(1)[-1][:4] == (1200, 1400, ("a",), "train")


# Losses


def test_late_events_are_moved_and_counted() -> None:
    matcher = new_matcher()
    first = matcher.process(array([begin(1100, A)]), 1500)
    found = collect(matcher, [end(1400)], 1600, first)
    assert spans_of(found) == [(("a",), 0, 1100, 1500)]
    assert found.losses.late == 1


def test_an_event_overtaken_by_the_scheduler_is_not_late() -> None:
    # A program took the time, was preempted, and sent its event when it ran again.
    events = [begin(1100, A), event(1210, KIND.OFF_CPU), event(1290, KIND.ON_CPU), call(1200, PYTHON, BACKEND)]
    found = collect(new_matcher(), events, 1400)
    assert (found.losses.late, found.losses.healed) == (0, 0)
    assert [(tile[0], tile[1], tile[4], tile[5]) for tile in found.tiles(1)] == [
        (1100, 1210, PYTHON, ThreadState.RUNNING),
        (1210, 1290, PYTHON, ThreadState.RUNNABLE),
        (1290, 1400, BACKEND, ThreadState.RUNNING),
    ]


def test_nor_is_it_when_the_scheduler_came_in_the_batch_before() -> None:
    matcher = new_matcher()
    first = matcher.process(array([begin(1100, A), event(1210, KIND.OFF_CPU), event(1290, KIND.ON_CPU)]), 1150)
    found = collect(matcher, [call(1200, PYTHON, BACKEND)], 1400, first)
    assert found.losses.late == 0
    assert found.tiles(1)[-1][:2] == (1290, 1400)


def test_a_lost_text_is_an_unknown_operation() -> None:
    matcher = new_matcher()
    first = matcher.process(array([begin(1100, 999), end(1200)]), 1250)
    matcher.add_texts(texts({999: "found later"}))
    found = collect(matcher, [begin(1300, 999), end(1400)], 1500, first)
    assert [path for path, *_ in spans_of(found)] == [(UNKNOWN_OPERATION,), ("found later",)]
    assert matcher.unknown_names == 1


def test_a_name_as_long_as_its_record_counts_as_cut() -> None:
    matcher = new_matcher()
    matcher.add_texts(texts({900: "x" * 126 + "é", 901: "y" * 126}))
    found = collect(matcher, [begin(1100, 900), begin(1200, 901)], 1300)
    assert found.losses.truncated_names == 1
    assert found.tiles(1)[-1][2] == ("x" * 126, "y" * 126)


def test_a_contradiction_is_healed_without_inventing_a_transition() -> None:
    # The return from the backend and the call of the simulator were lost.
    events = [call(1100, PYTHON, BACKEND, site=3), back(1300, SIMULATOR, PYTHON)]
    found = collect(new_matcher(), events, 1400)
    assert found.losses.healed == 1
    assert found.calls(1) == {(1100, (), PYTHON, BACKEND, 3): 1}
    assert [(tile[0], tile[1], tile[4]) for tile in found.tiles(1)] == [(1100, 1300, SIMULATOR), (1300, 1400, PYTHON)]


# Rows


def test_calls_at_one_moment_are_all_counted() -> None:
    events = [call(1100, PYTHON, BACKEND), back(1100, BACKEND, PYTHON)] * 5
    for cut in range(len(events)):
        matcher = new_matcher()
        first = matcher.process(array(events[:cut]), 1100 if cut else START)
        found = collect(matcher, events[cut:], 1100, first)
        assert sum(found.calls(1).values()) == 5
        assert found.hits(1) == 10


def test_a_call_that_released_the_interpreter_on_its_way_is_pythons() -> None:
    events = [
        event(1100, KIND.GIL_RELEASE, category=OTHER, origin=PYTHON),
        call(1200, OTHER, BACKEND, flags=EventFlag.PYTHON),
        back(1300, BACKEND, OTHER),
        call(1400, OTHER, SIMULATOR),
    ]
    found = collect(new_matcher(), events, 1500)
    assert [call[2:4] for call in sorted(found.calls(1))] == [(PYTHON, BACKEND), (OTHER, SIMULATOR)]
    # Only who called is Python's: the time before the call is not.
    assert found.tiles(1)[0][4] == OTHER
    assert found.losses.healed == 0


def test_silent_hits_are_charged_to_the_interval_before() -> None:
    events = [begin(1100, A), call(1200, PYTHON, BACKEND, arg=3 | 9 << 32), back(1300, BACKEND, PYTHON, arg=4)]
    found = collect(new_matcher(), events, 1400)
    assert [int(row["hits"]) for row in found.rows[1]] == [1 + 3, 1 + 4, 1]


def test_a_long_interval_is_handed_out_in_slices_that_keep_their_site() -> None:
    matcher = new_matcher()
    first = matcher.process(array([call(1100, PYTHON, CUDA, site=5)]), 1200)
    second = matcher.process(array([event(1250, KIND.OFF_CPU, category=CUDA, arg=1)]), 1300)
    found = collect(matcher, [event(1350, KIND.ON_CPU, category=CUDA)], 1400, first, second)
    columns = ("start_ns", "duration_ns", "opened", "state", "site", "hits")
    assert [tuple(int(row[name]) for name in columns) for row in found.rows[1]] == [
        (1100, 100, Opened.CALL, ThreadState.RUNNING, 5, 1),
        (1200, 50, Opened.CONTINUED, ThreadState.RUNNING, 5, 0),
        (1250, 50, Opened.SCHEDULER, ThreadState.BLOCKED, 5, 0),
        (1300, 50, Opened.CONTINUED, ThreadState.BLOCKED, 5, 0),
        (1350, 50, Opened.SCHEDULER, ThreadState.RUNNING, 5, 0),
    ]


def test_sleeping_python_is_other() -> None:
    """Who waits for the interpreter lock in a loop meets no probe; who sleeps in a native call is in it."""
    matcher = new_matcher()
    events = [
        back(1100, SIMULATOR, PYTHON),
        event(1200, KIND.OFF_CPU, category=PYTHON, arg=1),
        event(1300, KIND.ON_CPU, category=PYTHON),
        event(1400, KIND.OFF_CPU, category=PYTHON, arg=0),
        event(1450, KIND.ON_CPU, category=PYTHON),
        event(1500, KIND.OFF_CPU, category=PYTHON, arg=1),
    ]
    first = matcher.process(array(events), 1600)
    more = [
        event(1700, KIND.ON_CPU, category=PYTHON),
        call(1800, PYTHON, SIMULATOR),
        event(1850, KIND.OFF_CPU, category=SIMULATOR, arg=1),
    ]
    found = collect(matcher, more, 1900, first)
    assert [(start, category) for start, _, _, _, category, _ in found.tiles(1)][-9:] == [
        (1100, PYTHON),
        (1200, OTHER),
        (1300, PYTHON),
        (1400, PYTHON),
        (1450, PYTHON),
        (1500, OTHER),
        (1700, PYTHON),
        (1800, SIMULATOR),
        (1850, SIMULATOR),
    ], found.tiles(1)
    assert found.losses.healed == 0
    (entered,) = (row for row in found.rows[1] if row["opened"] == Opened.CALL)
    assert entered["origin"] == PYTHON


def test_marks() -> None:
    matcher = new_matcher()
    first = matcher.process(array([event(1100, KIND.PROGRESS, arg=4)]), 1150)
    assert "marks" not in first.tables  # its total may still come
    second = matcher.process(
        array(
            [
                event(1100, KIND.PROGRESS_TOTAL, arg=10),
                event(1200, KIND.PROGRESS, arg=5),
                event(1300, KIND.METADATA, arg=A, site=B),
                event(1400, KIND.PROGRESS, arg=6),
            ]
        ),
        1500,
    )
    found = Collected([first, second, matcher.process(array([]), 1500 + 10**9)])
    assert [mark[1:] for mark in found.marks] == [
        ("progress", 1100, 4, 10),
        ("progress", 1200, 5, 0),
        ("metadata", 1300, "a", "b"),
        ("progress", 1400, 6, 0),
    ]


def test_nothing_at_all() -> None:
    matcher = new_matcher()
    assert matcher.process(array([]), 2000).tables == {}
    assert matcher.finish(3000).tables == {}


def test_many_threads_need_more_slots() -> None:
    count = 300
    events = [begin(1100 + number, A, tid=1000 + number) for number in range(count)]
    found = collect(new_matcher(), events, 2000)
    assert len(found.threads) == count
    assert all(
        found.tiles(info.id) == [(1100 + info.tid - 1000, 2000, ("a",), "", PYTHON, 0)]
        for info in found.threads.values()
    )


# Off the CPU


def off(time: int, state: int, call: int = -1, zero: int = 0, **more: int) -> tuple[int, ...]:
    return event(time, KIND.OFF_CPU, arg=state | (call + 1) << OFF_CALL_SHIFT | zero, **more)


def test_a_woken_thread_waits_for_a_cpu_from_then_on() -> None:
    events = [begin(1100, A), off(1200, 1, 202), event(1350, KIND.WAKEUP), event(1400, KIND.ON_CPU), off(1450, 0)]
    for now in (1250, 1360, 1500):  # in one batch or in two
        matcher = new_matcher()
        first = matcher.process(array([each for each in events if each[0] <= now]), now)
        found = collect(matcher, [each for each in events if each[0] > now], 1500, first)
        assert [tile[:2] + tile[5:] for tile in found.tiles(1)] == [
            (1100, 1200, ThreadState.RUNNING),
            (1200, 1350, ThreadState.BLOCKED + WAIT * Wait.LOCK),
            (1350, 1400, ThreadState.RUNNABLE),
            (1400, 1450, ThreadState.RUNNING),
            (1450, 1500, ThreadState.RUNNABLE),
        ]


S, D = 1, 2
POLL, PPOLL, SELECT, EPOLL = 7, 271, 23, 232


@pytest.mark.parametrize(
    ("wait", "state", "call", "zero"),
    [
        (Wait.LOCK, S, 202, 0),  # futex
        (Wait.LOCK, S, 449, 0),
        (Wait.LOCK, D, 9, 0),  # mmap: for the map of the process
        (Wait.SLEEP, S, 35, 0),
        (Wait.SLEEP, S, 230, OFF_ARG0_ZERO),  # clock_nanosleep: CLOCK_REALTIME is 0
        (Wait.IO, S, 0, OFF_ARG0_ZERO),  # read from 0
        (Wait.IO, S, EPOLL, 0),
        (Wait.IO, S, POLL, 0),
        (Wait.SLEEP, S, POLL, OFF_ARG0_ZERO | OFF_ARG1_ZERO),
        (Wait.SLEEP, S, PPOLL, OFF_ARG1_ZERO),
        (Wait.IO, S, SELECT, OFF_ARG1_ZERO),  # only who can be written to is waited for
        (Wait.SLEEP, S, SELECT, OFF_ARG0_ZERO),
        (Wait.DISK, D, 0, 0),
        (Wait.DISK, D, 74, 0),  # fsync
        (Wait.DISK, D, -1, 0),  # a page fault
        (Wait.DISK, D, 4, 0),  # stat
        (Wait.OTHER, S, -1, 0),
        (Wait.OTHER, S, 61, 0),  # wait4
        (Wait.OTHER, 4, 61, 0),  # stopped
        (Wait.OTHER, S, 60_000, 0),  # whatever that may be
    ],
)
def test_what_is_waited_for(wait: Wait, state: int, call: int, zero: int) -> None:
    found = collect(new_matcher(), [begin(1100, A), off(1200, state, call, zero)], 1300)
    assert found.tiles(1)[-1][5] == ThreadState.BLOCKED + WAIT * wait


def test_in_a_cuda_call_it_is_the_gpu() -> None:
    events = [call(1100, PYTHON, CUDA), off(1200, S, 202, category=CUDA), event(1300, KIND.ON_CPU, category=CUDA)]
    found = collect(new_matcher(), [*events, back(1400, CUDA, PYTHON)], 1500)
    assert [tile[5] for tile in found.tiles(1)][1] == ThreadState.BLOCKED + WAIT * Wait.GPU


def test_a_woken_thread_has_not_the_interpreter_lock_back() -> None:
    # It waits for the lock in the interpreter's loop. Who was preempted has it still.
    events = [
        begin(1100, A),
        off(1200, S, 202),
        event(1300, KIND.WAKEUP),
        event(1400, KIND.ON_CPU),
        off(1450, 0),
        event(1475, KIND.ON_CPU),
    ]
    for now in (1250, 1350, 1460, 1500):
        matcher = new_matcher()
        first = matcher.process(array([each for each in events if each[0] <= now]), now)
        found = collect(matcher, [each for each in events if each[0] > now], 1500, first)
        assert [(tile[0], *tile[4:]) for tile in found.tiles(1)] == [
            (1100, PYTHON, ThreadState.RUNNING),
            (1200, OTHER, ThreadState.BLOCKED + WAIT * Wait.LOCK),
            (1300, OTHER, ThreadState.RUNNABLE),
            (1400, PYTHON, ThreadState.RUNNING),
            (1450, PYTHON, ThreadState.RUNNABLE),
            (1475, PYTHON, ThreadState.RUNNING),
        ]
