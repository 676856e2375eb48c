"""`rlscope-ebpf calibrate`: measure what probe hits cost on this host, and keep it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rlscope_ebpf.model.calibration import Calibration

MEANING = (
    "Each line is what one hit of a probe on such an instruction takes from the target: less if it tells nothing new "
    "(silent), more if it sends an event. Both are measured apart: where a silent hit seems to cost more, the figures "
    "are off by at least the difference. Of a hit with an event, which part comes before and after the event's time "
    "stamp decides whose time it is taken out of. The best method that the kernel has is used."
)


@click.command("calibrate")
def command() -> None:
    """Measure what probe hits cost on this host, and keep it.

    Takes some ten seconds, in which the host should be idle, and needs no program of yours. `attach` and `run` use the
    figures to say what the profiler costs, to stay below --max-overhead, and to correct the times that they show.
    """
    from rlscope_ebpf.calibration import load, store
    from rlscope_ebpf.calibration.measure import STEPS, measure_method
    from rlscope_ebpf.capture.kernel import attach_methods, choose_attach_method, kernel_version

    choose_attach_method("auto")
    methods = attach_methods(kernel_version())
    costs = {}
    others = load.OtherLoad()
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("Measuring", total=len(methods) * STEPS)
        for method in methods:
            costs[method] = measure_method(method, progress=lambda: progress.advance(task))
    busy = others.processors()
    calibration = store.this_host(costs)
    path = store.save(calibration)
    _print(calibration)
    click.echo(MEANING, err=True)
    if busy >= load.NOTICEABLE:
        click.echo(
            f"Other programs kept {busy:.1f} processors busy meanwhile, so the figures may be off: calibrate again "
            "when the host is idle.",
            err=True,
        )
    click.echo(f"Kept in {path}; attach and run use it from now on.", err=True)


def _print(calibration: Calibration) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from rlscope_ebpf.model.calibration import SITE_CLASSES

    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"ns per probe hit, {calibration.cpu}, kernel {calibration.kernel}",
        title_justify="left",
    )
    table.add_column("method")
    table.add_column("hit")
    for name in ("silent", "with event", "± spread", "before stamp", "after stamp"):
        table.add_column(name, justify="right")
    for method, costs in calibration.methods.items():
        for name, cost in zip((*SITE_CLASSES, "return"), (*costs.entries, costs.returned), strict=True):
            cells = (cost.silent, cost.whole, cost.spread, cost.before, cost.after)
            table.add_row(method, name, *(f"{cell:,.0f}" for cell in cells), end_section=name == "return")
    Console(file=sys.stdout, width=100).print(table)
