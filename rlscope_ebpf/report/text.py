"""`report --format text`: the breakdown as tables for a terminal, a pipe or a bug report.

From WIDE columns on, an operation is one line; below, its percentages stand under its name and times. Where nobody
looks (no terminal) the width is WIDE_DEFAULT, so that one line of output is one operation for `grep`.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from rlscope_ebpf.analysis.breakdown import LOSS_LIMIT, Breakdown, Operation, Phase, Process
from rlscope_ebpf.model import format as fmt
from rlscope_ebpf.model.categories import DEFAULT_PHASE, UNTRACKED, Category, ThreadState
from rlscope_ebpf.model.figures import PROCESS_NAME
from rlscope_ebpf.model.gpu import is_unused
from rlscope_ebpf.model.in_place import InPlaceCost
from rlscope_ebpf.model.sampling import CONFIDENCE, spread_ns
from rlscope_ebpf.report import cpu_text, gpu_text, iteration_text, session_text
from rlscope_ebpf.report.tables import NOTHING, WIDE, add_figures, new_table

WIDE_DEFAULT = 160
"""Columns where there is no terminal that tells (COLUMNS overrides)."""

NARROWEST = 60

_SWITCHED = {"boundary": "calls of libraries", "gil": "the interpreter lock"}
"""Probes that were set and taken off in turns, for people."""

MAX_OPERATIONS = 100
"""Operations shown per phase; the rest is summed up in a line."""

MAX_CALLS = 20
"""CUDA functions shown per process."""

REFUSED = "—"
"""In place of a percentage that cannot be trusted."""

_INSTANCE_FIGURES = 64  # columns of that table beside the operation
_TRANSITION_FIGURES = 52  # columns of the transitions table beside the operation
_SHARE_WIDTH = len("99.9 %")
_ERROR_WIDTH = len("±0.9")
_MAX_INDENT = 8  # levels: beyond, the tree would push the names out

# Okabe and Ito's colours as far as 256-colour terminals have them, readable on dark and light backgrounds.
_COLORS = {
    Category.PYTHON: "color(74)",
    Category.SIMULATOR: "color(172)",
    Category.BACKEND: "color(36)",
    Category.CUDA_API: "color(175)",
    Category.OTHER: "color(245)",
}
_END_REASONS = {
    "detached": "detached",
    "exited": "until the target's end",
    "duration": "for as long as asked",
    "interrupted": "until interrupted",
}

Share = Callable[[float], str]


def print_report(breakdown: Breakdown, file: TextIO, *, source: str = "") -> None:
    """Print the report as `file` allows: colours and the terminal's width on a terminal, neither anywhere else.

    `source` names the trace in the first line.
    """
    if not file.isatty():
        file.write(report_text(breakdown, _asked_width() or WIDE_DEFAULT, source=source))
        return
    console = Console(file=file, highlight=False, markup=False, emoji=False)
    console.width = max(NARROWEST, console.width)
    for part in _report(breakdown, console.width, source):
        console.print(part)


def report_text(breakdown: Breakdown, width: int = WIDE_DEFAULT, *, source: str = "") -> str:
    """The report without colours, in lines of at most `width` characters (NARROWEST or more)."""
    output = io.StringIO()
    console = Console(
        file=output, width=max(NARROWEST, width), highlight=False, markup=False, emoji=False, color_system=None,
        force_terminal=False, legacy_windows=False,
    )  # fmt: skip
    for part in _report(breakdown, console.width, source):
        console.print(part)
    return "".join(line.rstrip() + "\n" for line in output.getvalue().splitlines())


def _asked_width() -> int | None:
    text = os.environ.get("COLUMNS", "")
    return int(text) if text.isdecimal() and text != "0" else None


def _report(breakdown: Breakdown, width: int, source: str) -> Iterator[RenderableType]:
    share: Share = (lambda _: REFUSED) if breakdown.shares_refused else fmt.percent
    yield _header(breakdown, source)
    yield from _warnings(breakdown)
    yield from _notices(breakdown)
    yield from session_text.session(breakdown, width, share)
    yield from gpu_text.shared(breakdown, share)
    empty = [process for process in breakdown.processes if not process.wall_ns] if len(breakdown.processes) > 1 else []
    for process in breakdown.processes:
        if process in empty:
            continue
        yield Text()
        yield _process_line(process)
        if not process.wall_ns:
            yield Text("Nothing of it was recorded.", "dim")
            continue
        for phase in process.phases:
            yield from _phase(process, phase, width, share)
        yield from _cuda_calls(process)
        yield from gpu_text.kernels(process, width)
        yield from gpu_text.copies(process)
        yield from gpu_text.devices(process, share, alone=not gpu_text.is_shared(breakdown))
    if empty:
        names = ", ".join(f"{fmt.printable(process.total.name)} {process.total.info.pid_pair}" for process in empty)
        yield Text()
        yield Text(f"Of {fmt.plural_exact(len(empty), 'process', 'processes')} nothing was recorded: {names}.", "dim")
    if not breakdown.processes:
        yield Text()
        yield Text("The trace holds no process.")
    yield Text()
    yield from _notes(breakdown)


def _header(breakdown: Breakdown, source: str) -> RenderableType:
    info, counters, overhead = breakdown.info, breakdown.counters, breakdown.overhead
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    end = breakdown.end
    how = f", {_END_REASONS.get(end.reason, fmt.printable(end.reason))}" if end is not None else ""
    if source:
        facts.add_row("trace", fmt.printable(source))
    facts.add_row(
        "host",
        f"{fmt.printable(info.host)}, kernel {fmt.printable(info.kernel)}, "
        f"rlscope-ebpf {fmt.printable(info.tool_version)}",
    )
    facts.add_row("recorded", f"{fmt.printable(info.started_at)}, {fmt.duration(breakdown.duration_ns)}{how}")
    probes = f"{counters.probes_armed:,} of {counters.probes_attached:,} armed"
    if counters.probes_shed:
        probes += f", {counters.probes_shed:,} taken off to keep the overhead low"
    facts.add_row("probes", f"{probes}, {fmt.plural(overhead.probe_hits, 'hit')}")
    facts.add_row("events", f"{fmt.count(counters.received)} received, {_losses(breakdown)}")
    if counters.gpu_records:
        facts.add_row("GPU records", _gpu_records(breakdown))
    if counters.samples:
        looks = f"{fmt.count(counters.samples)} looks at running threads"
        facts.add_row("samples", f"{looks}; figures with ± are made of them")
    measured = "costs measured on this host" if overhead.calibrated else "from typical costs: not calibrated here"
    measured += "".join(f"; {each}" for each in map(_in_place, overhead.in_place))
    share = f"{fmt.duration(overhead.estimated_ns)}, {fmt.percent(overhead.fraction)} of the target's wall time"
    share += f" ({measured})"
    if not overhead.plausible:
        share += "; it did not even run for so long, so this estimate cannot be right"
    facts.add_row("overhead", share)
    if breakdown.accounting is not None:
        facts.add_row("scheduler", cpu_text.agreement(breakdown.accounting))
    return facts


def _in_place(cost: InPlaceCost) -> str:
    probes = _SWITCHED.get(cost.probes, fmt.printable(cost.probes))
    windows = (
        f"{cost.measured:.1f} ± {cost.error:.1f} times that in {fmt.plural(cost.windows, 'window')} of this program"
    )
    if cost.is_absurd:
        return f"hits at {probes} seemed to cost {windows}, which cannot be and is not used"
    return f"hits at {probes} cost {windows}, and are charged {cost.in_force:.1f} times"


def _losses(breakdown: Breakdown) -> str:
    losses = breakdown.losses
    serious, all_of_them = fmt.losses(losses), fmt.losses(losses, harmless=True)
    text = all_of_them if serious else ", ".join(filter(None, ("nothing lost", all_of_them)))
    return f"{text} ({fmt.percent(breakdown.loss_fraction)} of the events)" if losses.events else text


def _gpu_records(breakdown: Breakdown) -> str:
    counters, lost = breakdown.counters, breakdown.losses.gpu_records + breakdown.losses.gpu_invalid
    text = f"{fmt.count(counters.gpu_records)} received"
    if counters.gpu_early:
        text += f", {fmt.count(counters.gpu_early)} of work launched before the recording"
    if counters.gpu_inherited:
        text += f", {fmt.count(counters.gpu_inherited)} of work launched for a thread that waited"
    return f"{text}, {fmt.percent(breakdown.gpu_loss_fraction)} lost" if lost else f"{text}, none lost"


def _warnings(breakdown: Breakdown) -> Iterator[RenderableType]:
    style = "bold yellow"
    if not breakdown.complete:
        yield Text()
        yield Text("This trace is not complete; the figures cover what could be read.", style)
        for problem in breakdown.problems:
            yield Text(f"  {fmt.printable(problem)}")
    if breakdown.shares_refused:
        yield Text()
        yield Text(
            f"More than {fmt.percent(LOSS_LIMIT)} of the events were lost, so no percentages are given: what is lost "
            "need not look like what is there. Record again with a lower --max-overhead, which takes probes off.",
            style,
        )

    if breakdown.gpu_loss_fraction > LOSS_LIMIT:
        yield Text()
        yield Text(
            f"{fmt.percent(breakdown.gpu_loss_fraction)} of the GPU's records were lost: its figures are too low.",
            style,
        )


def _notices(breakdown: Breakdown) -> Iterator[RenderableType]:
    """What the profiler had to say meanwhile, and when."""
    if not breakdown.notices:
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True, justify="right")
    table.add_column(overflow="fold")
    for notice in breakdown.notices:
        after = fmt.clock(notice.time_ns - breakdown.info.start_ns)
        table.add_row(f"  {after}", Text(fmt.printable(notice.text), "yellow" if notice.important else ""))
    yield Text()
    yield Text("NOTICES", "bold")
    yield table


def _process_line(process: Process) -> Text:
    total, info = process.total, process.total.info
    line = Text(f"{fmt.printable(total.name)} ", "bold")
    line.append(f"pid {info.pid_text}", "bold")
    facts = [fmt.plural(total.threads, "thread"), f"{fmt.duration(process.wall_ns)} of their time"]
    if total.steps:
        of = f" of {total.total_steps:,}" if total.total_steps else ""
        facts.append(f"{fmt.plural(total.steps, 'step')} reported, the latest {total.step:,}{of}")
    facts += [f"{key}: {value}" for key, value in total.metadata.items() if key != PROCESS_NAME]
    line.append(", " + ", ".join(map(fmt.printable, facts)), "not bold")
    return line


def _phase(process: Process, phase: Phase, width: int, share: Share) -> Iterator[RenderableType]:
    if len(process.phases) > 1 or phase.name != DEFAULT_PHASE:
        part = share(phase.wall_ns / process.wall_ns)
        yield Text()
        yield Text.assemble(
            ("Phase ", "dim"), (fmt.printable(phase.name), "bold"), f", {fmt.duration(phase.wall_ns)}, {part}"
        )
    yield Text()
    yield _operations(phase, width, share)
    hidden = phase.operations[MAX_OPERATIONS:]
    if hidden:
        rest = fmt.duration(sum(operation.wall_ns for operation in hidden))
        yield Text(f"… and {fmt.plural(len(hidden), 'more operation')}, {rest}; --format csv has all of them.", "dim")
    yield from cpu_text.activities(phase, width, share, MAX_OPERATIONS)
    yield from gpu_text.resources(phase, width, share, MAX_OPERATIONS)
    yield from _transitions(phase, width)
    yield from _instances(phase, width)
    for total in process.iterations:
        if total.phase == phase.name:
            yield from iteration_text.iterations(total, width, share)


def _operations(phase: Phase, width: int, share: Share) -> Table:
    wide = width >= WIDE
    sampled = any(operation.total.sampled.time_ns for operation in phase.operations)
    used = [
        category
        for category in Category
        if (wide and not sampled) or any(operation.total.category_ns[category] for operation in phase.operations)
    ]
    nested = wide and any(operation.inclusive_ns != operation.wall_ns for operation in phase.operations)
    table = new_table(gap=2 if wide else 1)
    table.add_column("OPERATION", no_wrap=True, overflow="ellipsis", min_width=12)
    charged = wide and any(any(operation.total.overhead_ns) for operation in phase.operations)
    optional = (("NESTED",) if nested else (), ("CORRECTED",) if charged else ())
    titles = ("COUNT", "MEAN", *optional[0], "WALL", *optional[1], "SHARE", "ON CPU")
    for title in titles if wide else ("COUNT\nMEAN", "WALL\nSHARE"):
        add_figures(table, title)
    for category in used:
        add_figures(table, fmt.CATEGORY_LABELS[category].upper(), _COLORS[category])
    gpu = width >= WIDE_DEFAULT and any(operation.total.gpu_ns for operation in phase.operations)
    if gpu:
        add_figures(table, "GPU")

    def parts(category_ns: Sequence[int], rows: Sequence[Operation]) -> Iterator[str]:
        """Time and share of every category, beside or below each other.

        Where figures are sampled, what counts is the share: it stands there with how far it may be off.
        """
        of_ns = sum(category_ns)
        for category in used:
            ns = category_ns[category]
            if not ns:
                yield NOTHING
                continue
            part, off = share(ns / of_ns), ""
            if sampled and part != REFUSED:
                off_ns = spread_ns([row.total.sampled for row in rows], category)
                off = fmt.error(off_ns / of_ns) if off_ns else ""
            if not wide:
                yield "\n".join(filter(None, (fmt.duration(ns), part, off)))
            elif sampled:
                yield f"{part} {off:<{_ERROR_WIDTH}}"
            else:
                yield f"{fmt.duration(ns)} {part:>{_SHARE_WIDTH}}"

    def on_cpu(state_ns: Sequence[int]) -> str:
        """The part of the time in which threads ran."""
        of_ns = sum(state_ns)
        return share(state_ns[ThreadState.RUNNING] / of_ns) if of_ns else NOTHING

    shown = phase.operations[:MAX_OPERATIONS]
    for operation, guide in zip(shown, _guides(shown), strict=True):
        name = Text.assemble((guide, "dim"), fmt.name(operation.name))
        ran = on_cpu(operation.total.state_ns)
        counted = fmt.count(operation.total.count) if operation.total.path else ""
        mean = fmt.duration(operation.mean_ns) if operation.mean_ns is not None else ""
        wall, part = fmt.duration(operation.wall_ns), share(operation.share)
        if wide:
            inclusive = (fmt.duration(operation.inclusive_ns),) if nested else ()
            corrected = (fmt.duration(sum(operation.total.corrected_ns)),) if charged else ()
            own = (counted, mean, *inclusive, wall, *corrected, part, ran)
        else:
            name.append(f"\n{_below(guide)}on CPU {ran}", "dim")
            own = (f"{counted}\n{mean}", f"{wall}\n{part}")
        worked = (fmt.duration(operation.total.gpu_ns) if operation.total.gpu_ns else NOTHING,) if gpu else ()
        table.add_row(name, *own, *parts(operation.total.category_ns, (operation,)), *worked)

    process_wall_ns = phase.operations[0].process_wall_ns
    wall, part = fmt.duration(phase.wall_ns), share(phase.wall_ns / process_wall_ns if process_wall_ns else 0)
    ran = on_cpu([sum(column) for column in zip(*(each.total.state_ns for each in phase.operations), strict=True)])
    rest = fmt.duration(sum(sum(operation.total.corrected_ns) for operation in phase.operations))
    own = (wall, *((rest,) if charged else ()), part, ran)
    own = (*("" for _ in titles[len(own) :]), *own) if wide else ("", f"{wall}\n{part}")
    sums = [sum(column) for column in zip(*(each.total.category_ns for each in phase.operations), strict=True)]
    together = "all together" if wide else f"all together\non CPU {ran}"
    table.add_row(together, *own, *parts(sums, phase.operations), style="bold")
    return table


def _below(guide: str) -> str:
    """The tree lines of a row's second line, given those of its first."""
    return guide.replace("├ ", "│ ").replace("└ ", "  ") if not guide.strip().startswith("(") else ""


