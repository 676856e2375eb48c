"""What a report says of a session as a whole: its tree of processes, and what was busy at all."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

from rich.console import RenderableType
from rich.text import Text

from rlscope_ebpf.analysis.breakdown import Breakdown, Process
from rlscope_ebpf.analysis.processes import Placed, Sums, by_phase, summed, tree
from rlscope_ebpf.model import format as fmt
from rlscope_ebpf.model.categories import DEFAULT_PHASE, Category
from rlscope_ebpf.model.overlap import OverlapTotal
from rlscope_ebpf.model.pids import pid_title
from rlscope_ebpf.report.tables import NOTHING, WIDE, add_figures, new_table

MAX_PROCESSES = 100
MAX_PHASES = 4
"""Phases named per process."""

Share = Callable[[float], str]


def session(breakdown: Breakdown, width: int, share: Share) -> Iterator[RenderableType]:
    """Of several processes: their tree and their sums. What was busy: of several, or where a GPU worked."""
    several = len(breakdown.processes) > 1
    if several:
        yield Text()
        yield from _tree(breakdown, width, share)
    if several or breakdown.overlap.gpu_ns:
        sentence = busy(breakdown.overlap, share)
        if sentence:
            yield Text()
            yield Text(sentence)
    if several:
        yield from _together(breakdown, width, share)


def busy(overlap: OverlapTotal, share: Share) -> str:
    """What was busy, of the session's time, over all processes; empty if nothing was."""
    wall_ns = overlap.wall_ns
    if not wall_ns or not (overlap.cpu_ns or overlap.gpu_ns):
        return ""
    text = f"Of {fmt.duration(wall_ns)}, some process ran on a CPU for {share(overlap.cpu_ns / wall_ns)}"
    if overlap.gpu_ns:
        text += (
            f", and a GPU worked for some process for {share(overlap.gpu_ns / wall_ns)}: CPU only "
            f"{share(overlap.cpu_only_ns / wall_ns)}, both {share(overlap.both_ns / wall_ns)}, GPU only "
            f"{share(overlap.gpu_only_ns / wall_ns)}, neither {share(overlap.neither_ns / wall_ns)}."
        )
    else:
        text += f", none for {share(overlap.neither_ns / wall_ns)}."
    if len(overlap.cpu_at_once_ns) > 1:
        text += (
            f" While any did, {overlap.mean_at_once:.1f} processes ran on CPUs at once on average, at most "
            f"{len(overlap.cpu_at_once_ns)}."
        )
    if len(overlap.gpu_at_once_ns) > 1:
        text += (
            f" While a GPU worked, it did so for {overlap.gpu_mean_at_once:.1f} processes at once on average, for at "
            f"most {len(overlap.gpu_at_once_ns)}."
        )
    return text


def ended(process: Process) -> str:
    """How a process ended: "exit 0", "SIGKILL", "runs on"."""
    info = process.total.info
    if info.end_ns is None:
        return "runs on"
    status = info.exit_status
    if status is None:
        return "ended"
    if status >= 0:
        return f"exit {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def _tree(breakdown: Breakdown, width: int, share: Share) -> Iterator[RenderableType]:
    wide, overlap = width >= WIDE, breakdown.overlap
    table = new_table(gap=2 if wide else 1)
    table.add_column("PROCESSES", no_wrap=True, overflow="ellipsis", min_width=12)
    gpu = bool(overlap.gpu_ns)
    pid = pid_title(process.total.info.namespace_pids for process in breakdown.processes)
    for title in (pid, "FROM", "LASTED", "THREADS", "ON CPU", *(("GPU",) if gpu else ())) if wide else (
        pid.replace(" ", "\n"), "FROM", "LASTED", "ON CPU", *(("GPU",) if gpu else ()),
    ):  # fmt: skip
        add_figures(table, title)
    table.add_column("END", no_wrap=True)
    phased = any(
        len(process.total.phase_times) > 1 or process.total.phase != DEFAULT_PHASE for process in breakdown.processes
    )
    if phased and wide:
        table.add_column("PHASES", overflow="fold")
    placed = list(tree(breakdown.processes))
    for each in placed[:MAX_PROCESSES]:
        process, info = each.process, each.process.total.info
        took = process.duration_ns
        used = [share(min(1.0, overlap.cpu_by_pid_ns.get(info.pid, 0) / took)) if took else NOTHING]
        if gpu:
            gpu_ns = overlap.gpu_by_pid_ns.get(info.pid, 0)
            used.append(share(min(1.0, gpu_ns / took)) if took and gpu_ns else NOTHING)
        table.add_row(
            Text.assemble((_guide(each), "dim"), fmt.printable(process.total.name)),
            info.pid_pair,
            fmt.clock(info.start_ns - breakdown.info.start_ns),
            fmt.duration(took),
            *((str(process.total.threads),) if wide else ()),
            *used,
            ended(process),
            *((_phases(process),) if phased and wide else ()),
        )
    yield table
    if len(placed) > MAX_PROCESSES:
        rest = fmt.plural(len(placed) - MAX_PROCESSES, "more process", "more processes")
        yield Text(f"… and {rest}; --format json has all of them.", "dim")
    yield Text("ON CPU: the time in which at least one thread of the process ran, as a share of its own.", "dim")


def _guide(placed: Placed) -> str:
    if not placed.depth:
        return ""
    return "".join("│ " if goes_on else "  " for goes_on in placed.above) + ("└ " if placed.last else "├ ")


def _phases(process: Process) -> str:
    times = process.total.phase_times
    if len(times) == 1 and times[0].name == DEFAULT_PHASE:
        return ""
    shown = [each for each in times if each.name != DEFAULT_PHASE or each.total_ns]
    text = ", ".join(f"{fmt.printable(each.name)} {fmt.duration(each.total_ns)}" for each in shown[:MAX_PHASES])
    return text + (f", {len(shown) - MAX_PHASES} more" if len(shown) > MAX_PHASES else "")


def _together(breakdown: Breakdown, width: int, share: Share) -> Iterator[RenderableType]:
    phases = by_phase(breakdown)
    everything = summed(operation.total for process in breakdown.processes for operation in process.operations)
    if not everything.wall_ns:
        return
    wide = width >= WIDE
    table = new_table(gap=2 if wide else 1)
    table.add_column("ALL PROCESSES", no_wrap=True, overflow="ellipsis", min_width=12)
    used = [category for category in Category if everything.category_ns[category]]
    for title in ("WALL", "SHARE", *(fmt.CATEGORY_LABELS[category].upper() for category in used)):
        add_figures(table, title)

    def add(label: str, sums: Sums, style: str = "") -> None:
        cells = [fmt.duration(sums.wall_ns), share(sums.wall_ns / everything.wall_ns)]
        for category in used:
            ns = sums.category_ns[category]
            part = share(ns / sums.wall_ns) if ns else NOTHING
            cells.append(f"{fmt.duration(ns)} {part:>6}" if ns and wide else part)
        table.add_row(label, *cells, style=style)

    if len(phases) > 1:
        for name, sums in phases.items():
            add(fmt.printable(name), sums)
    add("all together", everything, "bold")
    yield Text()
    yield table
