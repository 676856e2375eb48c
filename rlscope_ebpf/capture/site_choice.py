"""Where to put a probe: the cheapest instruction at which a function's entry can be observed.

The kernel emulates some instructions under a uprobe and single-steps the others out of line, which costs 6 to 10 times
as much. From the entry we walk forward over instructions that change nothing a probe needs (the return address stays
at [rsp]) to the first cheap one.

Never a 5-byte nop. Kernels from 6.18 on turn one that is hit into a call of a page of their own. A process that is
forked then has the call, too, but not that page: it dies of a segmentation fault as soon as it gets there, also long
after the probe and the profiler have gone.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import capstone
import numpy as np
from capstone import x86_const as x86

from rlscope_ebpf.capture.sites import ENDBR64, MAX_PUSHED, NOP5_BYTES, Site
from rlscope_ebpf.model.calibration import EMULATED, STEPPED

_PAGE: Final = 4096
_WALK_BYTES: Final = 64  # a prologue is shorter; beyond this the "entry" would no longer be the entry
_LONGEST_STEPPED_NOP: Final = 9  # longer ones are refused by the kernel, or accepted and never hit
_ARGUMENTS: Final = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
_ALIASES: Final = {
    alias: register
    for register, *aliases in (
        ("rdi", "edi", "di", "dil"),
        ("rsi", "esi", "si", "sil"),
        ("rdx", "edx", "dx", "dl", "dh"),
        ("rcx", "ecx", "cx", "cl", "ch"),
        ("r8", "r8d", "r8w", "r8b"),
        ("r9", "r9d", "r9w", "r9b"),
    )
    for alias in (register, *aliases)
}
_JUMP_NOWHERE: Final = b"\xe9\0\0\0\0"
_STACK_POINTER: Final = frozenset({x86.X86_REG_RSP, x86.X86_REG_ESP, x86.X86_REG_SP, x86.X86_REG_SPL})
_LEAVES_THE_LINE: Final = frozenset(
    {
        capstone.CS_GRP_JUMP,
        capstone.CS_GRP_CALL,
        capstone.CS_GRP_RET,
        capstone.CS_GRP_INT,
        capstone.CS_GRP_IRET,
        capstone.CS_GRP_PRIVILEGE,
        capstone.CS_GRP_BRANCH_RELATIVE,
    }
)
_STOPS: Final = frozenset(
    {x86.X86_INS_SYSCALL, x86.X86_INS_SYSENTER, x86.X86_INS_HLT, x86.X86_INS_UD2, x86.X86_INS_INT3}
)


_NOTHING: Final[frozenset[str]] = frozenset()
_local = threading.local()


def disassembler(*, detail: bool = False) -> Any:
    """This thread's capstone handle."""
    name = "detailed" if detail else "plain"
    handle = getattr(_local, name, None)
    if handle is None:
        handle = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
        handle.detail = detail
        setattr(_local, name, handle)
    return handle


def entry_site(code: bytes, vaddr: int) -> Site | None:
    """Choose the site at which to observe the entry of a function.

    `code` is the whole function, `vaddr` the address of its first byte. None if its first instruction cannot be probed
    and no later one may stand for it. Only offsets that the disassembler confirms are ever chosen.
    """
    quick = _quick_site(code, vaddr)
    if quick is not None:
        return quick
    fallback: Site | None = None
    written: set[str] = set()
    for instruction in disassembler(detail=True).disasm(code[:_WALK_BYTES], vaddr):
        offset = instruction.address - vaddr
        raw = bytes(instruction.bytes)
        if not _is_made_a_call(raw) and not _loops_to(code, offset):
            if _emulated_class(raw) is not None:
                return Site(instruction.address, offset, EMULATED, frozenset(written))
            if fallback is None and _can_be_stepped(instruction, raw):
                fallback = Site(instruction.address, offset, STEPPED, frozenset(written))
        if not _is_transparent(instruction):
            break
        written |= _written_arguments(instruction)
    return fallback


def other_site(code: bytes, vaddr: int, first: Site) -> Site | None:
    """Another instruction at which the entry of a function can be observed than the one that `entry_site` chose.

    The kernel gives a hit a return probe if anybody has one on that instruction, for whichever process. So a function
    that must not get one is watched at an instruction where nobody would set it. None if there is no other.
    """
    fallback: Site | None = None
    written: set[str] = set()
    pushed = 0
    for instruction in disassembler(detail=True).disasm(code[:_WALK_BYTES], vaddr):
        offset = instruction.address - vaddr
        raw = bytes(instruction.bytes)
        if offset != first.offset and not _is_made_a_call(raw) and not _loops_to(code, offset):
            stays = _LEAVES_THE_LINE.isdisjoint(instruction.groups)  # what leaves may be an exit
            if stays and _emulated_class(raw) is not None:
                return Site(instruction.address, offset, EMULATED, frozenset(written), pushed)
            if fallback is None and stays and _can_be_stepped(instruction, raw):
                fallback = Site(instruction.address, offset, STEPPED, frozenset(written), pushed)
        if _is_push(raw) and pushed < MAX_PUSHED:
            pushed += 1
        elif not _is_transparent(instruction):
            break
        else:
            written |= _written_arguments(instruction)
    return fallback


