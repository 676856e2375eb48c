"""Stacked bars out of characters. Every category has a pattern of its own besides its colour."""

from __future__ import annotations

from collections.abc import Sequence

from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.tui.spans import Line, Span

FILLS: dict[Category, str] = {
    Category.PYTHON: "█",
    Category.SIMULATOR: "\N{BOX DRAWINGS LIGHT DIAGONAL UPPER RIGHT TO LOWER LEFT}",
    Category.BACKEND: "▒",
    Category.CUDA_API: "━",
    Category.OTHER: "·",
}
"""The pattern of each category: tells them apart where colours do not."""


def apportion(values: Sequence[int], cells: int) -> tuple[int, ...]:
    """`cells` shared out in proportion to `values`: the largest remainders get the cells that rounding left over."""
    total = sum(values)
    if total <= 0 or cells <= 0:
        return (0,) * len(values)
    shares = [value * cells // total for value in values]
    by_remainder = sorted(range(len(values)), key=lambda index: -(values[index] * cells % total))
    for index in by_remainder[: cells - sum(shares)]:
        shares[index] += 1
    return tuple(shares)


def stacked_bar(category_ns: Sequence[int], cells: int, labels: Sequence[str] = ()) -> Line:
    """A bar of `cells` cells, one stretch per category; a label stands in its stretch where there is room for it."""
    bar: Line = []
    for category, length in zip(Category, apportion(category_ns, cells), strict=True):
        if not length:
            continue
        label = f" {labels[category]} " if labels else ""
        fill = FILLS[category]
        if label and len(label) <= length - 2:
            before = (length - len(label)) // 2
            bar.append(Span(fill * before, f"bar-{category.name}"))
            bar.append(Span(label, f"label-{category.name}"))
            bar.append(Span(fill * (length - len(label) - before), f"bar-{category.name}"))
        else:
            bar.append(Span(fill * length, f"bar-{category.name}"))
    return bar


def meter(fraction: float, cells: int, role: str = "meter") -> Line:
    """A plain progress bar."""
    done = round(max(0.0, min(1.0, fraction)) * cells)
    return [Span("━" * done, role), Span("─" * (cells - done), "faint")]
