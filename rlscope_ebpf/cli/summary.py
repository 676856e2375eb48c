"""What a capture prints at its end: the breakdown per process, phase and operation, from the live totals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from rlscope_ebpf.live.snapshot import OperationRow, ProcessRow, Snapshot
from rlscope_ebpf.model import format as fmt
from rlscope_ebpf.model.categories import DEFAULT_PHASE, Category, ThreadState

NAME_WIDTH = 44
TRANSITIONS_SHOWN = 6


def render(snapshot: Snapshot) -> str:
    """The whole summary, ending in a newline."""
    blocks = [_process_block(process, snapshot) for process in snapshot.processes]
    blocks.append(_closing(snapshot))
    return "\n\n".join(blocks) + "\n"


def _process_block(process: ProcessRow, snapshot: Snapshot) -> str:
    rows = [row for row in snapshot.operations if row.pid == process.pid and (row.wall_ns or row.count)]
    lines = [
        f"{fmt.printable(process.name)} (process {process.pid}), {fmt.duration(process.end_ns - process.start_ns)}"
    ]
    if process.steps:
        of = f" of {process.total_steps:,}" if process.total_steps else ""
        lines[0] += f", step {process.step:,}{of}"
    if not rows:
        return lines[0] + "\n  nothing was seen of what it did"
    wall_ns = sum(row.wall_ns for row in rows)
    phases = sorted({row.phase for row in rows}, key=lambda phase: (phase != DEFAULT_PHASE, phase))
    categories = [category for category in Category if any(row.category_ns[category] for row in rows)]
    table = [
        [
            "operation",
            "count",
            "own time",
            "share",
            "on CPU",
            *(fmt.CATEGORY_LABELS[category] for category in categories),
        ]
    ]
    for phase, group in groupby(sorted(rows, key=lambda row: phases.index(row.phase)), key=lambda row: row.phase):
        if len(phases) > 1 or phase != DEFAULT_PHASE:
            table.append([f"phase {fmt.printable(phase)}"])
        table += [_operation_cells(row, wall_ns, categories) for row in sorted(group, key=lambda row: -row.wall_ns)]
    lines += _aligned(table)
    if any(row.sampled.time_ns for row in rows):
        lines.append("  ≈: told by samples; the report says how far each may be off")
    transitions = _sum_transitions(rows)
    if transitions:
        shown = [f"{fmt.transition(kind)} {fmt.count(number)}" for kind, number in transitions[:TRANSITIONS_SHOWN]]
        least = "at least " if snapshot.counters.probes_shed else ""  # calls without a probe are not counted
        lines.append(f"  transitions: {least}" + ", ".join(shown))
    return "\n".join(lines)


def _operation_cells(row: OperationRow, wall_ns: int, categories: Sequence[Category]) -> list[str]:
    own = row.wall_ns
    return [
        fmt.shorten(fmt.path(row.path), NAME_WIDTH),
        fmt.count(row.count) if row.path else "",
        fmt.duration(own),
        fmt.percent(own / wall_ns if wall_ns else 0),
        fmt.percent(row.state_ns[ThreadState.RUNNING] / own if own else 0),
        *(
            fmt.about(fmt.percent(row.category_ns[category] / own if own else 0), row.sampled.time_ns > 0)
            for category in categories
        ),
    ]


def _sum_transitions(rows: Iterable[OperationRow]) -> list[tuple[str, int]]:
    totals: dict[str, int] = {}
    for row in rows:
        for kind, number in row.transitions.items():
            totals[kind] = totals.get(kind, 0) + number
    return sorted(((kind, number) for kind, number in totals.items() if number), key=lambda item: -item[1])


def _closing(snapshot: Snapshot) -> str:
    counters = snapshot.counters
    losses = fmt.losses(snapshot.losses)
    included = "; the times above include it" if snapshot.counters.estimated_overhead_ns else ""
    return (
        f"{fmt.probes(counters)}, "
        f"{fmt.plural(counters.received, 'event')}, {losses or 'nothing lost'}, "
        f"overhead {fmt.overhead(snapshot.overhead_fraction, snapshot.overhead_plausible)}{included}"
    )


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: the first column to the left, the others to the right. A row of one cell is a heading."""
    widths = [max(len(row[column]) for row in table if len(row) > 1) for column in range(len(table[0]))]
    lines = []
    for row in table:
        cells = [row[0].ljust(widths[0])] + [
            cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=len(row) > 1)
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines
