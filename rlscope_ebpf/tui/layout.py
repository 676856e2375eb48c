"""Which panels are on the screen, and where: sizes and facts in, an arrangement out."""

from __future__ import annotations

from dataclasses import dataclass

from rlscope_ebpf.live.snapshot import Snapshot

PANELS = {
    "operations": "Operations",
    "transitions": "Transitions",
    "calls": "CUDA calls",
    "gpu": "GPU",
    "processes": "Processes",
    "timeline": "Timeline",
    "iterations": "Iterations",
    "waits": "Waits",
}
"""Titles of the panels by id, in the order in which tab goes through them. The GPU's is there for who uses one; on a
dashboard the calls' panel stands in. The waits' is not on a dashboard: the selected operation's details have them."""

LOWER = frozenset({"transitions", "calls", "gpu", "iterations"})
"""Those that stand side by side below the operations."""

SHORT_TITLES = {"calls": "Calls"}
"""Where there is little room."""

DASHBOARD_SIZE = (120, 36)
"""From this many columns and rows on most panels are shown at once."""

_BESIDE_WIDTH = 110
"""From so many columns on the tree of processes stands beside the operations, even where one panel is shown."""

_TWO_COLUMNS = 100
"""Two panels side by side need so many."""

_LOWER_HEIGHT = 46
"""Below the operations of several processes there is room for their timeline, and from so many rows for more."""

_TIMELINE_HEIGHT = 42
"""From so many rows on the timeline of a single process is shown."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What there is to show."""

    processes: int = 1
    gpu: bool = False
    cuda: bool = False
    steps: bool = False  # progress was reported

    @property
    def several(self) -> bool:
        """Whether there are processes to choose from."""
        return self.processes > 1


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Where panels are."""

    dashboard: bool
    reachable: tuple[str, ...]  # in the order of PANELS
    shown: frozenset[str]
    side: int = 0  # width of the tree of processes beside the others; 0: it is not beside any
    timeline: int = 0  # rows of the timeline below the others; 0: all there are, if it is shown


def facts_of(snapshot: Snapshot | None) -> Facts:
    """Of a moment."""
    if snapshot is None:
        return Facts()
    return Facts(
        processes=len(snapshot.processes),
        gpu=snapshot.uses_gpu,
        cuda=bool(snapshot.cuda_calls or snapshot.gpu_kernels),
        steps=any(process.steps for process in snapshot.processes),
    )


def arrange(width: int, height: int, active: str, zoomed: bool, facts: Facts) -> Arrangement:
    """The arrangement for a screen of this size on which a panel is `active`."""
    if zoomed or width < DASHBOARD_SIZE[0] or height < DASHBOARD_SIZE[1]:
        reachable = tuple(name for name in PANELS if name != "gpu" or facts.gpu)
        beside = facts.several and not zoomed and width >= _BESIDE_WIDTH and active in ("operations", "processes")
        shown = frozenset({"operations", "processes"} if beside else {active})
        return Arrangement(False, reachable, shown, _side(width, facts) if beside else 0)
    side = _side(width, facts) if facts.several else 0
    shown_there = {"operations"}
    if facts.several:
        shown_there |= {"processes", "timeline"}
    elif height >= _TIMELINE_HEIGHT:
        shown_there.add("timeline")
    if not facts.several or height >= _LOWER_HEIGHT:
        shown_there |= _lower(width - side, height, facts)
    return Arrangement(
        True,
        tuple(name for name in PANELS if name in shown_there),
        frozenset(shown_there),
        side,
        min(facts.processes + 4, height // 3) if facts.several else height // 5,
    )


def _lower(width: int, height: int, facts: Facts) -> set[str]:
    """What stands below the operations."""
    if width < _TWO_COLUMNS:  # an iteration's transitions are told there too
        return {"iterations" if facts.steps else "transitions"}
    if facts.steps and facts.cuda:
        return {"transitions", "calls"} | ({"iterations"} if height >= _LOWER_HEIGHT else set())
    return {"transitions", "iterations" if facts.steps else "calls"}


def _side(width: int, facts: Facts) -> int:
    return max(50 if facts.gpu else 42, min(60, width * 3 // 10))  # a GPU takes a column
