"""Cells that tables share, and what a panel is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual import events

from rlscope_ebpf.live.snapshot import ProcessRow, Snapshot
from rlscope_ebpf.model import format as fmt
from rlscope_ebpf.model.pids import PAIR_TITLE, pid_title
from rlscope_ebpf.tui.bars import meter
from rlscope_ebpf.tui.columns import Column
from rlscope_ebpf.tui.figures import OperationTable, View
from rlscope_ebpf.tui.spans import Line, Span, cut
from rlscope_ebpf.tui.table import Cell, Table

Cells = dict[str, Cell]
"""A row by the keys of its columns."""

NOTHING: Line = [Span("-", "faint")]


class FiguresPanel(Table):
    """A table that a snapshot and a view fill."""

    def fill(self, snapshot: Snapshot, view: View, table: OperationTable) -> None:
        """Show the figures; `table` has the operations of that view."""
        raise NotImplementedError


class SizedPanel(FiguresPanel):
    """One whose rows depend on its size."""

    _filled: tuple[Snapshot, View, OperationTable] | None = None

    def fill(self, snapshot: Snapshot, view: View, table: OperationTable) -> None:
        """Show the figures, and again when the size changes."""
        self._filled = (snapshot, view, table)
        self.fill_sized(snapshot, view, table)

    def fill_sized(self, snapshot: Snapshot, view: View, table: OperationTable) -> None:
        """Show the figures."""
        raise NotImplementedError

    def on_resize(self, event: events.Resize) -> None:
        """There is more room, or less."""
        if self._filled is not None:
            self.fill(*self._filled)


def figure(text: str, role: str = "text") -> Line:
    """A figure; its unit, after the last space, is dimmer."""
    number, space, unit = text.rpartition(" ")
    return [Span(number, role), Span(space + unit, "dim")] if space else [Span(text, role)]


def share(part: int, whole: int) -> float:
    """0 of nothing."""
    return part / whole if whole > 0 else 0.0


def named(guide: str, name: str, role: str = "strong") -> Callable[[int], Line]:
    """A name behind its tree lines. Where both do not fit the tree lines give way to "…"."""

    def make(width: int) -> Line:
        lines = guide if len(guide) <= max(2, width - 10) else "…" + guide[-2:]
        return [Span(lines, "faint"), Span(cut(name, max(0, width - len(lines))), role)]

    return make


def meter_cell(fraction: float) -> Callable[[int], Line]:
    """A meter as wide as its column."""
    return lambda width: meter(fraction, width)


def pid_column(processes: Sequence[ProcessRow], drop: int = 0) -> Column:
    """The column of pids: wider where some of the processes have another number in their container."""
    title = pid_title(process.namespace_pids for process in processes)
    longest = max((len(process.pid_pair) for process in processes), default=0)
    if title == PAIR_TITLE:
        drop = min(drop, 1)  # the wider column shall not be the first to go
    return Column("pid", title, max(7, len(f"{title} ▲"), longest), drop=drop)


def mean_count(value: float) -> str:
    """Things per other things."""
    return fmt.count(value) if value >= 0.005 or value == 0 else "<0.01"


def arrow(kind: str) -> Line:
    """ "Python → backend", each end in its category's colour."""
    ends = fmt.transition(kind).split(" → ")
    roles = {label: f"ink-{category.name}" for category, label in fmt.CATEGORY_LABELS.items()}
    line: Line = []
    for number, end in enumerate(ends):
        if number:
            line.append(Span(" → ", "dim"))
        line.append(Span(end, roles.get(end, "text")))
    return line