def _guides(operations: Sequence[Operation]) -> list[str]:
    """Tree lines in front of every name. Rows are in the order of the tree; a parent may have no row."""
    guides = []
    followed: dict[tuple[str, ...], bool] = {}  # whether a node has a sibling below it, by path
    parents: set[tuple[str, ...]] = set()  # of the nodes below the row at hand
    for operation in reversed(operations):
        path = operation.total.path
        nodes = [path[:depth] for depth in range(1, min(len(path), _MAX_INDENT) + 1)]
        for node in nodes:
            if node not in followed:
                followed[node] = node[:-1] in parents
                parents.add(node[:-1])
        if len(path) > _MAX_INDENT:
            guides.append(f"{'  ' * (_MAX_INDENT - 1)}({len(path)}) ")
            continue
        lines = ["│ " if followed[node] else "  " for node in nodes[1:-1]]
        lines += ["├ " if followed[node] else "└ " for node in nodes[1:][-1:]]
        guides.append("".join(lines))
    return guides[::-1]


def _transitions(phase: Phase, width: int) -> Iterator[RenderableType]:
    table = new_table()
    table.add_column("TRANSITIONS", no_wrap=True, overflow="ellipsis", min_width=12)
    table.add_column("", no_wrap=True)
    for title in ("COUNT", "PER INSTANCE", "PER STEP"):
        add_figures(table, title)
    for operation in phase.operations[:MAX_OPERATIONS]:
        label = _end_of(fmt.path(operation.total.path), width - _TRANSITION_FIGURES)
        instances = operation.total.count if operation.total.path else 0
        for kind, count in sorted(operation.total.transitions.items(), key=lambda item: (-item[1], item[0])):
            table.add_row(
                label,
                fmt.transition(kind),
                fmt.count(count),
                fmt.count(count / instances) if instances else "",
                fmt.count(count / phase.steps) if phase.steps else "",
            )
            label = ""
    if table.row_count:
        yield Text()
        yield table


