"""`rlscope-ebpf attach`: profile processes that run already."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import click

from rlscope_ebpf.cli.options import announce, capture_options, read_capture_options
from rlscope_ebpf.session.options import CaptureOptions, parse_pids


@click.command("attach")
@click.option("--pid", "pids", type=int, multiple=True, metavar="N", help="Process to attach to. Repeatable.")
@capture_options
@click.pass_context
def command(context: click.Context, /, pids: tuple[int, ...], **given: Any) -> int:
    """Attach to running processes and show where their time goes.

    On a terminal the live UI is shown; otherwise progress goes to stderr. Ctrl-C (or q) detaches, finishes the trace
    and prints the summary on stdout; the target runs on.
    """
    options = replace(read_capture_options(**given), pids=parse_pids(pids))
    gc.disable()  # nothing made until all is attached is garbage, and looking for some takes a tenth of that time
    try:
        return _attach(context, options)
    finally:
        gc.enable()


def _attach(context: click.Context, options: CaptureOptions) -> int:
    from rlscope_ebpf.capture.preparation import Preparation
    from rlscope_ebpf.capture.process import inspect

    for pid in options.pids:
        inspect(pid)  # a wrong pid is the first thing to complain about
    announce(options.pids)
    with Preparation(options.attach_method) as preparation:
        from rlscope_ebpf.cli.recording import follow_notices, record

        recording = record(options, preparation=preparation, notices=follow_notices(context))
    if recording.failure is not None:
        raise recording.failure
    return 0
