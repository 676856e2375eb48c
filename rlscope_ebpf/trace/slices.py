"""Cutting what one flush wrote into steps of the session's time, for a smooth replay."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.tables import Batch, Counters, Definition, Losses, Notice

MAX_STEPS = 1000  # of one flush: a session that wrote nothing for hours is replayed in larger steps


def slices(
    batch: Batch,
    later: list[Definition],
    notices: list[Notice],
    since_ns: int,
    losses: Losses,
    counters: Counters,
    step_ns: int | None,
) -> Iterator[Batch]:
    """`batch`, which covers the time from `since_ns` to `batch.now_ns`, in steps of about `step_ns` (None: at once).

    Definitions come with the first step, those of `later` with the last; until then `losses` and `counters` hold. A row
    belongs to the step in which it ended, one of `notices` to that in which it was said.
    """
    span = batch.now_ns - since_ns
    if step_ns is None or span <= step_ns:
        batch.definitions = [*batch.definitions, *later]
        batch.notices = [notice.sentence for notice in notices]
        yield batch
        return
    step = max(1, step_ns, span // MAX_STEPS)
    count = -(-span // step)
    cut = {table: _cut(rows, since_ns, step, count) for table, rows in batch.tables.items()}
    said = [min(max(notice.time_ns - since_ns - 1, 0) // step, count - 1) for notice in notices]
    for index in range(count):
        last = index == count - 1
        yield Batch(
            now_ns=min(since_ns + (index + 1) * step, batch.now_ns),
            definitions=[*(batch.definitions if index == 0 else ()), *(later if last else ())],
            tables={table: parts[index] for table, parts in cut.items() if len(parts[index])},
            losses=batch.losses if last else losses,
            counters=batch.counters if last else counters,
            notices=[notice.sentence for notice, place in zip(notices, said, strict=True) if place == index],
        )


def row_ends(rows: NDArray[np.void]) -> NDArray[np.uint64] | None:
    """When each row was known, or None for a table without times."""
    names = rows.dtype.names or ()
    if "end_ns" in names:
        ends = rows["end_ns"]
    elif "start_ns" in names and "duration_ns" in names:
        ends = rows["start_ns"] + rows["duration_ns"]
    elif "time_ns" in names:
        ends = rows["time_ns"]
    else:
        return None
    return ends.astype(np.uint64)


def _cut(rows: NDArray[np.void], since_ns: int, step: int, count: int) -> list[NDArray[np.void]]:
    ends = row_ends(rows)
    if ends is None:
        return [rows[:0]] * (count - 1) + [rows]
    first = np.uint64(since_ns + 1)
    index = np.minimum((np.maximum(ends, first) - first) // np.uint64(step), np.uint64(count - 1))
    order = np.argsort(index, kind="stable")
    bounds = np.searchsorted(index[order], np.arange(1, count, dtype=np.uint64))
    return np.split(np.take(rows, order), bounds)
