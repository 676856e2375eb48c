"""The code of one file, for those that follow its jumps and calls."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.capture.elf import ElfFile
from rlscope_ebpf.capture.exits import Code, CodeSource, Jump
from rlscope_ebpf.capture.stubs import stub_targets


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
