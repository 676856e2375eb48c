"""The screen of a live session, or of a trace that is replayed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

from textual import events
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.theme import BUILTIN_THEMES
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input

from rlscope_ebpf.live.snapshot import Snapshot
from rlscope_ebpf.tui import texts
from rlscope_ebpf.tui.cells import FiguresPanel
from rlscope_ebpf.tui.figures import OperationLine, OperationTable, View, cycle, operation_table
from rlscope_ebpf.tui.help import TextScreen, help_lines, message_lines
from rlscope_ebpf.tui.keys import CLOSED_TO_MODALS, KEYS, REPLAY_ACTIONS, bindings, key_groups, key_of
from rlscope_ebpf.tui.layout import LOWER, PANELS, SHORT_TITLES, Arrangement, arrange, facts_of
from rlscope_ebpf.tui.loop import IterationsPanel
from rlscope_ebpf.tui.panels import CallsPanel, GpuPanel, OperationsPanel, TransitionsPanel, WaitsPanel
from rlscope_ebpf.tui.processes import ProcessesPanel, ProcessRows, TimelinePanel
from rlscope_ebpf.tui.source import ReplaySource, ReplayState, SnapshotSource
from rlscope_ebpf.tui.spans import Line
from rlscope_ebpf.tui.strips import KeyBar, TabStrip
from rlscope_ebpf.tui.table import Lines, Table
from rlscope_ebpf.tui.terminal import TerminalDriver
from rlscope_ebpf.tui.tree import family, process_lines, toggled

REFRESH_S = 0.5
REPLAY_REFRESH_S = 0.1
CLOSE_AFTER_S = 1.5
"""How long the final figures stay when the screen closes by itself."""

SEEK_STEP = 0.02
SPEED_LIMITS = (0.25, 64.0)
WIDEST_CELL = 4
"""Buckets of the timeline per column; each narrower one is half as wide."""
ROOMY_HEIGHT = 20
"""From so many rows on the command line and the details of the selected operation are shown."""

LOW_HEIGHT = 16
"""Below this many rows most lines around the panel are left out, so that some of its own are seen."""

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
    #panels, #main { height: 1fr; }
    #main { width: 1fr; }
    #lower { height: 1fr; min-height: 12; }
    #operations { height: auto; min-height: 10; max-height: 65%; }
    #right { width: 1fr; height: 1fr; }
    #calls { height: 1fr; min-height: 6; }
    #processes { height: 1fr; }
    #processes.beside { border-right: vkey $foreground 25%; }
    .dashboard #processes.beside { border: round $foreground 25%; }
    .dashboard Table { border: round $foreground 25%; border-title-color: $foreground 70%; padding: 0; }
    .dashboard Table:focus { border: round $accent; border-title-color: $accent; }
    .single #operations, .single #calls { height: 1fr; max-height: 100%; }
    .dashboard.alone #operations { height: 1fr; max-height: 100%; }
    #filter { height: 1; border: none; padding: 0 1; background: $surface; display: none; }
    #filter.open { display: block; }
    Table, VerticalScroll {
        scrollbar-color: $foreground 30%; scrollbar-color-hover: $foreground 50%; scrollbar-color-active: $accent;
        scrollbar-background: $background; scrollbar-background-hover: $background;
        scrollbar-background-active: $background;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = list(KEYS)

    def __init__(
        self,
        source: SnapshotSource,
        *,
        title: str = "rlscope-ebpf",
        exit_when_finished: bool = False,
        refresh_s: float = REFRESH_S,
        theme: str = "textual-dark",
    ) -> None:
        super().__init__(driver_class=TerminalDriver)
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
        self._arranged: Arrangement | None = None
        self._typing = False  # the filter's line is open
        self._filters_processes = False  # or operations
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
        """Ids of the panels that can be gone to now."""
        return self.arrangement.reachable

    @property
    def arrangement(self) -> Arrangement:
        """Where panels are to be."""
        return arrange(*self.size, self._active, self._zoomed, facts_of(self.snapshot))

    @property
    def _mounted(self) -> bool:
        return bool(self.query("#operations"))

    @property
    def dashboard(self) -> bool:
        """Whether most panels are shown at once."""
        return self.arrangement.dashboard

    def compose(self) -> ComposeResult:
        """Header, panels, lines below them, footer."""
        yield Lines(self._header_lines, id="header")
        yield TabStrip(self._tabs, id="tabs")
        yield Lines(lambda width: texts.legend(self._table, self.view, width), id="legend")
        with Horizontal(id="panels"):
            yield ProcessesPanel(PANELS["processes"], id="processes")
            with Vertical(id="main"):
                yield OperationsPanel(PANELS["operations"], id="operations")
                yield Lines(self._detail_lines, id="details")
                yield WaitsPanel(PANELS["waits"], id="waits")
                with Horizontal(id="lower"):
                    yield TransitionsPanel(PANELS["transitions"], id="transitions")
                    with Vertical(id="right"):
                        yield CallsPanel(PANELS["calls"], id="calls")
                        yield GpuPanel(PANELS["gpu"], id="gpu")
                        yield IterationsPanel(PANELS["iterations"], id="iterations")
                yield TimelinePanel(PANELS["timeline"], id="timeline")
        yield Lines(self._notice_lines, id="notice")
        yield Lines(self._choice_lines, id="choices")
        yield Lines(self._replay_lines, id="replay")
        yield Input(placeholder="part of an operation's name", id="filter", compact=True)
        yield KeyBar(self._keys_shown, id="keys")

    def _tabs(self) -> tuple[Sequence[str], int]:
        panels = self.panels
        titles = [PANELS[name] for name in panels]
        if sum(len(title) + 2 for title in titles) > self.size.width:
            titles = [SHORT_TITLES.get(name, PANELS[name]) for name in panels]
        return titles, panels.index(self._active) if self._active in panels else 0

    def _header_lines(self, width: int) -> list[Line]:
        lines = texts.header(
            self.snapshot, self.view, self.title, width, paused=self.paused, replay=self._replay_state()
        )
        if self.size.height >= ROOMY_HEIGHT:
            return lines
        return lines[:1] + (lines[2:] if self.size.height >= LOW_HEIGHT else lines[2:][-1:])  # the last tells of losses

    def _detail_lines(self, width: int) -> list[Line]:
        return texts.details(self._selected_operation(), width)

    def _choice_lines(self, width: int) -> list[Line]:
        return texts.choices(self.snapshot, self.view, width, processes=self._among_processes)

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
        if self._arranged != self.arrangement or self._active not in self.panels:  # others came, or a replay went back
            self._arrange()
            return
        snapshot = self.snapshot
        replay = self._replay_state()
        operations = self.query_one("#operations", OperationsPanel)
        if snapshot is None:
            operations.fill(OperationTable(), self.view, texts.hint(None, None, self.view, replay))
        else:
            self._table = operation_table(snapshot, self.view)
            if operations.display:
                operations.fill(self._table, self.view, texts.hint(snapshot, self._table, self.view, replay))
            for panel in self.query(FiguresPanel):
                if panel.display:
                    panel.fill(snapshot, self.view, self._table)
        for lines in self.screen_stack[0].query(Lines):
            lines.update()

    def _arrange(self) -> None:
        """Show the panels that fit."""
        if not self._mounted:
            return
        if self._active not in self.panels:
            self._active = "calls" if self._active == "gpu" and "calls" in self.panels else "operations"
        found = self._arranged = self.arrangement
        self.query_one("#calls", CallsPanel).with_gpu = found.dashboard
        container = self.query_one("#panels")
        container.set_class(found.dashboard, "dashboard")
        container.set_class(not found.dashboard, "single")
        container.set_class(not found.shown & LOWER, "alone")
        for name in PANELS:
            self.query_one(f"#{name}").display = name in found.shown
        processes = self.query_one("#processes")
        processes.set_class(bool(found.side), "beside")
        processes.styles.width = found.side or "1fr"
        self.query_one("#timeline").styles.height = found.timeline or "1fr"
        self.query_one("#main").display = found.shown != {"processes"}
        self.query_one("#right").display = bool(found.shown & (LOWER - {"transitions"}))
        self.query_one("#lower").display = bool(found.shown & LOWER)
        self.query_one("#tabs").display = not found.dashboard
        shown = found.shown
        high = self.size.height >= LOW_HEIGHT
        self.query_one("#legend").display = bool(shown & {"operations", "timeline"}) and high
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
        if action in REPLAY_ACTIONS:
            return self._replay is not None
        if action in CLOSED_TO_MODALS:
            return len(self.screen_stack) == 1
        if action == "clear":
            return bool(self.view.filter or self.view.process_filter) or self._typing
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

    @property
    def _among_processes(self) -> bool:
        """Whether the keys are about the rows of processes."""
        return self._active in ("processes", "timeline")

    def action_sort(self) -> None:
        """Next order."""
        if self._among_processes:
            self._look(replace(self.view, process_sort=self.view.process_sort.next))
        else:
            self._look(replace(self.view, sort=self.view.sort.next))

    def action_reverse(self) -> None:
        """The other way round."""
        if self._among_processes:
            self._look(replace(self.view, process_reverse=not self.view.process_reverse))
        else:
            self._look(replace(self.view, reverse=not self.view.reverse))

    def action_phase(self) -> None:
        """Next phase."""
        phases: Sequence[str] = self.snapshot.phases if self.snapshot else ()
        self._look(replace(self.view, phase=cycle(phases, self.view.phase)))

    def action_process(self) -> None:
        """Next process, in the order of the tree."""
        pids = [line.row.pid for line in process_lines(self.snapshot, self.view)] if self.snapshot else []
        now = min(self.view.pids) if self.view.pids and len(self.view.pids) == 1 else None
        if self.view.pids is not None and now is None:  # from several to all
            self._choose(None)
        else:
            following = cycle(pids, now)
            self._choose(None if following is None else frozenset([following]))

    def _choose(self, pids: frozenset[int] | None) -> None:
        self._look(replace(self.view, pids=pids))

    def action_window(self) -> None:
        """Wider or narrower pieces of time."""
        self._look(replace(self.view, cell_buckets=self.view.cell_buckets % WIDEST_CELL * 2 or 1))

    def on_process_rows_act(self, message: ProcessRows.Act) -> None:
        """A key of a row of the process tree."""
        view, snapshot, pid = self.view, self.snapshot, message.pid
        if snapshot is None:
            return
        match message.what:
            case "mark" if pid is not None:
                self._choose(toggled(view.pids, self._members(pid)))
            case "family" if pid is not None:
                self._choose(toggled(view.pids, family(snapshot, pid)))
            case "all":
                self._choose(None)
            case "fold" if pid is not None:
                self._look(replace(view, folded=toggled(view.folded, [self._parent_of(pid)]) or frozenset()))
            case "fold_all":
                parents = frozenset(process.ppid for process in snapshot.processes if process.ppid is not None)
                self._look(replace(view, folded=frozenset() if view.folded else parents))
            case "ended":
                self._look(replace(view, hide_ended=not view.hide_ended))

    def _members(self, pid: int) -> Sequence[int]:
        """The processes that the row of this one stands for."""
        lines = process_lines(self.snapshot, self.view) if self.snapshot else ()
        return next((line.members for line in lines if line.row.pid == pid), (pid,))

    def _parent_of(self, pid: int) -> int:
        """The process itself if others descend from it, else its parent, so that a leaf can be folded away."""
        rows = self.snapshot.processes if self.snapshot else ()
        if any(row.ppid == pid for row in rows):
            return pid
        return next((row.ppid for row in rows if row.pid == pid and row.ppid is not None), pid)

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
            (key_of(binding), binding.description, binding.action)
            for binding in bindings(KEYS)
            if binding.show and self.check_action(binding.action, ())
        ]
        if self._among_processes:
            own = [(key_of(key), key.description, key.action) for key in bindings(ProcessRows.BINDINGS) if key.show]
            keys[4:4] = [("enter", "Only this", "only"), *own]
        return sorted(keys, key=lambda key: key[2] != "clear")  # what ends a filter comes first

    async def action_act(self, what: str) -> None:
        """A click on a key of the processes' panels."""
        self.query_one(f"#{self._active}", ProcessRows).action_act(what)

    def action_only(self) -> None:
        """A click on enter."""
        self.query_one(f"#{self._active}", Table).action_choose()

    def _keys(self) -> dict[str, list[tuple[str, str]]]:
        return key_groups(Table.BINDINGS, ProcessRows.BINDINGS, replay=self._replay is not None)

    # Filter

    @property
    def _filter_input(self) -> Input:
        return self.query_one("#filter", Input)

    def action_filter(self) -> None:
        """Type a part of a name."""
        self._typing = True
        self._filters_processes = self._among_processes
        box = self._filter_input
        box.placeholder = f"part of {'a process' if self._filters_processes else 'an operation'}'s name"
        with box.prevent(Input.Changed):
            box.value = self.view.process_filter if self._filters_processes else self.view.filter
        box.add_class("open")
        box.focus()
        self.query_one("#keys", KeyBar).update()

    def action_clear(self) -> None:
        """No filter."""
        with self._filter_input.prevent(Input.Changed):
            self._filter_input.value = ""
        if self._typing:
            self._close_filter()
            self._filtered("")
        else:
            self._look(replace(self.view, filter="", process_filter=""))

    def _filtered(self, text: str) -> None:
        if self._filters_processes:
            self._look(replace(self.view, process_filter=text))
        else:
            self._look(replace(self.view, filter=text))

    def _close_filter(self) -> None:
        self._typing = False
        self._filter_input.remove_class("open")
        self.query_one(f"#{self.active_panel}", Table).focus()
        self.query_one("#keys", KeyBar).update()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Every letter counts."""
        self._filtered(event.value.strip())

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
        """A chosen process is shown alone (a folded one with what is in it); chosen again, all are."""
        pid = message.table.selected
        if isinstance(message.table, ProcessRows) and isinstance(pid, int):
            members = frozenset(self._members(pid))
            self._choose(None if self.view.pids == members else members)

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
