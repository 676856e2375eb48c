"""What a benchmark measures: the figures it promises, the samples behind each, and how they are shown.

Every promised figure comes out: with its samples, or as "not measured" and the reason.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure should reach: a fixed limit, or the median of another figure of the same benchmark."""

    kind: Literal["at most", "at least", "less than", "within"]
    limit: float | str  # str: key of the other figure

    def is_met(self, value: float, limit: float) -> bool:
        """Whether a median reaches it. "within": so far from 1 at most."""
        if self.kind == "within":
            return abs(value - 1) <= limit
        if self.kind == "less than":
            return value < limit
        return value <= limit if self.kind == "at most" else value >= limit


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table."""

    key: str
    what: str
    unit: str
    digits: int = 0
    goal: Goal | None = None


class Results:
    """Samples by figure, filled by a benchmark; what it leaves out counts as not measured."""

    def __init__(self, figures: Sequence[Figure]) -> None:
        self.figures = tuple(figures)
        self.samples: dict[str, list[float]] = {figure.key: [] for figure in figures}
        self.reasons: dict[str, str] = {}
        if len(self.samples) != len(self.figures):
            raise ValueError("two figures have the same key")

    def add(self, key: str, *values: float) -> None:
        """Add samples. Raises KeyError for a figure that was not promised."""
        self.samples[key].extend(values)

    def not_measured(self, reason: str, *keys: str) -> None:
        """Say why these figures (none named: all that have no sample yet) are missing. The first reason stays."""
        for key in keys or [key for key, values in self.samples.items() if not values]:
            self.reasons.setdefault(key, reason)

    def reason(self, key: str) -> str | None:
        """Why a figure is missing; None if it was measured."""
        if self.samples[key]:
            return None
        return self.reasons.get(key, "the benchmark ended without it")

    def median(self, key: str) -> float | None:
        """Of its samples; None if there are none."""
        values = self.samples[key]
        return statistics.median(values) if values else None

    @property
    def missing(self) -> int:
        """Figures not measured."""
        return sum(not values for values in self.samples.values())

    def verdict(self, figure: Figure) -> str:
        """The goal and whether it was met; "" without a goal."""
        goal = figure.goal
        if goal is None:
            return ""
        if isinstance(goal.limit, str):
            other = next(each for each in self.figures if each.key == goal.limit)
            limit, text = self.median(goal.limit), f"{goal.kind} {other.what}"
        else:
            limit = goal.limit
            text = f"within {limit:.0%}" if goal.kind == "within" else f"{goal.kind} {as_limit(limit)}"
        value = self.median(figure.key)
        if value is None or limit is None:
            return f"{text}: not known"
        return f"{text}: {'met' if goal.is_met(value, limit) else 'MISSED'}"


@dataclass(frozen=True, slots=True)
class Effort:
    """How much a benchmark should do: `quick` runs show that everything works, their figures are rough."""

    quick: bool

    def of(self, full: int, quick: int) -> int:
        """A count."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A group of figures measured together. `remarks` say how, for whoever reads the table."""

    name: str
    title: str
    figures: tuple[Figure, ...]
    measure: Callable[[Results, Effort], None]
    remarks: tuple[str, ...] = field(default=())
    by_name_only: bool = False  # takes long: only run when asked for


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Two of the values, between which the median lies in 95 % of all cases or more, whatever their distribution.

    NaN for less than 6 values, of which no two do.
    """
    ordered, count = sorted(values), len(values)
    left, outside = -1, 0.0
    while outside + math.comb(count, left + 1) / 2**count <= 0.025 and left + 1 < count / 2:
        left += 1
        outside += math.comb(count, left) / 2**count
    return (ordered[left], ordered[count - 1 - left]) if left >= 0 else (math.nan, math.nan)


def as_limit(value: float) -> str:
    """1.06 → "1.06", 2e6 → "2,000,000": a goal is not rounded as what is measured is."""
    return f"{value:,.3f}".rstrip("0").rstrip(".")


def number(value: float, digits: int = 0) -> str:
    """1234567.8 → "1,234,568"."""
    if digits == 0 and value != round(value) and abs(value) < 10:
        digits = 1
    return f"{value:,.{digits}f}"


HEADINGS = ("", "median", "unit", "lowest", "highest", "samples", "goal")
_TO_THE_RIGHT = frozenset({1, 3, 4, 5})


def rows(results: Results) -> list[tuple[str, ...]]:
    """Cells of the table, one row a figure, as `HEADINGS` names them."""
    table: list[tuple[str, ...]] = []
    for figure in results.figures:
        reason = results.reason(figure.key)
        if reason is not None:
            table.append((figure.what, f"not measured: {reason}"))
            continue
        values = results.samples[figure.key]
        shown = [number(value, figure.digits) for value in (statistics.median(values), min(values), max(values))]
        if len(values) == 1:
            shown[1:] = ["", ""]
        table.append(
            (figure.what, shown[0], figure.unit, shown[1], shown[2], str(len(values)), results.verdict(figure))
        )
    return table


def as_text(title: str, table: Iterable[tuple[str, ...]], widths: Sequence[int]) -> str:
    """Rows under a title, columns as wide as told; a reason takes all columns but the first."""
    lines = [title]
    for cells in table:
        if len(cells) == 2:
            lines.append(f"  {cells[0].ljust(widths[0])}  {cells[1]}")
            continue
        padded = (
            cell.rjust(width) if column in _TO_THE_RIGHT else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        lines.append(("  " + "  ".join(padded)).rstrip())
    return "\n".join(lines) + "\n"


def widths_of(tables: Iterable[Iterable[tuple[str, ...]]]) -> list[int]:
    """Width of each column over all tables."""
    widths = [len(heading) for heading in HEADINGS]
    for table in tables:
        for cells in table:
            widths[0] = max(widths[0], len(cells[0]))
            if len(cells) == len(HEADINGS):
                widths = [max(width, len(cell)) for width, cell in zip(widths, cells, strict=True)]
    return widths


def as_markdown(table: Iterable[tuple[str, ...]]) -> str:
    """The same as a Markdown table."""
    marks = ("---:" if column in _TO_THE_RIGHT else "---" for column in range(len(HEADINGS)))
    lines = [f"| {' | '.join(HEADINGS)} |", f"| {' | '.join(marks)} |"]
    for cells in table:
        full = (*cells, *[""] * (len(HEADINGS) - len(cells)))
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in full)} |")
    return "\n".join(lines) + "\n"
