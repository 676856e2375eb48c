"""Programs that run on several stacks in one thread: coroutines in C, greenlets, fibers.

The kernel keeps a thread's pending return probes as one stack and tells live ones from dead ones by the stack pointer.
Where a program leaves a probed call by switching to another stack, it takes the wrong one off, or none, and kills the
program. So the calls of such a program are never given return probes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Final

from rlscope_ebpf.capture.elf import ElfError, ElfFile
from rlscope_ebpf.capture.maps import MappedObject

# Objects that bring a way to switch along, by name: most are stripped. Ray's worker has Boost's fibers in it.
_FILES: Final = (
    "_greenlet*.so",
    "greenlet*.so",
    "_raylet*.so",
    "libboost_context*",
    "libboost_coroutine*",
    "libboost_fiber*",
    "libfolly*",
    "libjulia-internal*",
    "libbrpc*",
)
# swapcontext and not makecontext: OpenSSL, which is in nearly every process, imports the latter and rarely calls it.
_IMPORTS: Final = frozenset({"swapcontext"})
_FUNCTIONS: Final = ("jump_fcontext", "make_fcontext", "ontop_fcontext", "slp_switch", "coro_transfer", "co_switch")
# How Boost's switch begins, also in programs that are linked with it statically: stmxcsr (%rsp); fnstcw 4(%rsp).
_SAVES_CONTROL_WORDS: Final = bytes.fromhex("0fae1c24d97c2404")
_C_LIBRARIES: Final = ("libc.so", "libc-2.", "ld-musl", "libc.musl")
_LONGEST_SEARCH: Final = 64 << 20  # bytes of code or names of one file that are searched
_PACKAGES: Final = re.compile(r"(?P<root>/.*/(?:site|dist)-packages)/")
_STANDARD_LIBRARY: Final = re.compile(r"(?P<root>/.*/lib/python3(?:\.\d+)?)/lib-dynload/")


def switches_stacks(elf: ElfFile, name: str) -> bool:
    """Whether an object of this file name can switch stacks, as far as can be told. Raises `ElfError`."""
    if name.startswith(_C_LIBRARIES):
        return False  # it offers the means to all
    if any(fnmatchcase(name, pattern) for pattern in _FILES) or elf.imports & _IMPORTS:
        return True
    return elf.exports_any(_FUNCTIONS) or _names_one(elf) or _has_the_code(elf)


def greenlet_is_installed(pid: int, objects: Iterable[MappedObject]) -> bool:
    """Whether a Python process finds the package `greenlet` where it finds others."""
    return any(
        os.path.isdir(f"/proc/{pid}/root{folder}/greenlet") for folder in dict.fromkeys(_package_folders(objects))
    )


def _package_folders(objects: Iterable[MappedObject]) -> Iterator[str]:
    for mapped in objects:
        if match := _PACKAGES.match(mapped.path):
            yield match["root"]
        if match := _STANDARD_LIBRARY.match(mapped.path):
            yield f"{match['root']}/site-packages"
            yield "/usr/lib/python3/dist-packages"


def _names_one(elf: ElfFile) -> bool:
    """Whether a local symbol has one of the names."""
    section = elf.section(name=".strtab")
    if section is None or section.size > _LONGEST_SEARCH:
        return False
    names = elf.section_data(section)
    return any(f"\0{name}\0".encode() in names for name in _FUNCTIONS)


def _has_the_code(elf: ElfFile) -> bool:
    for low, high in elf.code_ranges:
        if high - low <= _LONGEST_SEARCH:
            try:
                if _SAVES_CONTROL_WORDS in elf.read_vaddr(low, high - low):
                    return True
            except ElfError:
                continue
    return False
