"""From the objects that a process has mapped to the list of instructions to probe."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Protocol

from rlscope_ebpf.capture.catalogue import PYTHON_CALLS, Entry, Library, builtin_catalogue
from rlscope_ebpf.capture.cookie import Action, CookieFlag, Group
from rlscope_ebpf.capture.elf import ElfError, ElfFile
from rlscope_ebpf.capture.exits import Code, ExitFinder
from rlscope_ebpf.capture.maps import MappedObject, ObjectKey, host_path
from rlscope_ebpf.capture.pointers import ProcessMemory
from rlscope_ebpf.capture.selection import Chosen, callback_stubs, choose, entry_points
from rlscope_ebpf.capture.sites import STEPPED, Site, entry_site
from rlscope_ebpf.capture.stubs import stub_targets
from rlscope_ebpf.model.categories import Category

RETURN: Final = "return"
RET_SITES: Final = "ret_sites"
NONE: Final = "none"

_NO_FLAGS: Final = CookieFlag(0)
ALL_GROUPS: Final = frozenset(Group)
_RETURN_ACTIONS: Final = (Action.CALL, Action.GIL_ACQUIRE, Action.GIL_ENSURE)
_NOTHING_RETRIED: Final = 6  # looks at the heap for a dispatcher that is not there yet
_SCAN_BUDGET: Final = 24 << 20  # bytes of code of one file disassembled for its exits
_CACHED_FILES: Final = 512

_CXX_IMPORTS: Final = frozenset(
    {"__cxa_throw", "__cxa_rethrow", "__cxa_begin_catch", "__gxx_personality_v0", "__rust_start_panic"}
)
_CXX_LIBRARIES: Final = ("libstdc++.so", "libc++.so", "libc++abi.so", "libsupc++")
# The C library has unwind tables of its own (thread cancellation), but throws nothing.
_C_LIBRARIES: Final = (
    "libc.so",
    "libm.so",
    "libpthread.so",
    "libdl.so",
    "librt.so",
    "ld-linux",
    "libmvec.so",
    "libutil.so",
)
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


class LibraryRule(Protocol):
    """What `--library` gives: objects whose functions are boundary calls of a category."""

    @property
    def category(self) -> Category:
        """What a call enters."""

    def matches(self, path: str) -> bool:
        """Whether a mapped file of this path, as the target sees it, is meant."""


class MarkerRule(Protocol):
    """What `--marker` gives: a native function each call of which is an operation."""

    @property
    def name(self) -> str:
        """Of the operation."""

    @property
    def symbol(self) -> str:
        """Name of the function, exported or local."""

    def matches(self, path: str) -> bool:
        """Whether the function is looked for in a mapped file of this path."""


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """A function to probe. Addresses are those of the file (vaddr) or offsets into it."""

    object: MappedObject
    path: str  # to open the file from here
    symbol: str
    vaddr: int  # of the function's entry
    file_offset: int  # of the site
    action: Action
    category: Category
    group: Group
    site: Site
    exits: str  # RETURN: a return probe is safe; RET_SITES: probe `exit_offsets`; NONE: entry only
    exit_offsets: tuple[int, ...] = ()  # file offsets of the instructions that leave the function; rsp as at entry
    flags: CookieFlag = _NO_FLAGS
    rule: str = ""  # the catalogue's name of the library, or the option
    operation: str = ""  # name of the operation, for --marker

    @property
    def address(self) -> int:
        """Of the site in the target; 0 if unknown."""
        return self.object.address(self.file_offset) or 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Targets that were not in an earlier plan of the same planner, and sentences for the user."""

    targets: list[ProbeTarget] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def plan_probes(
    pid: int,
    objects: Iterable[MappedObject],
    libraries: Sequence[LibraryRule] = (),
    *,
    markers: Sequence[MarkerRule] = (),
    groups: Collection[Group] = ALL_GROUPS,
) -> Plan:
    """Every probe for a process that has these objects mapped. To follow a process as it loads more, keep a Planner."""
    return Planner(pid, libraries, markers=markers, groups=groups).plan(objects)


