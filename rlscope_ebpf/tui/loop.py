"""The panel of a training loop's iterations: progress, durations, phases, the slowest ones and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlscope_ebpf.live.latest import Latest
from rlscope_ebpf.live.snapshot import ProcessRow, Snapshot
from rlscope_ebpf.model import format as fmt
from rlscope_ebpf.model.categories import DEFAULT_PHASE, Category
from rlscope_ebpf.model.iteration_figures import IterationTotal, SlowIteration
from rlscope_ebpf.model.trend import Trend
from rlscope_ebpf.tui.bars import meter, stacked_bar
from rlscope_ebpf.tui.cells import Cells, SizedPanel, arrow, figure, mean_count, named
from rlscope_ebpf.tui.columns import Column
from rlscope_ebpf.tui.figures import OperationTable, View
from rlscope_ebpf.tui.spans import Line, Span, flow
from rlscope_ebpf.tui.table import Row

SPARKS = "▁▂▃▄▅▆▇█"
SLOWEST_SHOWN = 5
TRANSITIONS_SHOWN = 6

WORTH_LISTING = 1.1
"""Of the median: who took less is not slow."""

WORTH_NAMING = 0.2
"""What is a smaller part of the time that an iteration took too long is no reason for it."""


@dataclass(frozen=True, slots=True)
class Reason:
    """What a slow iteration spent more time in than is typical."""

    name: str
    role: str
    extra_ns: float


def reasons(slow: SlowIteration, total: IterationTotal) -> list[Reason]:
    """The categories, then the operations, that took most of the time beyond the median; two of each at most."""
    beyond_ns = slow.duration_ns - total.p50_ns
    categories = [
        Reason(fmt.CATEGORY_LABELS[category], f"ink-{category.name}", slow.category_ns[category] - usual_ns)
        for category, usual_ns in zip(Category, total.typical_ns, strict=True)
    ]
    usual = {operation.path: operation.p50_ns for operation in total.operations}
    operations = [
        Reason(fmt.path(path), "strong" if path else "dim", ns - usual_ns)
        for path, ns in slow.operations.items()
        if (usual_ns := usual.get(path, 0)) is not None
    ]
    found: list[Reason] = []
    for some in (categories, operations):
        worth = [reason for reason in some if reason.extra_ns > 0 and reason.extra_ns >= WORTH_NAMING * beyond_ns]
        found += sorted(worth, key=lambda reason: -reason.extra_ns)[:2]
    return found


def sparkline(values: Sequence[float], width: int) -> str:
    """The latest values as blocks, the longest in full height; from zero, so that heights compare as durations do."""
    shown = values[-width:] if width > 0 else ()
    top = max(shown, default=0)
    if top <= 0:
        return SPARKS[0] * len(shown)
    return "".join(SPARKS[min(len(SPARKS) - 1, int(value * len(SPARKS) / top))] for value in shown)


def remaining_ns(process: ProcessRow, latest: Latest | None) -> float | None:
    """Until the last step at the present rate; None while that cannot be told."""
    rate = latest.steps_per_s() if latest else 0.0
    if not rate or not process.alive or process.step > process.total_steps:
        return None
    return (process.total_steps - process.step) / rate * 1e9 if process.total_steps else None


def progress_line(process: ProcessRow, latest: Latest | None, several: bool) -> Line:
    """Who, how far, how fast, how long still."""
    line: Line = [Span(f"{fmt.printable(process.name)} {process.pid_pair}  ", "strong")] if several else []
    line += [Span("step ", "dim"), Span(f"{process.step:,}", "text")]
    if process.total_steps:
        share = process.step / process.total_steps
        line += [
            Span(f" of {process.total_steps:,} ", "dim"),
            *meter(share, 10),
            Span(f" {fmt.percent(share):>6}", "dim"),
        ]
    rate = latest.steps_per_s() if latest else 0.0
    if rate and process.alive:
        line += [Span("  ", "dim"), Span(f"{fmt.rate(rate, 'steps'):>14}", "text")]
    left_ns = remaining_ns(process, latest)
    if left_ns is not None:
        line += [Span(f"  {fmt.duration(left_ns)}", "text"), Span(" left", "dim")]
    return line


def trend_line(trend: Trend) -> Line:
    """Whether iterations become slower; nothing while none can be told."""
    if not trend.direction:
        return []
    word, role = ("slower", "warning") if trend.direction > 0 else ("faster", "good")
    ends = f"  {fmt.duration(trend.first_ns)} → {fmt.duration(trend.last_ns)}, first and last quarter of the run"
    return [Span(f"becomes {word}", role), Span(f" by {fmt.percent(abs(trend.change))}", "text"), Span(ends, "dim")]


class IterationsPanel(SizedPanel):
    """From one progress report to the next."""

    def fill_sized(self, snapshot: Snapshot, view: View, table: OperationTable) -> None:
        """Show the figures."""
        columns = [
            Column("name", "PHASE", 14, right=False, grow=1, limit=40),
            Column("count", "COUNT", 7),
            Column("mean", "MEAN", 8, drop=2),
            Column("p50", "P50", 8),
            Column("p99", "P99", 8),
            Column("max", "LONGEST", 8, drop=3),
            Column("trend", "TREND", 8, drop=4),
            Column("bar", "BREAKDOWN", 10, right=False, grow=3, drop=1),
        ]
        reporting = [process for process in snapshot.processes if process.steps and view.takes_pid(process.pid)]
        rows: list[Row] = []
        for process in reporting:
            found = [
                total for total in snapshot.iterations if total.pid == process.pid and view.phase in (None, total.phase)
            ]
            rows += [Row(text=[])] if rows else []
            rows += self._process_rows(process, found, snapshot, view, len(reporting) > 1)
        if not rows:
            rows = [Row(text=[]), *(Row(text=line) for line in _how_to_report())]
        self.show(columns, rows)

    def _process_rows(
        self, process: ProcessRow, found: Sequence[IterationTotal], snapshot: Snapshot, view: View, several: bool
    ) -> list[Row]:
        latest = snapshot.latest.get(process.pid)
        rows = [Row(("process", process.pid), text=progress_line(process, latest, several))]
        if latest is not None and len(latest.time_ns) > 1:
            rows.append(Row(text=_latest_line(latest, self._room())))
        longest_ns = max((total.mean_ns for total in found), default=0)
        corrected = view.shows_corrected(snapshot)
        rows += [
            Row(("phase", process.pid, total.phase), _phase_cells(total, longest_ns, corrected, view))
            for total in found
        ]
        least = "≥" if snapshot.counters.probes_shed else ""
        for total in found:
            of = f" of {fmt.printable(total.phase)}" if len(found) > 1 else ""
            trend = trend_line(total.trend)
            if trend:
                rows.append(Row(text=[Span(f"{fmt.printable(total.phase)} ", "text"), *trend]))
            rows += _transition_rows(total, of, least, self._room())
            rows += _slow_rows(total, of, process)
        return rows

    def _room(self) -> int:
        return max(20, self.scrollable_content_region.width - 2)


def _latest_line(latest: Latest, room: int) -> Line:
    durations = latest.durations_ns
    longest = f" {fmt.duration(max(durations[-room:])):>8} at most"
    cells = max(8, room - len("latest ") - len(longest))
    shown = durations[-cells:]
    longest = f" {fmt.duration(max(shown)):>8} at most"
    return [Span("latest ", "dim"), Span(sparkline(shown, cells), "meter"), Span(longest, "dim")]


def _phase_cells(total: IterationTotal, longest_ns: float, corrected: bool, view: View) -> Cells:
    times = total.corrected_ns if corrected else total.category_ns
    whole = sum(times)
    labels = [
        fmt.duration(ns / total.count).replace(" ", "") if view.times else f"{ns / whole * 100:.0f}%" if whole else ""
        for ns in times
    ]

    def bar(width: int) -> Line:
        length = width if view.full_bars or not longest_ns else round(total.mean_ns / longest_ns * width)
        return stacked_bar(times, max(1, length) if whole else 0, labels)

    change = total.trend.change
    ink = {1: "warning", -1: "good"}.get(total.trend.direction, "dim")
    sign = "+" if change > 0 else ""
    return {
        "name": named("", "all" if total.phase == DEFAULT_PHASE else fmt.printable(total.phase)),
        "count": figure(fmt.count(total.count)),
        "mean": figure(fmt.duration(total.mean_ns)),
        "p50": figure(fmt.duration(total.p50_ns)),
        "p99": figure(fmt.duration(total.p99_ns)),
        "max": figure(fmt.duration(total.max_ns)),
        "trend": [Span(f"{sign}{change * 100:.0f} %", ink)] if total.trend.direction else [Span("-", "faint")],
        "bar": bar,
    }


def _transition_rows(total: IterationTotal, of: str, least: str, room: int) -> list[Row]:
    """How often control passes per iteration, in as few lines as it takes."""
    kinds = sorted(total.transitions.items(), key=lambda item: (-item[1], item[0]))[:TRANSITIONS_SHOWN]
    items: list[Line] = []
    for kind, count in kinds:
        per = f"{least}{mean_count(count / total.count)}"
        items.append([*arrow(kind), Span(f" {per}", "text")])
    if not items:
        return []
    rows = [Row(text=[Span(f"TRANSITIONS PER ITERATION{of.upper()}", "heading")])]
    return rows + [Row(text=line) for line in flow(items, room, Span(" · ", "faint"))]


def _slow_rows(total: IterationTotal, of: str, process: ProcessRow) -> list[Row]:
    if total.count < 3:
        return []
    rows = [Row(text=[Span(f"SLOWEST{of.upper()}, and what took longer than usual", "heading")])]
    for slow in total.slowest[:SLOWEST_SHOWN]:
        if slow.duration_ns < WORTH_LISTING * total.p50_ns:
            continue
        times = slow.duration_ns / total.p50_ns if total.p50_ns else 0.0
        line: Line = [
            Span(f"step {slow.step:<7,} ", "text"),
            Span(f"{fmt.duration(slow.duration_ns):>8} ", "strong"),
            Span(f"{times:>5.1f}x  ", "dim"),
        ]
        sign = "≈" if slow.sampled.time_ns else ""
        for number, reason in enumerate(reasons(slow, total)):
            line += [Span(", ", "dim")] if number else []
            line += [Span(reason.name, reason.role), Span(f" +{sign}{fmt.duration(reason.extra_ns)}", "text")]
        rows.append(Row(("slow", process.pid, total.phase, slow.number), text=line))
    return rows if len(rows) > 1 else []


def _how_to_report() -> list[Line]:
    return [
        [Span("No progress was reported so far. Once per iteration of the training loop:", "dim")],
        [Span("    import rlscope_ebpf.markers as rls", "key")],
        [Span("    rls.progress(step, total)", "key")],
    ]
