"""Objects of a trace file: how one is packed, where it ends, whether it is intact. FORMAT.md is the reference.

Every object is a msgpack map whose last entry is `check`, the CRC-32 of all its bytes before that number. The walker
finds an object's end without decoding it, so nothing damaged, oversized or deeply nested ever reaches msgpack.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import msgpack  # type: ignore[import-untyped,unused-ignore]
import numpy as np

FORMAT_NAME = "rlscope-ebpf"
VERSION = (1, 5)
SUFFIX = ".rlscope"

HEADER_MARK = b"\xa6format\xac" + FORMAT_NAME.encode()
"""What follows the header's first byte (its map tag)."""

CHECK_MARK = b"\xa5check\xce"
"""What stands before the last four bytes of every object: also what a reader searches for behind damage."""

CHECK_BYTES = 4
MAX_OBJECT_BYTES = 64 << 20
MAX_DEPTH = 32
MAX_ITEMS = 65_536  # of one array or map
MAX_TOTAL_ITEMS = 262_144  # of one object, at every depth
CHUNK_ROWS = 131_072  # the writer's limit: keeps an object far below MAX_OBJECT_BYTES, whatever the table
MAX_CHUNK_ROWS = 1 << 20  # the reader's limit


class MoreBytesNeeded(Exception):
    """The object goes on behind the bytes at hand: `end` of them, counted from the buffer's start, are needed."""

    def __init__(self, end: int) -> None:
        super().__init__(end)
        self.end = end


class BrokenObject(ValueError):
    """The bytes are no object of a trace."""


def pack_object(entries: Mapping[str, Any]) -> bytes:
    """One object: `entries` in order, then `check`. Values are made plain first, see `plain`."""
    packer = msgpack.Packer(use_bin_type=True, autoreset=False)
    packer.pack_map_header(len(entries) + 1)
    for key, value in entries.items():
        packer.pack(key)
        packer.pack(plain(value))
    body = bytes(packer.bytes()) + CHECK_MARK
    return body + zlib.crc32(body).to_bytes(CHECK_BYTES, "big")


def plain(value: Any, depth: int = 0) -> Any:
    """`value` as what every msgpack library can hold: text without surrogates, 64-bit integers, lists, maps by text."""
    if value is None or isinstance(value, bool | float | bytes):
        return value
    if isinstance(value, Enum):
        return plain(value.value, depth)
    if isinstance(value, int | np.integer):
        number = int(value)
        return number if -(1 << 63) <= number < (1 << 64) else str(number)
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, np.bool_ | np.floating):
        return value.item()
    if depth >= MAX_DEPTH - 4:
        return clean_text(str(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name), depth + 1) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {clean_text(str(key)): plain(item, depth + 1) for key, item in list(value.items())[:MAX_ITEMS]}
    if isinstance(value, Iterable):
        return [plain(item, depth + 1) for item in list(value)[:MAX_ITEMS]]
    return clean_text(str(value))


def clean_text(text: str) -> str:
    """`text` as valid UTF-8 can hold it: bytes that `os.fsdecode` could not read become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _fixed_sizes() -> list[int]:
    """Bytes of an item by its first byte, for items of constant size without a length field; 0 for all others."""
    sizes = [0] * 256
    for tag in [*range(0x80), *range(0xE0, 0x100), 0xC0, 0xC2, 0xC3]:
        sizes[tag] = 1
    for tag in range(0xA0, 0xC0):  # short text
        sizes[tag] = 1 + (tag & 0x1F)
    for tag, width in ((0xCA, 4), (0xCB, 8), (0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8)):
        sizes[tag] = 1 + width
    for tag, width in ((0xD0, 1), (0xD1, 2), (0xD2, 4), (0xD3, 8)):
        sizes[tag] = 1 + width
    for tag, width in ((0xD4, 1), (0xD5, 2), (0xD6, 4), (0xD7, 8), (0xD8, 16)):  # fixed extensions
        sizes[tag] = 2 + width
    return sizes


_FIXED = _fixed_sizes()
_LENGTH_FIELD = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4}
_EXTENSIONS = frozenset((0xC7, 0xC8, 0xC9))
MAP_TAGS = frozenset((*range(0x80, 0x90), 0xDE, 0xDF))


def object_end(buffer: bytes, start: int) -> int:
    """Offset behind the map that begins at `start`.

    Raises `BrokenObject` if there is none, it is too large or nested too deeply, and `MoreBytesNeeded` if it goes on
    behind the buffer.
    """
    available = len(buffer)
    position = start
    open_items: list[int] = []  # items still to come, outermost container first
    total = 0
    while True:
        if position >= available:
            raise MoreBytesNeeded(position + 1)
        tag = buffer[position]
        if position == start and tag not in MAP_TAGS:
            raise BrokenObject("no map")
        size = _FIXED[tag]
        items = -1
        if size:
            position += size
        elif 0x80 <= tag <= 0x9F or 0xDC <= tag <= 0xDF:
            position, items = _container(buffer, position, tag)
            total += items
            if items > MAX_ITEMS * 2 or total > MAX_TOTAL_ITEMS:
                raise BrokenObject("too many items")
        elif tag in _LENGTH_FIELD:
            width = _LENGTH_FIELD[tag]
            body = position + 1 + width + (1 if tag in _EXTENSIONS else 0)
            if body > available:
                raise MoreBytesNeeded(body)
            position = body + int.from_bytes(buffer[position + 1 : position + 1 + width], "big")
        else:
            raise BrokenObject("a byte that msgpack never uses")
        if position - start > MAX_OBJECT_BYTES:
            raise BrokenObject("too large")
        if items > 0:
            if len(open_items) >= MAX_DEPTH:
                raise BrokenObject("nested too deeply")
            open_items.append(items)
            continue
        while open_items:
            open_items[-1] -= 1
            if open_items[-1]:
                break
            open_items.pop()
        if not open_items:
            if position > available:
                raise MoreBytesNeeded(position)
            return position


def _container(buffer: bytes, position: int, tag: int) -> tuple[int, int]:
    """Offset of the first item of an array or map, and how many items there are (two for each entry of a map)."""
    if tag <= 0x8F:
        return position + 1, 2 * (tag & 0x0F)
    if tag <= 0x9F:
        return position + 1, tag & 0x0F
    width = 2 if tag in (0xDC, 0xDE) else 4
    body = position + 1 + width
    if body > len(buffer):
        raise MoreBytesNeeded(body)
    count = int.from_bytes(buffer[position + 1 : body], "big")
    return body, count * (2 if tag in (0xDE, 0xDF) else 1)


def is_intact(blob: bytes) -> bool:
    """Whether `blob`, one whole object, ends with the right `check`."""
    body = len(blob) - CHECK_BYTES
    if body <= len(CHECK_MARK) or blob[body - len(CHECK_MARK) : body] != CHECK_MARK:
        return False
    return zlib.crc32(memoryview(blob)[:body]) == int.from_bytes(blob[body:], "big")


def unpack_object(blob: bytes) -> dict[str, Any]:
    """The entries of one object that the walker has measured; raises `BrokenObject`."""
    try:
        entries = msgpack.unpackb(
            blob,
            raw=False,
            strict_map_key=True,
            max_array_len=MAX_ITEMS,
            max_map_len=MAX_ITEMS,
            max_str_len=MAX_OBJECT_BYTES,
            max_bin_len=MAX_OBJECT_BYTES,
            max_ext_len=MAX_OBJECT_BYTES,
        )
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        raise BrokenObject(str(error)) from error
    if not isinstance(entries, dict):
        raise BrokenObject("no map")
    return entries
