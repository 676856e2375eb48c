"""The run as a Markdown document."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Benchmark, Results, as_markdown, rows
from benchmarks.machine import CpuTimes


@dataclass(frozen=True, slots=True)
class Run:
    """When, where and how figures were measured."""

    day: str
    machine: str
    software: str
    quick: bool
    seconds: float
    cpu: CpuTimes  # meanwhile
    remarks: tuple[str, ...] = ()

    def headline(self) -> str:
        """A few lines of text."""
        how = "quick run, rough figures" if self.quick else "full run"
        return f"{self.day}, {how} of {self.seconds / 60:.1f} min\n{self.machine}\n{self.software}\n{self.company()}"

    def company(self) -> str:
        """What else the machine did."""
        return (
            f"meanwhile {self.cpu.others_share:.0%} of the CPU time went to other work on the machine "
            f"and {self.cpu.stolen_share:.1%} to the host of the VM"
        )


_HOW_TO_READ = """Each figure is the median of its samples; lowest and highest show the spread. What is compared was
measured in turns, one after the other, so that a slow minute of the machine meets both. A figure without a counterpart
may be off by whatever else the machine did."""


_BY_HAND = Path(__file__).with_name("gpu.md")
"""What another machine measured: the document's last section."""


def render(run: Run, measured: Iterable[tuple[Benchmark, Results]]) -> str:
    """The document."""
    how, rough = ("a quick run", " with few samples: the figures are rough") if run.quick else ("one full run", "")
    parts = [
        "# Benchmarks\n",
        "`make bench` (as root) measures all of this and prints it as one table; "
        "`make bench BENCH='--write docs/benchmarks.md'` also writes this file.\n",
        f"* **Date**: {run.day}, {how} of {run.seconds / 60:.1f} minutes{rough}",
        f"* **Machine**: {run.machine}",
        f"* **Software**: {run.software}",
        f"* **Noise**: {run.company()}",
        *(f"* {remark}" for remark in run.remarks),
        "",
        _HOW_TO_READ,
    ]
    for benchmark, results in measured:
        parts += [f"\n## {benchmark.title}\n", as_markdown(rows(results))]
        parts += [f"* {remark}" for remark in benchmark.remarks]
    return "\n".join(parts).rstrip() + "\n" + _BY_HAND.read_text(encoding="utf-8")
