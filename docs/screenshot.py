"""Makes the README's picture of the live UI from a trace.

Usage: python docs/screenshot.py TRACE docs/live.svg [COLUMNSxROWS] [KEY ...]
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from rlscope_ebpf.errors import ExitStatus, ProfilerError
from rlscope_ebpf.trace.reader import TraceReader
from rlscope_ebpf.tui.replay import TraceReplay
from rlscope_ebpf.tui.screenshot import DEFAULT_SIZE, take


def main(arguments: list[str]) -> int:
    """Take the picture; the exit status."""
    if len(arguments) < 2:
        sys.stderr.write(f"{__doc__}\n")
        return ExitStatus.USAGE
    trace, out, *keys = arguments
    size = DEFAULT_SIZE
    if keys and keys[0][:1].isdigit():
        columns, _, rows = keys.pop(0).partition("x")
        size = (int(columns), int(rows))
    try:
        svg = asyncio.run(take(TraceReplay(TraceReader(trace)), size=size, keys=keys))
    except ProfilerError as error:
        sys.stderr.write(f"{error}\n")
        return error.status
    Path(out).write_text(svg, encoding="utf-8")
    return ExitStatus.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
