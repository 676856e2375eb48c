"""Functions whose address stands in data: method tables, type slots, callbacks; in the file and in the live process.

Whatever calls into a library without knowing its names finds it by such a pointer.
"""

from __future__ import annotations

import os
import re
from collections import Counter
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
)
from rlscope_ebpf.capture.maps import MappedObject

# PyMethodDef: name, function, flags (METH_VARARGS 0x1 … METH_METHOD 0x200), doc
_METHOD_FLAGS: Final = 0x3FF
_CALLING_CONVENTIONS: Final = 0x1 | 0x4 | 0x8 | 0x80  # VARARGS, NOARGS, O, FASTCALL: a method has one of them
_PREINIT_ARRAY: Final = 16
_NAME_BYTES: Final = 64
_IDENTIFIER: Final = re.compile(rb"[A-Za-z_]\w*(\0|\w$)")
_BLOCK: Final = 4 << 20
_HEAP_LIMIT: Final = 768 << 20  # bytes of the target's heap looked through for dispatchers
_ENOUGH: Final = 8  # records found, after which only _AFTER_FIND more bytes are looked through
_AFTER_FIND: Final = 64 << 20
_PAGE: Final = os.sysconf("SC_PAGESIZE")


@dataclass(frozen=True, slots=True)
class DataPointers:
    """Sorted function starts that stand in data."""

    interpreter: U64  # only in tables that the interpreter reads (methods, type slots): it alone calls them
    others: U64


def static_pointers(elf: ElfFile, *, vtables: bool = True) -> DataPointers:
    """Pointers that the dynamic linker writes. `vtables=False` leaves out those in C++ virtual tables."""
    slots, targets = elf.data_pointers()
    order = np.argsort(slots, kind="stable")
    slots, targets = slots[order], targets[order]
    keep = elf.bounds.are_starts(targets) & ~_in_sections(elf, slots)
    if not vtables:
        keep &= ~_in_vtables(elf, slots)
    functions = np.flatnonzero(keep)
    at = slots[functions]
    tables = _is_method_table(elf, slots, targets, functions) | _in_types(elf, slots, targets, at)
    return _split(targets[functions[tables]], targets[functions[~tables]])


def _split(interpreter: U64, others: U64) -> DataPointers:
    """Whatever also stands elsewhere may be called from elsewhere."""
    rest = np.unique(others)
    return DataPointers(np.setdiff1d(interpreter, rest), rest)


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


# Where a PyTypeObject has its fields, in bytes (the same from CPython 3.8 on): header, name, sizes, slot structures.
_TYPE_NAME, _TYPE_SIZE = 24, 416
# Offsets of the pointers tp_as_async, _number, _sequence, _mapping, _buffer and tp_getset, and the bytes they point to.
_TYPE_TABLES: Final = ((80, 32), (96, 288), (104, 80), (112, 24), (160, 16), (240, 400))
_STATIC_REFERENCES: Final = (1, 0xFFFFFFFF, 0x3FFFFFFF, 3 << 30, (1 << 62) - 1)  # 1, and the immortal ones


