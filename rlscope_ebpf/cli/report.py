"""`rlscope-ebpf report`: the breakdown that a trace holds, as text, JSON or CSV."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlscope_ebpf.errors import DamagedTraceError, NotPermittedError, ProfilerError, UsageError

if TYPE_CHECKING:
    from rlscope_ebpf.analysis.breakdown import Breakdown

FORMATS = ("text", "json", "csv")

LARGE_BYTES = 8 << 20
"""Smaller traces are read before anybody could look at a progress bar."""


def _print_schema(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from rlscope_ebpf.report.json import schema_text

        click.echo(schema_text(), nl=False)
        context.exit()


@click.command("report")
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "--schema", is_flag=True, is_eager=True, expose_value=False, callback=_print_schema,
    help="Print the JSON schema of --format json, and nothing else.",
)  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="text", show_default=True,
    help="text: tables for people; json: everything, as --schema describes it; csv: one row per operation.",
)  # fmt: skip
@click.option("--json", "form", flag_value="json", hidden=True)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE",
    help="Write to this file, replacing it, instead of stdout.",
)  # fmt: skip
def command(trace: Path, form: str, output: Path | None) -> None:
    """Print where the time went, per process, phase and operation.

    In csv, `path` is a JSON array of the names of nested operations; other texts are escaped as in JSON strings where
    they have backslashes or control characters or look like a formula.

    Of an incomplete or damaged trace, what can be read is printed all the same; then the exit status is 5.
    """
    from rlscope_ebpf.analysis.breakdown import break_down
    from rlscope_ebpf.trace.reader import TraceReader

    if output is not None and output.exists() and trace.exists() and output.samefile(trace):
        raise UsageError("The report would replace the trace.", "Give another file with --output.")
    with _progress(trace) as stage:
        reader = TraceReader(trace, stage("Checking"))
        breakdown = break_down(reader, stage("Adding up"))
    if output is None:
        _print(breakdown, form, trace)
    else:
        _write(output, _text(breakdown, form, trace))
    if not breakdown.complete:
        raise DamagedTraceError(
            f"{trace} is incomplete or damaged: {breakdown.problems[0] if breakdown.problems else 'it has no footer.'}",
            "The report covers what could be read.",
        )


def _text(breakdown: Breakdown, form: str, trace: Path) -> str:
    from rlscope_ebpf.report import csv, json, text

    if form == "json":
        return json.report_text(breakdown)
    if form == "csv":
        return csv.report_text(breakdown)
    return text.report_text(breakdown, source=str(trace))


def _print(breakdown: Breakdown, form: str, trace: Path) -> None:
    if form == "text":
        from rlscope_ebpf.report.text import print_report

        _allow_any_text()
        print_report(breakdown, sys.stdout, source=str(trace))
    else:
        _allow_any_text()
        sys.stdout.write(_text(breakdown, form, trace))
    sys.stdout.flush()


def _allow_any_text() -> None:
    """Names come from the target: where stdout's encoding has no such character, "?" is better than no report."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")


def _write(path: Path, text: str) -> None:
    """Write a file; one that is new belongs, under sudo, to the user who called sudo. Raises ProfilerErrors."""
    import os

    from rlscope_ebpf.trace.writer import owner_from_sudo

    remedy = "Choose another file with --output."
    try:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            owner = owner_from_sudo()
        except FileExistsError:
            descriptor, owner = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC), None
        with open(descriptor, "w", encoding="utf-8", errors="replace", newline="") as file:
            if owner is not None:
                os.fchown(descriptor, *owner)
            file.write(text)
    except PermissionError as error:
        raise NotPermittedError(f"{path} may not be written.", remedy) from error
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.", remedy) from error
    except OSError as error:
        raise ProfilerError(f"{path} could not be written: {error.strerror}.", remedy) from error


@contextmanager
def _progress(trace: Path) -> Iterator[Callable[[str], Callable[[int, int], None] | None]]:
    """Gives one callback per stage: a bar on stderr for a large trace on a terminal, else none."""
    try:
        large = trace.stat().st_size >= LARGE_BYTES
    except OSError:
        large = False  # the reader says what is wrong
    if not large or not sys.stderr.isatty():
        yield lambda _title: None
        return

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:

        def stage(title: str) -> Callable[[int, int], None]:
            task = bar.add_task(title, total=None)
            return lambda done, total: bar.update(task, completed=done, total=total)

        yield stage
