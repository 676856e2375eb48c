"""Which functions of a file are probed: those a catalogue entry names, or all by which others can enter the library."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from rlscope_ebpf.capture.catalogue import Entry
from rlscope_ebpf.capture.elf import SHT_FINI_ARRAY, SHT_INIT_ARRAY, ElfFile, Function
from rlscope_ebpf.capture.maps import MappedObject
from rlscope_ebpf.capture.pointers import (
    ProcessMemory,
    heap_pointers,
    live_pointers,
    static_pointers,
)
from rlscope_ebpf.capture.sites import Chosen
from rlscope_ebpf.capture.stubs import import_stubs

EXPORTS_LIMIT: Final = 4000
"""Above this number of exported functions only those count that another mapped object imports."""

MODULE_EXPORTS_LIMIT: Final = 64
MODULE_POINTERS_LIMIT: Final = 1000
"""Above this number of functions that only a Python module's own data point to, these are taken as internal."""

_DISPATCHER: Final = re.compile(
    r"_ZN8pybind11\w*12cpp_function10dispatcherEP7_object(S\d?_S\d?_|PKS\d?_mS\d?_)"  # before 3.0, and since
    r"|_ZN8nanobind6detailL?\d+nb_func_vectorcall_\w+?EP7_object.*"
)
_BINDING: Final = re.compile(r"_ZNK?(8pybind11|8nanobind)")  # what the binding library brings along
# Linkage, start-up and shut-down code, and what a statically linked C++ runtime exports: no calls into the library.
_NOT_ENTRIES: Final = re.compile(
    r"_init|_fini|_start|frame_dummy|(de)?register_tm_clones|__do_global_dtors_aux|_dl_relocate_static_pie|PyInit_\w+"
    r"|_GLOBAL__\w+|__cxx_global_\w+|__libc_csu_\w+|_ITM_\w+|__gmon_start__"
    r"|_Z(N|NK|T\w?N?|GV?N?K?)?S[a-z].*|_Z(N|NK)9__gnu_cxx.*|_Z(N|NK)10__cxxabiv1.*|_Zn[wa].*|_Zd[la].*"
    r"|_ZGTt.*|__cxa_\w+|_Unwind_\w+|__gxx_\w+|__gcc_\w+|__(emutls|dynamic_cast)\w*"
)


def choose(elf: ElfFile, entry: Entry, mapped: MappedObject, memory: ProcessMemory) -> list[Chosen]:
    """What a catalogue entry names in a file, each address once, in order of address."""
    found: list[Chosen] = []
    if entry.imports:
        stubs = import_stubs(elf)
        found += [_stub(name, stubs[name]) for name in sorted(entry.imports & stubs.keys())]
    if entry.methods:
        found += [
            Chosen(function.name, function.vaddr, function.size, from_python=True, noexcept=True)
            for function in _named(elf, static_pointers(elf).interpreter.tolist())
            if entry.takes(function.name)
        ]
    if entry.dispatcher:
        found += dispatchers(elf, mapped, memory)
    if entry.symbols or entry.match is not None:
        exported = [function for function in elf.exports if entry.takes(function.name)]
        found += [_function(elf, function) for function in exported]
        # A file of symbols: exported ones suffice if they are all that was asked for.
        if entry.match is not None or entry.symbols - {function.name for function in exported}:
            local = _local_functions(elf, entry)
            found += [_function(elf, function) for function in local if entry.takes(function.name)]
    return _once(found)


def _local_functions(elf: ElfFile, entry: Entry) -> tuple[Function, ...]:
    if entry.contains or entry.match is not None:
        return elf.local_functions(containing=entry.contains)
    return tuple(function for name in sorted(entry.symbols) for function in elf.local_functions(containing=name))


def callback_stubs(elf: ElfFile, names: Iterable[str]) -> list[Chosen]:
    """Stubs by which a file calls Python."""
    stubs = import_stubs(elf)
    return [_stub(name, stubs[name]) for name in sorted(set(names) & stubs.keys())]


def dispatchers(elf: ElfFile, mapped: MappedObject, memory: ProcessMemory) -> list[Chosen]:
    """The functions that pybind11 or nanobind register for all that a module binds; none if they are not known yet."""
    named = [
        function
        for text in ("cpp_function10dispatcher", "nb_func_vectorcall_")
        for function in elf.local_functions(containing=text)
        if _DISPATCHER.fullmatch(function.name)
    ]
    if not named:
        heap = heap_pointers(elf, mapped, memory)
        named = _named(elf, heap.records | heap.vectorcalls)
    return [
        Chosen(function.name, function.vaddr, elf.size_of(function), from_python=True, noexcept=True)
        for function in named
    ]


def binds_with_dispatcher(imports: frozenset[str]) -> bool:
    """Whether a Python module looks made with pybind11 or nanobind: C++ that registers functions at run time."""
    return bool(
        imports & {"PyCFunction_NewEx", "PyCMethod_New", "PyInstanceMethod_New", "PyType_FromMetaclass"}
        or imports & {"PyType_FromSpec", "PyType_FromModuleAndSpec", "PyType_FromSpecWithBases"}
    )