def _instances(phase: Phase, width: int) -> Iterator[RenderableType]:
    """How long operations took, from begin to end."""
    found = [operation for operation in phase.operations[:MAX_OPERATIONS] if operation.total.instances.count]
    if not found:
        return
    table = new_table(gap=2 if width >= WIDE else 1)
    table.add_column("INSTANCES", no_wrap=True, overflow="ellipsis", min_width=12)
    for title in ("COUNT", "MEAN", "SHORTEST", "MEDIAN", "99 %", "LONGEST"):
        add_figures(table, title)
    for operation in found:
        each = operation.total.instances
        times = (each.total_ns / each.count, each.min_ns, each.p50_ns, each.p99_ns, each.max_ns)
        table.add_row(
            _end_of(fmt.path(operation.total.path), max(12, width - _INSTANCE_FIGURES)),
            fmt.count(each.count),
            *(NOTHING if ns is None else fmt.duration(ns) for ns in times),
        )
    yield Text()
    yield table


def _end_of(text: str, width: int) -> str:
    """The last `width` characters: what tells paths apart is at their end."""
    return text if len(text) <= width else "…" + text[1 - width :]


def _cuda_calls(process: Process) -> Iterator[RenderableType]:
    if not process.cuda_calls:
        return
    table = new_table()
    table.add_column("CUDA CALLS", no_wrap=True, overflow="ellipsis", min_width=12)
    for title in ("COUNT", "TOTAL", "MEAN", "MEDIAN", "99 %"):
        add_figures(table, title)
    for call in process.cuda_calls[:MAX_CALLS]:
        table.add_row(
            fmt.printable(call.name),
            fmt.count(call.count),
            fmt.duration(call.total_ns),
            fmt.duration(call.total_ns / call.count),
            fmt.duration(call.p50_ns),
            fmt.duration(call.p99_ns),
        )
    yield Text()
    yield table
    hidden = process.cuda_calls[MAX_CALLS:]
    if hidden:
        rest = fmt.duration(sum(call.total_ns for call in hidden))
        yield Text(f"… and {fmt.plural(len(hidden), 'more function')}, {rest}; --format json has all of them.", "dim")


