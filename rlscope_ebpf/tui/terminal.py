"""The screen's way to the terminal, which may be closed at any moment."""

from __future__ import annotations

import select
from contextlib import suppress
from typing import IO, Any, cast

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver


class LastingFile:
    """A terminal that takes what is written also once it is gone.

    Textual writes in a thread, which ends with the first error; who then writes more waits for it for ever.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Write; how much of it the terminal is said to have taken."""
        try:
            return self._file.write(text)
        except (OSError, ValueError):  # gone, or closed
            return len(text)

    def flush(self) -> None:
        """Let the terminal have it, if it is there."""
        with suppress(OSError, ValueError):
            self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def is_gone(file: IO[str] | None) -> bool:
    """Whether the terminal that is read from has been closed."""
    if file is None or file.closed:
        return False
    look = select.poll()
    look.register(file, 0)  # these are told without being asked for
    return any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in look.poll(0))


class TerminalDriver(LinuxDriver):
    """Textual's driver, on a `LastingFile`."""

    def __init__(
        self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._file = cast("Any", LastingFile(cast("IO[str]", self._file)))
