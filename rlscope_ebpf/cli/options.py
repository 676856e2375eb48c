"""The options that `attach` and `run` share: defined once, read once into `CaptureOptions`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from rlscope_ebpf.errors import UsageError
from rlscope_ebpf.session.options import (
    ATTACH_METHODS,
    CAPTURE_MODES,
    DEFAULT_MAX_OVERHEAD,
    GPU_MODES,
    CaptureOptions,
    parse_duration,
    parse_library,
    parse_marker,
    parse_max_overhead,
)

library_option = click.option(
    "--library",
    "libraries",
    multiple=True,
    metavar="CATEGORY=PATTERN",
    help="Calls into shared objects whose path matches this glob belong to this category (backend or simulator). "
    "A library named by its whole path is probed before it is loaded. Repeatable; adds to the built-in catalogue.",
)
marker_option = click.option(
    "--marker",
    "markers",
    multiple=True,
    metavar="NAME=LIB:SYMBOL",
    help="Each call of this native function is an operation called NAME. Repeatable.",
)

# In the order in which --help lists them.
_CAPTURE_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path),
        metavar="TRACE",
        help="Trace file.  [default: rlscope-<name>-<pid>-<time>.rlscope in the working folder]",
    ),
    click.option("--force", is_flag=True, help="Overwrite the trace if it exists."),
    click.option("--no-trace", is_flag=True, help="Write no trace."),
    click.option("--duration", type=float, metavar="SEC", help="Detach after so long; the target runs on."),
    click.option("--no-tui", is_flag=True, help="No terminal UI, even on a terminal."),
    library_option,
    marker_option,
    click.option(
        "--mode",
        type=click.Choice(CAPTURE_MODES),
        default="auto",
        show_default=True,
        help="How time is told apart. trace: by probes, exactly. sample: by a look at each running thread a "
        "thousand times a second, and only operations by probes, which costs least and gives shares with an error. "
        "auto: trace; where probes are taken off to keep the overhead budget, samples fill in.",
    ),
    click.option(
        "--gpu",
        type=click.Choice(GPU_MODES),
        default="auto",
        show_default=True,
        help="GPU kernel times, told by a helper library in the program. auto: if it can be loaded without delay (by "
        "`run` always, by `attach` with Frida); cupti: `attach` may also use gdb, which stops the program for a second "
        "or so; cupti-python: with `run`, by that package in the program's own Python, which is slow; off: none, and "
        "nothing is loaded.",
    ),
    click.option(
        "--attach-method",
        type=click.Choice(ATTACH_METHODS),
        default="auto",
        show_default=True,
        help="Which uprobe mechanism of the kernel; auto: the best one.",
    ),
    click.option(
        "--follow/--no-follow",
        default=True,
        help="Whether to profile children as well, those that are there and those that come.",
    ),
    click.option(
        "--max-overhead",
        type=float,
        default=DEFAULT_MAX_OVERHEAD,
        show_default=True,
        metavar="PCT",
        help="Overhead budget, in percent of the target's time; 0: no limit.",
    ),
)


def capture_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: gives a verb every option of a capture."""
    for option in reversed(_CAPTURE_OPTIONS):
        function = option(function)
    return function


def announce(pids: Sequence[int], what: str = "") -> None:
    """Say at once what is going on: compiling and setting the probes may take seconds."""
    from rlscope_ebpf.model import format as fmt  # imports NumPy, which --help need not wait for

    click.echo(f"Attaching to {what}{fmt.processes(pids)}.", err=True)


def read_capture_options(
    *,
    output: Path | None,
    force: bool,
    no_trace: bool,
    duration: float | None,
    no_tui: bool,
    libraries: tuple[str, ...],
    markers: tuple[str, ...],
    mode: Any,
    gpu: Any,
    attach_method: Any,
    follow: bool,
    max_overhead: float,
) -> CaptureOptions:
    """Check what was given and make one value of it, without any pids yet.

    Raises:
        click.UsageError: options exclude each other.
        UsageError: a value cannot be read, or the trace cannot be written where it is to go.
    """
    if no_trace and output is not None:
        raise click.UsageError("--output and --no-trace exclude each other.")
    options = CaptureOptions(
        output=output,
        duration_s=parse_duration(duration),
        tui=not no_tui,
        libraries=tuple(parse_library(text) for text in libraries),
        markers=tuple(parse_marker(text) for text in markers),
        mode=mode,
        gpu=gpu,
        attach_method=attach_method,
        follow=follow,
        max_overhead=parse_max_overhead(max_overhead),
        force=force,
        write_trace=not no_trace,
    )
    if options.write_trace:
        _check_place(options)
    return options


def _check_place(options: CaptureOptions) -> None:
    """See that the trace can be written, before anything is begun."""
    if options.output is not None:
        from rlscope_ebpf.trace.writer import TraceWriter

        TraceWriter(options.output, force=options.force).check()
        return
    import tempfile  # with what it imports it would take a part of --help's time

    try:
        tempfile.TemporaryFile(dir=os.curdir).close()
    except OSError as error:
        raise UsageError(
            f"A trace cannot be created in this folder: {(error.strerror or str(error)).lower()}.",
            "Choose another place with --output, or run with --no-trace.",
        ) from error
