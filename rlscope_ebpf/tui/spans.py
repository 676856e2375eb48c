"""Lines of text with roles instead of colours; what draws them looks the roles up in the theme."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size


class Span(NamedTuple):
    """A piece of a line."""

    text: str
    role: str = ""  # a role of palette.Palette


Line = list[Span]


def width_of(line: Iterable[Span]) -> int:
    """Cells that the line takes."""
    return sum(cell_len(span.text) for span in line)


def plain(line: Iterable[Span]) -> str:
    """The line without roles."""
    return "".join(span.text for span in line)


def cut(text: str, width: int) -> str:
    """`text` in at most `width` cells, with an ellipsis at its end if cut."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + "…" if width > 0 else ""


def fitted(line: Iterable[Span], width: int, *, right: bool = False) -> Line:
    """The line in exactly `width` cells: padded, or cut with an ellipsis."""
    spans = list(line)
    free = width - width_of(spans)
    if free >= 0:
        padding = Span(" " * free)
        return [padding, *spans] if right else [*spans, padding]
    kept: Line = []
    left = width
    for span in spans:
        size = cell_len(span.text)
        if size < left:
            kept.append(span)
            left -= size
            continue
        text = cut(span.text + "…", left)
        kept.append(Span(text + " " * (left - cell_len(text)), span.role))
        break
    return kept


def flow(items: Sequence[Line], width: int, separator: Span, *, lines: int = 10_000, indent: int = 0) -> list[Line]:
    """Items one after the other, as many on a line as fit; what does not fit into `lines` lines is left out."""
    found: list[Line] = []
    used = 0
    for item in items:
        size = width_of(item)
        gap = cell_len(separator.text)
        if found and used + gap + size <= width:
            found[-1] += [separator, *item]
            used += gap + size
        elif len(found) < lines:
            margin = " " * (indent if found else 0)
            found.append([Span(margin), *item] if margin else list(item))
            used = len(margin) + size
        else:
            break
    return found