class _Facts:
    """What is remembered of a file, whichever process maps it. Holds no open file."""

    def __init__(self, elf: ElfFile, name: str) -> None:
        self.needed = elf.needed
        self.soname = elf.soname
        self.imports = elf.imports
        self.python_api = any(imported.startswith(("Py", "_Py")) for imported in self.imports)
        self.uses_cxx = not name.startswith(_C_LIBRARIES) and (
            bool(self.imports & _CXX_IMPORTS)
            or any(imported.startswith("_Unwind_") for imported in self.imports)
            or any(library.startswith(_CXX_LIBRARIES) for library in self.needed)
            or elf.section(name=".gcc_except_table") is not None
        )
        self.defines: dict[str, bool] = {}
        self.sites: dict[int, tuple[Site, int] | None] = {}
        self.exits: dict[int, tuple[str, tuple[int, ...]]] = {}


_known_files: dict[tuple[int, int, int, int], _Facts] = {}


class _Object:
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
    def facts(self) -> _Facts | None:
        """What is known of the file; None if it cannot be used (then `error` says why)."""
        if self.path is None:
            return None
        try:
            status = os.stat(self.path)
            identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            facts = _known_files.get(identity)
            if facts is None:
                facts = _Facts(self.elf, self.mapped.name)
                if len(_known_files) >= _CACHED_FILES:
                    _known_files.pop(next(iter(_known_files)))
                _known_files[identity] = facts
            return facts
        except ElfError as error:
            self.error = str(error)
        except OSError as error:
            self.error = f"{self.mapped.path} cannot be read: {error.strerror}."
        return None

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

    def strong_exports(self) -> set[str]:
        """Names of exported functions that no other object is meant to replace; none of a damaged file."""
        try:
            return {function.name for function in self.elf.exports if not function.weak}
        except ElfError:
            return set()


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

    def slot_throws(self, slot: int) -> bool:
        """Whether the function imported through a slot may throw."""
        return self._slots.get(slot) not in self._harmless

    def stub_throws(self, vaddr: int) -> bool:
        """Whether the function behind a stub may throw."""
        return self._stubs.get(vaddr) not in self._harmless


