"""What the screens show: a snapshot and the choices of its reader (sort, filter, …) in, plain rows out; no drawing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from operator import add
from typing import TypeVar

from rlscope_ebpf.live.snapshot import CallRow, OperationRow, Snapshot
from rlscope_ebpf.model import format as fmt
from rlscope_ebpf.model.categories import UNTRACKED, Category
from rlscope_ebpf.model.figures import NO_ACTIVITY, by_activity
from rlscope_ebpf.model.sampling import Sampled, spread_ns


class ProcessSort(Enum):
    """What processes with the same parent are ordered by."""

    PID = "pid"
    TIME = "time"
    CPU = "CPU"
    GPU = "GPU"
    NAME = "name"

    @property
    def next(self) -> ProcessSort:
        """The one after it, in a circle."""
        keys = list(ProcessSort)
        return keys[(keys.index(self) + 1) % len(keys)]


class SortKey(Enum):
    """What rows are ordered by."""

    WALL = "total time"
    COUNT = "count"
    MEAN = "mean"
    NAME = "name"

    @property
    def next(self) -> SortKey:
        """The one after it, in a circle."""
        keys = list(SortKey)
        return keys[(keys.index(self) + 1) % len(keys)]


@dataclass(frozen=True, slots=True)
class View:
    """The choices of whoever looks at the screen."""

    sort: SortKey = SortKey.WALL
    reverse: bool = False
    filter: str = ""
    phase: str | None = None  # None: all
    pids: frozenset[int] | None = None  # the chosen processes; None: all
    times: bool = False  # parts as times; else as percentages
    corrected: bool | None = None  # None: corrected if the costs of this host are calibrated
    inclusive: bool = False  # with the time of nested operations
    full_bars: bool = False  # every bar in full length; else its length tells the wall time
    process_sort: ProcessSort = ProcessSort.PID
    process_reverse: bool = False
    process_filter: str = ""
    folded: frozenset[int] = frozenset()  # processes whose descendants are not shown one by one
    hide_ended: bool = False
    cell_buckets: int = 2  # of the timeline, one column

    @property
    def descending(self) -> bool:
        """Figures come largest first, names in alphabetical order, unless reversed."""
        return (self.sort is not SortKey.NAME) != self.reverse

    def shows_corrected(self, snapshot: Snapshot) -> bool:
        """Whether figures are the corrected ones."""
        return calibrated(snapshot) if self.corrected is None else self.corrected

    @property
    def processes_descending(self) -> bool:
        """Pids and names come in their order, figures largest first, unless reversed."""
        return (self.process_sort not in (ProcessSort.PID, ProcessSort.NAME)) != self.process_reverse

    def takes_pid(self, pid: int) -> bool:
        """Whether the process is one of the chosen."""
        return self.pids is None or pid in self.pids

    def takes(self, row: OperationRow) -> bool:
        """Whether the row belongs to a chosen process and to the chosen phase."""
        return (self.pids is None or row.pid in self.pids) and (self.phase is None or row.phase == self.phase)


def calibrated(snapshot: Snapshot) -> bool:
    """Whether the probe costs were measured on this host."""
    return bool(snapshot.info.calibration.get("calibrated", False))


@dataclass(frozen=True, slots=True)
class OperationLine:
    """One operation of the tree. Times are ns, of the operation alone or with nested ones as the view says."""

    path: tuple[str, ...]
    guide: str  # tree lines in front of the name
    count: int
    open_now: int
    category_ns: tuple[int, ...]
    activity_ns: tuple[int, ...]  # by category and activity, never corrected: see OperationTotal.activity_ns
    gpu_ns: int
    gpu_activities: int = 0
    queued_ns: int = 0  # from launch to start, of the activities that `queued` counts
    queued: int = 0
    sampled: tuple[Sampled, ...] = ()  # the parts of its time that samples told apart; none: all is exact
    resources_ns: tuple[int, ...] = ()  # in the order of RESOURCES; raw
    subtree_ns: int = 0  # wall time with nested operations, whatever the view: what "total time" orders by
    matches: bool = True  # False: shown only because something inside it matches the filter

    @property
    def name(self) -> str:
        """Innermost name."""
        return fmt.name(self.path[-1]) if self.path else UNTRACKED

    @property
    def wall_ns(self) -> int:
        """Of all categories."""
        return sum(self.category_ns)

    @property
    def mean_ns(self) -> float:
        """Wall time per instance; 0 without instances."""
        return self.wall_ns / self.count if self.count else 0.0

    @property
    def activities_ns(self) -> dict[str, int]:
        """What its threads were doing."""
        return by_activity(self.activity_ns)

    def off_ns(self, category: Category) -> float:
        """How far the time of a category may be off; 0: it is exact."""
        return spread_ns(self.sampled, category) if self.sampled else 0.0


@dataclass(frozen=True, slots=True)
class OperationTable:
    """The operations of a view, as a tree in display order."""

    lines: tuple[OperationLine, ...] = ()
    total_ns: int = 0  # wall time of everything in the chosen process and phase, before the filter
    total_category_ns: tuple[int, ...] = (0,) * len(Category)

    @property
    def only_untracked(self) -> bool:
        """Whether there is time but no operation at all."""
        return bool(self.lines) and all(not line.path for line in self.lines)


RESOURCES = {"cpu_only": "CPU only", "cpu_gpu": "CPU + GPU", "gpu_only": "GPU only", "idle": "idle"}
"""What an operation's time kept busy, as `OperationRow.resources_ns` names it and as people read it."""

