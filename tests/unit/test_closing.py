"""Probes are taken away in the background, each piece by itself."""

from __future__ import annotations

import os
import threading
import time

import pytest

from rlscope_ebpf.capture import links
from rlscope_ebpf.capture.closing import THREADS, Closer
from rlscope_ebpf.capture.links import Link


def descriptors(count: int) -> list[int]:
    return [os.open(os.devnull, os.O_RDONLY) for _ in range(count)]


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_perf_probes_are_closed_one_by_one_and_links_of_many_at_once() -> None:
    perf, many = Link(list(range(6)), 3), Link([9], 500)
    assert [(piece.fds, piece.probes) for piece in perf.pieces()] == [([0, 1], 1), ([2, 3], 1), ([4, 5], 1)]
    assert perf.fds == []
    assert [(piece.fds, piece.probes) for piece in many.pieces()] == [([9], 500)]


def test_all_are_closed_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    close = os.close

    def close_later(fd: int) -> None:
        go.wait(30)
        close(fd)

    fds = descriptors(2 * 3 * THREADS + 1)
    closer = Closer()
    monkeypatch.setattr(links.os, "close", close_later)
    closer.add([Link(fds[1:], 3 * THREADS)])
    closer.add([Link(fds[:1], 10)])
    assert closer.left == 3 * THREADS + 10
    assert not closer.wait(0.01)
    assert all(map(is_open, fds))
    go.set()
    assert closer.wait(30)
    assert closer.left == 0
    monkeypatch.undo()
    assert not any(map(is_open, fds))
    assert closer.wait(0)  # nothing to wait for


def test_what_goes_later_goes_later_and_is_told_once() -> None:
    ends = [os.pipe() for _ in range(2)]
    told: list[float] = []
    closer = Closer()
    begun = time.monotonic()
    closer.add([Link([each[1]], 1) for each in ends], 0.2, lambda: told.append(time.monotonic() - begun))
    assert closer.wait(30)
    assert len(told) == 1
    assert told[0] >= 0.2
    for read_end, _ in ends:
        assert os.read(read_end, 1) == b""  # closed
        os.close(read_end)
    closer.add([], 0.2, lambda: told.append(0.0))
    assert told[1:] == [0.0]  # nothing to wait for
