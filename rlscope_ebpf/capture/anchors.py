"""Where a symbol of a file lies in a process; what is found in a file is remembered, for many processes map it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from rlscope_ebpf.capture.elf import ElfFile
from rlscope_ebpf.capture.maps import MappedObject, host_path
from rlscope_ebpf.errors import ProfilerError

Find = Callable[[ElfFile], "tuple[int, int] | None"]
"""Virtual address and size of what is looked for in a file; None if it is not there."""

_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class _Place:
    vaddr: int
    size: int
    anchors: tuple[tuple[int, int], ...]  # file offset and virtual address of each range of code


_known: dict[tuple[int, int, int, int, str], _Place | None] = {}


def locate(pid: int, mapped: MappedObject, what: str, find: Find) -> tuple[int, int] | None:
    """Address and size in a process of `what` `find` finds in an object; None if it is not there."""
    path = host_path(pid, mapped)
    if path is None:
        return None
    try:
        status = os.stat(path)
        key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, what)
        if key not in _known:
            if len(_known) >= _REMEMBERED:
                _known.pop(next(iter(_known)))
            with ElfFile(path) as elf:
                _known[key] = _place(elf, find(elf))
        place = _known[key]
    except (ProfilerError, OSError):
        return None
    for offset, vaddr in place.anchors if place is not None else ():
        address = mapped.address(offset)
        if address is not None and place is not None:
            return place.vaddr + address - vaddr, place.size
    return None


def _place(elf: ElfFile, found: tuple[int, int] | None) -> _Place | None:
    if found is None:
        return None
    offsets = [(elf.offset_of(low), low) for low, _ in elf.code_ranges]
    return _Place(*found, tuple((offset, low) for offset, low in offsets if offset is not None))
