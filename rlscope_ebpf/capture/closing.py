"""Taking probes away in the background: the kernel lets go of one only after all its CPUs have passed a quiet point."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rlscope_ebpf.capture.links import Link

THREADS = 64
"""The kernel takes perf-event probes away one after the other, 0.1 to 0.2 s each; with so many threads in half the time
that one needs. Links of many probes are gone in a second if they do not wait for each other."""


@dataclass(slots=True)
class _Batch:
    """What was to be closed together."""

    then: Callable[[], None] | None
    left: int = 0  # pieces


@dataclass(frozen=True, slots=True)
class _Piece:
    link: Link
    due_s: float
    batch: _Batch


class Closer:
    """Closes links in threads of its own. From any thread."""

    def __init__(self) -> None:
        self._waiting: deque[_Piece] = deque()
        self._changed = threading.Condition()
        self._threads = 0
        self._left = 0

    @property
    def left(self) -> int:
        """Probes that are not away yet."""
        return self._left

    def add(self, links: Iterable[Link], after_s: float = 0.0, then: Callable[[], None] | None = None) -> None:
        """Close these, not before `after_s`, and `then` call that. Returns at once."""
        due_s = time.monotonic() + after_s
        batch = _Batch(then)
        pieces = [_Piece(piece, due_s, batch) for link in links for piece in link.pieces()]
        batch.left = len(pieces)
        if not pieces and then is not None:
            then()
        with self._changed:
            self._waiting.extend(pieces)
            self._left += sum(piece.link.probes for piece in pieces)
            wanted = min(len(self._waiting), THREADS - self._threads)
            self._threads += wanted
        for _ in range(wanted):
            threading.Thread(target=self._work, name="detach", daemon=True).start()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until all are away; whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._threads, seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._threads -= 1
                    self._changed.notify_all()
                    return
                piece = self._waiting.popleft()
            time.sleep(max(0.0, piece.due_s - time.monotonic()))
            piece.link.close()
            with self._changed:
                piece.batch.left -= 1
                is_last = not piece.batch.left
            if is_last and piece.batch.then is not None:
                piece.batch.then()
            with self._changed:
                self._left -= piece.link.probes
