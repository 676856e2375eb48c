"""A picture of the screen, made from a trace.

Usage: python -m rlscope_ebpf.tui.screenshot TRACE OUT.svg [COLUMNSxROWS] [KEY ...]
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from textual.pilot import Pilot

from rlscope_ebpf.tui.app import ProfilerApp
from rlscope_ebpf.tui.source import SnapshotSource

DEFAULT_SIZE = (120, 36)
PATIENCE_S = 30.0


async def settled(app: ProfilerApp, pilot: Pilot[None]) -> None:
    """Wait until the first figures (of a replay: those of the place it began at) are on the screen."""
    waited = 0.0
    while app.is_running and waited < PATIENCE_S:
        await pilot.pause()
        if app.snapshot is not None and not app.loading_figures:
            break
        await asyncio.sleep(0.02)
        waited += 0.02
    await pilot.pause()


async def take(
    source: SnapshotSource, *, size: tuple[int, int] = DEFAULT_SIZE, keys: Sequence[str] = (), title: str = ""
) -> str:
    """The SVG of the screen of `source` after pressing `keys`. Raises what the source raises."""
    app = ProfilerApp(source)
    async with app.run_test(size=size) as pilot:
        await settled(app, pilot)
        if app.failure is not None:
            raise app.failure
        await pilot.press(*keys)
        await pilot.pause()
        return app.export_screenshot(title=title or app.title, simplify=True)


def main(arguments: Sequence[str]) -> int:
    """The command line; its exit status."""
    from rlscope_ebpf.errors import ProfilerError
    from rlscope_ebpf.trace.reader import TraceReader
    from rlscope_ebpf.tui.replay import TraceReplay

    if len(arguments) < 2:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    trace, out, *rest = arguments
    size = DEFAULT_SIZE
    if rest and rest[0][:1].isdigit():
        columns, _, rows = rest.pop(0).partition("x")
        size = (int(columns), int(rows))
    try:
        svg = asyncio.run(take(TraceReplay(TraceReader(trace)), size=size, keys=rest))
    except ProfilerError as error:
        sys.stderr.write(f"{error}\n")
        return int(error.status)
    Path(out).write_text(svg, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