@dataclass(frozen=True, slots=True)
class EntryPoints:
    """All functions by which a library can be entered."""

    functions: list[Chosen]
    notes: list[str]
    incomplete: bool  # a dispatcher is expected, but not seen yet


def entry_points(
    elf: ElfFile,
    mapped: MappedObject,
    memory: ProcessMemory,
    *,
    imported_elsewhere: frozenset[str],
    uses_cxx: bool,
) -> EntryPoints:
    """Every function of a library that can be called from outside of it, knowing nothing about the library.

    `imported_elsewhere`: names that other mapped objects import.
    """
    notes: list[str] = []
    is_module = any(function.name.startswith("PyInit_") for function in elf.exports)
    exported = [function for function in elf.exports if not _NOT_ENTRIES.fullmatch(function.name)]
    if is_module:
        # The interpreter enters a module by tables. Its exports count if another object names them; unmangled ones also
        # if there are so few that they look meant for ctypes, and not like a library linked in (NumPy's vector math).
        plain = [f for f in exported if not f.name.startswith("_Z")]
        few = plain if len(plain) <= MODULE_EXPORTS_LIMIT else []
        exported = few + [f for f in exported if f.name in imported_elsewhere]
    elif len(exported) > EXPORTS_LIMIT:
        used = [function for function in exported if function.name in imported_elsewhere]
        if used:
            notes.append(
                f"{mapped.name} exports {len(exported)} functions: only the {len(used)} that other libraries of the "
                "process use are probed."
            )
            exported = used
    found = [_function(elf, function) for function in exported]
    pointers = [static_pointers(elf, vtables=not is_module), live_pointers(elf, mapped, memory)]
    interpreter = {vaddr for pointer in pointers for vaddr in pointer.interpreter.tolist()}
    others = {vaddr for pointer in pointers for vaddr in pointer.others.tolist()}
    shared = interpreter & others  # not the interpreter's alone, so an exception may leave them
    others -= shared
    incomplete = False
    bound: list[Chosen] = []
    if is_module and uses_cxx and binds_with_dispatcher(elf.imports):
        bound = dispatchers(elf, mapped, memory)
        incomplete = not bound
    limit = MODULE_POINTERS_LIMIT if is_module else EXPORTS_LIMIT
    if bound:
        others = set()  # virtual functions and the like: behind the dispatcher
    elif len(others) > limit:
        if not is_module:
            notes.append(
                f"{mapped.name} keeps pointers to {len(others)} more functions, as a rule for its own use: they are "
                "not probed."
            )
        others = set()
    if is_module and not bound:
        # Objects made at run time hold functions that stand in no table, NumPy's universal functions for example.
        heap = heap_pointers(elf, mapped, memory)
        interpreter |= heap.records | heap.vectorcalls
    skipped = _array_targets(elf)
    found += bound
    found += [_function(elf, function) for function in _named(elf, (others | shared) - skipped)]
    found += [
        Chosen(function.name, function.vaddr, elf.size_of(function), from_python=True, noexcept=True)
        for function in _named(elf, interpreter - shared - others - skipped)
        if not (bound and _BINDING.match(function.name))
    ]
    chosen = [function for function in _once(found) if not _NOT_ENTRIES.fullmatch(function.name)]
    return EntryPoints(chosen, notes, incomplete)


def _array_targets(elf: ElfFile) -> set[int]:
    """Constructors and destructors of the file."""
    slots, targets = elf.data_pointers()
    found: set[int] = set()
    for section in elf.sections:
        if section.type in (SHT_INIT_ARRAY, SHT_FINI_ARRAY) and section.vaddr + section.size < 2**64:
            inside = (slots >= np.uint64(section.vaddr)) & (slots < np.uint64(section.vaddr + section.size))
            found.update(targets[inside].tolist())
    return found


def _named(elf: ElfFile, vaddrs: Iterable[int]) -> list[Function]:
    """Functions at addresses; those without a symbol are named by their address."""
    wanted = sorted(set(vaddrs))
    if not wanted:
        return []
    names = elf.function_names(wanted)
    result = []
    for vaddr in wanted:
        bounds = elf.bounds.containing(vaddr)
        size = bounds[1] if bounds and bounds[0] == vaddr else 0
        result.append(Function(names.get(vaddr) or f"sub_{vaddr:x}", vaddr, size, False, False, ""))
    return result


def _function(elf: ElfFile, function: Function) -> Chosen:
    return Chosen(function.name, function.vaddr, elf.size_of(function))


def _stub(name: str, vaddr: int) -> Chosen:
    return Chosen(name, vaddr, 0, noexcept=True, is_stub=True)


def _once(found: list[Chosen]) -> list[Chosen]:
    """One for each address, the first that was found; what any of them promises about it holds."""
    by_address: dict[int, Chosen] = {}
    for chosen in found:
        known = by_address.get(chosen.vaddr)
        if known is None:
            by_address[chosen.vaddr] = chosen
        elif known.name.startswith("sub_") and not chosen.name.startswith("sub_"):
            by_address[chosen.vaddr] = Chosen(
                chosen.name, known.vaddr, known.size, known.from_python, known.noexcept, known.is_stub
            )
    return [by_address[vaddr] for vaddr in sorted(by_address)]
