"""What is told of the iterations of a training loop: values that screens and reports share. Times are ns."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.model.sampling import NOT_SAMPLED, Sampled
from rlscope_ebpf.model.trend import NO_TREND, Trend

SLOWEST = 10
"""So many of the slowest iterations are kept, per process and phase."""

NO_CATEGORIES = (0,) * len(Category)


@dataclass(frozen=True, slots=True)
class SlowIteration:
    """One of the slowest iterations."""

    number: int  # counts the iterations of the process from 1, of all phases
    step: int  # as the report at its end says
    start_ns: int
    duration_ns: int
    category_ns: tuple[int, ...]  # [Category]
    overhead_ns: tuple[int, ...]  # [Category]
    others_running_ns: int
    transitions: dict[str, int]
    operations: dict[tuple[str, ...], int]  # by path, ns of its own
    sampled: Sampled = NOT_SAMPLED
    gpu_ns: int | None = None  # in which a GPU worked for the process; None: not known yet, or no GPU


@dataclass(frozen=True, slots=True)
class IterationOperation:
    """One operation path within the iterations."""

    path: tuple[str, ...]
    total_ns: int  # of its own, in all iterations
    present: int  # iterations that had time in it
    p50_ns: int | None  # of all iterations, those without it included; None: too many operations to know


@dataclass(frozen=True, slots=True)
class IterationTotal:
    """The iterations of one process that ended in one phase.

    An iteration lasts from one progress report of a process to its next. Its times by category and operation are those
    of one thread, the one that made the report at its beginning: they add up to its duration. What other threads did
    meanwhile is `others_running_ns`, their time on a CPU. Transitions and the GPU's time are those of all threads.
    """

    pid: int
    phase: str
    count: int
    total_ns: int
    min_ns: int
    p50_ns: int
    p99_ns: int
    max_ns: int
    category_ns: tuple[int, ...]  # of all iterations, [Category]
    overhead_ns: tuple[int, ...]  # of these, the estimated cost of probe hits
    others_running_ns: int
    transitions: dict[str, int]  # "python_to_backend" -> calls in all iterations
    typical_ns: tuple[int, ...] = NO_CATEGORIES  # the median of each category's time, [Category]
    sampled: Sampled = NOT_SAMPLED
    gpu_ns: int = 0  # union of the time in which a GPU worked for the process, of `gpu_iterations`
    gpu_iterations: int = 0  # those of which it is known: GPU activity is told of seconds later
    operations: tuple[IterationOperation, ...] = ()  # longest first
    trend: Trend = NO_TREND
    slowest: tuple[SlowIteration, ...] = ()  # slowest first
    steps: tuple[int, int] = field(default=(0, 0))  # reported at the end of the first and of the latest one

    @property
    def mean_ns(self) -> float:
        """Duration."""
        return self.total_ns / self.count if self.count else 0.0

    @property
    def corrected_ns(self) -> tuple[int, ...]:
        """Time by category without the estimated cost of probe hits, [Category]; never below zero."""
        return tuple(max(0, raw - cost) for raw, cost in zip(self.category_ns, self.overhead_ns, strict=True))