_NO_TIME = (0,) * len(Category)


def _add(left: Sequence[int], right: Sequence[int]) -> tuple[int, ...]:
    return tuple(map(add, left, right))


def _sum_lines(path: tuple[str, ...], lines: Iterable[OperationLine], own: OperationLine | None) -> OperationLine:
    """`own` (count and open instances are its alone) with the times of `lines` added."""
    total = own or OperationLine(path, "", 0, 0, _NO_TIME, NO_ACTIVITY, 0)
    for line in lines:
        total = replace(
            total,
            category_ns=_add(total.category_ns, line.category_ns),
            activity_ns=_add(total.activity_ns, line.activity_ns),
            gpu_ns=total.gpu_ns + line.gpu_ns,
            gpu_activities=total.gpu_activities + line.gpu_activities,
            queued_ns=total.queued_ns + line.queued_ns,
            queued=total.queued + line.queued,
            sampled=total.sampled + line.sampled,
            resources_ns=_add(total.resources_ns or (0,) * len(RESOURCES), line.resources_ns or (0,) * len(RESOURCES)),
        )
    return total


def _own_line(path: tuple[str, ...], rows: list[OperationRow], corrected: bool) -> OperationLine:
    """The rows of a path, of however many processes and phases, added up."""
    return OperationLine(
        path=path,
        guide="",
        count=sum(row.count for row in rows),
        open_now=sum(row.open_now for row in rows),
        category_ns=_sums([row.corrected_ns if corrected else row.category_ns for row in rows]),
        activity_ns=_sums([row.activity_ns for row in rows]),
        gpu_ns=sum(row.gpu_ns for row in rows),
        gpu_activities=sum(row.gpu_activities for row in rows),
        queued_ns=sum(row.queued_ns for row in rows),
        queued=sum(row.queued for row in rows),
        sampled=tuple(row.sampled for row in rows if row.sampled.time_ns),
        resources_ns=tuple(sum(row.resources_ns.get(name, 0) for row in rows) for name in RESOURCES),
    )


