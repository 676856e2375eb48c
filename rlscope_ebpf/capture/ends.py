"""How the ends of an object's functions can be seen without harm to the target."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.capture.cookie import Group
from rlscope_ebpf.capture.elf import ElfError, ElfFile
from rlscope_ebpf.capture.exits import Code, CodeSource, ExitFinder
from rlscope_ebpf.capture.objects import C_LIBRARIES, Exits, KnownObject
from rlscope_ebpf.capture.selection import Chosen
from rlscope_ebpf.capture.stubs import stub_targets

RETURN: Final = "return"
RET_SITES: Final = "ret_sites"
NONE: Final = "none"

_SCAN_BUDGET: Final = 24 << 20  # bytes of code of one file disassembled for its exits

# Functions of the C library that call what they are given, or unwind the stack.
_CALL_BACK: Final = frozenset(
    {
        "qsort",
        "qsort_r",
        "bsearch",
        "lsearch",
        "lfind",
        "tsearch",
        "tfind",
        "tdelete",
        "twalk",
        "twalk_r",
        "tdestroy",
        "hsearch",
        "pthread_once",
        "call_once",
        "pthread_exit",
        "thrd_exit",
        "pthread_cancel",
        "pthread_testcancel",
        "dl_iterate_phdr",
        "ftw",
        "ftw64",
        "nftw",
        "nftw64",
        "fts_children",
        "fts_read",
        "glob",
        "glob64",
        "scandir",
        "scandir64",
        "scandirat",
        "scandirat64",
        "obstack_free",
        "siglongjmp",
        "longjmp",
        "_longjmp",
        "__longjmp_chk",
        "argp_parse",
    }
)


class _CodeMap:
    """Code of one file by address, and what lies behind its import stubs and slots. Implements `CodeSource`."""

    def __init__(self, elf: ElfFile, harmless: frozenset[str]) -> None:
        self._elf = elf
        self._harmless = harmless
        self._stubs = stub_targets(elf)
        self._slots = elf.import_slots()
        self._own = {function.name: function.vaddr for function in elf.exports}

    def at(self, vaddr: int) -> Code | None:
        """The function that contains `vaddr`, also behind a stub through which the file calls itself."""
        name = self._stubs.get(vaddr)
        if name is not None:
            own = self._own.get(name)
            if own is None:
                return None
            vaddr = own
        bounds = self._elf.bounds.containing(vaddr)
        return None if bounds is None else Code(bounds[0], self._elf.read_vaddr(*bounds))

    def is_code(self, vaddr: int) -> bool:
        """Whether the file has code there."""
        return any(low <= vaddr < high for low, high in self._elf.code_ranges)

    def offsets(self, vaddr: int, count: int) -> NDArray[np.int64]:
        """Signed 4-byte numbers."""
        found = self._elf.read_vaddr(vaddr, 4 * count)
        return np.frombuffer(found, "<i4", len(found) // 4).astype(np.int64)

    def pointers(self, vaddr: int, count: int) -> NDArray[np.int64]:
        """Addresses, as the dynamic linker makes them."""
        found = self._elf.read_vaddr(vaddr, 8 * count)
        words = np.frombuffer(found, "<i8", len(found) // 8).astype(np.int64)
        slots, targets = self._relocated
        index = np.minimum(np.searchsorted(slots, vaddr + 8 * np.arange(len(words))), max(0, len(slots) - 1))
        if len(slots):
            there = slots[index] == vaddr + 8 * np.arange(len(words))
            words[there] = targets[index[there]]
        return words

    @cached_property
    def _relocated(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        slots, targets = self._elf.data_pointers()
        order = np.argsort(slots)
        return slots[order].astype(np.int64), targets[order].astype(np.int64)

    def slot_throws(self, slot: int) -> bool:
        """Whether the function imported through a slot may throw."""
        return self._slots.get(slot) not in self._harmless

    def stub_throws(self, vaddr: int) -> bool:
        """Whether the function behind a stub may throw."""
        return self._stubs.get(vaddr) not in self._harmless


def code_source(elf: ElfFile, harmless: frozenset[str]) -> CodeSource:
    """The code of a file, of whose imports those named let no exception pass and return without much ado."""
    return _CodeMap(elf, harmless)


class Ends:
    """Finds out how the ends of one object's functions can be seen without harm."""

    def __init__(self, known: KnownObject, all_objects: Iterable[KnownObject]) -> None:
        self._known = known
        self._all = all_objects
        self._over_budget = 0
        self._unknown = 0

    @cached_property
    def _harmless(self) -> frozenset[str]:
        """Functions of the C library and of the interpreter, which let no exception pass."""
        names: set[str] = set()
        for known in self._all:
            facts = known.facts
            if facts is None or not (
                known.mapped.name.startswith(C_LIBRARIES) or (not facts.uses_cxx and known.defines("PyEval_SaveThread"))
            ):
                continue
            try:
                names.update(function.name for function in known.elf.exports)
            except ElfError:
                continue
        return frozenset(names - _CALL_BACK)

    def cheapest(self, function: Chosen) -> Exits:
        """A return probe if the function's code shows that nothing can throw there, else what `sites` gives."""
        return self._look(function, avoid_returns=False)

    def sites(self, function: Chosen) -> Exits:
        """The file offsets at which the function is left; NONE if they cannot be told for certain."""
        return self._look(function, avoid_returns=True)

    def notes(self, group: Group) -> list[str]:
        """What to tell the user of the functions asked for."""
        name = self._known.mapped.name
        if group == Group.REENTRY:
            if not self._unknown + self._over_budget:
                return []
            return [
                f"Where {name} leaves Python's frames cannot be told: Python code called from native code counts as "
                "part of the native call."
            ]
        notes = []
        if self._over_budget:
            notes.append(
                f"{name} has too much code to find where each function returns: {self._over_budget} of its functions "
                "are watched at their entry only."
            )
        if self._unknown:
            notes.append(
                f"Where {self._unknown} functions of {name} return cannot be told for certain: they are watched at "
                "their entry only, and a call of them counts until the next probe is hit."
            )
        return notes

    def _look(self, function: Chosen, *, avoid_returns: bool) -> Exits:
        facts = self._known.facts
        assert facts is not None
        key = (function.vaddr, avoid_returns)
        if key not in facts.exits:
            if self._finder.scanned > _SCAN_BUDGET:
                self._over_budget += 1
                return NONE, ()
            facts.exits[key] = self._scan(function, avoid_returns)
        self._unknown += facts.exits[key][0] == NONE
        return facts.exits[key]

    @cached_property
    def _finder(self) -> ExitFinder:
        return ExitFinder(code_source(self._known.elf, self._harmless))

    def _scan(self, function: Chosen, avoid_returns: bool) -> Exits:
        elf = self._known.elf
        if not function.size:
            return NONE, ()
        code = Code(function.vaddr, elf.read_vaddr(function.vaddr, function.size))
        if not avoid_returns and not self._finder.throws(code):
            return RETURN, ()
        vaddrs = self._finder.exit_sites(code)
        if vaddrs is None:
            return NONE, ()
        offsets = [elf.offset_of(vaddr) for vaddr in vaddrs]
        return RET_SITES, tuple(offset for offset in offsets if offset is not None)