def _notes(breakdown: Breakdown) -> Iterator[RenderableType]:
    operations = [operation for process in breakdown.processes for operation in process.operations]
    if any(len(operation.total.path) > 1 for operation in operations):
        yield Text("Times are an operation's own; what is nested in it has a line of its own.", "dim")
    if operations and all(not operation.total.path for operation in operations):
        yield Text(f"No operation is marked: all time is {UNTRACKED}. Mark some with rlscope_ebpf.markers.")
    if any(operation.total.transitions for operation in operations) and breakdown.counters.probes_shed:
        yield Text(
            "Transitions are at least so many: probes had been taken off, and their calls are not counted (see the "
            "notices, or --max-overhead 0).",
            "dim",
        )
    if any(operation.total.instances.count for operation in operations):
        yield Text("INSTANCES are timed from begin to end, with what is nested in them.", "dim")
    if any(process.iterations for process in breakdown.processes):
        gpu = any(process.uses_gpu for process in breakdown.processes)
        yield Text(iteration_text.explanation(gpu), "dim")
    if any(operation.total.open_now for operation in operations):
        yield Text("Operations that were open when the recording ended are counted.", "dim")
    if any(operation.total.sampled.time_ns for operation in operations):
        yield Text(
            "Shares with ± were told by samples, not by probes. With a confidence of "
            f"{CONFIDENCE * 100:.0f} % they are off by no more points than stand behind the ±, as far as the number of "
            "looks goes: ± covers chance only. Wall times, counts of operations and times on a CPU are exact.",
            "dim",
        )
        if breakdown.info.capture.get("mode") == "sample":
            yield Text("Samples count no calls: there are no transitions (--mode trace has them).", "dim")
    info = breakdown.info
    if not is_unused(info.gpu, info.gpu_reason) or any(process.cuda_calls for process in breakdown.processes):
        yield Text(_gpu_sentence(breakdown))


def _gpu_sentence(breakdown: Breakdown) -> str:
    info = breakdown.info
    reason = fmt.printable(info.gpu_reason).rstrip(".")
    if info.gpu == "off":
        return "GPU time was not recorded (--gpu off)."
    if info.gpu in ("cupti", "simulated"):
        source = "CUPTI" if info.gpu == "cupti" else "a simulated driver"
        if not any(process.uses_gpu for process in breakdown.processes):
            return f"GPU time comes from {source}: no work of a GPU was seen."
        return (
            f"GPU time comes from {source}. An operation's is the time in which a GPU did work that the operation "
            "launched, whenever that ran; what runs at once counts once."
        )
    return f"GPU time is unavailable: {reason}." if reason else "GPU time is unavailable."
