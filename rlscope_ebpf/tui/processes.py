"""The panels with a row for each process: the tree, and what each did in the last seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from rlscope_ebpf.live.snapshot import ProcessRow, Snapshot
from rlscope_ebpf.live.timeline import Timeline
from rlscope_ebpf.model import format as fmt
from rlscope_ebpf.tui.cells import NOTHING, Cells, FiguresPanel, SizedPanel, figure, pid_column, share
from rlscope_ebpf.tui.columns import OPTIONAL, Column
from rlscope_ebpf.tui.figures import OperationTable, ProcessSort, View
from rlscope_ebpf.tui.lanes import Grid, Lane, drawn, gpu_row, grid, lane, scale
from rlscope_ebpf.tui.spans import Line, Span, cut
from rlscope_ebpf.tui.table import Row
from rlscope_ebpf.tui.tree import LATE_NS, ProcessLine, process_lines, state

_SORTED_COLUMN = {
    ProcessSort.PID: "pid",
    ProcessSort.TIME: "wall",
    ProcessSort.CPU: "cpu",
    ProcessSort.GPU: "gpu",
    ProcessSort.NAME: "name",
}
_FOLDED, _OPEN = "▸ ", "▾ "
_CHOSEN = "● "
TALLEST = 6
"""Rows of a process in the timeline, where there is room."""


class ProcessRows(FiguresPanel):
    """A table of processes. Row keys are pids."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("x", "act('mark')", "Mark", id="process.mark", tooltip="Add this process's figures, or no longer."),
        Binding("X", "act('family')", "Mark with children", id="process.family", show=False,
                tooltip="The same with all that descend from it."),
        Binding("a", "act('all')", "All", id="process.all", tooltip="The figures of all processes."),
        Binding("f", "act('fold')", "Fold", id="process.fold", tooltip="Hide or show what descends from it."),
        Binding("F", "act('fold_all')", "Fold all", id="process.fold_all", show=False,
                tooltip="Hide or show what descends from any process."),
        Binding("d", "act('ended')", "Ended", id="process.ended", tooltip="Hide or show processes that have ended."),
    ]  # fmt: skip

    class Act(Message):
        """Something is to be done with a process."""

        def __init__(self, what: str, pid: int | None) -> None:
            super().__init__()
            self.what = what
            self.pid = pid

    lines: tuple[ProcessLine, ...] = ()

    def action_act(self, what: str) -> None:
        """A key of the process in the selected row."""
        pid = self.selected
        self.post_message(self.Act(what, pid if isinstance(pid, int) else None))

    def pressed(self, row: Row, column: str, place: int, *, with_control: bool) -> bool:
        """A click on the sign of a parent folds it; with control a click marks the process."""
        pid = row.key
        line = next((line for line in self.lines if line.row.pid == pid), None)
        if line is None or not isinstance(pid, int):
            return False
        sign = len(line.guide)
        if column == "name" and line.children and sign <= place < sign + len(_OPEN):
            self.post_message(self.Act("fold", pid))
            return True
        if with_control:
            self.post_message(self.Act("mark", pid))
        return with_control


def _name(line: ProcessLine, view: View) -> Callable[[int], Line]:
    chosen = view.pids is not None and view.pids.issuperset(line.members)
    sign = (_FOLDED if line.folded else _OPEN) if line.children else ""
    more = f" +{len(line.members) - 1}" if line.folded else ""
    dim = not line.matches or (view.pids is not None and not view.pids.intersection(line.members))
    role = "dim" if dim or not line.row.alive else "strong"

    def make(width: int) -> Line:
        guide = line.guide if len(line.guide) <= max(2, width - 10) else "…" + line.guide[-2:]
        mark = _CHOSEN if chosen else ""
        room = max(0, width - len(guide) - len(sign) - len(mark) - len(more))
        name = cut(fmt.printable(line.row.name), room)
        return [Span(guide, "faint"), Span(sign, "dim"), Span(mark, "key"), Span(name, role), Span(more, "dim")]

    return make


def _state(process: ProcessRow) -> Line:
    if process.alive:
        return [Span("running", "good")]
    return [Span(state(process), "warning" if process.exit_status else "dim")]


def _since(process: ProcessRow, snapshot: Snapshot) -> Line:
    """How much later than the session's start it was attached to."""
    late_ns = process.start_ns - snapshot.info.start_ns
    return figure(f"+{fmt.duration(late_ns)}") if late_ns >= LATE_NS else []


