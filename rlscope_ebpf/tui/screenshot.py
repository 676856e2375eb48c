"""Pictures of the screen, as SVG."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

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
