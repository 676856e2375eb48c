"""What a report says of the time on and off the CPU, and how far the kernel's own accounts agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import RenderableType
from rich.text import Text

from rlscope_ebpf.analysis.breakdown import Operation, Phase
from rlscope_ebpf.model import format as fmt
from rlscope_ebpf.model.accounting import Accounting
from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.model.figures import ACTIVITIES, by_activity
from rlscope_ebpf.report.tables import NOTHING, WIDE, add_figures, new_table

Share = Callable[[float], str]

BLOCKED = ACTIVITIES[2:]
LITTLE = 0.005
"""Categories with less than this of an operation's time have no line."""

_FIGURES = 48  # columns of the table beside its names
_NAMES = {"running": "ran", "runnable": "waited for a CPU", "disk": "waited for files"}


def activities(phase: Phase, width: int, share: Share, operations: int) -> Iterator[RenderableType]:
    """Per operation, and per category in which it was for long: on a CPU, waiting for one, blocked and for what."""
    shown = [operation for operation in phase.operations[:operations] if _waits(operation)]
    if not shown:
        return
    wide = width >= WIDE
    found = new_table(gap=2 if wide else 1)
    found.add_column("ON AND OFF CPU", no_wrap=True, overflow="ellipsis", min_width=12)
    for title in (
        ("TIME", "ON CPU", "WAITS FOR CPU", "BLOCKED") if wide else ("TIME", "ON\nCPU", "WAITS\nFOR CPU", "BLOCKED")
    ):
        add_figures(found, title)
    found.add_column("BLOCKED FOR" if wide else "FOR", overflow="fold")
    for operation in shown:
        total = operation.total
        name, room = fmt.path(total.path), max(12, width - _FIGURES - (16 if wide else 0))
        name = name if len(name) <= room else "…" + name[1 - room :]  # what tells paths apart is at their end
        found.add_row(name, *_figures(total.activities_ns, share, wide))
        used = [category for category in Category if total.category_ns[category] > LITTLE * operation.wall_ns]
        if len(used) > 1:
            for category in used:
                parts = by_activity(total.activity_ns, category)
                found.add_row(Text(f"  {fmt.CATEGORY_LABELS[category]}", "dim"), *_figures(parts, share, wide))
    yield Text()
    yield found


def _waits(operation: Operation) -> bool:
    parts = operation.total.activities_ns
    return parts["running"] < operation.wall_ns


def _figures(parts: dict[str, int], share: Share, wide: bool) -> tuple[str, ...]:
    of_ns, blocked = sum(parts.values()), sum(parts[name] for name in BLOCKED)
    kinds = sorted((name for name in BLOCKED if parts[name]), key=lambda name: -parts[name])
    what = (", " if wide else "\n").join(f"{fmt.ACTIVITY_LABELS[name]} {share(parts[name] / of_ns)}" for name in kinds)
    figures = (share(ns / of_ns) if ns else NOTHING for ns in (parts["running"], parts["runnable"], blocked))
    return fmt.duration(of_ns), *figures, what


def agreement(found: Accounting) -> Text:
    """How far the kernel's accounts of the same threads say the same."""
    text = Text(f"of {fmt.plural_exact(found.threads, 'thread')}, as the kernel accounts for them (TaskStats): ")
    text.append(", ".join(f"{_NAMES[each.name]} {fmt.duration(each.accounted_ns)}" for each in found.compared))
    text.append("; what is told here is off by ")
    text.append(", ".join(fmt.percent(each.off) for each in found.compared))
    if found.left_out:
        text.append(f"; {fmt.plural_exact(found.left_out, 'thread')} could not be compared")
    if not found.agrees:
        text.stylize("yellow")
        text.append(": do not rely on times on and off the CPU")
    return text
