"""A mapped object and what is remembered of its file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from rlscope_ebpf.capture.elf import ElfError, ElfFile
from rlscope_ebpf.capture.maps import MappedObject, host_path
from rlscope_ebpf.capture.selection import Chosen
from rlscope_ebpf.capture.sites import Site
from rlscope_ebpf.capture.switching import switches_stacks


@dataclass(frozen=True, slots=True)
class Exits:
    """How the end of a function of a file is seen."""

    kind: str  # RETURN, RET_SITES or NONE
    offsets: tuple[int, ...] = ()  # in the file, of the instructions that leave it
    tail_calls: frozenset[str] = frozenset()  # imported functions whose ends are its own


_CACHED_FILES: Final = 512

_CXX_IMPORTS: Final = frozenset(
    {"__cxa_throw", "__cxa_rethrow", "__cxa_begin_catch", "__gxx_personality_v0", "__rust_start_panic"}
)
_CXX_LIBRARIES: Final = ("libstdc++.so", "libc++.so", "libc++abi.so", "libsupc++")
# The C library has unwind tables of its own (thread cancellation), but throws nothing.
C_LIBRARIES: Final = (
    "libc.so",
    "libm.so",
    "libpthread.so",
    "libdl.so",
    "librt.so",
    "ld-linux",
    "libmvec.so",
    "libutil.so",
)


class Facts:
    """What is remembered of a file, whichever process maps it. Holds no open file."""

    def __init__(self, elf: ElfFile, name: str) -> None:
        self.needed = elf.needed
        self.soname = elf.soname
        self.imports = elf.imports
        self.python_api = any(imported.startswith(("Py", "_Py")) for imported in self.imports)
        self.uses_cxx = not name.startswith(C_LIBRARIES) and (
            bool(self.imports & _CXX_IMPORTS)
            or any(imported.startswith("_Unwind_") for imported in self.imports)
            or any(library.startswith(_CXX_LIBRARIES) for library in self.needed)
            or elf.section(name=".gcc_except_table") is not None
        )
        self.switches: bool | None = None  # not looked for yet
        self.defines: dict[str, bool] = {}
        self.sites: dict[tuple[int, bool], tuple[Site, int] | None] = {}  # by address, and whether returns are avoided
        self.chosen: dict[object, list[Chosen]] = {}  # by entry of the catalogue, where no process's memory has a say
        self.exits: dict[tuple[int, bool], Exits] = {}  # by address, and whether returns are avoided


_known_files: dict[tuple[int, int, int, int], Facts] = {}


class KnownObject:
    """A mapped object and its file, opened when first needed and closed after each plan."""

    def __init__(self, pid: int, mapped: MappedObject) -> None:
        self.mapped = mapped
        self.path = host_path(pid, mapped)
        self.error: str | None = None if self.path else f"The file of {mapped.path} cannot be opened any more."
        self._elf: ElfFile | None = None

    @property
    def elf(self) -> ElfFile:
        """The open file. Raises `ElfError`."""
        if self._elf is None:
            self._elf = ElfFile(self.path or "")
        return self._elf

    def close(self) -> None:
        """Forget the open file and its tables."""
        if self._elf is not None:
            self._elf.close()
            self._elf = None

    @cached_property
    def facts(self) -> Facts | None:
        """What is known of the file; None if it cannot be used (then `error` says why)."""
        if self.path is None:
            return None
        try:
            status = os.stat(self.path)
            identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            facts = _known_files.get(identity)
            if facts is None:
                facts = Facts(self.elf, self.mapped.name)
                if len(_known_files) >= _CACHED_FILES:
                    _known_files.pop(next(iter(_known_files)), None)
                _known_files[identity] = facts
            return facts
        except ElfError as error:
            self.error = str(error)
        except OSError as error:
            self.error = f"{self.mapped.path} cannot be read: {error.strerror}."
        return None

    def is_same_file(self, other: KnownObject) -> bool:
        """Whether both can be opened and are one file."""
        try:
            return self.path is not None and other.path is not None and os.path.samefile(self.path, other.path)
        except OSError:
            return False

    def defines(self, name: str) -> bool:
        """Whether the object exports a symbol."""
        facts = self.facts
        if facts is None:
            return False
        if name not in facts.defines:
            try:
                facts.defines[name] = self.elf.exports_any((name,))
            except ElfError:
                facts.defines[name] = False
        return facts.defines[name]

    @property
    def switches(self) -> bool:
        """Whether the object can switch stacks, as far as can be told."""
        facts = self.facts
        if facts is None:
            return False
        if facts.switches is None:
            try:
                facts.switches = switches_stacks(self.elf, self.mapped.name)
            except ElfError:
                facts.switches = False
        return facts.switches

    def strong_exports(self) -> set[str]:
        """Names of exported functions that no other object is meant to replace; none of a damaged file."""
        try:
            return {function.name for function in self.elf.exports if not function.weak}
        except ElfError:
            return set()
