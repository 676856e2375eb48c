"""The lines around the tables: header, legend, choices, details, hints. Snapshot and view in, lines out."""

from __future__ import annotations

from collections.abc import Sequence

from rlscope_ebpf.live.snapshot import ProcessRow, Snapshot
from rlscope_ebpf.model import format as fmt
from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.model.gpu import is_unused
from rlscope_ebpf.model.session import SessionInfo
from rlscope_ebpf.model.tables import ImportantNotice
from rlscope_ebpf.tui.bars import FILLS, meter
from rlscope_ebpf.tui.figures import RESOURCES, OperationLine, OperationTable, View, calibrated
from rlscope_ebpf.tui.source import ReplayState
from rlscope_ebpf.tui.spans import Line, Span, cut, flow, width_of

_DOT = Span(" · ", "faint")
_BAR = Span("  ", "faint")
NOTICES_SHOWN = 2
_ROOMY = 110  # cells from which the legend need not be terse

GPU_SENTENCES = {
    "cupti": "GPU times from CUPTI",
    "simulated": "GPU times from a simulated driver",
    "off": "GPU times switched off",
    "unavailable": "GPU times unavailable",
}
"""What the header says about the GPU, by `SessionInfo.gpu`."""


def _whole_percent(fraction: float) -> str:
    return f"{fraction * 100:.0f} %"


def badge(snapshot: Snapshot | None, paused: bool, replay: ReplayState | None) -> Span:
    """What the screen is showing, in one word."""
    if paused:
        return Span(" PAUSED ", "badge-paused")
    if replay is not None:
        if replay.loading:
            return Span(f" READING {_whole_percent(replay.read)} ", "badge-replay")
        return Span(" REPLAY " if replay.playing else " TRACE ", "badge-replay")
    if snapshot is None:
        return Span(" ATTACHING ", "badge-final")
    return Span(" FINISHED ", "badge-final") if snapshot.finished else Span(" LIVE ", "badge-live")


def header(
    snapshot: Snapshot | None, view: View, title: str, width: int, *, paused: bool, replay: ReplayState | None
) -> list[Line]:
    """Whose figures these are, for how long, and how far they can be trusted."""
    state = badge(snapshot, paused, replay)
    if snapshot is None:
        return [_spread([Span(title, "strong")], [state], width)]
    process = _shown_process(snapshot, view)
    clock: Line = [Span(fmt.clock(snapshot.elapsed_ns), "strong"), Span("  "), state]
    who: Line = [Span(title, "key"), Span("  ")]
    if process is not None:
        who += [Span(fmt.printable(process.name), "strong"), Span(f"  pid {process.pid_text}", "text")]
    others = (len(snapshot.processes) if view.pids is None else len(view.pids)) - 1
    if others > 0:
        who.append(Span(f"  and {fmt.plural(others, 'more process', 'more processes')}", "dim"))
    lines = [_spread(who, clock, width)]
    if process is not None and process.command:
        # The interpreter's folder would push what matters out of sight; the processes panel has it.
        command = " ".join([process.command[0].rpartition("/")[2], *process.command[1:]])
        lines.append([Span(cut(fmt.printable(command), width), "dim")])
    lines += flow([*_progress(process), *_trust(snapshot)], width, _DOT)
    missing = fmt.losses(snapshot.losses)
    if missing:
        items = [
            [Span(cut(f"Losses: {missing}.", width), "error")],
            [Span(fmt.consequence(snapshot.losses), "error")],
        ]
        lines += flow(items, width, Span(" "), lines=1)
    return lines


def _shown_process(snapshot: Snapshot, view: View) -> ProcessRow | None:
    chosen = [process for process in snapshot.processes if view.takes_pid(process.pid)]
    return next(iter(chosen or snapshot.processes), None)


def _progress(process: ProcessRow | None) -> list[Line]:
    if process is None or not process.steps:
        return []
    step: Line = [Span("step ", "dim"), Span(f"{process.step:,}", "text")]
    if process.total_steps:
        share = process.step / process.total_steps
        step += [Span(f" of {process.total_steps:,} ", "dim"), *meter(share, 8), Span(f" {fmt.percent(share)}", "dim")]
    return [step]


