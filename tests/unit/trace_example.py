"""The worked example of FORMAT.md, made by the writer's own functions. Run it to print the example anew."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rlscope_ebpf.model.tables import MARK_DTYPE, MarkKind, StringInfo
from rlscope_ebpf.trace.codecs import ColumnEncoder
from rlscope_ebpf.trace.definitions import definition_entries
from rlscope_ebpf.trace.format import pack_object

ROWS = np.array(
    [
        (1, MarkKind.PHASE, 5_000_000_000, 7, 0),
        (1, MarkKind.PROGRESS, 5_000_001_000, 1, 500),
        (1, MarkKind.PROGRESS, 5_000_001_900, 2, 500),
    ],
    MARK_DTYPE,
)


def string_object() -> bytes:
    """String 7, "train"."""
    return pack_object(definition_entries(StringInfo(7, "train")))


def chunk_object() -> bytes:
    """Three marks."""
    return pack_object(ColumnEncoder().chunk("marks", ROWS))


def dump(blob: bytes) -> str:
    """Sixteen bytes a line: offset, hexadecimal, text."""
    lines = []
    for at in range(0, len(blob), 16):
        part = blob[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:04x}  {part.hex(' '):<47}  {text}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(dump(string_object()), dump(chunk_object()), sep="\n\n")
