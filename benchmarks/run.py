"""Every benchmark on one machine in one run: `make bench`, or `python -m benchmarks`.

The table goes to stdout, what happens meanwhile to stderr. The exit status is 1 if a figure could not be measured;
a missed goal is shown, and is no failure.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from benchmarks import (
    attaching,
    boundaries,
    correction,
    following,
    hits,
    markers,
    outsiders,
    reading,
    reporting,
    scheduling,
    training,
)
from benchmarks.document import Run, render
from benchmarks.figures import HEADINGS, Benchmark, Effort, Results, as_text, rows, widths_of
from benchmarks.machine import cpu_times, software, this_machine
from benchmarks.processes import BenchmarkError
from rlscope_ebpf.errors import ProfilerError

BENCHMARKS: tuple[Benchmark, ...] = (
    hits.BENCHMARK,
    markers.BENCHMARK,
    scheduling.BENCHMARK,
    reading.BENCHMARK,
    attaching.BENCHMARK,
    following.BENCHMARK,
    outsiders.BENCHMARK,
    training.BENCHMARK,
    reporting.BENCHMARK,
    correction.BENCHMARK,
    boundaries.BENCHMARK,
    boundaries.GPU_BENCHMARK,
)


def measure(benchmark: Benchmark, effort: Effort) -> Results:
    """Run one benchmark. Whatever fails becomes the reason for the figures that are missing then."""
    results = Results(benchmark.figures)
    try:
        benchmark.measure(results, effort)
    except ProfilerError as error:
        results.not_measured(f"{error.problem} {error.remedy}")
    except BenchmarkError as error:
        results.not_measured(str(error))
    except Exception as error:  # the others must still run
        results.not_measured(f"{type(error).__name__}: {error}")
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print the table, write the document if asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measures the profiler on this machine.")
    names = [benchmark.name for benchmark in BENCHMARKS]
    parser.add_argument("--quick", action="store_true", help="few samples: shows that all works, figures are rough")
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--write", type=Path, metavar="FILE", help="also write the document, e.g. docs/benchmarks.md")
    parser.add_argument("--remark", action="append", default=[], metavar="TEXT", help="for the document, of this run")
    options = parser.parse_args(arguments)
    effort = Effort(options.quick)
    machine, versions, before = this_machine(), software(), cpu_times()
    started = time.monotonic()
    measured: list[tuple[Benchmark, Results]] = []
    for benchmark in BENCHMARKS:
        if (options.only or benchmark.by_name_only) and benchmark.name not in (options.only or ()):
            continue
        begun = time.monotonic()
        print(f"{benchmark.name}: measuring", end="", file=sys.stderr, flush=True)
        results = measure(benchmark, effort)
        measured.append((benchmark, results))
        missing = f", {results.missing} not measured" if results.missing else ""
        print(f", {time.monotonic() - begun:.0f} s{missing}", file=sys.stderr, flush=True)
    run = Run(
        day=date.today().isoformat(),
        machine=machine,
        software=versions,
        quick=options.quick,
        seconds=time.monotonic() - started,
        cpu=cpu_times() - before,
        remarks=tuple(options.remark),
    )
    tables = [(benchmark, rows(results)) for benchmark, results in measured]
    widths = widths_of(table for _, table in tables)
    print(run.headline())
    print("\n" + as_text("", [HEADINGS], widths).strip("\n"))
    for benchmark, table in tables:
        print("\n" + as_text(benchmark.title, table, widths), end="")
    if options.write:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        options.write.write_text(render(run, measured), encoding="utf-8")
        print(f"written: {options.write}", file=sys.stderr)
    return 1 if any(results.missing for _, results in measured) else 0
