"""The screen of a live session, or of a trace that is replayed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal, Vertical
from textual.message import Message
from textual.theme import BUILTIN_THEMES
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input

from rlscope_ebpf.live.snapshot import Snapshot
from rlscope_ebpf.tui import texts
from rlscope_ebpf.tui.figures import OperationLine, OperationTable, View, cycle, operation_table
from rlscope_ebpf.tui.help import TextScreen, help_lines, message_lines
from rlscope_ebpf.tui.panels import (
    CallsPanel,
    FiguresPanel,
    GpuPanel,
    OperationsPanel,
    ProcessesPanel,
    TransitionsPanel,
    WaitsPanel,
)
from rlscope_ebpf.tui.source import ReplaySource, ReplayState, SnapshotSource
from rlscope_ebpf.tui.spans import Line, Span, plain, width_of
from rlscope_ebpf.tui.table import Lines, Table

REFRESH_S = 0.5
REPLAY_REFRESH_S = 0.1
CLOSE_AFTER_S = 1.5
"""How long the final figures stay when the screen closes by itself."""

SEEK_STEP = 0.02
SPEED_LIMITS = (0.25, 64.0)
DASHBOARD_SIZE = (120, 36)
"""From this many columns and rows on all panels are shown at once."""
ROOMY_HEIGHT = 20
"""From so many rows on the command line and the details of the selected operation are shown."""

LOW_HEIGHT = 16
"""Below this many rows most lines around the panel are left out, so that some of its own are seen."""

PANELS = {
    "operations": "Operations",
    "transitions": "Transitions",
    "calls": "CUDA calls",
    "gpu": "GPU",
    "processes": "Processes",
    "waits": "Waits",
}
"""Titles of the panels by id. That of the GPU is there for who uses one; on a dashboard the calls' panel stands in. The
waits' is not on a dashboard, where the selected operation's details have them."""
THEMES: tuple[str, ...] = tuple(BUILTIN_THEMES)


class SnapshotReady(Message):
    """New figures. A newer message replaces one that was not handled yet."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot

    def can_replace(self, message: Message) -> bool:
        """Only the latest figures matter."""
        return isinstance(message, SnapshotReady)


