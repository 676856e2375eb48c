"""Taking probes away in the background: the kernel lets go of one only after all its CPUs have passed a quiet point."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from rlscope_ebpf.capture.links import Link

THREADS = 64
"""The kernel takes perf-event probes away one after the other, 0.1 to 0.2 s each; with so many threads in half the time
that one needs. Links of many probes are gone in a second if they do not wait for each other."""


class Closer:
    """Closes links in threads of its own. From any thread."""

    def __init__(self) -> None:
        self._waiting: deque[Link] = deque()
        self._changed = threading.Condition()
        self._threads = 0
        self._left = 0

    @property
    def left(self) -> int:
        """Probes that are not away yet."""
        return self._left

    def add(self, links: Iterable[Link]) -> None:
        """Close these. Returns at once."""
        pieces = [piece for link in links for piece in link.pieces()]
        with self._changed:
            self._waiting.extend(pieces)
            self._left += sum(piece.probes for piece in pieces)
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
                link = self._waiting.popleft()
            link.close()
            with self._changed:
                self._left -= link.probes
