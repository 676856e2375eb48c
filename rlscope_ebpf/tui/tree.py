"""The tree of processes: a snapshot and the choices of its reader in, plain rows out; no drawing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from signal import Signals

from rlscope_ebpf.live.snapshot import ProcessRow, Snapshot
from rlscope_ebpf.model.categories import ThreadState
from rlscope_ebpf.tui.figures import ProcessSort, View

LATE_NS = 1_000_000_000
"""Profiling of a process that began so much after the session did is worth a word."""


@dataclass(frozen=True, slots=True)
class ProcessLine:
    """One process of the tree; a folded one stands for all that descend from it. Times are ns."""

    row: ProcessRow
    guide: str  # tree lines in front of the name
    members: tuple[int, ...]  # whose figures these are: its own pid first
    children: int  # how many processes have it as a parent
    folded: bool
    wall_ns: int  # of all threads, all phases
    cpu_ns: int  # they ran
    gpu_ns: int  # some GPU worked for it
    matches: bool = True  # False: shown only because one of its descendants matches the filter

    @property
    def life_ns(self) -> int:
        """As long as it is known."""
        return max(0, self.row.end_ns - self.row.start_ns)

    @property
    def cpu_share(self) -> float:
        """CPU time per time: more than 1 of several threads."""
        return self.cpu_ns / self.life_ns if self.life_ns else 0.0

    @property
    def gpu_share(self) -> float:
        """GPU time per time; folded, of all of them together."""
        return self.gpu_ns / self.life_ns if self.life_ns else 0.0


@dataclass(slots=True)
class _Node:
    row: ProcessRow
    parent: _Node | None
    children: list[_Node]
    matches: bool
    kept: bool  # it, or what descends from it, is to be shown
    own: tuple[int, int, int]
    whole: tuple[int, int, int]  # with its descendants
    members: list[int]


def state(process: ProcessRow) -> str:
    """ "running", "exit 1", "SIGKILL"; "ended" if nobody knows how."""
    status = process.exit_status
    if process.alive:
        return "running"
    if status is None:
        return "ended"
    if status >= 0:
        return f"exit {status}"
    try:
        return Signals(-status).name
    except ValueError:
        return f"signal {-status}"


_made: tuple[Snapshot, View, tuple[ProcessLine, ...]] | None = None


def process_lines(snapshot: Snapshot, view: View) -> tuple[ProcessLine, ...]:
    """The processes as a tree, children under their parents, in the order that the view asks for.

    Several panels ask for the same: the latest answer is kept.
    """
    global _made
    made = _made
    if made is None or made[0] is not snapshot or made[1] != view:
        made = _made = (snapshot, view, _process_lines(snapshot, view))
    return made[2]


def _process_lines(snapshot: Snapshot, view: View) -> tuple[ProcessLine, ...]:
    nodes = _nodes(snapshot, view)
    for node in reversed(nodes):  # descendants come after their ancestors
        if node.parent is not None:
            node.parent.kept |= node.kept
            node.parent.whole = _plus(node.parent.whole, node.whole)
            node.parent.members[1:1] = node.members
    lines: list[ProcessLine] = []
    pending = _siblings([node for node in nodes if node.parent is None], view, None)
    while pending:
        node, guide, indent = pending.pop()
        pid = node.row.pid
        folded = pid in view.folded and bool(node.children)
        figures = node.whole if folded else node.own
        members = tuple(node.members) if folded else (pid,)
        lines.append(ProcessLine(node.row, guide, members, len(node.children), folded, *figures, node.matches))
        if not folded:
            pending += _siblings(node.children, view, indent)
    return tuple(lines)


def _nodes(snapshot: Snapshot, view: View) -> list[_Node]:
    """All processes, each after its parent."""
    wall, cpu = _times(snapshot, view)
    rows = {process.pid: process for process in snapshot.processes}
    children: dict[int, list[ProcessRow]] = {}
    tops: list[ProcessRow] = []
    for process in rows.values():
        if process.ppid in rows and process.ppid != process.pid:
            children.setdefault(process.ppid, []).append(process)
        else:
            tops.append(process)
    wanted = view.process_filter.casefold()
    nodes: list[_Node] = []
    seen: set[int] = set()
    for top in (*tops, *rows.values()):  # a reused pid can make a circle of parents, which has no top
        pending: list[tuple[ProcessRow, _Node | None]] = [(top, None)]
        while pending:
            process, parent = pending.pop()
            pid = process.pid
            if pid in seen:
                continue
            seen.add(pid)
            own = (wall.get(pid, 0), cpu.get(pid, 0), process.gpu_ns)
            matches = wanted in f"{process.name} {process.pid_pair} {' '.join(process.command)}".casefold()
            kept = matches and (process.alive or not view.hide_ended)
            node = _Node(process, parent, [], matches, kept, own, own, [pid])
            nodes.append(node)
            if parent is not None:
                parent.children.append(node)
            pending += [(child, node) for child in children.get(pid, ())]
    return nodes


def _times(snapshot: Snapshot, view: View) -> tuple[dict[int, int], dict[int, int]]:
    """Wall time of all threads, and the time that they ran, by pid."""
    corrected = view.shows_corrected(snapshot)
    wall: dict[int, int] = {}
    cpu: dict[int, int] = {}
    for row in snapshot.operations:
        pid = row.pid
        wall[pid] = wall.get(pid, 0) + sum(row.corrected_ns if corrected else row.category_ns)
        cpu[pid] = cpu.get(pid, 0) + row.state_ns[ThreadState.RUNNING]
    return wall, cpu


def _plus(left: tuple[int, int, int], right: tuple[int, int, int]) -> tuple[int, int, int]:
    return left[0] + right[0], left[1] + right[1], left[2] + right[2]


def _siblings(nodes: Sequence[_Node], view: View, indent: str | None) -> list[tuple[_Node, str, str]]:
    """What of them is shown, last first, with its tree lines and those of its children. `indent` None: top."""
    kept = sorted((node for node in nodes if node.kept), key=lambda node: node.row.pid)
    if view.process_sort is ProcessSort.NAME:
        kept.sort(key=lambda node: node.row.name.casefold())
    elif view.process_sort is not ProcessSort.PID:
        kept.sort(key=lambda node: _figure(node, view.process_sort), reverse=True)
    if view.process_reverse:
        kept.reverse()
    found: list[tuple[_Node, str, str]] = []
    for node in reversed(kept):
        if indent is None:
            found.append((node, "", ""))
        else:
            last = not found
            found.append((node, indent + ("└ " if last else "├ "), indent + ("  " if last else "│ ")))
    return found


def _figure(node: _Node, sort: ProcessSort) -> float:
    """A parent stands where its whole subtree belongs, as operations do."""
    wall_ns, cpu_ns, gpu_ns = node.whole
    if sort is ProcessSort.TIME:
        return wall_ns
    return (cpu_ns if sort is ProcessSort.CPU else gpu_ns) / max(1, node.row.end_ns - node.row.start_ns)


def family(snapshot: Snapshot, pid: int) -> frozenset[int]:
    """A process and all that descend from it."""
    whole = process_lines(snapshot, View(folded=frozenset([pid])))
    return next((frozenset(line.members) for line in whole if line.row.pid == pid), frozenset([pid]))


def toggled(chosen: frozenset[int] | None, pids: Iterable[int]) -> frozenset[int] | None:
    """The choice with these added, or taken away if all of them were in it; None (all) instead of nothing."""
    some = frozenset(pids)
    before = chosen or frozenset()
    return (before - some if some <= before else before | some) or None