def _trust(snapshot: Snapshot) -> list[Line]:
    counters, info = snapshot.counters, snapshot.info
    items: list[Line] = [[Span(fmt.count(round(snapshot.events_per_s)), "text"), Span(" events/s", "dim")]]
    if counters.probes_attached:
        armed = f"{counters.probes_armed:,} of {counters.probes_attached:,}"
        complete = counters.probes_armed >= counters.probes_attached - counters.probes_shed
        item = [Span(armed, "text" if complete else "warning"), Span(" probes armed", "dim")]
        if counters.probes_shed:
            item += [Span(", ", "dim"), Span(f"{counters.probes_shed:,}", "warning"), Span(" taken off", "dim")]
        items.append(item)
    else:
        items.append([Span("no probes yet", "warning")])
    if not fmt.losses(snapshot.losses):
        items.append([Span("no losses", "good")])
    how = "calibrated" if calibrated(snapshot) else "not calibrated"
    overhead = fmt.percent(snapshot.overhead_fraction)
    if snapshot.overhead_plausible:
        items.append([Span("overhead ", "dim"), Span(overhead, "text"), Span(f" ({how})", "dim")])
    else:
        items.append([Span("overhead ", "dim"), Span(f"{overhead} (estimate cannot be right)", "warning")])
    if says_gpu(snapshot):
        items.append([Span(gpu_sentence(info), "dim")])
    return items


def says_gpu(snapshot: Snapshot) -> bool:
    """Whether anything is to be said of a GPU: not where none is used."""
    return not is_unused(snapshot.info.gpu, snapshot.info.gpu_reason) or bool(snapshot.cuda_calls)


def gpu_sentence(info: SessionInfo) -> str:
    """Where GPU times come from, or why there are none; without a full stop."""
    sentence = GPU_SENTENCES.get(info.gpu, f"GPU: {info.gpu}")
    if info.gpu_reason:
        sentence += f": {info.gpu_reason.rstrip('.')}"
    return fmt.printable(sentence)


def _spread(left: Line, right: Line, width: int) -> Line:
    """One piece at each end; the left one is cut where they meet."""
    room = max(0, width - width_of(right) - 1)
    kept: Line = []
    for span in left:
        text = cut(span.text, room - width_of(kept))
        kept.append(Span(text, span.role))
    return [*kept, Span(" " * (width - width_of(kept) - width_of(right))), *right]


def legend(table: OperationTable | None, view: View, width: int) -> list[Line]:
    """Pattern, colour and name of every category, with its part of the whole."""
    items: list[Line] = []
    roomy = width >= _ROOMY
    for category in Category:
        ns = table.total_category_ns[category] if table else 0
        whole = table.total_ns if table else 0
        part = ns / whole if whole else 0.0
        share = fmt.percent(part) if roomy or 0 < part < 0.01 else f"{part * 100:.0f} %"
        items.append(
            [
                Span(FILLS[category] * (3 if roomy else 1), f"bar-{category.name}"),
                Span(f" {fmt.CATEGORY_LABELS[category]} ", "text" if ns else "dim"),
                Span(fmt.duration(ns) if view.times else share, f"ink-{category.name}" if ns else "faint"),
            ]
        )
    return flow(items, width, _BAR, lines=2)


def choices(snapshot: Snapshot | None, view: View, width: int, *, processes: bool = False) -> list[Line]:
    """What is shown and in which order, as far as keys can change it; `processes`: they are about these."""
    order, descending = view.sort.value, view.descending
    if processes:
        order, descending = view.process_sort.value, view.processes_descending
    items: list[Line] = [
        [Span("sort ", "dim"), Span(f"{order} {'▼' if descending else '▲'}", "text")],
        [Span("phase ", "dim"), _chosen("all" if view.phase is None else fmt.printable(view.phase), view.phase)],
        _processes_shown(snapshot, view),
        [Span(_correction(snapshot, view), "text" if view.corrected is None else "key")],
        [Span("with nested" if view.inclusive else "self time", "key" if view.inclusive else "text")],
    ]
    if view.filter:
        items.insert(0, [Span("filter ", "dim"), Span(f"“{cut(fmt.printable(view.filter), 24)}”", "warning")])
    if view.process_filter:
        text = cut(fmt.printable(view.process_filter), 24)
        items.insert(0, [Span("only processes ", "dim"), Span(f"“{text}”", "warning")])
    if view.hide_ended:
        items.insert(0, [Span("ended ones hidden", "key")])
    return flow(items, width, _DOT, lines=1)


