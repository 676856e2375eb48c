"""How many raw events the matcher turns into intervals per second, on one core.

python benchmarks/bench_matching.py
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.model.events import EVENT_DTYPE, TEXT_DTYPE, TEXT_MAX, EventKind, TextKind
from rlscope_ebpf.session.matching import Matcher

THREADS = 8
OPERATION_EVERY = 20
"""Per thread: an operation begins or ends after so many events."""

NAMES = {1000 + number: f"operation {number}" for number in range(6)}
GAP_NS = 1000
EVENTS = 4_000_000
BATCHES = (20_000, 50_000, 200_000)
SMALL_BATCHES = (10, 100, 1000)
ROUNDS = 3


def make_events(count: int) -> NDArray[np.void]:
    """Threads in random turns; calls and returns with nested operations around them."""
    rng = np.random.default_rng(7)
    events = np.zeros(count, EVENT_DTYPE)
    thread = rng.integers(0, THREADS, count)
    events["time_ns"] = 1_000_000 + np.arange(count) * GAP_NS + rng.integers(0, GAP_NS, count)
    events["pid"] = 1
    events["tid"] = 1 + thread
    for number in range(THREADS):
        mine = np.flatnonzero(thread == number)
        nth = np.arange(len(mine))
        call = nth % 2 == 0
        events["kind"][mine] = np.where(call, EventKind.CALL, EventKind.RETURN)
        events["category"][mine] = np.where(call, Category.BACKEND, Category.PYTHON)
        events["origin"][mine] = np.where(call, Category.PYTHON, Category.BACKEND)
        events["site"][mine] = 1 + nth // 2 % 50
        # Two levels: begin, begin, end, end, ...; a marker takes the place of a call and its return.
        at = mine[OPERATION_EVERY::OPERATION_EVERY]
        step = np.arange(len(at)) % 4
        events["kind"][at] = np.where(step < 2, EventKind.OP_BEGIN, EventKind.OP_END)
        names = np.array(list(NAMES), np.uint64)
        events["arg"][at] = np.where(step < 2, names[np.arange(len(at)) % len(names)], 0)
        events["category"][at] = events["origin"][at] = Category.PYTHON
        after = mine[OPERATION_EVERY + 1 :: OPERATION_EVERY]
        events["origin"][after] = Category.PYTHON
    return events


def new_matcher() -> Matcher:
    """A matcher that knows the names."""
    texts = np.zeros(len(NAMES), TEXT_DTYPE)
    for record, (key, name) in zip(texts, NAMES.items(), strict=True):
        record["key"], record["kind"], record["length"] = key, TextKind.NAME, len(name)
        record["text"] = np.void(name.encode().ljust(TEXT_MAX, b"\0"))
    matcher = Matcher(0)
    matcher.add_texts(texts)
    return matcher


def seconds(events: NDArray[np.void], batch: int) -> float:
    """CPU seconds to match all events in batches."""
    matcher = new_matcher()
    begun = time.process_time()
    for first in range(0, len(events), batch):
        part = events[first : first + batch]
        result = matcher.process(part, int(part["time_ns"][-1]))
    matcher.finish(int(events["time_ns"][-1]))
    spent = time.process_time() - begun
    if (result.losses.unmatched, result.losses.healed, result.losses.late) != (0, 0, 0):
        raise AssertionError(f"the benchmark's events do not fit together: {result.losses}")
    return spent


def main() -> None:
    """Print events per second for large batches, microseconds per batch for small ones."""
    events = make_events(EVENTS)
    for batch in BATCHES:
        best = min(seconds(events, batch) for _ in range(ROUNDS))
        print(f"matched, batches of {batch:>7,}: {len(events) / best / 1e6:5.2f} million events/s on one core")
    for batch in SMALL_BATCHES:
        part = events[: batch * 500]
        best = min(seconds(part, batch) for _ in range(ROUNDS))
        print(f"matched, batches of {batch:>7,}: {best / 500 * 1e6:5.0f} us a batch")


if __name__ == "__main__":
    main()
