"""Which category the code at an address belongs to: the executable mappings of a process, by catalogue and options."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.capture.catalogue import Library, builtin_catalogue
from rlscope_ebpf.capture.cookie import Group
from rlscope_ebpf.capture.objects import C_LIBRARIES
from rlscope_ebpf.capture.plan import LibraryRule
from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.model.events import SAMPLE_DTYPE

U8 = NDArray[np.uint8]
U64 = NDArray[np.uint64]


class Code(IntEnum):
    """What the code at an address tells. Up to OTHER: its category; the interpreter's loop is PYTHON."""

    PYTHON = Category.PYTHON
    SIMULATOR = Category.SIMULATOR
    BACKEND = Category.BACKEND
    CUDA_API = Category.CUDA_API
    NOTHING = 5  # no code, or a library that whole languages run on, which says nothing of who called
    INTERPRETER = 6  # what the loop calls
    FOREIGN = 7  # some other library, or the program


_TELLS: Final = int(Code.NOTHING)

_RUNTIMES: Final = (*C_LIBRARIES, "libstdc++.so", "libgcc_s.so", "libgomp", "libomp", "libiomp", "libtbb")

CALL_BYTES: Final = 7
"""The longest call instruction is so long, without prefixes."""

_MAPPING: Final = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) ..x. [0-9a-f]+ [0-9a-f:]+ \d+ +(/.*)$", re.MULTILINE)


class CodeMap:
    """Address ranges of one process and what their code tells. Values are those of `Code`."""

    def __init__(self, starts: U64, ends: U64, codes: U8) -> None:
        """Ranges in order of address, none overlapping another."""
        # Between the ranges lies nothing: every boundary begins something.
        edges = np.empty(2 * len(starts) + 1, np.uint64)
        edges[0], edges[1::2], edges[2::2] = 0, starts, ends
        told = np.full(len(edges), Code.NOTHING, np.uint8)
        told[1::2] = codes
        self._edges, self._told = edges, told

    def codes(self, addresses: U64) -> U8:
        """What the code at each address tells, same shape."""
        at = self._edges.searchsorted(addresses.ravel(), side="right") - 1
        found: U8 = self._told[at].reshape(addresses.shape)
        return found


def read_code_map(
    pid: int, rules: Sequence[LibraryRule], interpreter: str | None, loop: tuple[int, int] | None
) -> CodeMap:
    """Of a process as it is now; empty if it is gone.

    `interpreter` is the path of the file that holds it, `loop` the addresses of its loop.
    """
    try:
        text = Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        text = b""
    return parse_code_map(text, rules, interpreter, loop)


def parse_code_map(
    text: bytes, rules: Sequence[LibraryRule], interpreter: str | None, loop: tuple[int, int] | None
) -> CodeMap:
    """The same from the text of /proc/PID/maps."""
    libraries = [library for library in builtin_catalogue() if library.group in (Group.BOUNDARY, Group.CUDA)]
    ranges: list[tuple[int, int, int]] = []
    for match in _MAPPING.finditer(text):
        start, end = int(match[1], 16), int(match[2], 16)
        path = match[3].removesuffix(b" (deleted)").decode(errors="surrogateescape")
        if path == interpreter:
            ranges += _around(start, end, loop)
            continue
        code = _code_of(path, rules, libraries)
        if code != Code.NOTHING:
            ranges.append((start, end, code))
    ranges.sort()
    table = np.array(ranges, np.uint64).reshape(-1, 3)
    return CodeMap(table[:, 0], table[:, 1], table[:, 2].astype(np.uint8))


def _around(start: int, end: int, loop: tuple[int, int] | None) -> Iterable[tuple[int, int, int]]:
    """A mapping of the interpreter, with its loop as a range of its own."""
    if loop is None:
        return [(start, end, Code.INTERPRETER)]
    low, high = min(max(loop[0], start), end), min(max(loop[1], start), end)
    cut = ((start, low, Code.INTERPRETER), (low, high, Code.PYTHON), (high, end, Code.INTERPRETER))
    return [part for part in cut if part[0] < part[1]]