def _is_push(raw: bytes) -> bool:
    register = raw[1:] if raw[:1] == b"\x41" else raw
    return len(register) == 1 and 0x50 <= register[0] <= 0x57


def _quick_site(code: bytes, vaddr: int) -> Site | None:
    """The common first instructions, told by their bytes alone: push, endbr64 and push.

    A push needs no look at the branches of the function: code that looped over it would grow the stack every turn.
    """
    offset = 4 if code.startswith(ENDBR64) else 0
    first = code[offset : offset + 2]
    if first[:1] == b"\x41":
        first = first[1:]
    if first and 0x50 <= first[0] <= 0x57:
        return Site(vaddr + offset, offset, EMULATED, _NOTHING)
    return None


def _is_made_a_call(raw: bytes) -> bool:
    """Whether the kernel replaces an instruction under a probe by a call: those of five bytes that do nothing."""
    return len(raw) == len(NOP5_BYTES) and (
        raw[:2] == b"\x0f\x1f" or raw[:3] == b"\x66\x0f\x1f" or raw == _JUMP_NOWHERE
    )


def _emulated_class(raw: bytes) -> str | None:
    """EMULATED if the kernel emulates the instruction: push, jmp, call, jcc, nops of up to 8 bytes. Prefixes do not."""
    first = raw[0]
    second = raw[1] if len(raw) > 1 else 0
    if len(raw) == 1 and (0x50 <= first <= 0x57 or first == 0x90):
        return EMULATED
    if len(raw) == 2 and ((first == 0x41 and 0x50 <= second <= 0x57) or first == 0xEB or 0x70 <= first <= 0x7F):
        return EMULATED
    if len(raw) == 5 and first in (0xE8, 0xE9):
        return EMULATED
    if len(raw) == 6 and first == 0x0F and 0x80 <= second <= 0x8F:
        return EMULATED
    if raw == b"\x66\x90" or (len(raw) <= 8 and (raw[:2] == b"\x0f\x1f" or raw[:3] == b"\x66\x0f\x1f")):
        return EMULATED
    return None


def _can_be_stepped(instruction: Any, raw: bytes) -> bool:
    if instruction.id == x86.X86_INS_NOP and len(raw) > _LONGEST_STEPPED_NOP:
        return False
    return instruction.id not in _STOPS


def _is_transparent(instruction: Any) -> bool:
    """Whether a probe behind this instruction still stands for the entry."""
    if instruction.id in _STOPS or not _LEAVES_THE_LINE.isdisjoint(instruction.groups):
        return False
    return _STACK_POINTER.isdisjoint(instruction.regs_access()[1])


def _written_arguments(instruction: Any) -> set[str]:
    names = (instruction.reg_name(register) for register in instruction.regs_access()[1])
    return {_ALIASES[name] for name in names if name in _ALIASES}


def _loops_to(code: bytes, offset: int) -> bool:
    """Whether a branch inside the function may go to (0, offset], so that a probe there would hit more than once.

    A test of bytes first, which can only say too often that there is one; then the disassembler.
    """
    if offset == 0:
        return False
    if not _may_branch_into(code, offset):
        return False
    base = _PAGE  # addresses are then printed in hexadecimal; capstone writes small numbers in decimal
    end = base
    for address, size, mnemonic, operands in disassembler().disasm_lite(code, base):
        end = address + size
        if operands[:2] == "0x" and mnemonic[0] in "jlx" and base < int(operands, 16) <= base + offset:
            return True
    return end < base + len(code)  # what cannot be read may hide one


def _may_branch_into(code: bytes, offset: int) -> bool:
    data = np.frombuffer(code, np.uint8)
    near = data[: offset + 2 + 128]
    if len(near) >= 2:
        opcode, displacement = near[:-1], near[1:].view(np.int8).astype(np.int64)
        target = np.arange(2, len(near) + 1) + displacement
        short = (opcode == 0xEB) | ((opcode & 0xF0) == 0x70) | ((opcode & 0xFC) == 0xE0)
        if bool(np.any(short & (target > 0) & (target <= offset))):
            return True
    if len(data) >= 5:
        count = len(data) - 4
        word = np.lib.stride_tricks.sliding_window_view(data[1:], 4) if count else np.empty((0, 4), np.uint8)
        displacement = np.ascontiguousarray(word).view("<i4").ravel().astype(np.int64)
        target = np.arange(5, 5 + count) + displacement
        opcode = data[:count]
        long = (opcode == 0xE9) | ((opcode & 0xF0) == 0x80)
        return bool(np.any(long & (target > 0) & (target <= offset)))
    return False