def _sums(columns: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Sums place by place; in C as far as can be: there are tens of processes, and tens of figures of each."""
    return tuple(map(sum, zip(*columns, strict=True))) if len(columns) > 1 else tuple(columns[0])


def operation_table(snapshot: Snapshot, view: View) -> OperationTable:
    """The tree of operations in the order, and with the figures, that the view asks for."""
    corrected = view.shows_corrected(snapshot)
    by_path: dict[tuple[str, ...], list[OperationRow]] = {}
    for row in snapshot.operations:
        if view.takes(row):
            by_path.setdefault(row.path, []).append(row)
    own = {path: _own_line(path, rows, corrected) for path, rows in by_path.items()}
    total = _sums([line.category_ns for line in own.values()] or [_NO_TIME])

    # Not recursive: operations may nest in themselves as deep as the target's own recursion.
    paths = {path[:depth] for path in own for depth in range(1, len(path) + 1)}
    children: dict[tuple[str, ...], list[OperationLine]] = {}
    nested: dict[tuple[str, ...], list[OperationLine]] = {}
    for path in sorted(paths, key=len, reverse=True):
        alone = _sum_lines(path, (), own.get(path))
        whole = _sum_lines(path, nested.pop(path, ()), alone)
        nested.setdefault(path[:-1], []).append(whole)
        line = replace(whole if view.inclusive else alone, subtree_ns=whole.wall_ns)
        matches = view.filter.casefold() in fmt.path(path).casefold()
        if matches or path in children:
            children.setdefault(path[:-1], []).append(replace(line, matches=matches))
    if () in own and view.filter.casefold() in UNTRACKED:
        children.setdefault((), []).append(replace(own[()], subtree_ns=own[()].wall_ns))

    lines: list[OperationLine] = []
    pending = _with_guides(_ordered(children.get((), []), view), None)
    while pending:
        line, indent = pending.pop()
        lines.append(line)
        if line.path:
            pending += _with_guides(_ordered(children.get(line.path, []), view), indent)
    return OperationTable(tuple(lines), sum(total), total)


def _with_guides(lines: list[OperationLine], indent: str | None) -> list[tuple[OperationLine, str]]:
    """Siblings, last first, with their tree lines, and the indentation of what is inside them. `indent` None: top."""
    found: list[tuple[OperationLine, str]] = []
    for line in reversed(lines):
        if indent is None:
            found.append((line, ""))
        else:
            last = not found
            found.append((replace(line, guide=indent + ("└ " if last else "├ ")), indent + ("  " if last else "│ ")))
    return found


def _ordered(lines: list[OperationLine], view: View) -> list[OperationLine]:
    def key(line: OperationLine) -> float:
        match view.sort:
            case SortKey.WALL:
                # A parent stands where its whole subtree belongs, however little of the time is its own.
                return line.subtree_ns
            case SortKey.COUNT:
                return line.count
            case _:
                return line.mean_ns

    by_name = sorted(lines, key=lambda line: (line.name.casefold(), line.path), reverse=_name_reversed(view))
    return by_name if view.sort is SortKey.NAME else sorted(by_name, key=key, reverse=view.descending)


def _name_reversed(view: View) -> bool:
    return view.sort is SortKey.NAME and view.descending


@dataclass(frozen=True, slots=True)
class TransitionLine:
    """One kind of transition of one operation, or (kind "") the operation's own line above them."""

    path: tuple[str, ...]
    kind: str
    count: int
    instances: int
    steps: int  # progress reports; 0: none

    @property
    def per_instance(self) -> float | None:
        """Transitions per instance of the operation; None for the untracked time, which has no instances."""
        return self.count / self.instances if self.instances and self.path else None

    @property
    def per_step(self) -> float | None:
        """Transitions per reported step; None if no step was reported."""
        return self.count / self.steps if self.steps else None


def steps_of(snapshot: Snapshot, view: View) -> int:
    """Progress reports of the chosen processes, all together."""
    return sum(process.steps for process in snapshot.processes if view.takes_pid(process.pid))


def transition_lines(snapshot: Snapshot, view: View, table: OperationTable | None = None) -> tuple[TransitionLine, ...]:
    """Per operation (in the order of the operations) its own line, then one line per kind, most frequent first.

    `table` saves making it again.
    """
    counts: dict[tuple[str, ...], dict[str, int]] = {}
    for row in snapshot.operations:
        if view.takes(row):
            kinds = counts.setdefault(row.path, {})
            for kind, number in row.transitions.items():
                kinds[kind] = kinds.get(kind, 0) + number
    # Steps are counted per process, not per phase: a phase's transitions per step of all phases would mislead.
    steps = steps_of(snapshot, view) if view.phase is None else 0
    lines: list[TransitionLine] = []
    for operation in (table or operation_table(snapshot, view)).lines:
        found = {kind: number for kind, number in counts.get(operation.path, {}).items() if number}
        if not found or not operation.matches:
            continue
        lines.append(TransitionLine(operation.path, "", sum(found.values()), operation.count, steps))
        for kind, number in sorted(found.items(), key=lambda item: (-item[1], item[0])):
            lines.append(TransitionLine(operation.path, kind, number, operation.count, steps))
    return tuple(lines)


_Row = TypeVar("_Row")


def call_lines(calls: Sequence[CallRow], view: View) -> tuple[CallRow, ...]:
    """Calls of the chosen process in the view's order. Calls of different processes stay apart: so do percentiles."""
    rows = [row for row in calls if view.takes_pid(row.pid)]
    rows.sort(key=lambda row: (row.name.casefold(), row.pid), reverse=_name_reversed(view))

    def key(row: CallRow) -> float:
        if view.sort is SortKey.COUNT:
            return row.count
        return row.total_ns if view.sort is SortKey.WALL else row.total_ns / row.count if row.count else 0.0

    return tuple(rows if view.sort is SortKey.NAME else sorted(rows, key=key, reverse=view.descending))


def cycle(options: Sequence[_Row], current: _Row | None) -> _Row | None:
    """None (all), then each option, then None again."""
    if current is None or current not in options:
        return options[0] if options and current is None else None
    index = options.index(current) + 1
    return options[index] if index < len(options) else None
