"""A scrolling table that draws only the rows in view, and a block of fixed lines: the two widgets of every screen."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from rlscope_ebpf.tui.columns import GAP, Column, fit
from rlscope_ebpf.tui.palette import Palette
from rlscope_ebpf.tui.spans import Line, Span, fitted

Cell = Line | Callable[[int], Line]
"""What stands in a column: a line, or a function of the column's width that makes one."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row. A row with `text` spans all columns instead of having cells."""

    key: Hashable = None  # the same row in the next refresh; None: cannot be selected
    cells: dict[str, Cell] | Callable[[], dict[str, Cell]] = field(default_factory=dict)  # made when it is in view
    text: Line | None = None


class Paint(Widget):
    """What both widgets need: lines into strips, with the theme's styles."""

    def palette(self) -> Palette:
        """Styles of the current theme; follows a change of theme."""
        name = self.app.theme
        cached: tuple[str, Palette] | None = getattr(self, "_palette", None)
        if cached is None or cached[0] != name:
            cached = (name, Palette(self.app.theme_variables, self.app.current_theme.dark))
            self._palette = cached
        return cached[1]

    def strip(self, line: Line, width: int, under: Style | None = None) -> Strip:
        """The line in `width` cells over the widget's background."""
        palette = self.palette()
        base = self.rich_style if under is None else self.rich_style + under
        segments = [Segment(span.text, base + palette.style(span.role)) for span in fitted(line, width) if span.text]
        return Strip(segments, width)


