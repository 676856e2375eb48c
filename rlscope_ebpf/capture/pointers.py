"""Functions whose address stands in data: method tables, type slots, callbacks; in the file and in the live process.

Whatever calls into a library without knowing its names finds it by such a pointer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.capture.elf import (
    SHF_ALLOC,
    SHF_WRITE,
    SHT_FINI_ARRAY,
    SHT_INIT_ARRAY,
    U64,
    ElfFile,
    Section,
)
from rlscope_ebpf.capture.maps import MappedObject
from rlscope_ebpf.capture.type_slots import TypeSlots

# PyMethodDef: name, function, flags (METH_VARARGS 0x1 … METH_METHOD 0x200), doc
_METHOD_FLAGS: Final = 0x3FF
_CALLING_CONVENTIONS: Final = 0x1 | 0x4 | 0x8 | 0x80  # VARARGS, NOARGS, O, FASTCALL: a method has one of them
_PREINIT_ARRAY: Final = 16
_NAME_BYTES: Final = 64
_IDENTIFIER: Final = re.compile(rb"[A-Za-z_]\w*(\0|\w$)")
_BLOCK: Final = 4 << 20
_HEAP_LIMIT: Final = 768 << 20  # bytes of the target's heap looked through for dispatchers
_PAGE: Final = os.sysconf("SC_PAGESIZE")


@dataclass(frozen=True, slots=True)
class DataPointers:
    """Sorted function starts that stand in data. One may stand in both kinds."""

    interpreter: U64  # in tables that the interpreter reads: methods, type slots
    others: U64  # anywhere else


def static_pointers(elf: ElfFile, *, vtables: bool = True) -> DataPointers:
    """Pointers that the dynamic linker writes. `vtables=False` leaves out those in C++ virtual tables."""
    slots, targets = elf.data_pointers()
    order = np.argsort(slots, kind="stable")
    slots, targets = slots[order], targets[order]
    keep = elf.bounds.are_starts(targets) & ~_in_sections(elf, slots)
    if not vtables:
        keep &= ~_in_vtables(elf, slots)
    types = TypeSlots(elf, slots, targets)
    functions = np.flatnonzero(keep)
    functions = functions[~types.are_housekeeping(slots[functions])]
    tables = _is_method_table(elf, slots, targets, functions) | types.contain(slots[functions])
    return DataPointers(np.unique(targets[functions[tables]]), np.unique(targets[functions[~tables]]))


def _is_method_table(elf: ElfFile, slots: U64, targets: U64, functions: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Which of the rows `functions` are `ml_meth` of a PyMethodDef: a text before, valid flags behind."""
    if not len(functions):
        return np.zeros(0, bool)
    at = slots[functions]
    before = np.searchsorted(slots, at - np.uint64(8))
    before = np.minimum(before, len(slots) - 1)
    named = (slots[before] == at - np.uint64(8)) & ~elf.is_code(targets[before])
    result: NDArray[np.bool_] = named & _valid_flags(elf.words_at(at + np.uint64(8)))
    return result


def _valid_flags(words: U64) -> NDArray[np.bool_]:
    valid: NDArray[np.bool_] = (words <= np.uint64(_METHOD_FLAGS)) & ((words & np.uint64(_CALLING_CONVENTIONS)) != 0)
    return valid


def _in_sections(elf: ElfFile, slots: U64) -> NDArray[np.bool_]:
    """Slots of constructors, destructors and the global offset table, by which nobody calls in from outside."""
    inside = np.zeros(len(slots), bool)
    for section in elf.sections:
        arrays = (SHT_INIT_ARRAY, SHT_FINI_ARRAY, _PREINIT_ARRAY)
        end = section.vaddr + section.size
        if (section.type in arrays or section.name.startswith(".got")) and end < 2**64:
            inside |= (slots >= np.uint64(section.vaddr)) & (slots < np.uint64(end))
    return inside


def _in_vtables(elf: ElfFile, slots: U64) -> NDArray[np.bool_]:
    inside = np.zeros(len(slots), bool)
    for start, size in elf.objects_named(b"_ZTV", b"_ZTC"):
        low, high = np.searchsorted(slots, (np.uint64(start), np.uint64(min(start + size, 2**64 - 1))))
        inside[low:high] = True
    return inside


