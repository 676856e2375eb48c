"""The run as a Markdown document."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.figures import Benchmark, Results, as_markdown, rows


@dataclass(frozen=True, slots=True)
class Run:
    """When, where and how figures were measured."""

    day: str
    machine: str
    software: str
    quick: bool
    seconds: float
    load_before: float  # of the last minute: what else the machine did
    load_after: float
    remarks: tuple[str, ...] = ()

    def headline(self) -> str:
        """A few lines of text."""
        how = "quick run, rough figures" if self.quick else "full run"
        return (
            f"{self.day}, {how} of {self.seconds / 60:.1f} min, load {self.load_before:.2f} before\n"
            f"{self.machine}\n{self.software}"
        )


_HOW_TO_READ = """Each figure is the median of its samples; lowest and highest show the spread. What is compared was
measured in turns, one after the other, so that a slow minute of the machine meets both. A figure without a counterpart
may be off by whatever else the machine did."""


def render(run: Run, measured: Iterable[tuple[Benchmark, Results]]) -> str:
    """The document."""
    how = "a quick run with few samples: the figures are rough" if run.quick else "one full run"
    parts = [
        "# Benchmarks\n",
        "`make bench` (as root) measures all of this and prints it as one table; "
        "`make bench BENCH='--write docs/benchmarks.md'` also writes this file.\n",
        f"* **Date**: {run.day}, {how} of {run.seconds / 60:.1f} minutes",
        f"* **Machine**: {run.machine}",
        f"* **Software**: {run.software}",
        f"* **Load** (threads that run or want to, last minute): {run.load_before:.2f} before the run, "
        f"{run.load_after:.2f} after it",
        *(f"* {remark}" for remark in run.remarks),
        "",
        _HOW_TO_READ,
    ]
    for benchmark, results in measured:
        parts += [f"\n## {benchmark.title}\n", as_markdown(rows(results))]
        parts += [f"* {remark}" for remark in benchmark.remarks]
    return "\n".join(parts).rstrip() + "\n"
