"""The tables of figures: their columns and how a row of figures becomes a row of cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rlscope_ebpf.live.snapshot import CallRow, CopyRow, DeviceRow, GpuRow, Snapshot
from rlscope_ebpf.model import format as fmt
from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.model.figures import ACTIVITIES, by_activity
from rlscope_ebpf.model.gpu_words import disagreement, shared_disagreement
from rlscope_ebpf.model.pids import pair_of
from rlscope_ebpf.tui.bars import meter, stacked_bar
from rlscope_ebpf.tui.cells import (
    NOTHING,
    Cells,
    FiguresPanel,
    SizedPanel,
    arrow,
    figure,
    mean_count,
    meter_cell,
    named,
    pid_column,
    share,
)
from rlscope_ebpf.tui.columns import OPTIONAL, Column
from rlscope_ebpf.tui.figures import (
    OperationLine,
    OperationTable,
    SortKey,
    TransitionLine,
    View,
    call_lines,
    transition_lines,
)
from rlscope_ebpf.tui.help import wrapped
from rlscope_ebpf.tui.spans import Line, Span, cut
from rlscope_ebpf.tui.table import Cell, Row, Table

_SORTED_COLUMN = {SortKey.WALL: "wall", SortKey.COUNT: "count", SortKey.MEAN: "mean", SortKey.NAME: "name"}
_CATEGORY_TITLES = {
    Category.PYTHON: "PYTHON",
    Category.SIMULATOR: "SIM",
    Category.BACKEND: "BACKEND",
    Category.CUDA_API: "CUDA",
    Category.OTHER: "OTHER",
}


def _mark(view: View) -> str:
    return "▼" if view.descending else "▲"


class OperationsPanel(Table):
    """One stacked bar per operation."""

    def fill(self, table: OperationTable, view: View, hint: Sequence[Line]) -> None:
        """Show the figures, and below them what to do about an empty table."""
        present = [category for category in Category if table.total_category_ns[category]]
        gpu = any(line.gpu_ns for line in table.lines)
        sampled = any(line.sampled for line in table.lines)  # a sign before each figure says so
        longest = max((len(line.guide) + len(line.name) for line in table.lines), default=0) + 2
        columns = [
            Column("name", "OPERATION", 16, right=False, grow=3, limit=max(16, longest)),
            Column("bar", "BREAKDOWN", 14, right=False, grow=4, comfortable=30),
            *(
                Column(f"category-{category.name}", _CATEGORY_TITLES[category], 8 + sampled, drop=OPTIONAL + 10)
                for category in present
            ),
            *([Column("gpu", "GPU", 8, drop=3)] if gpu else []),
            Column("cpu", "ON CPU", 7, drop=OPTIONAL + 5),
            Column("wall", "TOTAL" if view.inclusive else "SELF", 8),
            Column("share", "SHARE", 7, drop=1),
            Column("count", "COUNT", 7, drop=2),
            Column("mean", "MEAN", 8, drop=4),
        ]
        longest_ns = max((line.wall_ns for line in table.lines), default=0)
        rows = [Row(line.path, self._cells(line, view, table.total_ns, longest_ns, present)) for line in table.lines]
        rows += [Row(text=[]), *(Row(text=line) for line in hint)] if hint else []
        # By total time, which is not what a column of own times shows.
        other = view.sort is SortKey.WALL and not view.inclusive and any(line.guide for line in table.lines)
        self.show(columns, rows, sorted_by="" if other else _SORTED_COLUMN[view.sort], mark=_mark(view))

    @staticmethod
    def _cells(line: OperationLine, view: View, total_ns: int, longest_ns: int, present: Sequence[Category]) -> Cells:
        wall = line.wall_ns
        labels = [
            fmt.duration(ns).replace(" ", "") if view.times else f"{share(ns, wall) * 100:.0f}%"
            for ns in line.category_ns
        ]

        def bar(width: int) -> Line:
            length = width if view.full_bars else round(share(wall, longest_ns) * width)
            return stacked_bar(line.category_ns, max(1, length) if wall else 0, labels)

        ink = "text" if line.matches else "dim"
        name = "dim" if not line.matches or not line.path else "strong"
        # Never attached to an instance: the untracked time has none.
        counted = bool(line.path) and line.count > 0
        cells: Cells = {
            "name": named(line.guide, line.name, name),
            "bar": bar,
            "gpu": figure(fmt.duration(line.gpu_ns), ink) if line.gpu_ns else NOTHING,
            "cpu": (
                figure(fmt.percent(share(line.activities_ns["running"], sum(line.activity_ns))), ink)
                if any(line.activity_ns)
                else NOTHING
            ),
            "wall": figure(fmt.duration(wall), ink),
            "share": figure(fmt.percent(share(wall, total_ns)), ink),
            "count": figure(fmt.count(line.count), ink) if counted else NOTHING,
            "mean": figure(fmt.duration(line.mean_ns), ink) if counted else NOTHING,
        }
        for category in present:
            ns = line.category_ns[category]
            text = fmt.about(fmt.duration(ns) if view.times else fmt.percent(share(ns, wall)), bool(line.sampled))
            cells[f"category-{category.name}"] = figure(text, f"ink-{category.name}") if ns else NOTHING
        return cells


_ACTIVITY_TITLES = {
    "running": "ON CPU",
    "runnable": "NO CPU",
    "lock": "LOCK",
    "io": "I/O",
    "disk": "FILE",
    "sleep": "SLEEP",
    "gpu": "CUDA",
    "other": "OTHER",
}


class WaitsPanel(FiguresPanel):
    """What threads were doing in each operation, and in each category of its time."""

    def fill(self, snapshot: Snapshot, view: View, table: OperationTable) -> None:
        """Show the figures."""
        lines = [line for line in table.lines if any(line.activity_ns)]
        columns = [
            Column("name", "OPERATION / CATEGORY", 20, right=False, grow=1, limit=60),
            Column("time", "TIME", 8, drop=1),
            *(Column(name, _ACTIVITY_TITLES[name], 7, drop=2 if name == "other" else 0) for name in ACTIVITIES
              if name in ("running", "runnable") or any(line.activities_ns[name] for line in lines)),
        ]  # fmt: skip
        rows = []
        for line in lines:
            name = named(line.guide, line.name, "strong" if line.path else "dim")
            rows.append(Row((line.path, None), self._cells(name, line.activities_ns, view)))
            for category in Category:
                parts = by_activity(line.activity_ns, category)
                if any(parts.values()) and sum(parts.values()) < sum(line.activity_ns):
                    label = fmt.CATEGORY_LABELS[category]
                    indent = " " * (len(line.guide) + 2)
                    name = named(indent, label, f"ink-{category.name}")
                    rows.append(Row((line.path, category), self._cells(name, parts, view)))
        self.show(columns, rows)

    @staticmethod
    def _cells(name: Callable[[int], Line], parts: dict[str, int], view: View) -> Cells:
        of_ns = sum(parts.values())
        cells: Cells = {"name": name, "time": figure(fmt.duration(of_ns))}
        for activity, ns in parts.items():
            text = fmt.duration(ns) if view.times else fmt.percent(share(ns, of_ns))
            cells[activity] = figure(text) if ns else NOTHING
        return cells


class TransitionsPanel(FiguresPanel):
    """How often control passes between languages and libraries."""

    def fill(self, snapshot: Snapshot, view: View, table: OperationTable) -> None:
        """Show the figures."""
        lines = transition_lines(snapshot, view, table)
        columns = [
            Column("name", "OPERATION / TRANSITION", 26, right=False, grow=1, limit=60),
            Column("count", "COUNT", 9),
            Column("instance", "PER CALL", 9),
            *([Column("step", "PER STEP", 9)] if any(line.steps for line in lines) else []),
            Column("bar", "SHARE", 12, right=False, drop=1, grow=1, limit=40),
        ]
        totals = {line.path: line.count for line in lines if not line.kind}
        least = "≥" if snapshot.counters.probes_shed else ""
        rows = [Row((line.path, line.kind), self._cells(line, totals[line.path], least)) for line in lines]
        if not lines:
            rows = [Row(text=[]), Row(text=[Span("No call from one category into another so far.", "dim")])]
        elif least:
            rows += [Row(text=[]), Row(text=[Span("≥ at least: calls whose probes were taken off are missing", "dim")])]
        self.show(columns, rows)

    @staticmethod
    def _cells(line: TransitionLine, total: int, least: str) -> Cells:
        """`least`: what stands before figures that are lower bounds."""
        top = not line.kind

        def per(value: float | None) -> Line:
            return NOTHING if value is None else figure(least + mean_count(value), "dim" if top else "text")

        def bar(width: int) -> Line:
            text = fmt.percent(share(line.count, total)).rjust(7)
            return [*meter(share(line.count, total), max(0, width - len(text))), Span(text, "dim")]

        if not top:
            name: Cell = [Span("  "), *arrow(line.kind)]
        else:
            name = named("", fmt.path(line.path), "strong" if line.path else "dim")
        return {
            "name": name,
            "count": figure(least + fmt.count(line.count), "dim" if top else "text"),
            "instance": per(line.per_instance),
            "step": per(line.per_step),
            "bar": [] if top else bar,
        }


class CallsPanel(FiguresPanel):
    """CUDA calls by function; where the GPU has no panel beside it, GPU kernels too."""

    with_gpu = True

    def fill(self, snapshot: Snapshot, view: View, table: OperationTable) -> None:
        """Show the figures."""
        pids = _inner_pids(snapshot)
        calls = call_lines(snapshot.cuda_calls, view)
        kernels = call_lines(snapshot.gpu_kernels, view) if self.with_gpu else ()
        rows = _call_rows("call", calls, pids)
        if kernels:
            rows += [Row(text=[]), Row(text=[Span("GPU KERNEL", "heading")])] if rows else []
            rows += _call_rows("kernel", kernels, pids)
        if not rows:
            rows = [Row(text=[]), *(Row(text=[Span(text, "dim")]) for text in self._nothing())]
        several = len({row.pid for row in (*calls, *kernels)}) > 1
        self.show(
            _call_columns("CUDA CALL", snapshot, several), rows, sorted_by=_SORTED_COLUMN[view.sort], mark=_mark(view)
        )

    @staticmethod
    def _nothing() -> tuple[str, ...]:
        return ("No CUDA call so far.", "Calls are counted once the process has loaded libcuda or libcudart.")


class GpuPanel(SizedPanel):
    """What ran on the GPU: kernels, copies, and how busy each device was."""

    def fill_sized(self, snapshot: Snapshot, view: View, table: OperationTable) -> None:
        """Show the figures."""
        kernels = call_lines(snapshot.gpu_kernels, view)
        copies = [copy for copy in snapshot.gpu_copies if view.takes_pid(copy.pid)]
        devices = [device for device in snapshot.gpu_devices if view.takes_pid(device.pid)]
        users = {*(row.pid for row in kernels), *(copy.pid for copy in copies), *(device.pid for device in devices)}
        pids = _inner_pids(snapshot)
        rows = _call_rows("kernel", kernels, pids)
        total = sum(copy.total_ns for copy in copies)
        for title, found in (
            ("GPU COPY", [_copy_row(copy, total, pids) for copy in copies]),
            ("GPU BUSY", _device_rows(snapshot, view, max(20, self.scrollable_content_region.width - 2))),
        ):
            if found:
                rows += [Row(text=[]), Row(text=[Span(title, "heading")]), *found]
        columns = _call_columns("GPU KERNEL", snapshot, len(users) > 1)
        self.show(columns, rows, sorted_by=_SORTED_COLUMN[view.sort], mark=_mark(view))


_Pids = Mapping[int, tuple[int, ...]]


def _inner_pids(snapshot: Snapshot) -> _Pids:
    """The numbers that processes have in their containers."""
    return {process.pid: process.namespace_pids for process in snapshot.processes if process.namespace_pids}


def _call_columns(title: str, snapshot: Snapshot, several: bool) -> list[Column]:
    return [
        Column("name", title, 18, right=False, grow=3, limit=60),
        *([pid_column(snapshot.processes, drop=3)] if several else []),
        Column("bar", "", 10, right=False, grow=2, drop=OPTIONAL, limit=40),
        Column("share", "SHARE", 7),
        Column("wall", "TOTAL", 8),
        Column("count", "COUNT", 7),
        Column("mean", "MEAN", 8, drop=2),
        Column("p50", "P50", 8, drop=1),
        Column("p99", "P99", 8),
    ]


def _call_rows(kind: str, calls: Sequence[CallRow], pids: _Pids) -> list[Row]:
    total = sum(call.total_ns for call in calls)
    return [
        Row(
            (kind, call.pid, call.name),
            {
                "name": named("", fmt.printable(fmt.kernel(call.name) if kind == "kernel" else call.name)),
                "pid": [Span(pair_of(call.pid, pids), "dim")],
                "bar": meter_cell(share(call.total_ns, total)),
                "share": figure(fmt.percent(share(call.total_ns, total))),
                "wall": figure(fmt.duration(call.total_ns)),
                "count": figure(fmt.count(call.count)),
                "mean": figure(fmt.duration(call.total_ns / call.count if call.count else 0)),
                "p50": figure(fmt.duration(call.p50_ns)),
                "p99": figure(fmt.duration(call.p99_ns)),
            },
        )
        for call in calls
    ]


def _copy_row(copy: CopyRow, total_ns: int, pids: _Pids) -> Row:
    return Row(
        ("copy", copy.pid, copy.direction),
        {
            "name": [Span(fmt.direction(copy.direction), "strong"), Span(f"  {fmt.size(copy.bytes)}", "dim")],
            "pid": [Span(pair_of(copy.pid, pids), "dim")],
            "bar": meter_cell(share(copy.total_ns, total_ns)),
            "share": figure(fmt.percent(share(copy.total_ns, total_ns))),
            "wall": figure(fmt.duration(copy.total_ns)),
            "count": figure(fmt.count(copy.count)),
            "mean": figure(fmt.duration(copy.total_ns / copy.count if copy.count else 0)),
        },
    )


def _device_rows(snapshot: Snapshot, view: View, room: int) -> list[Row]:
    """How busy each GPU was that the chosen processes use, beside what its driver reports; a sentence if they differ.

    One that several processes use has a row for all of them together, and below it one of each chosen process.
    """
    alone = len({device.pid for device in snapshot.gpu_devices}) < 2
    rows: list[Row] = []
    sentences: list[str] = []
    grouped: set[tuple[int, int]] = set()
    for gpu in snapshot.gpus:
        chosen = [device for device in gpu.devices if view.takes_pid(device.pid)]
        if not chosen:
            continue
        grouped.update((device.pid, device.index) for device in gpu.devices)
        if len(gpu.devices) > 1:
            span_ns = gpu.asked_ns or snapshot.elapsed_ns
            rows.append(_gpu_row(gpu, span_ns))
            rows += [_user_row(device, snapshot, span_ns) for device in chosen]
        else:
            rows.append(_device_row(chosen[0], snapshot))
        sentences.append(disagreement(chosen[0]) if alone else shared_disagreement(gpu))
    others = [each for each in snapshot.gpu_devices if (each.pid, each.index) not in grouped]
    rows += [_device_row(device, snapshot) for device in others if view.takes_pid(device.pid)]
    lines = wrapped([[Span(sentence, "text")] for sentence in sentences if sentence], room)
    return rows + [Row(text=line) for line in lines]


def _reported(share_of_time: float | None) -> str:
    return "" if share_of_time is None else f" NVML {fmt.percent(share_of_time)}"


def _gpu_row(gpu: GpuRow, span_ns: int) -> Row:
    """A GPU as all that use it do, of the time for which its driver was asked."""
    name = f"  {fmt.printable(gpu.name)}" if gpu.name else ""
    return Row(
        ("gpu", gpu.index, *((device.pid, device.index) for device in gpu.devices)),
        {
            "name": [Span(f"device {gpu.index}", "strong"), Span(f"{_reported(gpu.reported)}{name}", "dim")],
            "pid": [Span("all", "dim")],
            **_busy_cells(min(1.0, share(gpu.busy_ns, span_ns)), gpu.busy_ns),
        },
    )


def _user_row(device: DeviceRow, snapshot: Snapshot, span_ns: int) -> Row:
    """One of several that use a GPU, with what the driver reports of its work alone."""
    process = next((process for process in snapshot.processes if process.pid == device.pid), None)
    name = fmt.printable(process.name) if process else f"device {device.index}"
    said = _reported(device.reported_own)

    def named_user(width: int) -> Line:
        return [Span(f"  {cut(name, max(0, width - len(said) - 2))}", "text"), Span(said, "dim")]

    return Row(
        ("device", device.pid, device.index),
        {
            "name": named_user,
            "pid": [Span(process.pid_pair if process else str(device.pid), "dim")],
            **_busy_cells(min(1.0, share(device.busy_ns, span_ns)), device.busy_ns),
        },
    )


def _busy_cells(part: float, busy_ns: int) -> Cells:
    return {"bar": meter_cell(part), "share": figure(fmt.percent(part)), "wall": figure(fmt.duration(busy_ns))}


def _device_row(device: DeviceRow, snapshot: Snapshot) -> Row:
    """A device's share is of its process's time."""
    process = next((process for process in snapshot.processes if process.pid == device.pid), None)
    part = share(device.busy_ns, process.end_ns - process.start_ns if process else snapshot.elapsed_ns)
    own = "" if device.reported_own is None else f", own work {fmt.percent(device.reported_own)}"
    return Row(
        ("device", device.pid, device.index),
        {
            "name": [Span(f"device {device.index}", "strong"), Span(f"{_reported(device.reported)}{own}", "dim")],
            "pid": [Span(process.pid_pair if process else str(device.pid), "dim")],
            **_busy_cells(part, device.busy_ns),
        },
    )
