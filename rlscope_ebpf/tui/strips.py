"""Lines that can be clicked: the panels' names, and the keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual import events
from textual.message import Message

from rlscope_ebpf.tui import texts
from rlscope_ebpf.tui.spans import Line, Span, plain, width_of
from rlscope_ebpf.tui.table import Lines


class TabStrip(Lines):
    """The panels' names; a click shows a panel."""

    class Clicked(Message):
        """A name was clicked."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    def __init__(self, names: Callable[[], tuple[Sequence[str], int]], *, id: str) -> None:
        """`names` returns the titles and which of them is shown."""
        super().__init__(lambda width: [texts.tabs(*names())], id=id, margin=0)
        self._names = names

    def on_click(self, event: events.Click) -> None:
        """Which name is under the pointer."""
        edge = self._margin
        titles, _ = self._names()
        for index in range(len(titles)):
            edge += len(plain(texts.tabs(titles[index : index + 1], 0)))
            if event.x < edge:
                self.post_message(self.Clicked(index))
                return


class KeyBar(Lines):
    """The keys, as many as fit; a click on one is like pressing it.

    Textual's own footer makes a widget per key and makes them all anew when the focus moves, which is slower than
    everything else on this screen together.
    """

    def __init__(self, keys: Callable[[], list[tuple[str, str, str]]], *, id: str) -> None:
        """`keys` returns (key, what it does, action) in order of importance."""
        super().__init__(self._fitting, id=id)
        self._keys = keys
        self._places: list[tuple[int, str]] = []

    def _fitting(self, width: int) -> list[Line]:
        line: Line = []
        self._places = []
        for key, what, action in self._keys():
            item: Line = [*([Span("  ")] if line else []), Span(key, "key"), Span(f" {what}", "text")]
            if width_of([*line, *item]) <= width:
                line += item
                self._places.append((self._margin + width_of(line), action))
        return [line]

    async def on_click(self, event: events.Click) -> None:
        """The key under the pointer."""
        for edge, action in self._places:
            if event.x < edge:
                await self.app.run_action(action)
                return
