"""From the objects that a process has mapped to the list of instructions to probe."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from rlscope_ebpf.capture.catalogue import PYTHON_CALLS, Entry, Library, builtin_catalogue
from rlscope_ebpf.capture.cookie import Action, CookieFlag, Group
from rlscope_ebpf.capture.elf import ElfError, ElfFile
from rlscope_ebpf.capture.ends import NONE, RETURN, End, Ends, ExitSite
from rlscope_ebpf.capture.maps import MappedObject, ObjectKey
from rlscope_ebpf.capture.objects import KnownObject
from rlscope_ebpf.capture.pointers import ProcessMemory
from rlscope_ebpf.capture.selection import EXPORTS_LIMIT, callback_stubs, choose, entry_points
from rlscope_ebpf.capture.sites import Chosen, Site
from rlscope_ebpf.model.calibration import STEPPED
from rlscope_ebpf.model.categories import Category

_NO_FLAGS: Final = CookieFlag(0)
ALL_GROUPS: Final = frozenset(Group)
_NOTHING_RETRIED: Final = 6  # looks at the heap for a dispatcher that is not there yet


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
    far_exits: tuple[ExitSite, ...] = ()  # the same in other files, where functions end that it calls last
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


class Planner:
    """Plans probes for one process, again and again as it maps more objects.

    `groups`: what may be planned at all. `avoid_returns`: no return probes at all, from the first plan on;
    `avoid_frame_returns`: none on the interpreter's frames.
    """

    def __init__(
        self,
        pid: int,
        libraries: Sequence[LibraryRule] = (),
        *,
        markers: Sequence[MarkerRule] = (),
        groups: Collection[Group] = ALL_GROUPS,
        catalogue: Sequence[Library] | None = None,
        avoid_returns: bool = False,
        avoid_frame_returns: bool = False,
    ) -> None:
        self.pid = pid
        self._avoid_returns = avoid_returns
        self._no_returns = avoid_returns
        self._avoid_frame_returns = avoid_frame_returns
        self._rules = tuple(libraries)
        self._markers = tuple(markers)
        self._groups = frozenset(groups)
        self._catalogue = tuple(builtin_catalogue() if catalogue is None else catalogue)
        self._objects: dict[ObjectKey, KnownObject] = {}
        self._done: dict[tuple[ObjectKey, int, Action], str] = {}  # how the end is seen
        self._ends = Ends(())
        self._finished: set[tuple[ObjectKey, str]] = set()  # object and rule: nothing more to find
        self._retries: dict[tuple[ObjectKey, str], int] = {}
        self._found: set[MarkerRule] = set()  # markers whose function is there
        self._noted: set[str] = set()
        self._throws = False

    @property
    def incomplete(self) -> bool:
        """Whether a later plan may find more in the objects already known: a dispatcher that is not registered yet."""
        return any(0 < count < _NOTHING_RETRIED for count in self._retries.values())

    def take_over(self, older: Planner) -> None:
        """Go on for an older planner whose process runs another program now: the probes on its files have stayed."""
        self._done |= older._done
        self._noted |= older._noted
        self._throws |= older._throws
        if older._avoid_returns:
            self.avoid_returns()

    def forked(self, pid: int) -> Planner:
        """A planner for a process that this one's process has forked, which has the same files and probes."""
        child = Planner(
            pid,
            self._rules,
            markers=self._markers,
            groups=self._groups,
            catalogue=self._catalogue,
            avoid_returns=self._no_returns,
            avoid_frame_returns=self._avoid_frame_returns,
        )
        child._avoid_returns = self._avoid_returns
        child._throws = self._throws
        child._objects = {key: KnownObject(pid, known.mapped) for key, known in self._objects.items()}
        child._done = dict(self._done)
        child._finished, child._found, child._noted = set(self._finished), set(self._found), set(self._noted)
        child._retries = dict(self._retries)
        return child

    def unmatched(self) -> list[LibraryRule | MarkerRule]:
        """Rules of the user that match no object known so far, of whatever groups this planner is."""
        rules: tuple[LibraryRule | MarkerRule, ...] = (*self._rules, *self._markers)
        paths = [known.mapped.path for known in self._objects.values() if known.mapped.segments]
        return [rule for rule in rules if not any(rule.matches(path) for path in paths)]

    def find_switcher(self, objects: Iterable[MappedObject] = ()) -> MappedObject | None:
        """The first object, of these and those of earlier calls, that can switch stacks."""
        self._add(objects)
        try:
            return next((known.mapped for known in self._objects.values() if known.switches), None)
        finally:
            self._close()

    def avoid_returns(self) -> None:
        """Put no return probe on a call any more in which the thread might switch to another stack.

        The next plan has the functions again that had one.
        """
        if not self._avoid_returns:
            self._avoid_returns = True
            self._finished.clear()
            self._retries.clear()

    def _add(self, objects: Iterable[MappedObject]) -> None:
        for mapped in objects:
            if mapped.segments:
                self._meet(mapped)
            self._objects.setdefault(mapped.key, KnownObject(self.pid, mapped))

    def _meet(self, mapped: MappedObject) -> None:
        """Forget that a file was only expected, but not which probes it has."""
        for key, known in list(self._objects.items()):
            if known.mapped.segments or known.mapped.path != mapped.path:
                continue
            del self._objects[key]
            self._finished = {(file, rule) for file, rule in self._finished if file != key}
            self._retries = {(file, rule): count for (file, rule), count in self._retries.items() if file != key}
            # On some file systems (overlayfs, btrfs) stat and /proc/PID/maps do not agree about the device.
            if key != mapped.key and known.is_same_file(KnownObject(self.pid, mapped)):
                done = [(vaddr, action, kind) for (file, vaddr, action), kind in self._done.items() if file == key]
                self._done.update({(mapped.key, vaddr, action): kind for vaddr, action, kind in done})

    def _close(self) -> None:
        for known in self._objects.values():
            known.close()

    def plan(self, objects: Iterable[MappedObject] = ()) -> Plan:
        """Targets that these objects add. Objects of earlier calls are remembered; unusable files are noted.

        Objects without segments are files that the process is expected to map: they are planned as far as the files
        alone tell, and once more when they are mapped.
        """
        self._add(objects)
        self._ends = Ends(self._objects.values())
        plan = Plan()
        try:
            with ProcessMemory(self.pid) as memory:
                for target in self._targets(memory, plan.notes):
                    key = (target.object.key, target.vaddr, target.action)
                    planned = self._done.get(key)
                    again = planned == RETURN and target.exits != RETURN
                    if (planned is None or again) and target.group in self._groups:
                        self._done[key] = target.exits
                        plan.targets.append(target)
        finally:
            self._close()
        plan.notes[:] = [note for note in plan.notes if note not in self._noted]
        self._noted.update(plan.notes)
        return plan

    def _targets(self, memory: ProcessMemory, notes: list[str]) -> Iterator[ProbeTarget]:
        matched = self._matched(notes)
        for known, rule in matched:
            yield from self._library(known, rule, memory, notes)
        by_rule = {known.mapped.key for known, _ in matched}
        matched = [(known, rule) for known, rule in matched if known.mapped.segments]  # others call nothing back yet
        if Group.MARKER in self._groups:
            for marker in self._markers:
                yield from self._marked(marker, memory, notes)
        frame = self._needs_frames(matched) or (self._avoid_returns and self._is_called_back(matched))
        late: list[tuple[KnownObject, Library]] = []
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

    def _matched(self, notes: list[str]) -> list[tuple[KnownObject, LibraryRule]]:
        found: list[tuple[KnownObject, LibraryRule]] = []
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

    def _is_library(self, known: KnownObject, library: Library) -> bool:
        if library.files and library.matches_path(known.mapped.path):
            return known.facts is not None
        return any(known.defines(name) for name in library.defines)

    def glue(self) -> list[MappedObject]:
        """Objects that call functions of a library given by --library: bindings, mostly."""
        return [known.mapped for known in self._glue(self._matched([]))]

    def _glue(self, matched: list[tuple[KnownObject, LibraryRule]]) -> list[KnownObject]:
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

    def _needs_frames(self, matched: list[tuple[KnownObject, LibraryRule]]) -> bool:
        """Whether code that may call Python runs inside or around the matched libraries.

        A library of plain C that only ctypes or cffi call cannot: those two call Python through their import stubs.
        """
        if any(known.facts is not None and known.facts.python_api for known, _ in matched):
            return True
        return any(known.facts is not None and known.facts.python_api for known in self._glue(matched))

    def _is_called_back(self, matched: list[tuple[KnownObject, LibraryRule]]) -> bool:
        """Whether callbacks are seen at import stubs, which have no end of their own: only a return probe shows it."""
        if Group.REENTRY not in self._groups:
            return False
        return bool(matched) or any(
            library.callbacks or any(entry.imports and entry.when == "always" for entry in library.entries)
            for known in self._objects.values()
            for library in self._catalogue
            if self._is_library(known, library)
        )

    def _imported_elsewhere(self, known: KnownObject) -> frozenset[str]:
        names: set[str] = set()
        for other in self._objects.values():
            if other is not known and other.facts is not None:
                names |= other.facts.imports
        return frozenset(names)

    # Functions of an object

    def _can_tell(self, known: KnownObject) -> bool:
        """Whether a library can be planned now: of one that is only expected too little may be known."""
        if known.mapped.segments or known.facts is None:
            return True
        if known.facts.python_api and not any(other.defines("PyEval_SaveThread") for other in self._objects.values()):
            return False  # the interpreter's functions would be taken for such as may throw
        try:
            return len(known.elf.exports) <= EXPORTS_LIMIT
        except ElfError:
            return False

    def _library(
        self, known: KnownObject, rule: LibraryRule, memory: ProcessMemory, notes: list[str]
    ) -> Iterator[ProbeTarget]:
        key = (known.mapped.key, f"--library {rule.category.name}")
        if key in self._finished or known.facts is None or not self._can_tell(known):
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
            notes.extend(points.notes if known.mapped.segments else ())
            if not points.functions and not points.incomplete and known.mapped.segments:
                notes.append(f"No function of {known.mapped.path} can be called from outside, so none is probed.")
            pattern = Entry(action=Action.CALL)
            yield from self._probes(known, points.functions, pattern, rule.category, Group.BOUNDARY, "--library", notes)
        except ElfError as error:
            self._finished.add(key)
            notes.append(str(error))

    def _catalogued(
        self,
        known: KnownObject,
        library: Library,
        memory: ProcessMemory,
        notes: list[str],
        frame: bool,
        native: bool,
    ) -> Iterator[ProbeTarget]:
        for number, entry in enumerate(library.entries):
            if (entry.when == "frame" and not frame) or (entry.when == "native" and not native):
                continue
            if entry.imports and self._avoid_returns:
                continue
            key = (known.mapped.key, f"{library.name} {number}")
            if key in self._finished:
                continue
            try:
                chosen = _chosen(known, entry, memory)
                self._settle(key, incomplete=entry.dispatcher and not chosen)
                yield from self._probes(known, chosen, entry, library.category, library.group, library.name, notes)
            except ElfError as error:
                self._finished.add(key)
                notes.append(str(error))
        key = (known.mapped.key, f"{library.name} callbacks")
        if library.callbacks and not frame and Group.REENTRY in self._groups and key not in self._finished:
            self._finished.add(key)
            try:
                entry = Entry(noexcept=True)
                yield from self._probes(
                    known, _callback_stubs(known), entry, Category.PYTHON, Group.REENTRY, library.name, notes
                )
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
        self, known: KnownObject, marker: MarkerRule, memory: ProcessMemory, notes: list[str]
    ) -> Iterator[ProbeTarget]:
        key = (known.mapped.key, f"--marker {marker.name} {marker.symbol}")
        if key in self._finished or known.facts is None:
            return
        self._finished.add(key)
        entry = Entry(symbols=frozenset({marker.symbol}))
        try:
            chosen = _chosen(known, entry, memory)
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
        known: KnownObject,
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
        if not known.mapped.segments:
            notes = []  # what is said when it is mapped counts
        flags = CookieFlag.REENTRY if group == Group.REENTRY else _NO_FLAGS
        for function in functions:
            apart = self._avoids_returns(group) and entry.action == Action.CALL
            if (function.vaddr, apart) not in facts.sites:
                facts.sites[function.vaddr, apart] = _site(known.elf, function, apart)
            found = facts.sites[function.vaddr, apart]
            if found is None:
                continue
            site, offset = found
            end = End(NONE)
            if entry.action == Action.CALL:
                end = self._end(known, function, entry, group)
                self._throws |= end.kind != RETURN
                if end.kind == NONE and group == Group.REENTRY:
                    continue  # once in Python, the thread would stay there
                if not known.mapped.segments and (end.kind == NONE or end.far):
                    continue  # the file in which it ends may come with this one
                if offset in end.offsets:
                    continue  # nothing but a jump into the C library: it begins where it ends
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
                exits=end.kind,
                exit_offsets=end.offsets,
                far_exits=end.far,
                flags=flags | (CookieFlag.FROM_PYTHON if entry.from_python or function.from_python else _NO_FLAGS),
                rule=rule,
            )
        notes.extend(self._ends.notes(known, group))

    def _avoids_returns(self, group: Group) -> bool:
        """CUDA runs nothing of the program's in its calls, so nothing in there switches."""
        return self._no_returns or (self._avoid_returns and group != Group.CUDA)

    def _end(self, known: KnownObject, function: Chosen, entry: Entry, group: Group) -> End:
        """How the end of a call is seen.

        A return probe, the cheapest, only where neither an exception nor a switch to another stack can come while it
        is pending.
        """
        if self._avoids_returns(group) or (
            self._avoid_frame_returns and group == Group.REENTRY and not function.is_stub
        ):
            return self._ends.sites(known, function)
        if entry.noexcept or function.noexcept:
            return End(RETURN)
        return self._ends.cheapest(known, function)