class Planner:
    """Plans probes for one process, again and again as it maps more objects.

    `groups`: what may be planned at all.
    """

    def __init__(
        self,
        pid: int,
        libraries: Sequence[LibraryRule] = (),
        *,
        markers: Sequence[MarkerRule] = (),
        groups: Collection[Group] = ALL_GROUPS,
        catalogue: Sequence[Library] | None = None,
    ) -> None:
        self.pid = pid
        self._rules = tuple(libraries)
        self._markers = tuple(markers)
        self._groups = frozenset(groups)
        self._catalogue = tuple(builtin_catalogue() if catalogue is None else catalogue)
        self._objects: dict[ObjectKey, _Object] = {}
        self._done: set[tuple[ObjectKey, int, Action]] = set()
        self._finished: set[tuple[ObjectKey, str]] = set()  # object and rule: nothing more to find
        self._retries: dict[tuple[ObjectKey, str], int] = {}
        self._found: set[MarkerRule] = set()  # markers whose function is there
        self._noted: set[str] = set()
        self._throws = False

    @property
    def incomplete(self) -> bool:
        """Whether a later plan may find more in the objects already known: a dispatcher that is not registered yet."""
        return any(0 < count < _NOTHING_RETRIED for count in self._retries.values())

    def unmatched(self) -> list[LibraryRule | MarkerRule]:
        """Rules of the user that match no object known so far, of whatever groups this planner is."""
        rules: tuple[LibraryRule | MarkerRule, ...] = (*self._rules, *self._markers)
        paths = [known.mapped.path for known in self._objects.values()]
        return [rule for rule in rules if not any(rule.matches(path) for path in paths)]

    def plan(self, objects: Iterable[MappedObject] = ()) -> Plan:
        """Targets that these objects add. Objects of earlier calls are remembered; unusable files are noted."""
        for mapped in objects:
            self._objects.setdefault(mapped.key, _Object(self.pid, mapped))
        plan = Plan()
        try:
            with ProcessMemory(self.pid) as memory:
                for target in self._targets(memory, plan.notes):
                    key = (target.object.key, target.vaddr, target.action)
                    if key not in self._done and target.group in self._groups:
                        self._done.add(key)
                        plan.targets.append(target)
        finally:
            for known in self._objects.values():
                known.close()
        plan.notes[:] = [note for note in plan.notes if note not in self._noted]
        self._noted.update(plan.notes)
        return plan

    def _targets(self, memory: ProcessMemory, notes: list[str]) -> Iterator[ProbeTarget]:
        matched = self._matched(notes)
        for known, rule in matched:
            yield from self._library(known, rule, memory, notes)
        if Group.MARKER in self._groups:
            for marker in self._markers:
                yield from self._marked(marker, memory, notes)
        frame = self._needs_frames(matched)
        by_rule = {known.mapped.key for known, _ in matched}
        late: list[tuple[_Object, Library]] = []
        for known in self._objects.values():
            for library in self._catalogue:
                if library.group not in self._groups or not self._is_library(known, library):
                    continue
                if library.group == Group.BOUNDARY and known.mapped.key in by_rule:
                    continue  # the user's word on it has been taken
                if library.group == Group.CATCH:
                    late.append((known, library))
                    continue
                yield from self._catalogued(known, library, memory, notes, frame, bool(matched) and not frame)
        if self._throws:  # only then something may be left by an exception
            for known, library in late:
                yield from self._catalogued(known, library, memory, notes, frame, native=False)

    # Which objects

    def _matched(self, notes: list[str]) -> list[tuple[_Object, LibraryRule]]:
        found: list[tuple[_Object, LibraryRule]] = []
        if Group.BOUNDARY not in self._groups:
            return found
        for known in self._objects.values():
            rule = next((rule for rule in self._rules if rule.matches(known.mapped.path)), None)
            if rule is None:
                continue
            if known.facts is None:
                notes.append(known.error or f"{known.mapped.path} cannot be probed.")
            else:
                found.append((known, rule))
        return found

    def _is_library(self, known: _Object, library: Library) -> bool:
        if library.files and library.matches_path(known.mapped.path):
            return known.facts is not None
        return any(known.defines(name) for name in library.defines)

    def glue(self) -> list[MappedObject]:
        """Objects that call functions of a library given by --library: bindings, mostly."""
        return [known.mapped for known in self._glue(self._matched([]))]

    def _glue(self, matched: list[tuple[_Object, LibraryRule]]) -> list[_Object]:
        own = {known.mapped.key for known, _ in matched}
        exports: set[str] = set()
        sonames: set[str] = set()
        for known, _ in matched:
            exports |= known.strong_exports()
            sonames.add(known.mapped.name)
            if known.facts is not None and known.facts.soname:
                sonames.add(known.facts.soname)
        found = []
        for known in self._objects.values():
            facts = known.facts
            if facts is None or known.mapped.key in own or not exports & facts.imports:
                continue
            # A name alone may be another library's; what asks for one of the files by name means it.
            if sonames & set(facts.needed):
                found.append(known)
        return found

    def _needs_frames(self, matched: list[tuple[_Object, LibraryRule]]) -> bool:
        """Whether code that may call Python runs inside or around the matched libraries.

        A library of plain C that only ctypes or cffi call cannot: those two call Python through their import stubs.
        """
        if any(known.facts is not None and known.facts.python_api for known, _ in matched):
            return True
        return any(known.facts is not None and known.facts.python_api for known in self._glue(matched))

    def _imported_elsewhere(self, known: _Object) -> frozenset[str]:
        names: set[str] = set()
        for other in self._objects.values():
            if other is not known and other.facts is not None:
                names |= other.facts.imports
        return frozenset(names)

    def _imported_by_cxx(self, known: _Object) -> frozenset[str]:
        names: set[str] = set()
        for other in self._objects.values():
            if other is not known and other.facts is not None and other.facts.uses_cxx:
                names |= other.facts.imports
        return frozenset(names)

    # Functions of an object

    def _library(
        self, known: _Object, rule: LibraryRule, memory: ProcessMemory, notes: list[str]
    ) -> Iterator[ProbeTarget]:
        key = (known.mapped.key, f"--library {rule.category.name}")
        if key in self._finished or known.facts is None:
            return
        try:
            points = entry_points(
                known.elf,
                known.mapped,
                memory,
                imported_elsewhere=self._imported_elsewhere(known),
                uses_cxx=known.facts.uses_cxx,
            )
            self._settle(key, points.incomplete)
            notes.extend(points.notes)
            if not points.functions and not points.incomplete:
                notes.append(f"No function of {known.mapped.path} can be called from outside, so none is probed.")
            pattern = Entry(action=Action.CALL)
            yield from self._probes(known, points.functions, pattern, rule.category, Group.BOUNDARY, "--library", notes)
        except ElfError as error:
            self._finished.add(key)
            notes.append(str(error))

    def _catalogued(
        self,
        known: _Object,
        library: Library,
        memory: ProcessMemory,
        notes: list[str],
        frame: bool,
        native: bool,
    ) -> Iterator[ProbeTarget]:
        for number, entry in enumerate(library.entries):
            if (entry.when == "frame" and not frame) or (entry.when == "native" and not native):
                continue
            key = (known.mapped.key, f"{library.name} {number}")
            if key in self._finished:
                continue
            try:
                chosen = choose(known.elf, entry, known.mapped, memory)
                self._settle(key, incomplete=entry.dispatcher and not chosen)
                yield from self._probes(known, chosen, entry, library.category, library.group, library.name, notes)
            except ElfError as error:
                self._finished.add(key)
                notes.append(str(error))
        key = (known.mapped.key, f"{library.name} callbacks")
        if library.callbacks and not frame and Group.REENTRY in self._groups and key not in self._finished:
            self._finished.add(key)
            try:
                stubs = callback_stubs(known.elf, PYTHON_CALLS)
                entry = Entry(noexcept=True)
                yield from self._probes(known, stubs, entry, Category.PYTHON, Group.REENTRY, library.name, notes)
            except ElfError as error:
                notes.append(str(error))

    def _marked(self, marker: MarkerRule, memory: ProcessMemory, notes: list[str]) -> Iterator[ProbeTarget]:
        meant = [known for known in self._objects.values() if marker.matches(known.mapped.path)]
        for known in meant:
            for target in self._marker(known, marker, memory, notes):
                self._found.add(marker)
                yield target
        # One of several files that a pattern matches is enough.
        if meant and marker not in self._found:
            lack = f"{meant[0].mapped.path} has no" if len(meant) == 1 else "None of the files that it matches has a"
            notes.append(f"--marker {marker.name} sees no call: {lack} function {marker.symbol}.")

    def _marker(
        self, known: _Object, marker: MarkerRule, memory: ProcessMemory, notes: list[str]
    ) -> Iterator[ProbeTarget]:
        key = (known.mapped.key, f"--marker {marker.name} {marker.symbol}")
        if key in self._finished or known.facts is None:
            return
        self._finished.add(key)
        entry = Entry(symbols=frozenset({marker.symbol}))
        try:
            chosen = choose(known.elf, entry, known.mapped, memory)
            for target in self._probes(known, chosen, entry, Category.OTHER, Group.MARKER, "--marker", notes):
                yield replace(target, flags=target.flags | CookieFlag.OPERATION, operation=marker.name)
        except ElfError as error:
            notes.append(str(error))

    def _settle(self, key: tuple[ObjectKey, str], incomplete: bool) -> None:
        count = self._retries.get(key, 0) + 1
        if incomplete and count < _NOTHING_RETRIED:
            self._retries[key] = count
        else:
            self._retries.pop(key, None)
            self._finished.add(key)

    def _probes(
        self,
        known: _Object,
        functions: list[Chosen],
        entry: Entry,
        category: Category,
        group: Group,
        rule: str,
        notes: list[str],
    ) -> Iterator[ProbeTarget]:
        facts = known.facts
        if facts is None:
            return
        elf = known.elf
        flags = CookieFlag.REENTRY if group == Group.REENTRY else _NO_FLAGS
        may_throw = _MayThrow(self, known)
        for function in functions:
            if function.vaddr not in facts.sites:
                facts.sites[function.vaddr] = _site(elf, function)
            found = facts.sites[function.vaddr]
            if found is None:
                continue
            site, offset = found
            exits: tuple[str, tuple[int, ...]] = (NONE, ())
            if entry.action in _RETURN_ACTIONS:
                safe = entry.noexcept or function.noexcept or entry.action != Action.CALL
                exits = (RETURN, ()) if safe else may_throw.exits(function)
                self._throws |= exits[0] != RETURN
            yield ProbeTarget(
                object=known.mapped,
                path=known.path or "",
                symbol=function.name,
                vaddr=function.vaddr,
                file_offset=offset,
                action=entry.action,
                category=category,
                group=group,
                site=site,
                exits=exits[0],
                exit_offsets=exits[1],
                flags=flags | (CookieFlag.FROM_PYTHON if entry.from_python or function.from_python else _NO_FLAGS),
                rule=rule,
            )
        if may_throw.over_budget:
            notes.append(
                f"{known.mapped.name} has too much code to find where each function returns: {may_throw.over_budget} "
                "of its functions are watched at their entry only."
            )