def _processes_shown(snapshot: Snapshot | None, view: View) -> Line:
    """All, one by name, or how many of how many."""
    if view.pids is None:
        return [Span("process ", "dim"), Span("all", "text")]
    rows = snapshot.processes if snapshot else ()
    if len(view.pids) > 1:
        return [Span("processes ", "dim"), Span(f"{len(view.pids)} of {len(rows)}", "key")]
    process = next((process for process in rows if process.pid in view.pids), None)
    if process is None:
        return [Span("process ", "dim"), Span(f"{min(view.pids)}", "key")]
    name = cut(f" {fmt.printable(process.name)}", 20)
    return [Span("process ", "dim"), Span(f"{process.pid_pair}{name}", "key")]


def _correction(snapshot: Snapshot | None, view: View) -> str:
    """Whether the probes' cost has been taken out of the figures. Costs that were not measured are not."""
    if snapshot is None or not view.shows_corrected(snapshot):
        return "raw"
    return "corrected" if calibrated(snapshot) else "raw (not calibrated: nothing to correct with)"


def _chosen(text: str, value: object) -> Span:
    return Span(text, "text" if value is None else "key")


def tabs(titles: Sequence[str], active: int) -> Line:
    """The names of the panels."""
    line: Line = []
    for number, title in enumerate(titles):
        line.append(Span(f" {title} ", "tab-active" if number == active else "tab"))
    return line


