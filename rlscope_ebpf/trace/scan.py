"""Going through a trace file object by object, past damage."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from rlscope_ebpf.trace.format import (
    CHECK_BYTES,
    CHECK_MARK,
    BrokenObject,
    MoreBytesNeeded,
    is_intact,
    object_end,
)

WINDOW_BYTES = 1 << 20
MAX_FAILED_STARTS = 1000  # bounds the search behind damage in a file made to be slow


@dataclass(frozen=True, slots=True)
class Intact:
    """One whole object."""

    offset: int
    blob: bytes


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that are no intact object. `cut`: they look like the beginning of one, and the file ends in it."""

    offset: int
    blob: bytes  # at most one window of it
    length: int
    cut: bool


class ObjectScanner:
    """Finds the objects of an open file of `size` bytes. The file may shrink meanwhile: that reads as its end."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self._size = size
        self._buffer = b""
        self._base = 0
        self._failed_starts = 0

    def __iter__(self) -> Iterator[Intact | Damage]:
        offset = 0
        while offset < self._size:
            blob, end = self._object_at(offset)
            if blob is not None:
                yield Intact(offset, blob)
                offset = end
            else:
                following = self._next_start(offset, end)
                cut = end < 0 and following >= self._size
                length = following - offset
                yield Damage(offset, self._read(offset, min(length, WINDOW_BYTES)), length, cut)
                offset = following

    def _object_at(self, offset: int) -> tuple[bytes | None, int]:
        """The object at `offset` or None, and its end: 0 if there is no object, -1 if the file ends before."""
        while True:
            start = offset - self._base
            if not 0 <= start < len(self._buffer) and not self._fill(offset, WINDOW_BYTES):
                return None, -1
            start = offset - self._base
            try:
                end = object_end(self._buffer, start)
            except BrokenObject:
                return None, 0
            except MoreBytesNeeded as more:
                needed = self._base + more.end - offset
                held = len(self._buffer) - start
                if offset + needed > self._size or not self._fill(offset, max(needed, 2 * held, WINDOW_BYTES)):
                    return None, -1
                if len(self._buffer) < needed:  # the file has shrunk
                    return None, -1
                continue
            blob = self._buffer[start:end]
            return (blob if is_intact(blob) else None), self._base + end

    def _next_start(self, damaged: int, end: int) -> int:
        """Where the next intact object begins behind the damage, or the file's size.

        Tried: where the damaged object seems to end, and behind everything that looks like an object's last entry.
        """
        position = damaged + 1
        guess = end if end > damaged else self._size
        while self._failed_starts < MAX_FAILED_STARTS:
            mark = self._find_mark(position)
            candidate = self._size if mark < 0 else mark + len(CHECK_MARK) + CHECK_BYTES
            if guess < candidate:
                candidate, guess = guess, self._size
            else:
                position = mark + 1
            if candidate >= self._size:
                return self._size
            if self._object_at(candidate)[0] is not None:
                return candidate
            self._failed_starts += 1
        return self._size

    def _find_mark(self, position: int) -> int:
        while position < self._size:
            block = self._read(position, WINDOW_BYTES)
            found = block.find(CHECK_MARK)
            if found >= 0:
                return position + found
            if len(block) < len(CHECK_MARK):
                break
            position += len(block) - len(CHECK_MARK) + 1
        return -1

    def _fill(self, offset: int, length: int) -> bool:
        self._buffer = self._read(offset, length)
        self._base = offset
        return bool(self._buffer)

    def _read(self, offset: int, length: int) -> bytes:
        return read_at(self._descriptor, offset, min(length, self._size - offset))


def read_at(descriptor: int, offset: int, length: int) -> bytes:
    """Up to `length` bytes at `offset`; fewer at the file's end or where the disk fails."""
    parts: list[bytes] = []
    while length > 0:
        try:
            part = os.pread(descriptor, length, offset)
        except OSError:
            break
        if not part:
            break
        parts.append(part)
        offset += len(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
