"""A mapped object and what is remembered of its file."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Final

from rlscope_ebpf.capture.elf import ElfError, ElfFile
from rlscope_ebpf.capture.known_files import Facts, Identity, identity_of, known_facts, remember
from rlscope_ebpf.capture.maps import MappedObject, host_path
from rlscope_ebpf.capture.switching import switches_stacks

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


def _facts_of(elf: ElfFile, identity: Identity, name: str) -> Facts:
    """What is needed of every file. Raises `ElfError`."""
    uses_cxx = not name.startswith(C_LIBRARIES) and (
        bool(elf.imports & _CXX_IMPORTS)
        or any(imported.startswith("_Unwind_") for imported in elf.imports)
        or any(library.startswith(_CXX_LIBRARIES) for library in elf.needed)
        or elf.section(name=".gcc_except_table") is not None
    )
    python_api = any(imported.startswith(("Py", "_Py")) for imported in elf.imports)
    return Facts(identity, elf.needed, elf.soname, elf.imports, python_api, uses_cxx)


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
            identity = identity_of(os.stat(self.path))
            facts = known_facts(identity, self.mapped.name)
            if facts is None:
                facts = _facts_of(self.elf, identity, self.mapped.name)
                remember(self.mapped.name, facts)
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