def details(line: OperationLine | None, width: int, *, lines: int = 2) -> list[Line]:
    """Every figure of the selected operation, also those whose column did not fit."""
    if line is None:
        return []
    name = fmt.path(line.path)
    items: list[Line] = [[Span(cut(name, max(12, width // 2)), "strong")]]
    wall = line.wall_ns
    for category in sorted(Category, key=lambda category: -line.category_ns[category]):
        ns = line.category_ns[category]
        if ns:
            items.append(
                [
                    Span(f"{fmt.CATEGORY_LABELS[category]} ", f"ink-{category.name}"),
                    Span(f"{fmt.duration(ns)} {fmt.percent(ns / wall)}", "text"),
                    *([Span(f" {fmt.error(off_ns / wall)}", "dim")] if (off_ns := line.off_ns(category)) else []),
                ]
            )
    total = sum(line.activity_ns)
    for activity, ns in line.activities_ns.items():
        if ns:
            items.append([Span(f"{fmt.ACTIVITY_LABELS[activity]} ", "dim"), Span(fmt.percent(ns / total), "text")])
    items += _gpu_details(line)
    if line.open_now:
        items.append([Span("open now ", "dim"), Span(fmt.count(line.open_now), "text")])
    return flow(items, width, _BAR, lines=lines, indent=2)


def _gpu_details(line: OperationLine) -> list[Line]:
    """The GPU's work for the operation, and what was busy in its time; nothing where there is no GPU."""
    items: list[Line] = []
    if line.gpu_ns:
        work = f"{fmt.duration(line.gpu_ns)} in {fmt.count(line.gpu_activities)}" if line.gpu_activities else ""
        items.append([Span("GPU ", "dim"), Span(work or fmt.duration(line.gpu_ns), "text")])
    if line.queued:
        items.append([Span("queued ", "dim"), Span(fmt.duration(line.queued_ns / line.queued), "text")])
    parts = dict(zip(RESOURCES, line.resources_ns, strict=False))
    if parts.get("cpu_gpu") or parts.get("gpu_only"):
        whole = sum(parts.values())
        items += [
            [Span(f"{RESOURCES[name]} ", "dim"), Span(fmt.percent(ns / whole), "text")]
            for name, ns in parts.items()
            if ns and name in ("cpu_gpu", "gpu_only")
        ]
    return items


def _keyed(text: str) -> Line:
    """Words between backticks stand out."""
    return [Span(part, "key" if number % 2 else "dim") for number, part in enumerate(text.split("`")) if part]


def hint(
    snapshot: Snapshot | None, table: OperationTable | None, view: View, replay: ReplayState | None = None
) -> list[Line]:
    """What to do about an empty screen; nothing if it is not empty."""
    if replay is not None and replay.loading and not (snapshot and any(row.wall_ns for row in snapshot.operations)):
        return [_keyed(f"Reading the trace: {_whole_percent(replay.read)}")]
    if snapshot is None or table is None:
        return [_keyed("Waiting for the first events…")]
    if not snapshot.operations:
        if snapshot.finished or (snapshot.processes and not any(process.alive for process in snapshot.processes)):
            return [[Span("The process exited before it made an event.", "text")], _keyed("Press `q` to leave.")]
        return [
            [Span("Waiting for the first events…", "text")],
            _keyed("Nothing has happened at the probes yet: the process may sleep, or wait for others."),
            _keyed("A native program without markers shows nothing; see `rlscope-ebpf doctor --pid`."),
        ]
    if not table.lines:
        if view.filter:
            return [
                [Span(f"No operation is called like “{fmt.printable(view.filter)}”.", "text")],
                _keyed("Press `esc` to clear the filter."),
            ]
        return [[Span("Nothing happened in this phase and process yet.", "text")], _keyed("`p` phase, `P` process.")]
    if table.only_untracked and not view.filter and view.phase is None:
        return [
            [Span("No operation marker seen yet: all time is (untracked).", "text")],
            _keyed("To see it by operation, mark the training loop:"),
            _keyed("    `import rlscope_ebpf.markers as rls`"),
            _keyed('    `with rls.operation("inference"): ...`'),
        ]
    return []


def notice(snapshot: Snapshot | None, width: int, *, closing: bool = False, replay: bool = False) -> list[Line]:
    """What the profiler has to say, as far as there is room, and that the end is reached.

    First whatever changes how figures are to be read, then the latest of the rest; two sentences at most.
    """
    lines: list[Line] = []
    if snapshot is None:
        return lines
    important = [text for text in snapshot.notices if isinstance(text, ImportantNotice)]
    others = [text for text in snapshot.notices if not isinstance(text, ImportantNotice)]
    shown = [*important, *others[-1:]][:NOTICES_SHOWN]
    more = len(snapshot.notices) - len(shown)
    for text in shown:
        tail = f"  ({more} more: e)" if more and text is shown[-1] else ""
        sentence = cut(fmt.printable(text), max(0, width - len(tail) - 2))
        lines.append([Span("! ", "warning"), Span(sentence, "text"), Span(tail, "dim")])
    if snapshot.finished and not replay:
        why = "The process has exited" if _all_gone(snapshot) else "Profiling has ended"
        after = "closing…" if closing else "these are the final figures. Press q to leave."
        lines.append([Span("■ ", "key"), Span(f"{why}: {after}", "text")])
    return lines


def _all_gone(snapshot: Snapshot) -> bool:
    return bool(snapshot.processes) and not any(process.alive for process in snapshot.processes)


def replay_bar(state: ReplayState, width: int) -> list[Line]:
    """Where the replay is."""
    left: Line = [
        Span("▶ " if state.playing else "❚❚ ", "key"),
        Span(fmt.clock(state.position_ns), "strong"),
        Span(f" / {fmt.clock(state.duration_ns)} " if state.duration_ns else " ", "dim"),
    ]
    right: Line = [Span(f" {state.speed:g}x", "strong"), Span("  space ←/→ 1-9 home end", "dim")]
    room = width - width_of(left) - width_of(right)
    if room < 8:
        right = right[:1]
        room = width - width_of(left) - width_of(right)
    return [[*left, *meter(state.fraction, max(0, room)), *right]]
