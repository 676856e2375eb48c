"""How the ends of an object's functions can be seen without harm to the target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.capture.cookie import Group
from rlscope_ebpf.capture.elf import ElfError, ElfFile, Function
from rlscope_ebpf.capture.exits import Code, CodeSource, ExitFinder, Jump
from rlscope_ebpf.capture.maps import MappedObject, ObjectKey
from rlscope_ebpf.capture.objects import C_LIBRARIES, Exits, KnownObject
from rlscope_ebpf.capture.selection import Chosen
from rlscope_ebpf.capture.stubs import stub_targets

RETURN: Final = "return"
RET_SITES: Final = "ret_sites"
NONE: Final = "none"

_SCAN_BUDGET: Final = 24 << 20  # bytes of code of one file disassembled for its exits
_OWNERS: Final = 4  # objects that export a function of one name
_TAIL_DEPTH: Final = 4  # tail calls from file to file

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

    def import_of(self, jump: Jump) -> str | None:
        """The imported function behind a jump."""
        if jump.slot is not None:
            return self._slots.get(jump.slot)
        return None if jump.target is None else self._stubs.get(jump.target)

    def slot_throws(self, slot: int) -> bool:
        """Whether the function imported through a slot may throw."""
        return self._slots.get(slot) not in self._harmless

    def stub_throws(self, vaddr: int) -> bool:
        """Whether the function behind a stub may throw."""
        return self._stubs.get(vaddr) not in self._harmless


def code_source(elf: ElfFile, harmless: frozenset[str]) -> CodeSource:
    """The code of a file, of whose imports those named let no exception pass and return without much ado."""
    return _CodeMap(elf, harmless)


@dataclass(frozen=True, slots=True)
class ExitSite:
    """An instruction by which a function of another file is left."""

    object: MappedObject
    path: str  # to open the file from here
    offset: int  # in the file


@dataclass(frozen=True, slots=True)
class End:
    """How the end of a function of a process is seen."""

    kind: str  # RETURN, RET_SITES or NONE
    offsets: tuple[int, ...] = ()  # in its own file
    far: tuple[ExitSite, ...] = ()


class Ends:
    """Finds out how the ends of functions can be seen without harm. For one plan: the objects' files are open."""

    def __init__(self, objects: Collection[KnownObject]) -> None:
        self._objects = objects
        self._finders: dict[ObjectKey, ExitFinder] = {}
        self._exports: dict[ObjectKey, dict[str, Function]] = {}
        self._over_budget: Counter[ObjectKey] = Counter()
        self._unknown: Counter[ObjectKey] = Counter()

    @cached_property
    def _harmless(self) -> frozenset[str]:
        """Functions of the C library and of the interpreter, which let no exception pass."""
        names: set[str] = set()
        for known in self._objects:
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

    def cheapest(self, known: KnownObject, function: Chosen) -> End:
        """A return probe if the function's code shows that nothing can throw there, else what `sites` gives."""
        exits = self._look(known, function.vaddr, function.size, avoid_returns=False)
        return End(RETURN) if exits.kind == RETURN else self._end(known, exits)

    def sites(self, known: KnownObject, function: Chosen) -> End:
        """The instructions by which the function is left; NONE if they cannot be told for certain."""
        return self._end(known, self._look(known, function.vaddr, function.size, avoid_returns=True))

    def notes(self, known: KnownObject, group: Group) -> list[str]:
        """What to tell the user of the functions of an object asked for since the last call."""
        name = known.mapped.name
        over_budget = self._over_budget.pop(known.mapped.key, 0)
        unknown = self._unknown.pop(known.mapped.key, 0)
        if group == Group.REENTRY:
            if not unknown + over_budget:
                return []
            return [
                f"Where {name} leaves Python's frames cannot be told: Python code called from native code counts as "
                "part of the native call."
            ]
        notes = []
        if over_budget:
            notes.append(
                f"{name} has too much code to find where each function returns: {over_budget} of its functions are "
                "watched at their entry only."
            )
        if unknown:
            notes.append(
                f"Where {unknown} functions of {name} return cannot be told for certain: they are watched at their "
                "entry only, and a call of them counts until the next probe is hit."
            )
        return notes

    def _end(self, known: KnownObject, exits: Exits) -> End:
        far = self._far(exits, 0) if exits.kind == RET_SITES else None
        if far is None:
            if known.mapped.key not in self._finders or self._finders[known.mapped.key].scanned <= _SCAN_BUDGET:
                self._unknown[known.mapped.key] += 1
            else:
                self._over_budget[known.mapped.key] += 1
            return End(NONE)
        return End(RET_SITES, exits.offsets, tuple(dict.fromkeys(far)))

    def _far(self, exits: Exits, depth: int) -> list[ExitSite] | None:
        """Where the tail calls of functions in other files end; None if that cannot be told."""
        found: list[ExitSite] = []
        for name in sorted(exits.tail_calls):
            owners = [known for known in self._objects if known.defines(name)]
            # Which of several is called is not looked into: what the others' sites see is no end of this call.
            if not owners or len(owners) > _OWNERS or depth > _TAIL_DEPTH:
                return None
            for owner in owners:
                function = self._exported(owner, name)
                if function is None:
                    return None
                size = owner.elf.size_of(function)
                ways = self._look(owner, function.vaddr, size, avoid_returns=True)
                further = self._far(ways, depth + 1) if ways.kind == RET_SITES else None
                if further is None:
                    return None
                found += [ExitSite(owner.mapped, owner.path or "", offset) for offset in ways.offsets]
                found += further
        return found

    def _exported(self, known: KnownObject, name: str) -> Function | None:
        if known.mapped.key not in self._exports:
            try:
                self._exports[known.mapped.key] = {function.name: function for function in known.elf.exports}
            except ElfError:
                self._exports[known.mapped.key] = {}
        return self._exports[known.mapped.key].get(name)

    def _look(self, known: KnownObject, vaddr: int, size: int, *, avoid_returns: bool) -> Exits:
        facts = known.facts
        assert facts is not None
        key = (vaddr, avoid_returns)
        if key not in facts.exits:
            if known.mapped.key not in self._finders:
                self._finders[known.mapped.key] = ExitFinder(code_source(known.elf, self._harmless))
            finder = self._finders[known.mapped.key]
            if finder.scanned > _SCAN_BUDGET:
                return Exits(NONE)
            facts.exits[key] = _scan(known.elf, finder, vaddr, size, avoid_returns)
        return facts.exits[key]


def _scan(elf: ElfFile, finder: ExitFinder, vaddr: int, size: int, avoid_returns: bool) -> Exits:
    if not size:
        return Exits(NONE)
    code = Code(vaddr, elf.read_vaddr(vaddr, size))
    if not avoid_returns and not finder.throws(code):
        return Exits(RETURN)
    ways = finder.ways_out(code)
    if ways is None:
        return Exits(NONE)
    offsets = [elf.offset_of(site) for site in ways.sites]
    return Exits(RET_SITES, tuple(offset for offset in offsets if offset is not None), ways.tail_calls)