class ProcessMemory:
    """Reads another process's memory; what cannot be read is missing, never an error. A context manager."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def __enter__(self) -> ProcessMemory:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self, address: int, size: int) -> bytes:
        """Up to `size` bytes; fewer if a page behind cannot be read; none if the first cannot."""
        if self._fd < 0:
            return b""
        try:
            return os.pread(self._fd, size, address)
        except (OSError, OverflowError):
            return b""

    def words(self, address: int, size: int) -> Iterable[tuple[int, U64]]:
        """Blocks of 8-byte words with the address of their first one; unreadable stretches are left out."""
        end = address + size
        while address < end:
            data = self.read(address, min(_BLOCK, end - address))
            if len(data) < 8:
                address = (address // _PAGE + 1) * _PAGE
                continue
            count = len(data) // 8
            yield address, np.frombuffer(data, "<u8", count)
            address += 8 * count


def live_pointers(elf: ElfFile, mapped: MappedObject, memory: ProcessMemory) -> DataPointers:
    """Pointers that the object's .data and .bss hold now and the file does not: tables filled at run time."""
    bias = load_bias(elf, mapped)
    nothing = np.empty(0, np.uint64)
    if bias is None:
        return DataPointers(nothing, nothing)
    static_slots, static_targets = elf.data_pointers()
    order = np.argsort(static_slots, kind="stable")
    static_slots, static_targets = static_slots[order], static_targets[order]
    types = TypeSlots(elf, static_slots, static_targets)
    interpreter: list[U64] = [nothing]
    others: list[U64] = [nothing]
    for section in elf.sections:
        if not _is_changeable(section):
            continue
        start = section.vaddr + bias
        for address, words in memory.words(start + (-start) % 8, section.size):
            vaddrs = words - np.uint64(bias % 2**64)
            rows = np.flatnonzero(elf.is_code(vaddrs))
            rows = rows[elf.bounds.are_starts(vaddrs[rows])]
            slots = (rows * 8 + (address - bias)).astype(np.uint64)
            changed = ~np.isin(slots, static_slots) & ~types.are_housekeeping(slots)
            rows, slots = rows[changed], slots[changed]
            # Slots of a type that the file leaves empty have been inherited.
            tables = types.contain(slots) | _are_live_methods(words, rows, memory)
            interpreter.append(vaddrs[rows[tables]])
            others.append(vaddrs[rows[~tables]])
    return DataPointers(np.unique(np.concatenate(interpreter)), np.unique(np.concatenate(others)))


def _is_changeable(section: Section) -> bool:
    """Whether a section holds data that the program may write. .data.rel.ro is read-only once the linker is done."""
    if section.flags & (SHF_WRITE | SHF_ALLOC) != SHF_WRITE | SHF_ALLOC:
        return False
    return section.name.startswith((".data", ".bss", ".ldata", ".lbss")) and not section.name.startswith(".data.rel.ro")


def _are_live_methods(words: U64, rows: NDArray[np.intp], memory: ProcessMemory) -> NDArray[np.bool_]:
    """Which words are `ml_meth` of a PyMethodDef. To take a function for one that throws nothing is dangerous, so its
    name must be there, too."""
    name, flags = words[np.maximum(rows - 1, 0)], words[np.minimum(rows + 1, len(words) - 1)]
    result: NDArray[np.bool_] = _valid_flags(flags & np.uint64(0xFFFFFFFF)) & _is_pointer(name) & (rows > 0)
    for index in np.flatnonzero(result).tolist():
        result[index] = _IDENTIFIER.match(memory.read(int(name[index]), _NAME_BYTES)) is not None
    return result


def load_bias(elf: ElfFile, mapped: MappedObject) -> int | None:
    """Address in the process minus virtual address in the file."""
    for low, _ in elf.code_ranges:
        offset = elf.offset_of(low)
        address = None if offset is None else mapped.address(offset)
        if address is not None:
            return address - low
    return None


@dataclass(frozen=True, slots=True)
class HeapPointers:
    """Function starts of one object that the interpreter finds on the heap."""

    records: frozenset[
        int
    ]  # in a PyMethodDef: pybind11 makes one for each function it binds, all naming one dispatcher
    vectorcalls: frozenset[int]  # in an object that is called by vectorcall: nanobind's and NumPy's functions


