"""Programs that run on several stacks in one thread: coroutines in C, greenlets, fibers; or cancel threads.

The kernel keeps a thread's pending return probes as one stack and tells live ones from dead ones by the stack pointer.
Where a program leaves a probed call by switching to another stack, it takes the wrong one off, or none, and kills the
program. So the calls of such a program are never given return probes. Nor are those of a program that cancels threads:
the C library then unwinds a call in the middle of a sleep, and finds nothing above a return probe.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from rlscope_ebpf.capture.elf import ElfError, ElfFile
from rlscope_ebpf.capture.maps import MappedObject
from rlscope_ebpf.capture.package_folders import package_folders

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
# Not makecontext: OpenSSL, which is in nearly every process, imports it and one of the others, and rarely calls them.
_IMPORTS: Final = frozenset({"swapcontext", "setcontext", "pthread_cancel"})
_RARELY: Final = (("libcrypto", frozenset({"swapcontext", "setcontext"})),)  # if it does, it calls makecontext
_FUNCTIONS: Final = ("jump_fcontext", "make_fcontext", "ontop_fcontext", "slp_switch", "coro_transfer", "co_switch")
# How Boost's switch begins, also in programs that are linked with it statically: stmxcsr (%rsp); fnstcw 4(%rsp).
_SAVES_CONTROL_WORDS: Final = bytes.fromhex("0fae1c24d97c2404")
_C_LIBRARIES: Final = ("libc.so", "libc-2.", "ld-musl", "libc.musl")
_LONGEST_SEARCH: Final = 64 << 20  # bytes of code or names of one file that are searched


def switches_stacks(elf: ElfFile, name: str) -> bool:
    """Whether an object of this file name can switch stacks or cancel threads, as far as can be told.

    Raises `ElfError`.
    """
    if name.startswith(_C_LIBRARIES):
        return False  # it offers the means to all
    imports = _IMPORTS.difference(*(rare for start, rare in _RARELY if name.startswith(start)))
    if any(fnmatchcase(name, pattern) for pattern in _FILES) or elf.imports & imports:
        return True
    return elf.exports_any(_FUNCTIONS) or _names_one(elf) or _has_the_code(elf)


def greenlet_is_installed(pid: int, objects: Iterable[MappedObject]) -> bool:
    """Whether a Python process has the package `greenlet` where it may import it from, as far as can be told."""
    root = f"/proc/{pid}/root"
    return any(os.path.isdir(f"{root}{folder}/greenlet") for folder in package_folders(pid, objects))


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
