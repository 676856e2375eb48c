"""Pictures of the last seconds: pieces of time become cells. Arrays in, lines out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.live.timeline import Timeline
from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.model.keys import Ints
from rlscope_ebpf.tui.bars import FILLS
from rlscope_ebpf.tui.spans import Line, Span
from rlscope_ebpf.tui.tree import ProcessLine

WAITS = len(Category)
"""What a cell shows besides a category: no thread was busy, or (in part) fewer than this much of the time."""
PARTLY = WAITS + 1
"""Added to a category: busy for less than half of the time."""
ABSENT = -1

LEAST = 1 / 16
"""Who was busy for a smaller part of a cell's time is shown as waiting."""

WAIT_FILL = "╌"
PART_FILL = "▄"
GPU_FILLS = " ▁▂▃▄▅▆▇█"

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Lane:
    """One process in time, by column: oldest first."""

    busy: Floats  # (columns, Category): parts of the cell; more than one thread at a time share it, at most 1 in all
    gpu: Floats | None  # (columns): part of it; None where no GPU worked
    first: int  # column in which it began; below 0: before
    last: int  # column in which it ended; beyond the last column: it is there
    failed: bool  # it ended otherwise than with status 0


@dataclass(frozen=True, slots=True)
class Grid:
    """Columns of time. The last one may be narrower: it is not over."""

    cell_ns: int
    start_ns: int
    end_ns: int
    columns: int

    def column(self, time_ns: int) -> int:
        """In which a moment lies; there may be no such column."""
        return (time_ns - self.start_ns) // self.cell_ns


def grid(timeline: Timeline, columns: int, cell_buckets: int) -> Grid:
    """So many columns up to now."""
    cell_ns = cell_buckets * timeline.bucket_ns
    last = -(-timeline.end_ns // cell_ns)
    return Grid(cell_ns, (last - columns) * cell_ns, timeline.end_ns, columns)


def lane(timeline: Timeline, place: Grid, line: ProcessLine) -> Lane:
    """Of one line of the tree: of a process, or of all that are folded into it."""
    known = {pid: number for number, pid in enumerate(timeline.pids)}
    numbers = [known[pid] for pid in line.members if pid in known]
    busy_ns = _in_columns(timeline, place, timeline.busy_ns[numbers].sum(0))
    gpu_ns = _in_columns(timeline, place, timeline.gpu_ns[numbers].sum(0)[:, None])[:, 0]
    cell_ns = np.full(place.columns, place.cell_ns)
    if place.columns:
        cell_ns[-1] = max(1, place.end_ns - place.start_ns - (place.columns - 1) * place.cell_ns)
    whole = np.maximum(busy_ns.sum(1), cell_ns)
    process = line.row
    return Lane(
        busy=busy_ns / whole[:, None],
        gpu=np.minimum(1.0, gpu_ns / cell_ns) if process.gpu_ns or gpu_ns.any() else None,
        first=place.column(process.start_ns),
        last=place.columns if process.alive else place.column(process.end_ns),
        failed=bool(process.exit_status),
    )


def _in_columns(timeline: Timeline, place: Grid, values: Ints) -> Ints:
    """(buckets, n) summed up to (columns, n); time that nobody remembers is empty."""
    per = place.cell_ns // timeline.bucket_ns
    late = (place.start_ns + place.columns * place.cell_ns - timeline.end_ns) // timeline.bucket_ns
    wanted, size = place.columns * per, values.shape[1]
    if not wanted:
        return np.zeros((0, size), np.int64)
    padded = np.concatenate([np.zeros((wanted, size), np.int64), values, np.zeros((late, size), np.int64)])[-wanted:]
    total: Ints = padded.reshape(place.columns, per, size).sum(1)
    return total


def codes(found: Lane, height: int) -> Ints:
    """What each cell shows, (height, columns), top row first: a category, `WAITS`, a category + `PARTLY`, `ABSENT`.

    One row alone shows the category that had most; more of them are a stack, from the bottom up.
    """
    columns = len(found.busy)
    total = found.busy.sum(1)
    if height == 1:
        most = found.busy.argmax(1)
        code = np.where(total >= 0.5, most, most + PARTLY)
        code[total < LEAST] = WAITS
        rows = code[None, :]
    else:
        levels = (np.arange(height)[::-1] + 0.5) / height
        upto = np.cumsum(found.busy, axis=1)
        rows = (upto[None, :, :] <= levels[:, None, None]).sum(2)  # beyond the last: WAITS
        seen = (total >= LEAST) & (rows[-1] == WAITS)
        rows[-1, seen] = found.busy.argmax(1)[seen] + PARTLY
    there = np.arange(columns)
    rows = np.where((there >= found.first) & (there <= found.last), rows, ABSENT)
    result: Ints = rows.astype(np.int64)
    return result


def drawn(found: Lane, height: int) -> list[Line]:
    """Its rows, top first, with marks where it began and ended in the lowest one."""
    rows = codes(found, height)
    rows[:-1][rows[:-1] == WAITS] = ABSENT  # a line at the bottom says it
    lines = [_spans(row) for row in rows.tolist()]
    columns = len(found.busy)
    for at, mark, role in (
        (found.first, "[", "key"),
        (found.last, "]", "error" if found.failed else "strong"),
    ):
        if 0 <= at < columns:
            lines[-1] = _marked(lines[-1], at, Span(mark, role))
    return lines


def gpu_row(found: Lane) -> Line:
    """How busy GPUs were with its work: the higher, the busier."""
    if found.gpu is None:
        return []
    levels = np.ceil(found.gpu * (len(GPU_FILLS) - 1)).astype(np.int64)
    return [Span("".join(GPU_FILLS[level] for level in levels.tolist()), "meter")]


def _spans(row: Sequence[int]) -> Line:
    return [_span(code, len(list(cells))) for code, cells in groupby(row)]


def _span(code: int, cells: int) -> Span:
    if code == ABSENT:
        return Span(" " * cells)
    if code == WAITS:
        return Span(WAIT_FILL * cells, "faint")
    if code >= PARTLY:
        return Span(PART_FILL * cells, f"ink-{Category(code - PARTLY).name}")
    category = Category(code)
    return Span(FILLS[category] * cells, f"bar-{category.name}")


def _marked(line: Line, at: int, mark: Span) -> Line:
    """The line with one cell replaced."""
    found: Line = []
    left = 0
    for span in line:
        size = len(span.text)
        if left <= at < left + size:
            found += [Span(span.text[: at - left], span.role), mark, Span(span.text[at - left + 1 :], span.role)]
        else:
            found.append(span)
        left += size
    return [span for span in found if span.text]


def scale(width: int, cell_ns: int) -> str:
    """Seconds before now above the columns: "-30 s       -20 s       -10 s      now"."""
    marks = [" "] * width
    step = next((s for s in (1, 2, 5, 10, 20, 30, 60) if s * 1_000_000_000 / cell_ns >= 10), 120)
    free = width
    for number in range(width):
        text = f"-{number * step} s" if number else "now"
        at = width - round(number * step * 1_000_000_000 / cell_ns)
        begin = at - (len(text) if not number else 1)
        if begin < 0:
            break
        if begin + len(text) <= free:
            marks[begin : begin + len(text)] = text
            free = begin - 1
    return "".join(marks)
