"""Progress of a capture on stderr: one line that is written over on a terminal, a line now and then otherwise."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, TextIO

from rlscope_ebpf.model import format as fmt

if TYPE_CHECKING:
    from rlscope_ebpf.live.snapshot import Snapshot

TERMINAL_PERIOD_S = 1.0
PIPE_PERIOD_S = 5.0


class Progress:
    """Writes to a stream that may be closed at any time without harm."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._on_terminal = stream.isatty()
        self._period_s = TERMINAL_PERIOD_S if self._on_terminal else PIPE_PERIOD_S
        self._next = time.monotonic() + self._period_s
        self._width = 0  # of the line that is written over

    def is_due(self) -> bool:
        """Whether it is time for the next line."""
        return time.monotonic() >= self._next

    def show(self, snapshot: Snapshot) -> None:
        """Write the state of a capture."""
        self.show_line(describe(snapshot))

    def show_line(self, line: str) -> None:
        """Write a line that the next one replaces."""
        self._next = time.monotonic() + self._period_s
        if self._on_terminal:
            line = fmt.shorten(line, shutil.get_terminal_size().columns - 1)
            self._write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            self._write(line + "\n")

    def say(self, sentence: str) -> None:
        """Write a sentence on a line of its own."""
        self.close()
        self._write(fmt.printable(sentence) + "\n")

    def close(self) -> None:
        """Leave the line that is written over."""
        if self._width:
            self._write("\r" + " " * self._width + "\r")
            self._width = 0

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            pass  # nobody reads it any more


def describe(snapshot: Snapshot) -> str:
    """The state of a capture on one line."""
    counters = snapshot.counters
    parts = [
        fmt.clock(snapshot.elapsed_ns),
        fmt.rate(snapshot.events_per_s, "events"),
        fmt.probes(counters),
        f"overhead {fmt.overhead(snapshot.overhead_fraction, snapshot.overhead_plausible)} so far",
        fmt.losses(snapshot.losses) or "nothing lost",
    ]
    busiest = max((row for row in snapshot.operations if row.path), key=lambda row: row.wall_ns, default=None)
    if busiest is not None:
        parts.append(f"most in {fmt.path(busiest.path)}")
    return "  ".join(parts)
