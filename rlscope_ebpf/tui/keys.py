"""The keys of the screen, and how they are listed."""

from __future__ import annotations

from collections.abc import Iterable

from textual.binding import Binding, BindingType

KEYS: tuple[BindingType, ...] = (
    Binding("q", "quit", "Quit", id="quit", tooltip="Leave; the profiler detaches, the process runs on."),
    Binding("ctrl+c", "quit", "Quit", id="interrupt", show=False, priority=True, tooltip="Leave, like q."),
    Binding("question_mark", "help", "Help", id="help", key_display="?", tooltip="Keys and words."),
    Binding("space", "pause", "Pause", id="pause", tooltip="Freeze the figures; profiling goes on."),
    Binding("tab", "panel(1)", "Panel", id="panel.next", priority=True, tooltip="Next panel."),
    Binding(
        "shift+tab", "panel(-1)", "Previous panel", id="panel.previous", show=False, priority=True,
        tooltip="Previous panel.",
    ),
    Binding("s", "sort", "Sort", id="sort", tooltip="Order by total time (with nested), count, mean or name; processes "
            "by pid, time, CPU, GPU or name."),
    Binding("r", "reverse", "Reverse", id="reverse", tooltip="Turn the order round."),
    Binding("slash", "filter", "Filter", id="filter", key_display="/",
            tooltip="Only operations with this in the name; in the panels of processes, only such processes."),
    Binding("p", "phase", "Phase", id="phase", tooltip="All phases, then each phase."),
    Binding("P", "process", "Process", id="process", tooltip="All processes, then each process."),
    Binding("u", "unit", "%/time", id="unit", tooltip="Parts as percentages or as times."),
    Binding("c", "corrected", "Corrected", id="corrected", tooltip="With or without the probes' estimated cost."),
    Binding("i", "inclusive", "Nested", id="inclusive", tooltip="Operations alone, or with those nested in them."),
    Binding("b", "bars", "Bars", id="bars", tooltip="Bars as long as their time, or all in full length."),
    Binding("w", "window", "Window", id="window", show=False,
            tooltip="Columns of the timeline: a quarter, half or whole second each."),
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
)  # fmt: skip

REPLAY_ACTIONS = frozenset({"seek", "jump", "speed", "faster"})
CLOSED_TO_MODALS = frozenset({"panel"})
IN_REPLAY = {"quit": "Leave.", "pause": "Play, or stop."}
"""What such keys do in a replay."""


def bindings(found: Iterable[BindingType]) -> list[Binding]:
    """Those that have a name."""
    return [binding for binding in found if isinstance(binding, Binding) and binding.id is not None]


def key_of(binding: Binding) -> str:
    """As people read it."""
    return binding.key_display or " ".join(binding.key.split(","))


def key_groups(
    rows: Iterable[BindingType], processes: Iterable[BindingType], *, replay: bool
) -> dict[str, list[tuple[str, str]]]:
    """Keys and what they do, by group; `rows` are those of tables, `processes` those of panels of processes."""
    groups: dict[str, list[tuple[str, str]]] = {"Keys": [], "Processes": []}
    if replay:
        groups["Replay"] = []
    for binding in bindings((*KEYS, *rows, *processes)):
        name = binding.id or ""
        group = {"replay": "Replay", "process": "Processes"}.get(name.partition(".")[0], "Keys")
        if group in groups and not name.startswith("replay.speed_"):
            what = IN_REPLAY.get(name, binding.tooltip) if replay else binding.tooltip
            groups[group].append((key_of(binding), what))
    if replay:
        groups["Replay"].append(("1 … 9", "That many times as fast."))
    return groups