def heap_pointers(elf: ElfFile, mapped: MappedObject, memory: ProcessMemory) -> HeapPointers:
    """Look through the target's heap for what the interpreter calls in one object."""
    records: set[int] = set()
    vectorcalls: set[int] = set()
    bias = load_bias(elf, mapped)
    ranges = elf.code_ranges
    if bias is None or not ranges:
        return HeapPointers(frozenset(), frozenset())
    low, high = min(r[0] for r in ranges) + bias, max(r[1] for r in ranges) + bias
    types = _VectorcallTypes(memory)
    budget = _HEAP_LIMIT
    for start, end in _writable_memory(memory.pid):
        if budget <= 0:
            break
        for _, words in memory.words(start, min(end - start, budget)):
            rows = np.flatnonzero((words - np.uint64(low)) < np.uint64(high - low))
            rows = rows[(rows >= 1) & (rows + 2 < len(words))]
            vaddrs = words[rows] - np.uint64(bias % 2**64)
            known = elf.bounds.are_starts(vaddrs)
            rows, vaddrs = rows[known], vaddrs[known]
            new = ~np.isin(vaddrs, np.array([*records, *vectorcalls], np.uint64))
            rows, vaddrs = rows[new], vaddrs[new]
            if not len(rows):
                continue
            name, flags, doc = words[rows - 1], words[rows + 1] & np.uint64(0xFFFFFFFF), words[rows + 2]
            shape = np.flatnonzero(_valid_flags(flags) & _is_pointer(name) & ((doc == 0) | _is_pointer(doc)))
            for index in shape[np.unique(vaddrs[shape], return_index=True)[1]].tolist():
                if _IDENTIFIER.match(memory.read(int(name[index]), _NAME_BYTES)):
                    records.add(int(vaddrs[index]))
            sample = np.unique(vaddrs, return_index=True)[1]
            found = types.are_vectorcalls(words, rows[sample])
            vectorcalls.update(vaddrs[sample][found].tolist())
        budget -= end - start
    return HeapPointers(frozenset(records), frozenset(vectorcalls))


class _VectorcallTypes:
    """Tells vectorcall pointers from others: the type of the object around them says at which offset it has one."""

    _MAX_WORDS = 48  # vectorcall pointers lie near the start of an object
    _OFFSET, _FLAGS, _END = 56, 168, 176  # tp_vectorcall_offset, tp_flags
    _HAVE_VECTORCALL = 1 << 11

    def __init__(self, memory: ProcessMemory) -> None:
        self._memory = memory
        self._offsets: dict[int, int] = {}

    def are_vectorcalls(self, words: U64, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which of the words at `rows` are the vectorcall pointer of a Python object."""
        found = np.zeros(len(rows), bool)
        for distance in range(2, self._MAX_WORDS):
            at = np.flatnonzero((rows >= distance) & ~found)
            references, kinds = words[rows[at] - distance], words[rows[at] - distance + 1]
            plausible = (references > 0) & (references < np.uint64(1 << 33)) & _is_pointer(kinds)
            plausible &= kinds % np.uint64(8) == 0
            for index, kind in zip(at[plausible].tolist(), kinds[plausible].tolist(), strict=True):
                found[index] = self._offset(kind) == 8 * distance
        return found

    def _offset(self, kind: int) -> int:
        """Offset of the vectorcall pointer in objects of the type at address `kind`; 0 if it has none or is no type."""
        if kind not in self._offsets:
            data = self._memory.read(kind, self._END)
            offset = 0
            if len(data) == self._END:
                flags = int.from_bytes(data[self._FLAGS : self._END], "little")
                if flags & self._HAVE_VECTORCALL:
                    offset = int.from_bytes(data[self._OFFSET : self._OFFSET + 8], "little")
            self._offsets[kind] = offset
        return self._offsets[kind]


def _is_pointer(words: U64) -> NDArray[np.bool_]:
    plausible: NDArray[np.bool_] = (words >= np.uint64(1 << 16)) & (words < np.uint64(1 << 47))
    return plausible


def _writable_memory(pid: int) -> list[tuple[int, int]]:
    """Private writable memory without a file, the heap first, then small mappings before large ones."""
    found: list[tuple[bool, int, int, int]] = []
    try:
        with open(f"/proc/{pid}/maps", "rb", buffering=0) as file:
            lines = file.readall().splitlines()
    except OSError:
        return []
    for line in lines:
        fields = line.split(None, 5)
        if len(fields) < 5 or fields[4] != b"0" or not fields[1].startswith(b"rw-p"):
            continue
        name = fields[5] if len(fields) > 5 else b""
        if name not in (b"", b"[heap]") and not name.startswith(b"[anon:"):
            continue
        start, _, end = fields[0].partition(b"-")
        low, high = int(start, 16), int(end, 16)
        found.append((name != b"[heap]", high - low, low, high))
    return [(low, high) for _, _, low, high in sorted(found)]