class ProcessesPanel(ProcessRows):
    """Every process of the session, as a tree."""

    def fill(self, snapshot: Snapshot, view: View, table: OperationTable) -> None:
        """Show the figures."""
        self.lines = process_lines(snapshot, view)
        gpu = any(process.gpu_ns for process in snapshot.processes)
        columns = [
            Column("name", "PROCESS", 13, right=False, grow=2, limit=44),
            pid_column(snapshot.processes),
            Column("state", "STATE", 8, right=False, drop=1),
            Column("cpu", "CPU", 7),
            *([Column("gpu", "GPU", 7)] if gpu else []),
            Column("wall", "TIME", 8, drop=2),
            Column("since", "SINCE", 8, drop=4),
            Column("threads", "THREADS", 7, drop=7),
            Column("phase", "PHASE", 10, right=False, drop=3, grow=1, limit=24),
            Column("step", "STEP", 11, drop=5, grow=1, limit=22),
            Column("done", "DONE", 7, drop=6),
            Column("command", "COMMAND", 20, right=False, drop=OPTIONAL, grow=3),
        ]
        rows = [Row(line.row.pid, partial(self._cells, line, snapshot, view)) for line in self.lines]
        if not rows:
            rows = [Row(text=[]), *(Row(text=[Span(text, "dim")]) for text in _nothing(view))]
        elif len(snapshot.processes) > 1:
            rows += [Row(text=[]), *(Row(text=[Span(text, "dim")]) for text in _what_keys_do(view))]
        mark = "▼" if view.processes_descending else "▲"
        self.show(columns, rows, sorted_by=_SORTED_COLUMN[view.process_sort], mark=mark)

    @staticmethod
    def _cells(line: ProcessLine, snapshot: Snapshot, view: View) -> Cells:
        process = line.row
        step = f"{process.step:,}" if process.steps else ""
        if process.steps and process.total_steps:
            step += f" of {process.total_steps:,}"
        compact = f"{fmt.count(process.step)}/{fmt.count(process.total_steps)}".replace(" ", "")
        ink = "text" if line.matches else "dim"
        return {
            "name": _name(line, view),
            "pid": [Span(process.pid_pair, ink)],
            "state": _state(process),
            "cpu": figure(fmt.percent(line.cpu_share), ink),
            "gpu": figure(fmt.percent(line.gpu_share), ink) if line.gpu_ns else NOTHING,
            "wall": figure(fmt.duration(line.wall_ns), ink),
            "since": _since(process, snapshot),
            "threads": figure(str(process.threads), ink),
            "phase": [Span(fmt.printable(process.phase), ink)],
            "step": _step_cell(step, compact if process.total_steps else step),
            "done": figure(fmt.percent(share(process.step, process.total_steps))) if process.total_steps else NOTHING,
            "command": [Span(fmt.printable(" ".join(process.command)), "dim")],
        }


def _step_cell(long: str, short: str) -> Callable[[int], Line]:
    return lambda width: [Span(long if len(long) <= width else short, "text")] if long else NOTHING


def _nothing(view: View) -> Sequence[str]:
    if view.process_filter:
        return (f"No process is called like “{fmt.printable(view.process_filter)}”.", "esc clears the filter.")
    return ("All processes have ended: d shows them.",) if view.hide_ended else ("No process yet.",)


def _what_keys_do(view: View) -> Sequence[str]:
    if view.pids is None:
        return ("enter: figures of this one alone", "x: of several, one by one")
    return ("enter, a: figures of all", "x: add this one, or take it away")


class TimelinePanel(SizedPanel, ProcessRows):
    """What each process did in the last seconds."""

    def fill_sized(self, snapshot: Snapshot, view: View, table: OperationTable) -> None:
        """Show the pictures; those of many processes are one row high each."""
        timeline = snapshot.timeline
        oldest_ns = timeline.end_ns - timeline.bucket_ns * timeline.buckets
        self.lines = tuple(
            line
            for line in process_lines(snapshot, view)
            if (line.row.alive or line.row.end_ns > oldest_ns)
            and (view.pids is None or view.pids.intersection(line.members))
        )
        cell_ns = view.cell_buckets * timeline.bucket_ns
        columns = [
            Column("name", "PROCESS", 14, right=False, grow=1, limit=26),
            pid_column(snapshot.processes, drop=2),
            Column("lane", "", 20, right=False, grow=12, limit=timeline.buckets // view.cell_buckets + 1 or 20,
                   scale=lambda width: scale(width, cell_ns)),
        ]  # fmt: skip
        height = self._height(sum(2 if line.gpu_ns else 1 for line in self.lines))
        rows: list[Row] = []
        for line in self.lines:
            picture = _Picture(timeline, line, view.cell_buckets, height)
            for row in range(height):
                cells: Cells = {"lane": picture.row(row)}
                if row == 0:
                    cells |= {"name": _name(line, view), "pid": [Span(line.row.pid_pair, "dim")]}
                rows.append(Row(line.row.pid if row == 0 else None, cells))
            if line.gpu_ns:
                label: Line = [Span(" " * len(line.guide), "faint"), Span("  GPU", "dim")]
                rows.append(Row(cells={"name": label, "lane": picture.gpu}))
        if not rows:
            rows = [Row(text=[]), Row(text=[Span("No process was there in the last two minutes.", "dim")])]
        self.show(columns, rows)

    def _height(self, rows: int) -> int:
        room = self.scrollable_content_region.height - 1
        return max(1, min(TALLEST, room // max(1, rows)))


class _Picture:
    """One lane, made once its width is known, and only of a row that is in view."""

    def __init__(self, timeline: Timeline, line: ProcessLine, cell_buckets: int, height: int) -> None:
        self._timeline, self._line, self._cell_buckets, self._height = timeline, line, cell_buckets, height
        self._made: tuple[int, Lane, list[Line]] | None = None

    def row(self, number: int) -> Callable[[int], Line]:
        """From the top."""
        return lambda width: self._make(width)[1][number]

    def gpu(self, width: int) -> Line:
        """The row of the GPU."""
        return gpu_row(self._make(width)[0])

    def _make(self, width: int) -> tuple[Lane, list[Line]]:
        if self._made is None or self._made[0] != width:
            place: Grid = grid(self._timeline, width, self._cell_buckets)
            found = lane(self._timeline, place, self._line)
            self._made = (width, found, drawn(found, self._height))
        return self._made[1:]
