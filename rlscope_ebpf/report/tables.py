"""How tables of a text report look."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

WIDE = 140
"""Columns from which an operation is one line."""

NOTHING = "-"
"""In place of a figure where there is nothing to measure."""


def new_table(gap: int = 2) -> Table:
    """A table without lines."""
    return Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="bold")


def add_figures(found: Table, title: str, style: str = "") -> None:
    """Add a column of figures."""
    found.add_column(Text(title, style, justify="right"), justify="right", no_wrap=True)
