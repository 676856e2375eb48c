"""What a report says of the iterations of a training loop: nothing of a process that reports no progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from rlscope_ebpf.model import format as fmt
from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.model.iteration_figures import IterationTotal
from rlscope_ebpf.model.iteration_words import spent_more_on, trend_sentence
from rlscope_ebpf.report.tables import NOTHING, WIDE, add_figures, new_table

MAX_SLOW = 5
"""Slowest iterations shown; --format json has more."""

NOTABLY_SLOW = 0.05
"""Those that took no longer beyond the median than this share of it are not worth a line."""

MAX_OPERATIONS = 30
MAX_KINDS = 8
"""Kinds of transitions shown."""

_WIDE_FIGURES = 66  # columns of the operations' table beside its names

Share = Callable[[float], str]


def explanation(gpu: bool) -> str:
    """What an iteration is; `gpu`: the GPU's time is told, too."""
    return (
        "An iteration lasts from one progress report of a process to its next, and belongs to the phase in which it "
        "ends. Its times are those of the thread that reports, so they add up to its duration; transitions "
        f"{'and GPU time ' if gpu else ''}are those of all threads. Slow ones are compared with the medians of all."
    )


def iterations(total: IterationTotal, width: int, share: Share) -> Iterator[RenderableType]:
    """How long they take, what they consist of, how that changes, and the slowest ones."""
    yield Text()
    yield Text.assemble(("ITERATIONS  ", "bold"), _summary(total))
    sentence = trend_sentence(total)
    if sentence:
        yield Text(sentence, "bold yellow" if total.trend.direction > 0 else "")
    yield Text()
    yield _times(total, width, share)
    if total.transitions:
        yield Text(_transitions(total))
    yield from _operations(total, width, share)


def _summary(total: IterationTotal) -> str:
    first, last = total.steps
    text = fmt.plural_exact(total.count, "iteration") + (f" (steps {first:,} to {last:,})" if first < last else "")
    if total.count == 1:
        return f"{text}: {fmt.duration(total.total_ns)}"
    return (
        f"{text}: mean {fmt.duration(total.mean_ns)}, shortest {fmt.duration(total.min_ns)}, "
        f"median {fmt.duration(total.p50_ns)}, 99 % {fmt.duration(total.p99_ns)}, longest {fmt.duration(total.max_ns)}"
    )


def _times(total: IterationTotal, width: int, share: Share) -> RenderableType:
    wide = width >= WIDE
    slowest = [slow for slow in total.slowest[:MAX_SLOW] if slow.duration_ns > (1 + NOTABLY_SLOW) * total.p50_ns]
    used = [
        category for category in Category
        if total.category_ns[category] or any(slow.category_ns[category] for slow in slowest)
    ]  # fmt: skip
    sampled = total.sampled.time_ns > 0
    table = new_table(gap=2 if wide else 1)
    table.add_column("", no_wrap=True)
    add_figures(table, "TIME")
    for category in used:
        add_figures(table, fmt.CATEGORY_LABELS[category].upper())
    gpu, others = total.gpu_iterations > 0, total.others_running_ns > 0
    for title, shown in (("GPU", gpu), ("OTHER THREADS" if wide else "OTHER\nTHREADS", others)):
        if shown:
            add_figures(table, title)
    table.add_column("SPENT MORE ON" if slowest else "", overflow="fold")

    def row(label: str, ns: float, category_ns: Sequence[float], gpu_ns: float | None, others_ns: float) -> list[str]:
        cells = [label, fmt.duration(ns)]
        for category in used:
            time, part = category_ns[category], share(category_ns[category] / ns) if ns else NOTHING
            time_text = fmt.about(fmt.duration(time), sampled)
            cells.append((f"{time_text} {part:>6}" if wide else time_text) if time else NOTHING)
        if gpu:
            cells.append(NOTHING if gpu_ns is None else fmt.duration(gpu_ns))
        if others:
            cells.append(fmt.duration(others_ns))
        return cells

    count = total.count
    gpu_mean = total.gpu_ns / total.gpu_iterations if gpu else None
    mean = [ns / count for ns in total.category_ns]
    others_mean = total.others_running_ns / count
    table.add_row(*row("mean", total.mean_ns, mean, gpu_mean, others_mean), "")
    if any(total.overhead_ns):
        corrected = [ns / count for ns in total.corrected_ns]
        table.add_row(*row("mean, corrected", sum(corrected), corrected, gpu_mean, others_mean), "")
    for slow in slowest:
        label = f"slow: step {slow.step:,}"
        cells = row(label, slow.duration_ns, slow.category_ns, slow.gpu_ns, slow.others_running_ns)
        table.add_row(*cells, spent_more_on(total, slow))
    return table


def _transitions(total: IterationTotal) -> str:
    kinds = sorted(total.transitions.items(), key=lambda item: (-item[1], item[0]))
    text = ", ".join(f"{fmt.transition(kind)} {fmt.count(count / total.count)}" for kind, count in kinds[:MAX_KINDS])
    more = f", and {fmt.plural(len(kinds) - MAX_KINDS, 'more kind')}" if len(kinds) > MAX_KINDS else ""
    return f"Transitions per iteration: {text}{more}."


def _operations(total: IterationTotal, width: int, share: Share) -> Iterator[RenderableType]:
    if not any(operation.path for operation in total.operations):
        return
    table = new_table()
    table.add_column("PER ITERATION", no_wrap=True, overflow="ellipsis", min_width=12)
    for title in ("MEAN", "MEDIAN", "SHARE", "IN ITERATIONS"):
        add_figures(table, title)
    for operation in total.operations[:MAX_OPERATIONS]:
        name, room = fmt.path(operation.path), max(12, width - _WIDE_FIGURES)
        table.add_row(
            name if len(name) <= room else "…" + name[1 - room :],  # what tells paths apart is at their end
            fmt.duration(operation.total_ns / total.count),
            NOTHING if operation.p50_ns is None else fmt.duration(operation.p50_ns),
            share(operation.total_ns / total.total_ns) if total.total_ns else NOTHING,
            share(operation.present / total.count),
        )
    yield Text()
    yield table
    hidden = len(total.operations) - MAX_OPERATIONS
    if hidden > 0:
        yield Text(f"… and {fmt.plural(hidden, 'more operation')}; --format json has all of them.", "dim")
