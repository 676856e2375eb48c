"""Import stubs (the procedure linkage table): where a file's own calls to another object's function pass."""

from __future__ import annotations

import re

from rlscope_ebpf.capture.elf import ElfFile
from rlscope_ebpf.capture.sites import ENDBR64

_JUMP = b"\xff\x25"
"""`jmp *slot(%rip)`: opcode and operand kind, then the slot's distance from the next instruction in 4 bytes (Intel 64
manual, volume 2, JMP: FF /4). There are thousands, so they are not given to a disassembler."""

_BND = 0xF2  # a prefix that it may have


def import_stubs(elf: ElfFile) -> dict[str, int]:
    """Imported symbol → address of its stub. Imports that the file calls in other ways have none."""
    slots = elf.import_slots()
    stubs: dict[str, int] = {}
    for low, high in elf.stub_ranges:
        code = elf.read_vaddr(low, high - low)
        for match in re.finditer(re.escape(_JUMP), code):
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
    start = position - 1 if position and code[position - 1] == _BND else position
    if code[max(0, start - 4) : start] == ENDBR64 and (base + start - 4) % 8 == 0:
        start -= 4
    elif (base + start) % 8:
        return None
    end = position + len(_JUMP) + 4
    if end > len(code):
        return None
    displacement = int.from_bytes(code[end - 4 : end], "little", signed=True)
    return start, base + end + displacement
