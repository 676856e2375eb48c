"""Where the jumps of `switch` statements lead: compilers keep their targets in tables.

Most lie inside the function. But a rare case may have been moved into the function's cold part, which then only the
table leads to, and which may return by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

Row = tuple[int, int, str, str]
"""An instruction as capstone has it: address, size, mnemonic, operands."""

_TABLE_WINDOW: Final = 12  # instructions between the table's load and the jump
_BOUND_WINDOW: Final = 24  # and between the test of the index and the jump
_LONGEST_TABLE: Final = 1024
_GUESSED_LENGTH: Final = 256  # where no test of the index is found

_SCALED = re.compile(r"\[(?:(?P<base>\w+) \+ )?\w+\*(?P<scale>[48])(?: (?P<sign>[+-]) (?P<offset>0x[0-9a-f]+|\d+))?\]")
_RIP = re.compile(r"\[rip ([+-]) (0x[0-9a-f]+|\d+)\]")
_NUMBER = re.compile(r"\w+, (0x[0-9a-f]+|\d+)")
_HIGH_WORDS: Final = 1 << 47  # a table at an address above is none


class TableData(Protocol):
    """The file's data, as tables need it."""

    def is_code(self, vaddr: int) -> bool:
        """Whether the file has code at an address."""

    def offsets(self, vaddr: int, count: int) -> NDArray[np.int64]:
        """Up to `count` signed 4-byte numbers at an address."""

    def pointers(self, vaddr: int, count: int) -> NDArray[np.int64]:
        """Up to `count` addresses at an address, relocated as for the file's own addresses."""


def is_table_jump(rows: Sequence[Row], index: int) -> bool:
    """Whether an indirect jump goes through a table."""
    return _load(rows, index) is not None


def table_targets(
    rows: Sequence[Row], index: int, data: TableData, belongs: Callable[[int], bool]
) -> tuple[int, ...] | None:
    """Where a jump through a table may go. None if the table cannot be found.

    `belongs`: whether an address may be in it. Where no test of the index shows how long the table is, it ends with the
    first entry that may not.
    """
    load = _load(rows, index)
    if load is None:
        return None
    at, match = load
    offset = int(match["offset"] or "0", 0) * (-1 if match["sign"] == "-" else 1)
    relative = match["scale"] == "4"
    base = 0
    if match["base"]:
        found = _address_in(rows, at, match["base"])
        if found is None:
            return None
        base = found
    elif relative:
        return None
    table = base + offset
    if not 0 < table < _HIGH_WORDS:
        return None
    bound = _bound(rows, at)
    count = min(bound or _GUESSED_LENGTH, _LONGEST_TABLE)
    targets = (data.offsets(table, count) + base if relative else data.pointers(table, count)).tolist()
    good = list(takewhile(belongs, targets))
    if bound and len(good) < count:
        return None
    return tuple(dict.fromkeys(good))


def _load(rows: Sequence[Row], index: int) -> tuple[int, re.Match[str]] | None:
    """The instruction that reads the table, and its operand: `movsxd r, [base + i*4]; add r, base; jmp r`,
    `mov r, [base + i*8]; jmp r`, or the jump itself."""
    operands = rows[index][3]
    match = _SCALED.search(operands)
    if match:
        return index, match
    register, added, partner = operands, False, ""
    for at in range(index - 1, max(-1, index - _TABLE_WINDOW - 1), -1):
        mnemonic, operands = rows[at][2:]
        destination, _, source = operands.partition(", ")
        if mnemonic == "add" and destination == register:
            added = True
            # The table's offset may have been loaded into either register of the addition.
            partner = source
        elif destination == register or (added and destination == partner):
            match = _SCALED.search(source)
            if mnemonic == "movsxd" and match:
                return at, match
            if mnemonic == "mov" and destination == register:
                return (at, match) if match else None
            if mnemonic != "lea" and destination == register:
                return None
    return None


def _address_in(rows: Sequence[Row], index: int, register: str) -> int | None:
    """The address that a register holds before an instruction, if `lea register, [rip + …]` put it there."""
    candidates = []
    for at in range(index - 1, -1, -1):
        address, size, mnemonic, operands = rows[at]
        destination, _, source = operands.partition(", ")
        if destination != register or mnemonic in ("cmp", "test", "push"):
            continue
        match = _RIP.fullmatch(source)
        if mnemonic == "lea" and match:
            return address + size + int(match[2], 0) * (1 if match[1] == "+" else -1)
        candidates.append(at)
        if len(candidates) > 1 or index - at < _TABLE_WINDOW:
            return None  # something else is in it
    return None


def _bound(rows: Sequence[Row], index: int) -> int:
    """Entries of the table that instruction `index` reads, as the test or mask of its index before says; 0: unknown."""
    for at in range(index - 1, max(-1, index - _BOUND_WINDOW - 1), -1):
        _, _, mnemonic, operands = rows[at]
        number = _NUMBER.fullmatch(operands)
        if mnemonic in ("cmp", "and") and number:
            last = int(number[1], 0)
            if 0 < last < _LONGEST_TABLE:
                return last + 1
    return 0
