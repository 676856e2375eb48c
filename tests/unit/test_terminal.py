"""A terminal that is closed while the screen is on it."""

from __future__ import annotations

import io
import os
import pty
import threading

from textual.drivers._writer_thread import MAX_QUEUED_WRITES, WriterThread

from rlscope_ebpf.tui.terminal import LastingFile, is_gone


class Closed(io.StringIO):
    """Says what a terminal says that was closed."""

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")

    def flush(self) -> None:
        raise OSError(5, "Input/output error")


def test_who_writes_to_a_closed_terminal_comes_to_an_end() -> None:
    """Textual's thread ends with the first error; what is written then fills its queue, and stopping waits for room."""
    writer = WriterThread(LastingFile(Closed()))  # type: ignore[arg-type]
    writer.start()

    def use() -> None:
        for _ in range(2 * MAX_QUEUED_WRITES):
            writer.write("figures")
        writer.stop()

    user = threading.Thread(target=use, daemon=True)
    user.start()
    user.join(30)
    assert not user.is_alive()


def test_what_is_written_arrives_while_the_terminal_is_there() -> None:
    file = io.StringIO()
    lasting = LastingFile(file)
    assert lasting.write("figures") == 7
    lasting.flush()
    assert file.getvalue() == "figures"
    assert lasting.closed is False
    file.close()
    assert lasting.write("more") == 4
    lasting.flush()


def test_a_closed_terminal_is_noticed() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as file:
        assert not is_gone(file)
        os.close(ours)
        assert is_gone(file)
    assert not is_gone(file)  # closed by ourselves
    assert not is_gone(None)