class _MayThrow:
    """Decides for the functions of one object how their end can be seen without harm."""

    def __init__(self, planner: Planner, known: _Object) -> None:
        self._planner = planner
        self._known = known
        self.over_budget = 0

    @cached_property
    def _called_by_cxx(self) -> frozenset[str]:
        return self._planner._imported_by_cxx(self._known)

    @cached_property
    def _harmless(self) -> frozenset[str]:
        """Functions of the C library and of the interpreter, which let no exception pass."""
        names: set[str] = set()
        for known in self._planner._objects.values():
            facts = known.facts
            if facts is None or not (
                known.mapped.name.startswith(_C_LIBRARIES)
                or (not facts.uses_cxx and known.defines("PyEval_SaveThread"))
            ):
                continue
            try:
                names.update(function.name for function in known.elf.exports)
            except ElfError:
                continue
        return frozenset(names - _CALL_BACK)

    def exits(self, function: Chosen) -> tuple[str, tuple[int, ...]]:
        """How the end of a function is to be seen: kind, file offsets."""
        facts = self._known.facts
        assert facts is not None
        if not facts.uses_cxx and function.name not in self._called_by_cxx:
            return RETURN, ()
        if function.vaddr not in facts.exits:
            facts.exits[function.vaddr] = self._scan(function)
        return facts.exits[function.vaddr]

    @cached_property
    def _finder(self) -> ExitFinder:
        return ExitFinder(_CodeMap(self._known.elf, self._harmless))

    def _scan(self, function: Chosen) -> tuple[str, tuple[int, ...]]:
        elf = self._known.elf
        if self._finder.scanned > _SCAN_BUDGET or not function.size:
            self.over_budget += 1
            return NONE, ()
        code = Code(function.vaddr, elf.read_vaddr(function.vaddr, function.size))
        if not self._finder.throws(code):
            return RETURN, ()
        vaddrs = self._finder.exit_sites(code)
        if vaddrs is None:
            return NONE, ()
        offsets = [elf.offset_of(vaddr) for vaddr in vaddrs]
        return RET_SITES, tuple(offset for offset in offsets if offset is not None)


def _site(elf: ElfFile, function: Chosen) -> tuple[Site, int] | None:
    """The site of a function and its file offset."""
    if function.is_stub:
        site: Site | None = Site(function.vaddr, 0, STEPPED, frozenset())  # the kernel steps jumps through memory
    else:
        size = function.size
        site = entry_site(elf.read_vaddr(function.vaddr, size), function.vaddr) if size else None
    if site is None:
        return None
    offset = elf.offset_of(site.vaddr)
    return None if offset is None else (site, offset)
