"""Connect Four: the native simulator (connect_four.c) through ctypes."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import build as native_build

COLUMNS, ROWS = 7, 6
FEATURES = 2 * ROWS * COLUMNS
GOES_ON, WON, DRAWN = 0, 1, 2
LIBRARY = "libconnect4.so"


class Position(ctypes.Structure):
    """Stones of who is to move, and of both."""

    _fields_ = (("mine", ctypes.c_uint64), ("all", ctypes.c_uint64))


class Game:
    """The rules. Each method is one call of the native library."""

    def __init__(self, seed: int) -> None:
        self._library = ctypes.CDLL(str(native_build.native() / LIBRARY))
        self._seed = ctypes.c_uint64(seed | 1)

    def after(self, position: Position, columns: list[int]) -> tuple[Position, int]:
        """The position after these moves, and how the game stands."""
        found = Position(position.mine, position.all)
        state = self._library.c4_play(ctypes.byref(found), bytes(columns), len(columns))
        if state < 0:
            raise ValueError(f"a column of {columns} is full")
        return found, state

    def legal(self, position: Position) -> list[int]:
        """Columns that may be played."""
        columns = self._library.c4_legal(ctypes.byref(position))
        return [column for column in range(COLUMNS) if columns >> column & 1]

    def features(self, position: Position, out: ctypes.Array[ctypes.c_float], place: int) -> None:
        """Write what a network sees of a position: FEATURES numbers, at a place of so many each."""
        self._library.c4_features(ctypes.byref(position), ctypes.byref(out, place * FEATURES * 4))

    def playouts(self, position: Position, count: int) -> float:
        """Mean result of random games, -1 to 1, for who is to move."""
        return float(self._library.c4_playouts(ctypes.byref(position), ctypes.byref(self._seed), count) / count)

    def truth(self) -> dict[str, int]:
        """How often the library was called, and how long that took, by its own clock."""
        calls, spent_ns = ctypes.c_uint64(), ctypes.c_int64()
        self._library.c4_truth(ctypes.byref(calls), ctypes.byref(spent_ns))
        return {"calls": calls.value, "ns": spent_ns.value}