def _code_of(path: str, rules: Sequence[LibraryRule], libraries: Sequence[Library]) -> int:
    for rule in rules:
        if rule.matches(path):
            return rule.category
    for library in libraries:
        if library.category != Category.OTHER and library.covers_path(path):
            return library.category
    name = path.rpartition("/")[2]
    return Code.NOTHING if name.startswith(_RUNTIMES) else Code.FOREIGN


def follows_call(code: U8) -> NDArray[np.bool_]:
    """Whether a call instruction ends at the end of each row of `code`, (n, CALL_BYTES): its return address is there.

    Some other instructions look like one; hardly any of them stands where a stack's words point.
    """
    direct = code[:, -5] == 0xE8
    # ff /2: by register or memory, the address in 0 to 5 further bytes
    told: NDArray[np.bool_] = direct
    for back in (2, 3, 4, 6, 7):
        at = CALL_BYTES - back
        told = told | ((code[:, at] == 0xFF) & (code[:, at + 1] & 0x38 == 0x10))
    return told


class CallSites:
    """Which addresses of a process's code a call returns to, remembered."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._known: U64 = np.empty(0, np.uint64)
        self._is_call: NDArray[np.bool_] = np.empty(0, np.bool_)

    def are_returns(self, addresses: U64) -> NDArray[np.bool_]:
        """By address, shape (n,)."""
        distinct, which = np.unique(addresses, return_inverse=True)
        new = np.setdiff1d(distinct, self._known, assume_unique=True)
        if len(new):
            self._learn(new)
        found: NDArray[np.bool_] = self._is_call[self._known.searchsorted(distinct)][which]
        return found

    def _learn(self, new: U64) -> None:
        code = np.zeros((len(new), CALL_BYTES), np.uint8)
        try:
            with open(f"/proc/{self._pid}/mem", "rb", buffering=0) as memory:
                for row, address in enumerate(new.tolist()):  # once for each place of the code
                    try:
                        memory.seek(address - CALL_BYTES)
                        data = memory.read(CALL_BYTES)
                    except (OSError, ValueError, OverflowError):
                        continue
                    code[row, : len(data)] = np.frombuffer(data, np.uint8)
        except OSError:
            pass
        known = np.concatenate([self._known, new])
        is_call = np.concatenate([self._is_call, follows_call(code)])
        order = np.argsort(known)
        self._known, self._is_call = known[order], is_call[order]

    def forget(self) -> None:
        """The process may have other code at these addresses now."""
        self._known, self._is_call = self._known[:0], self._is_call[:0]


def enter_from_outside(samples: NDArray[np.void], code_map: CodeMap, calls: CallSites) -> NDArray[np.bool_]:
    """Whether something called what runs there: code of the program, or of a library of no category, lies on the stack.

    A thread that a library made for itself has nothing but the library's own code on its stack.
    """
    stack = samples["stack"]
    within = np.arange(stack.shape[1]) < samples["words"][:, None]
    row, column = np.nonzero((code_map.codes(stack) >= Code.INTERPRETER) & within)
    row = row[calls.are_returns(stack[row, column])]
    found: NDArray[np.bool_] = np.bincount(row, minlength=len(samples)) > 0
    return found


def tell(samples: NDArray[np.void], code_map: CodeMap, calls: CallSites) -> U8:
    """What each sample of one process tells, (n,) of `Code`: not a category where nothing known called what ran there.

    Where the sampled address itself does not tell, the innermost return address on the stack does that lies in the
    interpreter's loop or in a known library.
    """
    assert samples.dtype == SAMPLE_DTYPE
    told = code_map.codes(samples["ip"])
    open_ones = np.flatnonzero(told >= _TELLS)
    if not len(open_ones):
        return told
    stack = samples["stack"][open_ones]
    codes = code_map.codes(stack)
    beyond = np.arange(stack.shape[1]) >= samples["words"][open_ones, None]
    codes[beyond] = Code.NOTHING
    row, column = np.nonzero(codes < _TELLS)
    returns = calls.are_returns(stack[row, column])
    row, column = row[returns], column[returns]
    innermost = np.flatnonzero(np.diff(row, prepend=-1))
    told[open_ones[row[innermost]]] = codes[row[innermost], column[innermost]]
    return told
