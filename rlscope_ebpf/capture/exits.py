"""Where a function is left: its `ret` instructions and tail jumps, for functions that must not get a return probe.

A return probe replaces the return address on the stack. An exception that unwinds through such a frame finds no
caller and ends the process, so functions that may let one pass are watched at each instruction that leaves them.
At every exit site rsp equals its value at the function's entry.

The same scan tells which functions cannot let an exception pass, and may have a return probe after all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Protocol

from rlscope_ebpf.capture.site_choice import disassembler
from rlscope_ebpf.capture.switch_tables import Row, TableData, is_table_jump, table_targets

_FOLLOWED_PARTS: Final = 16  # tail-called functions and cold parts scanned with the function itself
_FOLLOWED_BYTES: Final = 1 << 18
_THROW_DEPTH: Final = 4
_THROW_FUNCTIONS: Final = 64
_POINTER_WINDOW: Final = 12  # instructions between the load of a pointer and the jump to it

_RIP_SLOT = re.compile(r"qword ptr \[rip ([+-]) (0x[0-9a-f]+|\d+)\]")
_IMMEDIATE = re.compile(r"0x[0-9a-f]+|\d+")  # capstone writes numbers below 10 in decimal
_SCALED = re.compile(r"\[.*\*[48].*\]")
_STACK_STEP = re.compile(r"rsp, (0x[0-9a-f]+|\d+)$")
_PREFIXES = ("bnd ", "notrack ", "rep ", "repz ", "repne ")
# No compiler writes these into a function: where they turn up, data lies among the code. A breakpoint in data would
# change what the program computes.
_NEVER_CODE = frozenset(
    {
        *("cli", "sti", "hlt", "int1", "in", "insb", "insd", "out", "outsb", "outsd", "enter", "xlatb"),
        *("lcall", "ljmp", "lfs", "lgs", "lss", "retf", "retfq", "iret", "iretd", "iretq", "sysret", "sysexit"),
    }
)
_ZEROS = ("add", "byte ptr [rax], al")  # how zero bytes read


@dataclass(frozen=True, slots=True)
class Jump:
    """A jump that leaves the scanned range."""

    vaddr: int
    target: int | None  # None: through a slot of memory or a register
    slot: int | None  # the slot's address if it is rip-relative (global offset table)
    conditional: bool


@dataclass(frozen=True, slots=True)
class CodeScan:
    """What a linear disassembly of one function says."""

    returns: tuple[int, ...]  # addresses of ret
    jumps: tuple[Jump, ...]  # out of the function
    calls: frozenset[int]  # targets of direct calls
    call_slots: frozenset[int]  # slots of calls through the global offset table
    unknown_calls: bool  # calls through other pointers


@dataclass(frozen=True, slots=True)
class Code:
    """A function's bytes."""

    vaddr: int
    data: bytes


def scan(code: bytes, vaddr: int, data: TableData | None = None) -> CodeScan | None:
    """Disassemble a whole function. None if its instructions or its ways out cannot be told for certain.

    `data`: the file's data, to find the tables of switches in.
    """
    rows = list(disassembler().disasm_lite(code, vaddr))
    end = vaddr + len(code)
    if not rows or rows[-1][0] + rows[-1][1] != end:
        return None
    boundaries = {row[0] for row in rows}

    def belongs(target: int) -> bool:
        """Whether a switch may go there."""
        return target in boundaries if vaddr <= target < end else data is not None and data.is_code(target)

    returns: list[int] = []
    jumps: list[Jump] = []
    calls: set[int] = set()
    slots: set[int] = set()
    unknown = False
    for index, (address, size, mnemonic, operands) in enumerate(rows):
        if mnemonic in _NEVER_CODE or (mnemonic, operands) == _ZEROS:
            return None
        first = mnemonic[0]
        if first not in "jlcrbnx":
            continue
        name = _bare(mnemonic)
        if name in ("ret", "retq"):
            if index and _makes_return_address(rows[index - 1]):
                return None
            returns.append(address)
        elif name == "call":
            if _IMMEDIATE.fullmatch(operands):
                calls.add(int(operands, 0))
            elif (slot := _slot(operands, address + size)) is not None:
                slots.add(slot)
            else:
                unknown = True
        elif name == "jmp" and not _IMMEDIATE.fullmatch(operands):
            slot = _slot(operands, address + size)
            if slot is not None:
                jumps.append(Jump(address, None, slot, conditional=False))
            elif mnemonic.startswith("notrack") or is_table_jump(rows, index):
                # A switch: most of its targets lie inside. A table that is not found is taken to have no others.
                targets = table_targets(rows, index, data, belongs) if data else None
                jumps += [
                    Jump(address, target, None, conditional=False)
                    for target in targets or ()
                    if not vaddr <= target < end
                ]
            elif operands.startswith("qword ptr ["):
                jumps.append(Jump(address, None, None, conditional=False))
                unknown = True
            else:
                depth = _depth_at(rows, index)
                if depth is None or (depth == 0 and not _is_loaded_pointer(rows, index)):
                    return None  # a tail call through a register, or a switch in a leaf: cannot be told
                if depth == 0:
                    jumps.append(Jump(address, None, None, conditional=False))
                    unknown = True
        elif _IMMEDIATE.fullmatch(operands) and (first == "j" or name in ("loop", "loope", "loopne", "xbegin")):
            target = int(operands, 0)
            if vaddr <= target < end:
                if target not in boundaries:
                    return None  # data among the code, or overlapping instructions
            else:
                jumps.append(Jump(address, target, None, conditional=name != "jmp"))
    return CodeScan(tuple(returns), tuple(jumps), frozenset(calls), frozenset(slots), unknown)


