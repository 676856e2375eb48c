"""What iterations tell, in words: whether they become slower, and what slow ones spent more time on."""

from __future__ import annotations

from dataclasses import dataclass

from rlscope_ebpf.model import format as fmt
from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.model.iteration_figures import IterationTotal, SlowIteration

NOTABLE = 0.1
"""What makes up less of the difference than this is not named."""


@dataclass(frozen=True, slots=True)
class Excess:
    """What a slow iteration spent more time on than its kind usually does: the most notable of each, if there is any.

    "Usually" is the median of all iterations of the process and phase: half of them spent more.
    """

    total_ns: int  # beyond the median duration
    category: Category | None = None
    category_ns: int = 0
    path: tuple[str, ...] | None = None
    path_ns: int = 0


def excess(total: IterationTotal, slow: SlowIteration) -> Excess:
    """What it spent more time on."""
    beyond_ns = slow.duration_ns - total.p50_ns
    if beyond_ns <= 0:
        return Excess(max(0, beyond_ns))
    category_ns, category = max(
        (ns - usual, Category(number))
        for number, (ns, usual) in enumerate(zip(slow.category_ns, total.typical_ns, strict=True))
    )
    usual_ns = {each.path: each.p50_ns for each in total.operations}
    path: tuple[str, ...] | None = None
    path_ns = 0
    for one, ns in slow.operations.items():
        usual = usual_ns.get(one)
        if usual is not None and ns - usual > path_ns:
            path, path_ns = one, ns - usual
    if category_ns < NOTABLE * beyond_ns:
        category_ns = 0
    if path_ns < NOTABLE * beyond_ns:
        path, path_ns = None, 0
    return Excess(beyond_ns, category if category_ns else None, category_ns, path, path_ns)


def spent_more_on(total: IterationTotal, slow: SlowIteration) -> str:
    """The same as "simulator +5.10 ms, in rollout > env.step +5.00 ms"; empty if nothing is notable."""
    found = excess(total, slow)
    parts = []
    if found.category is not None:
        more = fmt.about(f"+{fmt.duration(found.category_ns)}", slow.sampled.time_ns > 0)
        parts.append(f"{fmt.CATEGORY_LABELS[found.category]} {more}")
    if found.path is not None:
        parts.append(f"{fmt.path(found.path)} +{fmt.duration(found.path_ns)}")
    return ", ".join(parts)


def trend_sentence(total: IterationTotal) -> str:
    """Whether iterations became slower or faster over the run; empty if neither can be told."""
    trend = total.trend
    if not trend.direction:
        return ""
    changes = [
        (trend.direction * (last - first), Category(number))
        for number, (first, last) in enumerate(zip(trend.first_category_ns, trend.last_category_ns, strict=True))
    ]
    most_ns, category = max(changes)
    text = (
        f"Iterations became {'slower' if trend.direction > 0 else 'faster'}: {fmt.duration(trend.last_ns)} each in the "
        f"last quarter of them, {fmt.duration(trend.first_ns)} in the first ({trend.change * 100:+.0f} %)"
    )
    if most_ns > abs(trend.last_ns - trend.first_ns) / 2:
        sign = "+" if trend.direction > 0 else "-"
        more = fmt.about(f"{sign}{fmt.duration(most_ns)}", total.sampled.time_ns > 0)
        text += f", mostly in {fmt.CATEGORY_LABELS[category]} ({more})"
    return f"{text}."