def _in_types(elf: ElfFile, slots: U64, targets: U64, wanted: U64) -> NDArray[np.bool_]:
    """Which of the slots `wanted` lie in static type objects and in the slot structures that these point to."""
    inside = np.zeros(len(wanted), bool)
    names = slots[(slots >= np.uint64(_TYPE_NAME)) & ~elf.is_code(targets)]
    base = names - np.uint64(_TYPE_NAME)
    shape = np.isin(elf.words_at(base), np.array(_STATIC_REFERENCES, np.uint64))
    base = base[shape]
    shape = elf.words_at(base + np.uint64(16)) == 0
    shape &= elf.words_at(base + np.uint64(_TYPE_NAME + 8)) < np.uint64(1 << 20)
    shape &= elf.words_at(base + np.uint64(_TYPE_NAME + 16)) < np.uint64(1 << 16)
    base = base[shape]
    ranges = [(start, start + _TYPE_SIZE) for start in base.tolist()]
    for offset, size in _TYPE_TABLES:
        pointer = base + np.uint64(offset)
        index = np.minimum(np.searchsorted(slots, pointer), max(len(slots) - 1, 0))
        if len(slots):
            tables = targets[index[slots[index] == pointer]]
            ranges.extend((start, start + size) for start in tables.tolist())
    order = np.argsort(wanted)
    for start, end in ranges:
        low, high = np.searchsorted(wanted[order], (np.uint64(start), np.uint64(min(end, 2**64 - 1))))
        inside[order[low:high]] = True
    return inside


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
    """Pointers that stand in the object's .data and .bss now: tables filled at run time."""
    bias = load_bias(elf, mapped)
    methods: list[U64] = []
    others: list[U64] = []
    if bias is None:
        return DataPointers(np.empty(0, np.uint64), np.empty(0, np.uint64))
    for section in elf.sections:
        wanted = section.flags & (SHF_WRITE | SHF_ALLOC) == SHF_WRITE | SHF_ALLOC
        if not wanted or not section.name.startswith((".data", ".bss", ".ldata", ".lbss")):
            continue
        if section.name.startswith(".data.rel.ro"):
            continue  # read-only once the dynamic linker is done: the file's relocations say it all
        start = section.vaddr + bias
        for _, words in memory.words(start + (-start) % 8, section.size):
            vaddrs = words - np.uint64(bias % 2**64)
            rows = np.flatnonzero(elf.is_code(vaddrs))
            rows = rows[elf.bounds.are_starts(vaddrs[rows])]
            following = words[np.minimum(rows + 1, len(words) - 1)]
            preceding = words[np.maximum(rows - 1, 0)]
            is_method = _valid_flags(following & np.uint64(0xFFFFFFFF)) & _is_pointer(preceding) & (rows > 0)
            # Taking a function for one that throws nothing is dangerous: the name must be there, too.
            for index in np.flatnonzero(is_method).tolist():
                is_method[index] = _IDENTIFIER.match(memory.read(int(preceding[index]), _NAME_BYTES)) is not None
            methods.append(vaddrs[rows[is_method]])
            others.append(vaddrs[rows[~is_method]])
    nothing = np.empty(0, np.uint64)
    return _split(np.concatenate([nothing, *methods]), np.concatenate([nothing, *others]))


def load_bias(elf: ElfFile, mapped: MappedObject) -> int | None:
    """Address in the process minus virtual address in the file."""
    for low, _ in elf.code_ranges:
        offset = elf.offset_of(low)
        address = None if offset is None else mapped.address(offset)
        if address is not None:
            return address - low
    return None


def heap_dispatchers(pid: int, elf: ElfFile, mapped: MappedObject, memory: ProcessMemory) -> tuple[int, ...]:
    """Function starts to which call records on the heap point: what pybind11 and nanobind make for each function.

    pybind11 makes a PyMethodDef for each function; all of a module name one dispatcher. nanobind's function objects
    hold one of a few vectorcall functions four words in. Empty if the heap shows none (yet).
    """
    bias = load_bias(elf, mapped)
    ranges = elf.code_ranges
    if bias is None or not ranges:
        return ()
    low, high = min(r[0] for r in ranges) + bias, max(r[1] for r in ranges) + bias
    methods: Counter[int] = Counter()
    objects: Counter[int] = Counter()
    budget = _HEAP_LIMIT
    for start, end in _writable_memory(pid):
        if budget <= 0:
            break
        for _, words in memory.words(start, min(end - start, budget)):
            rows = np.flatnonzero((words - np.uint64(low)) < np.uint64(high - low))
            rows = rows[(rows >= 3) & (rows + 2 < len(words))]
            vaddrs = words[rows] - np.uint64(bias % 2**64)
            known = elf.bounds.are_starts(vaddrs)
            rows, vaddrs = rows[known], vaddrs[known]
            flags = words[rows + 1] & np.uint64(0xFFFFFFFF)
            name, doc = words[rows - 1], words[rows + 2]
            record = _valid_flags(flags) & _is_pointer(name) & ((doc == 0) | _is_pointer(doc))
            methods.update(vaddrs[record].tolist())
            # PyObject_VAR_HEAD: references, type, size; then the vectorcall function and max_nargs, complex_call.
            references, kind, size = words[rows - 3], words[rows - 2], words[rows - 1]
            small = np.uint64(1 << 16)
            shape = (references > 0) & (references < np.uint64(1 << 33)) & _is_pointer(kind)
            shape &= (size > 0) & (size < small)
            shape &= ((words[rows + 1] & np.uint64(0xFFFFFFFF)) < small) & ~record
            objects.update(vaddrs[shape].tolist())
        budget -= end - start
        if sum(methods.values()) + sum(objects.values()) >= _ENOUGH:
            budget = min(budget, _AFTER_FIND)
    counts = methods if sum(methods.values()) >= sum(objects.values()) else objects
    if not counts:
        return ()
    most = counts.most_common(1)[0][1]
    # A lone match is chance; nanobind's handful of variants are each used by many functions.
    return tuple(sorted(vaddr for vaddr, count in counts.items() if count >= 3 and count >= most // 50))


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
