"""`rlscope-ebpf attach`: profile processes that run already."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import click

from rlscope_ebpf.cli.blas import one_blas_thread
from rlscope_ebpf.cli.options import announce, capture_options, read_capture_options
from rlscope_ebpf.session.options import CaptureOptions, parse_pids


@click.command("attach")
@click.option("--pid", "pids", type=int, multiple=True, metavar="N", help="Process to attach to. Repeatable.")
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="GLOB",
    help="All processes of this name, or Python processes that run a script of this name; those that come later, too, "
    "unless --no-follow. Repeatable.",
)
@click.option("--cgroup", "cgroups", multiple=True, metavar="PATH", help="The same of a control group. Repeatable.")
@click.option("--tree", "trees", type=int, multiple=True, metavar="PID", help="A process and all that descend from it.")
@capture_options
def command(
    pids: tuple[int, ...], names: tuple[str, ...], cgroups: tuple[str, ...], trees: tuple[int, ...], **given: Any
) -> int:
    """Attach to running processes and show where their time goes.

    On a terminal the live UI is shown; otherwise progress goes to stderr. Ctrl-C (or q) detaches, finishes the trace
    and prints the summary on stdout; the target runs on.
    """
    with one_blas_thread():
        return _checked(pids, names, cgroups, trees, read_capture_options(**given))


def _checked(
    pids: tuple[int, ...],
    names: tuple[str, ...],
    cgroups: tuple[str, ...],
    trees: tuple[int, ...],
    options: CaptureOptions,
) -> int:
    from rlscope_ebpf.capture.process import inspect

    for pid in parse_pids(pids) if pids else ():
        inspect(pid)  # a wrong pid is the first thing to complain about
    if names or cgroups or trees:
        from rlscope_ebpf.capture.process_sets import find_processes

        pids = find_processes(pids, names, cgroups, trees)
    options = replace(options, pids=parse_pids(pids), names=names, cgroups=cgroups)
    gc.disable()  # nothing made until all is attached is garbage, and looking for some takes a tenth of that time
    try:
        return _attach(options)
    finally:
        gc.enable()


def _attach(options: CaptureOptions) -> int:
    from rlscope_ebpf.capture.preparation import Preparation

    announce(options.pids)
    with Preparation(options.attach_method) as preparation:
        from rlscope_ebpf.cli.recording import record

        recording = record(options, preparation=preparation)
    if recording.failure is not None:
        raise recording.failure
    return 0
