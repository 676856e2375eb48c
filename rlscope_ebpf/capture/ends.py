"""How the ends of an object's functions can be seen without harm to the target."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from rlscope_ebpf.capture.cookie import Group
from rlscope_ebpf.capture.elf import ElfError, ElfFile, Function
from rlscope_ebpf.capture.known_files import Exits
from rlscope_ebpf.capture.maps import MappedObject, ObjectKey
from rlscope_ebpf.capture.objects import C_LIBRARIES, KnownObject
from rlscope_ebpf.capture.sites import Chosen

if TYPE_CHECKING:  # the disassembler takes long to import, and is not needed where all is known already
    from rlscope_ebpf.capture.exits import ExitFinder

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
    def _harmless_objects(self) -> list[KnownObject]:
        """The C library and the interpreter, whose functions let no exception pass."""
        return [
            known
            for known in self._objects
            if known.facts is not None
            and (
                known.mapped.name.startswith(C_LIBRARIES)
                or (not known.facts.uses_cxx and known.defines("PyEval_SaveThread"))
            )
        ]

    @cached_property
    def _harmless(self) -> frozenset[str]:
        names: set[str] = set()
        for known in self._harmless_objects:
            with suppress(ElfError):
                names.update(function.name for function in known.elf.exports)
        return frozenset(names - _CALL_BACK)

    @cached_property
    def _among(self) -> str:
        """Stands for `_harmless`, without a look at the names."""
        identities = sorted({known.facts.identity for known in self._harmless_objects if known.facts is not None})
        return hashlib.sha256(repr(identities).encode()).hexdigest()[:16]

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
        key = (vaddr, avoid_returns, self._among)
        if key not in facts.exits:
            finder = self._finder(known)
            if finder.scanned > _SCAN_BUDGET:
                return Exits(NONE)
            facts.exits[key] = _scan(known.elf, finder, vaddr, size, avoid_returns)
        return facts.exits[key]

    def _finder(self, known: KnownObject) -> ExitFinder:
        from rlscope_ebpf.capture.code_source import code_source
        from rlscope_ebpf.capture.exits import ExitFinder

        if known.mapped.key not in self._finders:
            self._finders[known.mapped.key] = ExitFinder(code_source(known.elf, self._harmless))
        return self._finders[known.mapped.key]


def _scan(elf: ElfFile, finder: ExitFinder, vaddr: int, size: int, avoid_returns: bool) -> Exits:
    from rlscope_ebpf.capture.exits import Code

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