@dataclass(frozen=True, slots=True)
class WaysOut:
    """How a function is left."""

    sites: tuple[int, ...]  # addresses of the instructions that leave it, sorted
    tail_calls: frozenset[str]  # imported functions that it ends in: their ends are its own


class CodeSource(TableData, Protocol):
    """The code of one file."""

    def at(self, vaddr: int) -> Code | None:
        """The function that contains an address; None for import stubs and other sections."""

    def import_of(self, jump: Jump) -> str | None:
        """The imported function that a jump leads to, through a stub or a slot of the global offset table."""

    def slot_throws(self, slot: int) -> bool:
        """Whether the function imported through a slot of the global offset table may throw."""

    def stub_throws(self, vaddr: int) -> bool:
        """Whether the function behind an import stub may throw."""


class ExitFinder:
    """Finds the exits of the functions of one file; remembers what it has disassembled."""

    def __init__(self, source: CodeSource) -> None:
        self._source = source
        self._scans: dict[int, CodeScan | None] = {}
        self._throws: dict[int, bool] = {}
        self.scanned = 0
        """Bytes disassembled so far."""

    def ways_out(self, function: Code) -> WaysOut | None:
        """Every instruction by which the function is left; None if they cannot be enumerated.

        A jump to other code of the file (a cold part, a tail-called function) is followed and that code's exits are
        taken in its place, so that its time still counts; other callers of it hit these sites too, with another rsp.
        A tail call of the C library or the interpreter counts as the exit itself. An exception makes no exit: nothing
        is hit then.
        """
        pending = [function]
        parts = {function.vaddr}
        exits: set[int] = set()
        tail_calls: set[str] = set()
        budget = _FOLLOWED_BYTES - len(function.data)
        while pending:
            found = self._scan(pending.pop())
            if found is None:
                return None
            exits.update(found.returns)
            for jump in found.jumps:
                following = self._source.at(jump.target) if jump.target is not None else None
                if following is not None:
                    if following.vaddr not in parts:
                        parts.add(following.vaddr)
                        pending.append(following)
                        budget -= len(following.data)
                        if len(parts) > _FOLLOWED_PARTS or budget < 0:
                            return None
                elif not self._leads_far(jump) and not jump.conditional:
                    exits.add(jump.vaddr)
                else:
                    name = self._source.import_of(jump)
                    if name is None:
                        return None  # through a pointer
                    tail_calls.add(name)
        return WaysOut(tuple(sorted(exits)), frozenset(tail_calls))

    def _leads_far(self, jump: Jump) -> bool:
        """Whether a jump out of the file may lead to code that takes its time."""
        if jump.slot is not None:
            return self._source.slot_throws(jump.slot)
        return jump.target is None or self._source.stub_throws(jump.target)

    def throws(self, function: Code) -> bool:
        """Whether the function, or anything that it calls as far as can be seen, may throw.

        Calls through pointers other than the global offset table count as throwing.
        """
        return self._may_throw(function, 0, set())

    def _may_throw(self, part: Code, depth: int, path: set[int]) -> bool:
        known = self._throws.get(part.vaddr)
        if known is not None:
            return known
        if part.vaddr in path:
            return False  # recursion adds nothing
        if depth > _THROW_DEPTH or len(path) >= _THROW_FUNCTIONS:
            return True
        path.add(part.vaddr)
        result = self._calls_throw(part, depth, path)
        if result or depth == 0:  # a harmless part of a recursion is known to be harmless only with the rest of it
            self._throws[part.vaddr] = result
        return result

    def _calls_throw(self, part: Code, depth: int, path: set[int]) -> bool:
        found = self._scan(part)
        if found is None or found.unknown_calls or any(map(self._source.slot_throws, found.call_slots)):
            return True
        targets = set(found.calls)
        for jump in found.jumps:
            if jump.slot is not None and self._source.slot_throws(jump.slot):
                return True
            if jump.target is not None:
                targets.add(jump.target)
        for target in targets:
            following = self._source.at(target)
            if self._source.stub_throws(target) if following is None else self._may_throw(following, depth + 1, path):
                return True
        return False

    def _scan(self, part: Code) -> CodeScan | None:
        if part.vaddr not in self._scans:
            self.scanned += len(part.data)
            self._scans[part.vaddr] = scan(part.data, part.vaddr, self._source)
        return self._scans[part.vaddr]


