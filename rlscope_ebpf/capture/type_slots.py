"""Slots of Python types in a file's data: which pointers the interpreter calls, and which of these are no calls.

Layouts are those of 64-bit CPython 3.8 to 3.14.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.capture.elf import U64, ElfFile

# PyTypeObject: header of 24 bytes, then tp_name, tp_basicsize, tp_itemsize, slots.
_NAME, _TYPE_BYTES = 24, 408
_STATIC_REFERENCES: Final = (1, 0xFFFFFFFF, 0x3FFFFFFF, 3 << 30, (1 << 62) - 1)  # 1, and the immortal ones
# Offsets of the pointers tp_as_async, _number, _sequence, _mapping, _buffer and tp_getset, and the bytes behind them.
_TABLES: Final = ((80, 32), (96, 288), (104, 80), (112, 24), (160, 16), (248, 400))
# tp_dealloc, _traverse, _clear, _alloc, _free, _is_gc, _del, _finalize: they keep memory, nobody means to call them.
_HOUSEKEEPING: Final = (48, 184, 192, 304, 320, 328, 376, 392)

# PyType_Slot and PyModuleDef_Slot number their slots from 1; CPython 3.14 has 84. The same slots by number.
_SLOT_NUMBERS: Final = 100
_HOUSEKEEPING_NUMBERS: Final = (47, 51, 52, 53, 61, 71, 74, 80)

_WORD: Final = np.uint64(8)


class TypeSlots:
    """The static types of one file. `slots` (sorted) and `targets`: its pointers, as from `ElfFile.data_pointers`."""

    def __init__(self, elf: ElfFile, slots: U64, targets: U64) -> None:
        self._elf = elf
        self._slots = slots
        types = self._types(targets)
        ranges = [(start, start + _TYPE_BYTES) for start in types.tolist()]
        if len(slots):
            for offset, size in _TABLES:
                pointer = types + np.uint64(offset)
                index = np.minimum(np.searchsorted(slots, pointer), len(slots) - 1)
                tables = targets[index[slots[index] == pointer]]
                ranges.extend((start, start + size) for start in tables.tolist())
        self._ranges = ranges
        self._housekeeping: U64 = (types[:, None] + np.array(_HOUSEKEEPING, np.uint64)).ravel()

    def _types(self, targets: U64) -> U64:
        """Addresses of what looks like a static PyTypeObject: it has a name, a count of references, sizes."""
        elf = self._elf
        named = self._slots[(self._slots >= np.uint64(_NAME)) & ~elf.is_code(targets)]
        base = named - np.uint64(_NAME)
        base = base[np.isin(elf.words_at(base), np.array(_STATIC_REFERENCES, np.uint64))]
        shape = elf.words_at(base + np.uint64(16)) == 0
        shape &= elf.words_at(base + np.uint64(_NAME + 8)) < np.uint64(1 << 20)
        shape &= elf.words_at(base + np.uint64(_NAME + 16)) < np.uint64(1 << 16)
        found: U64 = base[shape]
        return found

    def contain(self, wanted: U64) -> NDArray[np.bool_]:
        """Which of the addresses `wanted` are slots of a type, of its slot structures, or in arrays of PyType_Slot."""
        inside = self._in_arrays(wanted)
        order = np.argsort(wanted)
        ordered = wanted[order]
        for start, end in self._ranges:
            low, high = np.searchsorted(ordered, (np.uint64(start), np.uint64(min(end, 2**64 - 1))))
            inside[order[low:high]] = True
        return inside

    def are_housekeeping(self, wanted: U64) -> NDArray[np.bool_]:
        """Which of the addresses `wanted` are slots by which the interpreter manages memory."""
        numbers = np.array(_HOUSEKEEPING_NUMBERS, np.uint64)
        in_array = self._in_arrays(wanted) & np.isin(self._elf.words_at(wanted - _WORD), numbers)
        result: NDArray[np.bool_] = in_array | np.isin(wanted, self._housekeeping)
        return result

    def _in_arrays(self, wanted: U64) -> NDArray[np.bool_]:
        """Which are `pfunc` of a PyType_Slot: a small number before, another one (0 at the end) behind, no pointers."""
        before, behind = self._elf.words_at(wanted - _WORD), self._elf.words_at(wanted + _WORD)
        limit = np.uint64(_SLOT_NUMBERS)
        plain = ~np.isin(wanted - _WORD, self._slots) & ~np.isin(wanted + _WORD, self._slots)
        result: NDArray[np.bool_] = plain & (before > 0) & (before < limit) & (behind < limit)
        return result
