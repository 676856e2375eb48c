"""`rlscope-ebpf view`: the live UI, replaying a trace."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command("view")
@click.argument("trace", type=click.Path(path_type=Path))
def command(trace: Path) -> int:
    """Replay a trace in the live UI.

    It opens at the end and shows the whole trace. Home plays it from the start, space stops and goes on, left and right
    move, 1 to 9 set the speed, + and - double and halve it, End returns to the whole trace. ? lists every key.
    """
    from rlscope_ebpf.errors import ExitStatus, UsageError

    if not trace.exists():
        raise UsageError(f"There is no file {trace}.", "Give the path of a trace, which ends in .rlscope.")
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise UsageError("`view` needs a terminal.", f"`rlscope-ebpf report {trace}` prints the same figures anywhere.")

    from rlscope_ebpf.model import format as fmt
    from rlscope_ebpf.trace.reader import TraceReader

    reader = TraceReader(trace, progress=_show_progress)
    click.echo("\r\033[K", nl=False, err=True)

    from rlscope_ebpf.tui.app import ProfilerApp
    from rlscope_ebpf.tui.replay import TraceReplay

    app = ProfilerApp(TraceReplay(reader))
    app.run()
    if app.failure is not None:
        raise app.failure
    for problem in reader.problems:
        click.echo(fmt.printable(problem), err=True)
    return ExitStatus.OK if reader.complete else ExitStatus.DAMAGED


def _show_progress(done: int, total: int) -> None:
    if sys.stderr.isatty() and total:
        click.echo(f"\rReading the trace: {done * 100 // total:3d} %", nl=False, err=True)