def _chosen(known: KnownObject, entry: Entry, memory: ProcessMemory) -> list[Chosen]:
    """What an entry names in a file, as found out once; a dispatcher depends on the process. Raises `ElfError`."""
    facts = known.facts
    if facts is None or entry.dispatcher:
        return choose(known.elf, entry, known.mapped, memory)
    if entry.key not in facts.chosen:
        facts.chosen[entry.key] = choose(known.elf, entry, known.mapped, memory)
    return facts.chosen[entry.key]


def _callback_stubs(known: KnownObject) -> list[Chosen]:
    facts = known.facts
    if facts is None:
        return []
    if "callbacks" not in facts.chosen:
        facts.chosen["callbacks"] = callback_stubs(known.elf, PYTHON_CALLS)
    return facts.chosen["callbacks"]


def _site(elf: ElfFile, function: Chosen, apart: bool) -> tuple[Site, int] | None:
    """The site of a function and its file offset; `apart` from where others would set a return probe, if possible."""
    if function.is_stub:
        site: Site | None = Site(function.vaddr, 0, STEPPED, frozenset())  # the kernel steps jumps through memory
    elif not function.size:
        site = None
    else:
        # The disassembler takes long to import, and is not needed where all is known already.
        from rlscope_ebpf.capture.site_choice import entry_site, other_site

        code = elf.read_vaddr(function.vaddr, function.size)
        site = entry_site(code, function.vaddr)
        if apart and site is not None:
            site = other_site(code, function.vaddr, site) or site
    if site is None:
        return None
    offset = elf.offset_of(site.vaddr)
    return None if offset is None else (site, offset)
