"""`rlscope-ebpf view`: the live UI, replaying a trace."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
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

    with _typing_unseen():
        _show("Reading the trace…")  # on a busy machine all that is imported below takes seconds

        from rlscope_ebpf.model import format as fmt
        from rlscope_ebpf.trace.reader import TraceReader

        reader = TraceReader(trace, progress=_show_progress)
        _show("The trace is read; the screen is being opened…")

        from rlscope_ebpf.tui.app import ProfilerApp
        from rlscope_ebpf.tui.replay import TraceReplay

        app = ProfilerApp(TraceReplay(reader))
        app.run()
        _show("")
    if app.failure is not None:
        raise app.failure
    for problem in reader.problems:
        click.echo(fmt.printable(problem), err=True)
    return ExitStatus.OK if reader.complete else ExitStatus.DAMAGED


@contextmanager
def _typing_unseen() -> Iterator[None]:
    """Keys are not echoed, and kept for whoever reads them next."""
    import termios

    try:
        before = termios.tcgetattr(sys.stdin)
    except termios.error:
        yield
        return
    now = termios.tcgetattr(sys.stdin)
    now[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(sys.stdin, termios.TCSANOW, now)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


def _show(text: str) -> None:
    click.echo(f"\r\033[K{text}", nl=False, err=True)


def _show_progress(done: int, total: int) -> None:
    if total:
        _show(f"Reading the trace: {done * 100 // total:3d} %")