def _makes_return_address(row: Row) -> bool:
    """Whether a `ret` behind the instruction is a jump: how retpolines, for one, go through a pointer."""
    return row[2] == "push" or (row[2] == "mov" and row[3].startswith("qword ptr [rsp], "))


def _bare(mnemonic: str) -> str:
    for prefix in _PREFIXES:
        mnemonic = mnemonic.removeprefix(prefix)
    return mnemonic


def _slot(operands: str, following: int) -> int | None:
    match = _RIP_SLOT.fullmatch(operands)
    if match is None:
        return None
    displacement = int(match[2], 0)
    return following + (displacement if match[1] == "+" else -displacement)


def _is_loaded_pointer(rows: list[Row], index: int) -> bool:
    """Whether the straight line before a register jump loads the register from a plain field: a virtual call."""
    register = rows[index][3]
    for _, _, mnemonic, operands in reversed(rows[max(0, index - _POINTER_WINDOW) : index]):
        if mnemonic[0] == "j" or mnemonic in ("call", "ret"):
            return False
        destination, _, source = operands.partition(", ")
        if destination == register:
            return mnemonic == "mov" and "[" in source and not _SCALED.search(source)
    return False


def _depth_at(rows: list[Row], index: int) -> int | None:
    """Bytes that the stack has grown since the entry before instruction `index`; None if no path there is understood.

    A tail call needs 0. Follows branches from the entry; aligned frames count as -1 (grown by an unknown amount).
    """
    at = {row[0]: number for number, row in enumerate(rows)}
    depths: dict[int, tuple[int, int | None]] = {}
    pending: list[tuple[int, tuple[int, int | None]]] = [(0, (0, None))]
    while pending:
        number, (depth, frame) = pending.pop()
        while number < len(rows) and number not in depths:
            depths[number] = (depth, frame)
            if number == index:
                return depth
            _, _, mnemonic, operands = rows[number]
            name = _bare(mnemonic)
            if name in ("ret", "ud2", "hlt"):
                break
            step = _STACK_STEP.fullmatch(operands)
            if name == "push" and depth >= 0:
                depth += 8
            elif name == "pop" and depth >= 0:
                depth -= 8
                if operands == "rbp":
                    frame = None
            elif name in ("sub", "add") and step and depth >= 0:
                depth += int(step[1], 0) * (1 if name == "sub" else -1)
            elif name == "and" and operands.startswith("rsp,"):
                depth = -1
            elif name == "mov" and operands == "rbp, rsp":
                frame = depth
            elif name == "leave" and frame is not None:
                depth, frame = frame - 8, None
            elif name == "lea" and operands.startswith("rsp, [rbp") and frame is not None:
                offset = re.search(r"([+-]) (0x[0-9a-f]+|\d+)\]", operands)
                depth = frame + (int(offset[2], 0) * (-1 if offset[1] == "+" else 1) if offset else 0)
            elif operands.startswith(("rsp,", "esp,")) and name not in ("cmp", "test"):
                depth = -1
            if name.startswith("j"):
                if _IMMEDIATE.fullmatch(operands):
                    target = at.get(int(operands, 0))
                    if target is not None:
                        pending.append((target, (depth, frame)))
                if name == "jmp":
                    break
            number += 1
    return None
