"""Programs that run on several stacks in one thread: coroutines in C, greenlets, fibers; or cancel threads.

The kernel keeps a thread's pending return probes as one stack and tells live ones from dead ones by the stack pointer.
Where a program leaves a probed call by switching to another stack, it takes the wrong one off, or none, and kills the
program. So the calls of such a program are never given return probes. Nor are those of a program that cancels threads:
the C library then unwinds a call in the middle of a sleep, and finds nothing above a return probe.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Final

from rlscope_ebpf.capture.elf import ElfError, ElfFile
from rlscope_ebpf.capture.maps import MappedObject
from rlscope_ebpf.capture.process import read_environment

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
_STANDARD_LIBRARY: Final = re.compile(r"(?P<root>/.*/lib/python3(?:\.\d+)?)/lib-dynload/")
_MODULE: Final = re.compile(r"\.(cpython-\w+|abi3)[\w-]*\.so$")
_PACKAGE_DEPTH: Final = 5  # folders from a module up to the one that packages lie in


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
    folders = set(_folders_of_modules(objects)) | set(_folders_of_environment(pid))
    folders |= {added for folder in folders for added in _added_folders(root, folder)}
    return any(os.path.isdir(f"{root}{folder}/greenlet") for folder in folders)


def _folders_of_modules(objects: Iterable[MappedObject]) -> Iterator[str]:
    """Where loaded modules lie, and where packages lie beside the standard library."""
    for mapped in objects:
        if match := _STANDARD_LIBRARY.match(mapped.path):
            yield f"{match['root']}/site-packages"
            yield "/usr/lib/python3/dist-packages"
        elif _MODULE.search(mapped.path):
            folder = mapped.path
            for _ in range(_PACKAGE_DEPTH):
                folder = os.path.dirname(folder)
                yield folder.rstrip("/")


def _folders_of_environment(pid: int) -> Iterator[str]:
    """Those of a virtual environment and of the user, and what the environment variables name."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            program = os.fsdecode(file.read().split(b"\0", 1)[0])
        variables = dict(read_environment(pid))
    except OSError:
        return
    yield from (folder for folder in variables.get("PYTHONPATH", "").split(":") if folder.startswith("/"))
    prefixes = (
        os.path.dirname(os.path.dirname(program)),
        variables.get("VIRTUAL_ENV", ""),
        variables.get("PYTHONUSERBASE", "") or variables.get("HOME", "") + "/.local",
    )
    for prefix in prefixes:
        if prefix.startswith("/"):
            found = glob.glob(f"/proc/{pid}/root{glob.escape(prefix)}/lib/python3*/site-packages")
            yield from (folder.removeprefix(f"/proc/{pid}/root") for folder in found)


def _added_folders(root: str, folder: str) -> Iterator[str]:
    """What the path files in a folder of packages add."""
    if not folder.endswith("-packages"):
        return
    for path in glob.glob(f"{glob.escape(root + folder)}/*.pth"):
        with suppress(OSError), open(path, errors="surrogateescape") as file:
            yield from (line.strip() for line in file if line.startswith("/"))


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
