"""Which category the code at an address belongs to: the executable mappings of a process, by catalogue and options."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import IntEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.capture.catalogue import Library, builtin_catalogue
from rlscope_ebpf.capture.cookie import Group
from rlscope_ebpf.capture.objects import C_LIBRARIES
from rlscope_ebpf.capture.plan import LibraryRule
from rlscope_ebpf.capture.pointers import ProcessMemory
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
    UNRELATED = 8  # a library that Python calls, and that calls none of those that have a category: whoever is in it
    # is in none of them


_TELLS: Final = int(Code.NOTHING)

_RUNTIMES: Final = (*C_LIBRARIES, "libstdc++.so", "libgcc_s.so", "libgomp", "libomp", "libiomp", "libtbb")

_UNRELATED: Final = ("*/numpy/*", "*/numpy.libs/*", "*/scipy/*", "*/scipy.libs/*", "*/pandas/*", "*/lib-dynload/[!_]*")

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
    if name.startswith(_RUNTIMES):
        return Code.NOTHING
    return Code.UNRELATED if any(fnmatchcase(path, glob) for glob in _UNRELATED) else Code.FOREIGN


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


_NO_CALL, _NEAR_CALL, _CALL = range(3)
_STUBS: Final = (b"\xff\x25", b"\xf3\x0f\x1e\xfa\xff\x25", b"\xf3\x0f\x1e\xfa\xf2\xff\x25")  # of a PLT


class CallSites:
    """Which addresses of a process's code a call returns to, remembered."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._known: U64 = np.empty(0, np.uint64)
        self._kind: U8 = np.empty(0, np.uint8)

    def are_returns(self, addresses: U64) -> NDArray[np.bool_]:
        """By address, shape (n,)."""
        found: NDArray[np.bool_] = self._kinds(addresses) != _NO_CALL
        return found

    def leave_library(self, addresses: U64) -> NDArray[np.bool_]:
        """Whether a call returns there that may have gone into another library: through a pointer or a stub."""
        found: NDArray[np.bool_] = self._kinds(addresses) == _CALL
        return found

    def _kinds(self, addresses: U64) -> U8:
        distinct, which = np.unique(addresses, return_inverse=True)
        new = np.setdiff1d(distinct, self._known, assume_unique=True)
        if len(new):
            self._learn(new)
        kinds: U8 = self._kind[self._known.searchsorted(distinct)][which]
        return kinds

    def _learn(self, new: U64) -> None:
        code = np.zeros((len(new), CALL_BYTES), np.uint8)
        near = np.zeros(len(new), np.bool_)
        with ProcessMemory(self._pid) as memory:
            for row, address in enumerate(new.tolist()):  # once for each place of the code
                data = memory.read(address - CALL_BYTES, CALL_BYTES) if address >= CALL_BYTES else b""
                code[row, : len(data)] = np.frombuffer(data, np.uint8)
                if data[-5:-4] == b"\xe8":
                    target = address + int.from_bytes(data[-4:], "little", signed=True)
                    near[row] = target >= 0 and not memory.read(target, 8).startswith(_STUBS)
        kind = np.where(follows_call(code), np.where(near, _NEAR_CALL, _CALL), _NO_CALL).astype(np.uint8)
        known, kind = np.concatenate([self._known, new]), np.concatenate([self._kind, kind])
        order = np.argsort(known)
        self._known, self._kind = known[order], kind[order]


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


def _callers(row: NDArray[np.int64], code: U8) -> U8:
    """Of return addresses in order of stack and place: what lies behind each, its own kind apart; or NOTHING."""
    begins = np.flatnonzero(np.append(True, (row[1:] != row[:-1]) | (code[1:] != code[:-1]))[: len(row)])
    following = np.append(begins[1:], -1)
    behind = np.where((following >= 0) & (row[following] == row[begins]), code[following], Code.NOTHING)
    found: U8 = np.repeat(behind, np.diff(begins, append=len(row))).astype(np.uint8)
    return found


def tell(samples: NDArray[np.void], code_map: CodeMap, calls: CallSites) -> U8:
    """What each sample of one process tells, (n,) of `Code`: not a category where nothing known called what ran there.

    Where the sampled address itself does not tell, the innermost return address on the stack does that lies in the
    interpreter's loop or in a known library.
    """
    assert samples.dtype == SAMPLE_DTYPE
    told = code_map.codes(samples["ip"])
    open_ones = np.flatnonzero((told >= _TELLS) & (told != Code.UNRELATED))
    if not len(open_ones):
        return told
    stack = samples["stack"][open_ones]
    codes = code_map.codes(stack)
    beyond = np.arange(stack.shape[1]) >= samples["words"][open_ones, None]
    codes[beyond] = Code.NOTHING
    row, column = np.nonzero(codes != Code.NOTHING)
    if not len(row):
        return told
    words, code = stack[row, column], codes[row, column]
    returns = calls.are_returns(words)
    row, column, words, code = row[returns], column[returns], words[returns], code[returns]
    if not len(row):
        return told
    # Gaps in the frames of what runs now hold addresses of earlier calls: of a library that was left without a call out
    # of it (where only the C library lies between, it may have been left by a jump), or that would have been called by
    # who does not know it.
    others = np.zeros(codes.shape, np.bool_)
    others[row, column] = code >= Code.INTERPRETER
    left = np.logical_or.accumulate(others, axis=1)[row, column] | (told[open_ones] >= Code.INTERPRETER)[row]
    live = (
        (code == Code.PYTHON)
        | (code == Code.UNRELATED)
        | ((code < _TELLS) & (~left | calls.leave_library(words)) & (_callers(row, code) != Code.UNRELATED))
    )
    row, code = row[live], code[live]
    innermost = np.flatnonzero(np.diff(row, prepend=-1))
    told[open_ones[row[innermost]]] = code[innermost]
    return told
