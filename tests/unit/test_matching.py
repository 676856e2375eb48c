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

from matching_oracle import Collected, Oracle, merged

from rlscope_ebpf.model.categories import UNKNOWN_OPERATION, Category, Opened, ThreadState
from rlscope_ebpf.model.events import EVENT_DTYPE, TEXT_DTYPE, TEXT_MAX, EventFlag, EventKind, TextKind
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
        elif kind in (KIND.OP_BEGIN, KIND.PHASE, KIND.METADATA):
            arg, site = A + choice % len(NAMES), A + choice % 3
        elif kind == KIND.OP_END:
            arg = max(0, choice - 4)
        elif kind == KIND.OFF_CPU:
            arg = choice % 2
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
    seeds: Sequence[tuple[int, list[str]]], events: Sequence[tuple[int, ...]], cuts: Sequence[tuple[int, int]], last: int
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
        assert found.tiles(mine) == merged(thread.tiles)
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


@settings(max_examples=300, deadline=None)
@given(SEEDS, st.lists(STEP, max_size=60))
def test_agrees_with_the_oracle(seeds: Any, steps: Any) -> None:
    events, cuts = make_stream(steps)
    assert_agree(*run_both(seeds, events, cuts, cuts[-1][1] + 5))


@settings(max_examples=150, deadline=None)
@given(SEEDS, st.lists(STEP, max_size=60), st.data())
def test_agrees_with_the_oracle_out_of_order(seeds: Any, steps: Any, data: Any) -> None:
    events, cuts = make_stream([step for step in steps if step[1] != KIND.PHASE])
    back_by = data.draw(st.lists(st.integers(0, 6), min_size=len(events), max_size=len(events)))
    moved = [(max(START, one[0] - back), *one[1:]) for one, back in zip(events, back_by, strict=True)]
    assert_agree(*run_both(seeds, moved, cuts, cuts[-1][1] + 5))


@settings(max_examples=150, deadline=None)
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
