"""The live screen on a terminal of its own, which is closed under it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import TARGETS, Program, build, changed_text_bytes, rlscope, wait_for

pytestmark = pytest.mark.system


def _read_for(terminal: int, seconds: float, wanted: bytes = b"\0nothing") -> bytes:
    end, seen = time.monotonic() + seconds, b""
    while time.monotonic() < end and wanted not in seen:
        if select.select([terminal], [], [], 0.1)[0]:
            seen += os.read(terminal, 1 << 16)
    return seen


@pytest.mark.parametrize("controls", [True, False], ids=["a signal comes", "no signal"])
@pytest.mark.parametrize("full", [False, True], ids=["read to the end", "nobody reads"])
def test_a_terminal_that_is_closed_ends_the_session(
    full: bool, controls: bool, start_target: Callable[..., Program], tmp_path: Path
) -> None:
    """`full`: what the screen wants to write is waiting then. `controls`: the terminal is the session's own."""
    target = start_target(sys.executable, TARGETS / "loop.py")
    target.go()
    ours, theirs = pty.openpty()
    trace = tmp_path / "a.rlscope"
    profiler = subprocess.Popen(
        [sys.executable, "-m", "rlscope_ebpf", "attach", "--pid", str(target.pid), "-o", trace, *build.LIBRARY_OPTIONS],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env=os.environ | {"TERM": "xterm"},
        preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if controls else None,
    )  # fmt: skip
    try:
        os.close(theirs)
        assert b"Timeline" in _read_for(ours, 60, b"Timeline")  # the screen is there
        if full:
            time.sleep(3)
        else:
            _read_for(ours, 2)
        os.close(ours)
        profiler.wait(60)
    finally:
        profiler.kill()
        profiler.wait()
    assert target.is_running
    wait_for(lambda: changed_text_bytes(target.pid) == 0, 30, "the probes to be gone")
    done = rlscope("report", trace)
    assert done.status == 0, done.stderr
