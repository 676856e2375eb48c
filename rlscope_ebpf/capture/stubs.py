"""Import stubs (the procedure linkage table): where a file's own calls to another object's function pass."""

from __future__ import annotations

import re

from rlscope_ebpf.capture.elf import ElfFile
from rlscope_ebpf.capture.sites import ENDBR64, disassembler

_THROUGH_SLOT = re.compile(rb"\xff\x25", re.DOTALL)
_SLOT_OPERAND = re.compile(r"qword ptr \[rip ([+-]) (0x[0-9a-f]+|\d+)\]")


def import_stubs(elf: ElfFile) -> dict[str, int]:
    """Imported symbol → address of its stub. Imports that the file calls in other ways have none."""
    slots = elf.import_slots()
    stubs: dict[str, int] = {}
    for low, high in elf.stub_ranges:
        code = elf.read_vaddr(low, high - low)
        for match in _THROUGH_SLOT.finditer(code):
            found = _stub_at(code, match.start(), low)
            if found is None:
                continue
            start, slot = found
            name = slots.get(slot)
            if name is not None:
                # .plt.sec comes after .plt, whose entries then serve only the first, lazy call: the later one counts.
                stubs[name] = low + start
    return stubs


def stub_targets(elf: ElfFile) -> dict[int, str]:
    """Address of a stub → imported symbol; every stub, also where a symbol has several."""
    return {vaddr: name for name, vaddr in import_stubs(elf).items()}


def _stub_at(code: bytes, position: int, base: int) -> tuple[int, int] | None:
    """Start of the stub whose `jmp *slot(%rip)` has its opcode at `position`, and the slot, if it is one.

    A stub begins with that jump, or with `endbr64` before it, at a multiple of 8.
    """
    start = position - 1 if position and code[position - 1] == 0xF2 else position  # the bnd prefix
    if code[max(0, start - 4) : start] == ENDBR64 and (base + start - 4) % 8 == 0:
        start -= 4
    elif (base + start) % 8:
        return None
    for address, size, mnemonic, operands in disassembler().disasm_lite(code[start : start + 16], base + start):
        if mnemonic in ("jmp", "bnd jmp"):
            match = _SLOT_OPERAND.fullmatch(operands)
            if match is None:
                return None
            displacement = int(match[2], 0)
            return start, address + size + (displacement if match[1] == "+" else -displacement)
        if mnemonic != "endbr64":
            return None
    return None