class Lines(Paint):
    """A block of lines, as high as it has lines."""

    DEFAULT_CSS = """
    Lines { height: auto; width: 1fr; }
    """

    def __init__(self, make: Callable[[int], list[Line]], *, id: str | None = None, margin: int = 1) -> None:
        """`make` gets the width in cells and returns the lines."""
        super().__init__(id=id)
        self._make = make
        self._margin = margin
        self._lines: list[Line] = []

    def update(self) -> None:
        """Make the lines again."""
        lines = self._make(max(0, self.size.width - 2 * self._margin)) if self.size.width else self._lines
        taller = len(lines) != len(self._lines)
        if taller or lines != self._lines:
            self._lines = lines
            self.refresh(layout=taller)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As many rows as lines at this width."""
        self._lines = self._make(max(0, width - 2 * self._margin))
        return len(self._lines)

    def on_resize(self, event: events.Resize) -> None:
        """Another width may take other lines."""
        self.update()

    def render_line(self, y: int) -> Strip:
        """One row."""
        line = self._lines[y] if y < len(self._lines) else []
        return self.strip([Span(" " * self._margin), *line], self.size.width)


class Table(ScrollView, Paint, can_focus=True, inherit_bindings=False):
    """Rows under a heading that stays in place, with one row selected."""

    DEFAULT_CSS = """
    Table {
        height: 1fr;
        width: 1fr;
        background: $background;
        scrollbar-size-vertical: 1;
        overflow-x: hidden;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "cursor(-1)", "Up", id="row.up", show=False, tooltip="Select the row above."),
        Binding("down,j", "cursor(1)", "Down", id="row.down", show=False, tooltip="Select the row below."),
        Binding("pageup", "page(-1)", "Page up", id="row.page_up", show=False, tooltip="One screen up."),
        Binding("pagedown", "page(1)", "Page down", id="row.page_down", show=False, tooltip="One screen down."),
        Binding("enter", "choose", "Choose", id="row.choose", show=False, tooltip="Processes: show only this one."),
    ]

    class Selected(Message):
        """The selection moved to another row."""

        def __init__(self, table: Table) -> None:
            super().__init__()
            self.table = table

        @property
        def control(self) -> Table:
            """The table."""
            return self.table

    class Chosen(Selected):
        """Enter was pressed, or the selected row clicked."""

    def __init__(self, title: str, *, id: str) -> None:
        super().__init__(id=id)
        self.title = title
        self.border_title = title
        self._columns: Sequence[Column] = ()
        self._sorted = ""
        self._mark = ""
        self._rows: Sequence[Row] = ()
        self._cursor: Hashable = None
        self._moved = False  # nobody chose a row yet: the selection stays at the top
        self._layout: tuple[int, list[tuple[Column, int]]] | None = None

    @property
    def rows(self) -> Sequence[Row]:
        """What is shown."""
        return self._rows

    @property
    def selected(self) -> Hashable:
        """Key of the selected row; None if there is no row to select."""
        return self._cursor

    def show(self, columns: Sequence[Column], rows: Sequence[Row], *, sorted_by: str = "", mark: str = "") -> None:
        """Replace the contents; a selection that was made stays on its row.

        `mark` stands beside the title of the column `sorted_by`.
        """
        self._columns, self._rows, self._sorted, self._mark = columns, rows, sorted_by, mark
        self._layout = None
        keys = [row.key for row in rows if row.key is not None]
        if not self._moved or self._cursor not in keys:
            self._cursor = keys[0] if keys else None
        self.virtual_size = Size(self.scrollable_content_region.width, len(rows) + 1)
        self.refresh()

    def on_resize(self, event: events.Resize) -> None:
        """Columns depend on the width."""
        self._layout = None
        self.virtual_size = Size(self.scrollable_content_region.width, len(self._rows) + 1)
        self._reveal()

    def columns_shown(self) -> list[tuple[Column, int]]:
        """The columns that fit, with their widths."""
        width = max(0, self.scrollable_content_region.width - 2)
        if self._layout is None or self._layout[0] != width:
            self._layout = (width, fit(self._columns, width))
        return self._layout[1]

    def render_line(self, y: int) -> Strip:
        """The heading, or the row that is scrolled to this place."""
        width = self.scrollable_content_region.width
        if y == 0:
            return self.strip([Span(" "), *self._heading()], width)
        index = y - 1 + int(self.scroll_offset.y)
        if index >= len(self._rows):
            return self.strip([], width)
        row = self._rows[index]
        selected = row.key is not None and row.key == self._cursor
        under = self._cursor_style() if selected else None
        if row.text is not None:
            return self.strip([Span(" "), *row.text], width, under)
        mark = Span("▌" if selected and self.has_focus else " ", "key")
        line: Line = [mark]
        found = row.cells() if callable(row.cells) else row.cells
        for number, (column, cells) in enumerate(self.columns_shown()):
            if number:
                line.append(Span(" " * GAP))
            cell = found.get(column.key, [])
            line += fitted(cell(cells) if callable(cell) else cell, cells, right=column.right)
        return self.strip(line, width, under)

    def _cursor_style(self) -> Style:
        return self.palette().style("cursor" if self.has_focus else "cursor-away")

    def _heading(self) -> Line:
        line: Line = []
        for number, (column, cells) in enumerate(self.columns_shown()):
            if number:
                line.append(Span(" " * GAP))
            chosen = column.key == self._sorted and self._mark
            title = column.title if column.scale is None else column.scale(cells)
            title = f"{title}{self._mark}" if chosen else title
            line += fitted([Span(title, "sorted" if chosen else "heading")], cells, right=column.right)
        return line

    def _selectable(self) -> list[int]:
        return [index for index, row in enumerate(self._rows) if row.key is not None]

    def _move(self, steps: int) -> None:
        places = self._selectable()
        if not places:
            return
        now = next((n for n, index in enumerate(places) if self._rows[index].key == self._cursor), 0)
        target = places[max(0, min(len(places) - 1, now + steps))]
        if self._rows[target].key != self._cursor:
            self._moved = True
            self._cursor = self._rows[target].key
            self.post_message(self.Selected(self))
        self._reveal(target)
        self.refresh()

    def _reveal(self, index: int | None = None) -> None:
        if index is None:
            index = next((n for n, row in enumerate(self._rows) if row.key is not None and row.key == self._cursor), 0)
        visible = max(1, self.scrollable_content_region.height - 1)
        top = int(self.scroll_offset.y)
        if index in self._selectable()[:1]:
            self.scroll_to(y=0, animate=False)  # also shows lines above it that cannot be selected
        elif index < top:
            self.scroll_to(y=index, animate=False)
        elif index >= top + visible:
            self.scroll_to(y=index - visible + 1, animate=False)

    def action_cursor(self, steps: int) -> None:
        """Select another row; scroll where rows cannot be selected."""
        if self._selectable():
            self._move(steps)
        else:
            self.scroll_relative(y=steps, animate=False)

    def action_page(self, direction: int) -> None:
        """A screen up or down."""
        self.action_cursor(direction * max(1, self.scrollable_content_region.height - 2))

    def action_choose(self) -> None:
        """Enter."""
        if self._cursor is not None:
            self.post_message(self.Chosen(self))

    def on_click(self, event: events.Click) -> None:
        """Select the row under the pointer; choose it if it was selected."""
        place = event.get_content_offset(self)
        if place is None or place.y == 0:
            return
        index = place.y - 1 + int(self.scroll_offset.y)
        if index < len(self._rows) and self._rows[index].key is not None:
            if self.pressed(self._rows[index], *self._column_at(place.x), with_control=event.ctrl):
                return
            if self._rows[index].key == self._cursor:
                self.action_choose()
                return
            self._moved = True
            self._cursor = self._rows[index].key
            self.post_message(self.Selected(self))
            self.refresh()

    def pressed(self, row: Row, column: str, place: int, *, with_control: bool) -> bool:
        """Whether a click into a column ("": beside all), `place` cells from its left, means something of its own."""
        return False

    def _column_at(self, x: int) -> tuple[str, int]:
        left = 1
        for column, cells in self.columns_shown():
            if left <= x < left + cells:
                return column.key, x - left
            left += cells + GAP
        return "", 0

    def watch_has_focus(self, _has_focus: bool) -> None:
        """The selection looks different in focus."""
        super().watch_has_focus(_has_focus)
        self.refresh(Region(0, 0, self.size.width, self.size.height))
