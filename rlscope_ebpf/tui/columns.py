"""Which columns fit a width: they are left out in a defined order, and what is left shares the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

GAP = 1
"""Blank cells between two columns."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. Widths are in cells."""

    key: str
    title: str
    width: int  # the least it needs
    right: bool = True  # figures are aligned to the right, texts to the left
    drop: int = 0  # 0: always there; the largest number goes first, equal ones together
    grow: int = 0  # its part of the cells left over
    comfortable: int = 0  # optional columns (`drop` >= OPTIONAL) must leave it so much
    limit: int = 10_000  # never wider
    scale: Callable[[int], str] | None = None  # makes a title of its width


OPTIONAL = 10
"""From this `drop` on a column is there only where the growing ones keep their comfortable width."""


def fit(columns: Sequence[Column], width: int) -> list[tuple[Column, int]]:
    """The columns that fit into `width` cells, in their order, with the width each gets."""
    kept = list(columns)
    for drop in sorted({column.drop for column in columns if column.drop}, reverse=True):
        needed = sum(max(c.width, c.comfortable if drop >= OPTIONAL else 0) + GAP for c in kept) - GAP
        if needed > width:
            kept = [column for column in kept if column.drop != drop]
    widths = {column.key: min(column.width, width) for column in kept}
    free = width - sum(widths.values()) - GAP * (len(kept) - 1)
    growing = [column for column in kept if column.grow]
    while free > 0 and growing:
        total = sum(column.grow for column in growing)
        shares = {column.key: max(1, free * column.grow // total) for column in growing}
        for column in growing:
            extra = min(shares[column.key], free, column.limit - widths[column.key])
            widths[column.key] += max(0, extra)
            free -= max(0, extra)
        growing = [column for column in growing if widths[column.key] < column.limit]
    return [(column, widths[column.key]) for column in kept]