class SourceFailed(Message):
    """The source raised an error."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


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
            edge += len(plain(texts.tabs(titles[index : index + 1], 0))) + 1
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


class ProfilerApp(App[None]):
    """Shows the snapshots of a source until the user quits.

    `run()` returns then; if the source failed, `failure` holds its error. The source's `snapshot()` is called from a
    worker thread, at most one at a time.
    """

    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = "#operations"

    CSS = """
    Screen { layout: vertical; background: $background; }
    Lines { background: $background; }
    #panels { height: 1fr; }
    #lower { height: 1fr; min-height: 12; }
    #operations { height: auto; min-height: 10; max-height: 65%; }
    #right { width: 1fr; height: 1fr; }
    #calls { height: auto; min-height: 6; max-height: 65%; }
    #processes { height: 1fr; min-height: 6; }
    .dashboard Table { border: round $foreground 25%; border-title-color: $foreground 70%; padding: 0; }
    .dashboard Table:focus { border: round $accent; border-title-color: $accent; }
    .single #lower, .single #operations, .single #waits, .single #calls, .single #gpu, .single #processes {
        height: 1fr; max-height: 100%;
    }
    #filter { height: 1; border: none; padding: 0 1; background: $surface; display: none; }
    #filter.open { display: block; }
    Table, VerticalScroll {
        scrollbar-color: $foreground 30%; scrollbar-color-hover: $foreground 50%; scrollbar-color-active: $accent;
        scrollbar-background: $background; scrollbar-background-hover: $background;
        scrollbar-background-active: $background;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit", id="quit", tooltip="Leave; the profiler detaches, the process runs on."),
        Binding("ctrl+c", "quit", "Quit", id="interrupt", show=False, priority=True, tooltip="Leave, like q."),
        Binding("question_mark", "help", "Help", id="help", key_display="?", tooltip="Keys and words."),
        Binding("space", "pause", "Pause", id="pause", tooltip="Freeze the figures; profiling goes on."),
        Binding("tab", "panel(1)", "Panel", id="panel.next", priority=True, tooltip="Next panel."),
        Binding(
            "shift+tab", "panel(-1)", "Previous panel", id="panel.previous", show=False, priority=True,
            tooltip="Previous panel.",
        ),
        Binding("s", "sort", "Sort", id="sort", tooltip="Order by total time (with nested), count, mean or name."),
        Binding("r", "reverse", "Reverse", id="reverse", tooltip="Turn the order round."),
        Binding("slash", "filter", "Filter", id="filter", key_display="/",
                tooltip="Only operations with this in the name."),
        Binding("p", "phase", "Phase", id="phase", tooltip="All phases, then each phase."),
        Binding("P", "process", "Process", id="process", tooltip="All processes, then each process."),
        Binding("u", "unit", "%/time", id="unit", tooltip="Parts as percentages or as times."),
        Binding("c", "corrected", "Corrected", id="corrected", tooltip="With or without the probes' estimated cost."),
        Binding("i", "inclusive", "Nested", id="inclusive", tooltip="Operations alone, or with those nested in them."),
        Binding("b", "bars", "Bars", id="bars", tooltip="Bars as long as their time, or all in full length."),
        Binding("z", "zoom", "Zoom", id="zoom", tooltip="All panels at once, or one (on a large screen)."),
        Binding("e", "messages", "Messages", id="messages", tooltip="All notices, losses and counters."),
        Binding("t", "theme", "Theme", id="theme", tooltip="Next colour theme."),
        Binding("T", "theme(-1)", "Previous theme", id="theme.previous", show=False, tooltip="Previous colour theme."),
        Binding("escape", "clear", "Clear", id="clear", key_display="esc", tooltip="Clear the filter."),
        Binding("left", "seek(-1)", "Back", id="replay.back", show=False, tooltip="2 % back."),
        Binding("right", "seek(1)", "Forward", id="replay.forward", show=False, tooltip="2 % forward."),
        Binding("shift+left", "seek(-5)", "Far back", id="replay.far_back", show=False, tooltip="10 % back."),
        Binding("shift+right", "seek(5)", "Far forward", id="replay.far_forward", show=False, tooltip="10 % forward."),
        Binding("home", "jump(0)", "Start", id="replay.start", show=False, tooltip="Play from the start."),
        Binding("end", "jump(1)", "End", id="replay.end", show=False, tooltip="The whole trace."),
        *(
            Binding(str(n), f"speed({n})", f"{n}x", id=f"replay.speed_{n}", show=False, tooltip=f"{n} times as fast.")
            for n in range(1, 10)
        ),
        Binding("plus,equals_sign", "faster(2)", "Faster", id="replay.faster", show=False, key_display="+",
                tooltip="Twice as fast."),
        Binding("minus", "faster(0.5)", "Slower", id="replay.slower", show=False, key_display="-",
                tooltip="Half as fast."),
    ]  # fmt: skip

    _REPLAY_ACTIONS = frozenset({"seek", "jump", "speed", "faster"})
    _IN_REPLAY: ClassVar[dict[str, str]] = {"quit": "Leave.", "pause": "Play, or stop."}  # what such keys do there
    _CLOSED_TO_MODALS = frozenset({"panel"})

    def __init__(
        self,
        source: SnapshotSource,
        *,
        title: str = "rlscope-ebpf",
        exit_when_finished: bool = False,
        refresh_s: float = REFRESH_S,
        theme: str = "textual-dark",
    ) -> None:
        super().__init__()
        self.title = title
        self.theme = theme
        self.failure: Exception | None = None
        self.view = View()
        self._source = source
        self._replay = source if isinstance(source, ReplaySource) else None
        self._exit_when_finished = exit_when_finished
        self._refresh_s = refresh_s
        self._latest: Snapshot | None = None
        self._frozen: Snapshot | None = None
        self._table: OperationTable | None = None
        self._active = "operations"
        self._zoomed = False
        self._typing = False  # the filter's line is open
        self._in_flight = False
        self._close_timer: Timer | None = None
        self._stop_asked = False
        self._event_loop: asyncio.AbstractEventLoop | None = None

    # What is shown

    @property
    def snapshot(self) -> Snapshot | None:
        """The figures on the screen."""
        return self._frozen or self._latest

    @property
    def paused(self) -> bool:
        """Whether the figures are frozen."""
        return self._frozen is not None

    @property
    def loading_figures(self) -> bool:
        """Whether a replay is still reading its way to the place that was asked for."""
        state = self._replay_state()
        return state is not None and state.loading

    @property
    def active_panel(self) -> str:
        """Id of the panel that has the focus."""
        return self._active

    @property
    def panels(self) -> tuple[str, ...]:
        """Ids of the panels that there are now."""
        gpu = self.snapshot is not None and self.snapshot.uses_gpu and not self.dashboard
        missing = {*(() if gpu else ("gpu",)), *(("waits",) if self.dashboard else ())}
        return tuple(name for name in PANELS if name not in missing)

    @property
    def _mounted(self) -> bool:
        return bool(self.query("#operations"))

    @property
    def dashboard(self) -> bool:
        """Whether all panels are shown at once."""
        return not self._zoomed and self.size.width >= DASHBOARD_SIZE[0] and self.size.height >= DASHBOARD_SIZE[1]

    def compose(self) -> ComposeResult:
        """Header, panels, lines below them, footer."""
        yield Lines(self._header_lines, id="header")
        yield TabStrip(self._tabs, id="tabs")
        yield Lines(lambda width: texts.legend(self._table, self.view, width), id="legend")
        with Container(id="panels"):
            yield OperationsPanel(PANELS["operations"], id="operations")
            yield Lines(self._detail_lines, id="details")
            yield WaitsPanel(PANELS["waits"], id="waits")
            with Horizontal(id="lower"):
                yield TransitionsPanel(PANELS["transitions"], id="transitions")
                with Vertical(id="right"):
                    yield CallsPanel(PANELS["calls"], id="calls")
                    yield GpuPanel(PANELS["gpu"], id="gpu")
                    yield ProcessesPanel(PANELS["processes"], id="processes")
        yield Lines(self._notice_lines, id="notice")
        yield Lines(lambda width: texts.choices(self.snapshot, self.view, width), id="choices")
        yield Lines(self._replay_lines, id="replay")
        yield Input(placeholder="part of an operation's name", id="filter", compact=True)
        yield KeyBar(self._keys_shown, id="keys")

    def _tabs(self) -> tuple[Sequence[str], int]:
        panels = self.panels
        return [PANELS[name] for name in panels], panels.index(self._active) if self._active in panels else 0

    def _header_lines(self, width: int) -> list[Line]:
        lines = texts.header(
            self.snapshot, self.view, self.title, width, paused=self.paused, replay=self._replay_state()
        )
        if self.size.height >= ROOMY_HEIGHT:
            return lines
        return lines[:1] + (lines[2:] if self.size.height >= LOW_HEIGHT else lines[2:][-1:])  # the last tells of losses

    def _detail_lines(self, width: int) -> list[Line]:
        return texts.details(self._selected_operation(), width)

    def _notice_lines(self, width: int) -> list[Line]:
        closing = self._close_timer is not None
        return texts.notice(self.snapshot, width, closing=closing, replay=self._replay is not None)

    def _replay_lines(self, width: int) -> list[Line]:
        state = self._replay_state()
        return texts.replay_bar(state, width) if state else []

    def _replay_state(self) -> ReplayState | None:
        return self._replay.state() if self._replay else None

    def _selected_operation(self) -> OperationLine | None:
        chosen = self.query_one("#operations", OperationsPanel).selected
        lines = self._table.lines if self._table else ()
        return next((line for line in lines if line.path == chosen), None)

    def update(self) -> None:
        """Draw the figures again."""
        if not self._mounted:  # a late message: the widgets are gone
            return
        if self._active not in self.panels:  # a replay went back to where no GPU had been used
            self._arrange()
            return
        snapshot = self.snapshot
        replay = self._replay_state()
        operations = self.query_one("#operations", OperationsPanel)
        if snapshot is None:
            operations.fill(OperationTable(), self.view, texts.hint(None, None, self.view, replay))
        else:
            self._table = operation_table(snapshot, self.view)
            operations.fill(self._table, self.view, texts.hint(snapshot, self._table, self.view, replay))
            for panel in self.query(FiguresPanel):
                if panel.display:
                    panel.fill(snapshot, self.view)
        for lines in self.screen_stack[0].query(Lines):
            lines.update()

    def _arrange(self) -> None:
        """Show the panels that fit."""
        if not self._mounted:
            return
        dashboard = self.dashboard
        if self._active not in self.panels:
            self._active = "operations" if self._active == "waits" else "calls"
        self.query_one("#calls", CallsPanel).with_gpu = dashboard
        container = self.query_one("#panels")
        container.set_class(dashboard, "dashboard")
        container.set_class(not dashboard, "single")
        shown = set(PANELS) - {"waits"} if dashboard else {self.active_panel}
        for name in PANELS:
            self.query_one(f"#{name}").display = name in shown
        self.query_one("#gpu").display = "gpu" in shown and not dashboard
        self.query_one("#right").display = bool(shown & {"calls", "gpu", "processes"})
        self.query_one("#lower").display = bool(shown - {"operations", "waits"})
        self.query_one("#tabs").display = not dashboard
        high = self.size.height >= LOW_HEIGHT
        self.query_one("#legend").display = "operations" in shown and high
        self.query_one("#choices").display = high
        self.query_one("#details").display = "operations" in shown and self.size.height >= ROOMY_HEIGHT
        if not self._typing:
            self.query_one(f"#{self.active_panel}", Table).focus()
        self.update()

    # Life

    def on_mount(self) -> None:
        """Begin to ask for figures."""
        self._event_loop = asyncio.get_running_loop()
        if self._stop_asked:
            self.exit()
        self._arrange()
        self.fetch()
        self.set_interval(REPLAY_REFRESH_S if self._replay else self._refresh_s, self.fetch)

    def on_resize(self, event: events.Resize) -> None:
        """Another size may take another arrangement."""
        self.call_after_refresh(self._arrange)

    def stop(self) -> None:
        """Leave soon, as if the user quit. From any thread, also from a signal handler."""
        self._stop_asked = True  # for a screen that is not there yet
        if self._event_loop is not None:
            with suppress(RuntimeError):  # the loop is closed: it has gone already
                self._event_loop.call_soon_threadsafe(self.exit)

    def fetch(self) -> None:
        """Ask for new figures, unless a question is under way."""
        if self._in_flight:
            return
        self._in_flight = True
        self.run_worker(self._ask, thread=True, group="snapshot", exit_on_error=False)

    def _ask(self) -> None:
        """In a worker thread."""
        try:
            snapshot = self._source.snapshot()
        except Exception as error:  # whatever it is, the terminal must come back before it is shown
            self.post_message(SourceFailed(error))
        else:
            self.post_message(SnapshotReady(snapshot))

    def on_snapshot_ready(self, message: SnapshotReady) -> None:
        """Show it, unless the figures are frozen."""
        self._in_flight = False
        self._latest = message.snapshot
        if message.snapshot.finished and self._exit_when_finished and self._close_timer is None and not self._replay:
            self._close_timer = self.set_timer(CLOSE_AFTER_S, self.exit)
        if not self.paused:
            self.update()

    def on_source_failed(self, message: SourceFailed) -> None:
        """Leave; the caller reports the error."""
        self.failure = message.error
        self.exit()

    # Keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Replay keys exist only for a replay, and dialogs keep their own keys."""
        if action in self._REPLAY_ACTIONS:
            return self._replay is not None
        if action in self._CLOSED_TO_MODALS:
            return len(self.screen_stack) == 1
        if action == "clear":
            return bool(self.view.filter) or self._typing
        if action == "filter":
            return not self._typing
        return True

    def _look(self, view: View) -> None:
        self.view = view
        self.update()

    def action_pause(self) -> None:
        """Freeze the figures, or let them go on; in a replay, stop and go."""
        if self._replay:
            if self._replay.state().playing:
                self._replay.pause()
            else:
                self._replay.play()
        else:
            self._frozen = None if self.paused else self._latest
        self.update()

    def action_panel(self, step: int) -> None:
        """Another panel."""
        panels = self.panels
        now = panels.index(self._active) if self._active in panels else 0
        self._show_panel(panels[(now + step) % len(panels)])

    def _show_panel(self, name: str) -> None:
        self._active = name
        self.query_one(f"#{self.active_panel}").display = True
        self.query_one(f"#{self.active_panel}", Table).focus()
        self._arrange()

    def action_zoom(self) -> None:
        """One panel or all."""
        self._zoomed = not self._zoomed
        self._arrange()

    def action_sort(self) -> None:
        """Next order."""
        self._look(replace(self.view, sort=self.view.sort.next))

    def action_reverse(self) -> None:
        """The other way round."""
        self._look(replace(self.view, reverse=not self.view.reverse))

    def action_phase(self) -> None:
        """Next phase."""
        phases: Sequence[str] = self.snapshot.phases if self.snapshot else ()
        self._look(replace(self.view, phase=cycle(phases, self.view.phase)))

    def action_process(self) -> None:
        """Next process."""
        pids = [process.pid for process in self.snapshot.processes] if self.snapshot else []
        self._look(replace(self.view, pid=cycle(pids, self.view.pid)))

    def action_unit(self) -> None:
        """Percentages or times."""
        self._look(replace(self.view, times=not self.view.times))

    def action_corrected(self) -> None:
        """Raw or corrected figures."""
        if self.snapshot:
            self._look(replace(self.view, corrected=not self.view.shows_corrected(self.snapshot)))

    def action_inclusive(self) -> None:
        """Self time, or with nested operations."""
        self._look(replace(self.view, inclusive=not self.view.inclusive))

    def action_bars(self) -> None:
        """Bars in proportion or in full length."""
        self._look(replace(self.view, full_bars=not self.view.full_bars))

    def action_theme(self, step: int = 1) -> None:
        """Another theme."""
        self.theme = THEMES[(THEMES.index(self.theme) + step) % len(THEMES)]

    def action_help(self) -> None:
        """Keys and words."""
        self.push_screen(TextScreen("Help", help_lines(self._keys())))

    def action_messages(self) -> None:
        """Notices, losses, counters."""
        self.push_screen(TextScreen("Messages", message_lines(self.snapshot)))

    def _keys_shown(self) -> list[tuple[str, str, str]]:
        if self._typing:
            return [("enter", "Keep the filter", "keep"), ("esc", "Clear it", "clear")]
        keys = [
            (binding.key_display or binding.key, binding.description, binding.action)
            for binding in self.BINDINGS
            if isinstance(binding, Binding) and binding.show and self.check_action(binding.action, ())
        ]
        return sorted(keys, key=lambda key: key[2] != "clear")  # what ends a filter comes first

    def _keys(self) -> dict[str, list[tuple[str, str]]]:
        groups: dict[str, list[tuple[str, str]]] = {"Keys": []}
        if self._replay:
            groups["Replay"] = []
        for binding in (*self.BINDINGS, *Table.BINDINGS):
            if not isinstance(binding, Binding) or binding.id is None or binding.id.startswith("replay.speed_"):
                continue
            replay = binding.id.startswith("replay.")
            if replay and not self._replay:
                continue
            key = binding.key_display or " ".join(binding.key.split(","))
            what = self._IN_REPLAY.get(binding.id, binding.tooltip) if self._replay else binding.tooltip
            groups["Replay" if replay else "Keys"].append((key, what))
        if self._replay:
            groups["Replay"].append(("1 … 9", "That many times as fast."))
        return groups

    # Filter

    @property
    def _filter_input(self) -> Input:
        return self.query_one("#filter", Input)

    def action_filter(self) -> None:
        """Type a part of a name."""
        self._typing = True
        self._filter_input.add_class("open")
        self._filter_input.focus()
        self.query_one("#keys", KeyBar).update()

    def action_clear(self) -> None:
        """No filter."""
        self._filter_input.value = ""
        self._close_filter()
        self._look(replace(self.view, filter=""))

    def _close_filter(self) -> None:
        self._typing = False
        self._filter_input.remove_class("open")
        self.query_one(f"#{self.active_panel}", Table).focus()
        self.query_one("#keys", KeyBar).update()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Every letter counts."""
        self._look(replace(self.view, filter=event.value.strip()))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter."""
        self.action_keep()

    def action_keep(self) -> None:
        """Keep the filter, back to the rows."""
        self._close_filter()

    # Tables and tabs

    def on_table_selected(self, message: Table.Selected) -> None:
        """Details follow the selection."""
        self.query_one("#details", Lines).update()

    def on_table_chosen(self, message: Table.Chosen) -> None:
        """A chosen process is shown alone; chosen again, all are."""
        pid = message.table.selected
        if message.table.id == "processes" and isinstance(pid, int):
            self._look(replace(self.view, pid=None if self.view.pid == pid else pid))

    def on_tab_strip_clicked(self, message: TabStrip.Clicked) -> None:
        """Show that panel."""
        self._show_panel(self.panels[message.index])

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """A click may give the focus to another panel."""
        widget: Widget = event.widget
        if widget.id in self.panels and widget.id != self.active_panel:
            self._active = widget.id
            self.update()

    # Replay

    def action_seek(self, steps: int) -> None:
        """Forward or back."""
        if self._replay:
            self._replay.seek(max(0.0, min(1.0, self._replay.state().fraction + steps * SEEK_STEP)))
            self.update()

    def action_jump(self, place: int) -> None:
        """To the start (and play) or to the end."""
        if self._replay:
            self._replay.seek(float(place))
            if place == 0:
                self._replay.play()
            self.update()

    def action_speed(self, factor: float) -> None:
        """Seconds of the trace per second."""
        if self._replay:
            self._replay.speed(factor)
            self.update()

    def action_faster(self, factor: float) -> None:
        """Faster or slower."""
        if self._replay:
            slowest, fastest = SPEED_LIMITS
            self._replay.speed(max(slowest, min(fastest, self._replay.state().speed * factor)))
            self.update()
