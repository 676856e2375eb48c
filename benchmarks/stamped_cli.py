"""`rlscope-ebpf`, saying on stderr when it has attached and when its live model first gets intervals.

Lines "STAMP attached|data SECONDS", in seconds of the monotonic clock.
"""

from __future__ import annotations

import os
import sys
import time

from rlscope_ebpf.cli import main
from rlscope_ebpf.live.model import LiveModel
from rlscope_ebpf.model.session import SessionInfo
from rlscope_ebpf.model.tables import Batch

_start, _batch = LiveModel.start, LiveModel.batch
_said: set[str] = set()


def _say(what: str) -> None:
    if what not in _said:
        _said.add(what)
        # In one piece: the main thread writes there as well.
        os.write(2, f"\nSTAMP {what} {time.monotonic():.6f}\n".encode())


def start(self: LiveModel, info: SessionInfo) -> None:
    """Called once every probe is set."""
    _say("attached")
    _start(self, info)


def batch(self: LiveModel, given: Batch) -> None:
    """Called with every batch."""
    _batch(self, given)
    intervals = given.tables.get("intervals")
    if intervals is not None and len(intervals):
        _say("data")


setattr(LiveModel, "start", start)  # noqa: B010 - a plain assignment is an error to the type checker
setattr(LiveModel, "batch", batch)  # noqa: B010
sys.exit(main())
