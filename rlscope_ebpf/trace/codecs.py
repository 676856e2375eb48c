"""Columns of a chunk: narrowed, transformed, compressed, each on its own, by what its values look like.

A column's `codec` lists the steps to undo, first to last:

* `zstd`: decompress; the frame names its size
* `shuffle`: n items stored byte plane by byte plane, lowest first
* `zigzag`: item z stands for (z >> 1) ^ -(z & 1), modulo the item's width
* `delta`: running sum, modulo the item's width

What is left is n little-endian items of the column's `dtype`, the narrowest that holds the values.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from rlscope_ebpf.model.keys import stable_order
from rlscope_ebpf.trace.format import MAX_CHUNK_ROWS, BrokenObject

ZSTD_LEVEL = 3
RAW_BYTES = 48  # shorter columns are not worth a compressor's frame
SAMPLE_ROWS = 4096  # what the choice of `delta` looks at
MAX_WINDOW_BYTES = 1 << 27

GAP = "gap_ns"
"""Stored in place of `start_ns` by chunks of some tables; see `FOLLOWING`."""

FOLLOWING = {"intervals": ("start_ns", "duration_ns"), "gpu": ("start_ns", "duration_ns")}
"""Tables whose rows mostly begin where the row before ended, or soon after: (start, duration), modulo 2^64.

Such a chunk stores `gap_ns[i] = start[i] - (start[i-1] + duration[i-1])` instead of the start.
"""

GROUPED = {"intervals": "thread", "gpu": "stream", "samples": "thread"}
"""Tables whose chunks are grouped by a column: what is alike stands together, and rows follow one another."""

STEPS = frozenset(("zstd", "shuffle", "zigzag", "delta"))


class ColumnEncoder:
    """Encodes columns; keeps the compressor."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=True, write_checksum=False)

    def chunk(self, table: str, rows: NDArray[np.void]) -> dict[str, Any]:
        """The entries of a chunk object for a structured array of at least one row."""
        columns = {name: self.column(values) for name, values in _stored_columns(table, rows).items()}
        crc = 0
        for column in columns.values():
            crc = zlib.crc32(column["data"], crc)
        return {"chunk": table, "n": len(rows), "columns": columns, "crc32": crc}

    def column(self, values: NDArray[Any]) -> dict[str, Any]:
        """`dtype`, `codec` and `data` of one column."""
        narrowed = _narrow(values)
        steps = _transforms(narrowed)
        if "delta" in steps:
            bits = narrowed.view(_unsigned(narrowed.dtype))
            differences = np.empty_like(bits)
            differences[0] = bits[0]
            np.subtract(bits[1:], bits[:-1], out=differences[1:])
            encoded = _zigzag(differences)
        elif steps:
            encoded = _zigzag(narrowed.view(_unsigned(narrowed.dtype)))
        else:
            encoded = narrowed
        data = encoded.tobytes()
        if len(data) > RAW_BYTES:
            compressed, compression = self._compress(data, encoded.itemsize)
            if len(compressed) < len(data):
                data, steps = compressed, [*compression, *steps]
        return {"dtype": narrowed.dtype.str, "codec": steps, "data": data}

    def _compress(self, data: bytes, width: int) -> tuple[bytes, list[str]]:
        """`data`, items of `width` bytes, compressed; and the steps that undo it."""
        if width == 1:
            return self._compressor.compress(data), ["zstd"]
        shuffled = self._compressor.compress(np.frombuffer(data, "u1").reshape(-1, width).T.tobytes())
        if width == 2:  # times do better shuffled; ids, where the same sequence comes again, better as they are
            plain = self._compressor.compress(data)
            if len(plain) < len(shuffled):
                return plain, ["zstd"]
        return shuffled, ["zstd", "shuffle"]


class ColumnDecoder:
    """Decodes columns; keeps the decompressor. Everything it does is bounded by the declared number of rows."""

    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)

    def rows(
        self, table: str, chunk: dict[str, Any], dtype: np.dtype[np.void], columns: tuple[str, ...]
    ) -> NDArray[np.void]:
        """`columns` of a chunk, as a structured array of these fields; a column the chunk lacks is zero.

        Raises `BrokenObject`.
        """
        count = chunk["n"]
        stored = chunk["columns"]
        crc = 0
        for column in stored.values():
            crc = zlib.crc32(column["data"], crc)
        if crc != chunk["crc32"]:
            raise BrokenObject("the data do not match their checksum")
        wanted = np.dtype([(name, dtype[name]) for name in columns])
        rows = np.zeros(count, wanted)
        start, duration = FOLLOWING.get(table, ("", ""))
        for name in columns:
            if name == start and GAP in stored:
                rows[name] = self._starts(stored, duration, count)
            elif name in stored:
                rows[name] = self._column_as(stored[name], count, wanted[name])
        return rows

    def _starts(self, stored: dict[str, Any], duration: str, count: int) -> NDArray[np.uint64]:
        time = np.dtype("<u8")
        advance = self._column_as(stored[GAP], count, time).astype(time)
        if duration in stored:
            advance[1:] += self._column_as(stored[duration], count, time)[:-1]
        return np.cumsum(advance, dtype=np.uint64)

    def _column_as(self, column: dict[str, Any], count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """One column, checked and decoded, if its type fits into `dtype`."""
        check_column(column, count, dtype)
        return self.column(column, count)

    def column(self, column: dict[str, Any], count: int) -> NDArray[Any]:
        """`count` values of one column that `check_column` has passed."""
        dtype = np.dtype(column["dtype"])
        data = column["data"]
        for step in column["codec"]:
            if step == "zstd":
                try:
                    data = self._decompressor.decompress(data, max_output_size=count * dtype.itemsize)
                except zstandard.ZstdError as error:
                    raise BrokenObject(str(error)) from error
            if len(data) != count * dtype.itemsize:
                raise BrokenObject("a column of the wrong length")
            if step == "shuffle":
                data = np.frombuffer(data, "u1").reshape(dtype.itemsize, count).T.tobytes()
            elif step == "zigzag":
                bits = np.frombuffer(data, _unsigned(dtype))
                one = bits.dtype.type(1)
                data = ((bits >> one) ^ (~(bits & one) + one)).tobytes()
            elif step == "delta":
                unsigned = _unsigned(dtype)
                data = np.cumsum(np.frombuffer(data, unsigned), dtype=unsigned).tobytes()
        if len(data) != count * dtype.itemsize:
            raise BrokenObject("a column of the wrong length")
        return np.frombuffer(data, dtype)


def check_chunk(chunk: dict[str, Any]) -> None:
    """Whether a chunk object has the shape that decoding relies on; raises `BrokenObject` if not."""
    count, columns = chunk.get("n"), chunk.get("columns")
    if type(count) is not int or not 0 < count <= MAX_CHUNK_ROWS:
        raise BrokenObject(f"{count!r} rows")
    if not isinstance(columns, dict) or type(chunk.get("crc32")) is not int:
        raise BrokenObject("no columns")
    for name, column in columns.items():
        if not isinstance(column, dict):
            raise BrokenObject(f"column {name} is no map")
        kind, codec, data = column.get("dtype"), column.get("codec"), column.get("data")
        if not isinstance(kind, str) or not isinstance(codec, list) or not isinstance(data, bytes):
            raise BrokenObject(f"column {name} lacks a part")


def check_known_columns(chunk: dict[str, Any], table: str, dtype: np.dtype[np.void]) -> None:
    """Whether all columns that this version knows of a chunk can be decoded; raises `BrokenObject` if not."""
    start, _ = FOLLOWING.get(table, ("", ""))
    for name, column in chunk["columns"].items():
        field = start if name == GAP else name
        if field in (dtype.names or ()):
            check_column(column, chunk["n"], dtype[field])


def check_column(column: dict[str, Any], count: int, target: np.dtype[Any]) -> None:
    """Whether a column can be decoded within its bounds and fits into `target`; raises `BrokenObject` if not."""
    kind = column["dtype"]
    if len(kind) != 3 or kind[0] not in "<|" or kind[1] not in "uifb" or kind[2] not in "1248":
        raise BrokenObject(f"items of type {kind!r}")
    try:
        dtype = np.dtype(kind)
    except TypeError as error:
        raise BrokenObject(f"items of type {kind!r}") from error
    if not np.can_cast(dtype, target, "safe"):
        raise BrokenObject(f"values of type {kind} in a column of {target.str}")
    expected, data = count * dtype.itemsize, column["data"]
    for step in column["codec"]:
        if not isinstance(step, str) or step not in STEPS:
            raise BrokenObject(f"codec {step!r} is unknown to this version")
    if "zstd" in column["codec"]:
        if column["codec"].index("zstd") != 0 or column["codec"].count("zstd") != 1:
            raise BrokenObject("compressed twice")
        try:
            size = zstandard.frame_content_size(data)
        except zstandard.ZstdError as error:
            raise BrokenObject(str(error)) from error
    else:
        size = len(data)
    if size != expected:
        raise BrokenObject(f"{size} bytes of column data instead of {expected}")


def _stored_columns(table: str, rows: NDArray[np.void]) -> dict[str, NDArray[Any]]:
    """What is stored of the rows, by column name."""
    names = rows.dtype.names or ()
    columns = {name: np.ascontiguousarray(rows[name]) for name in names}
    start, duration = FOLLOWING.get(table, ("", ""))
    if start not in names or duration not in names:
        return columns
    group = GROUPED.get(table, "")
    order = _order_of(columns[group]) if group in names else None
    if order is not None:
        columns = {name: np.take(values, order) for name, values in columns.items()}
    gaps = columns[start].copy()
    gaps[1:] -= columns[start][:-1] + columns[duration][:-1]
    return {(GAP if name == start else name): (gaps if name == start else columns[name]) for name in names}


def _order_of(group: NDArray[Any]) -> NDArray[np.intp] | None:
    """The stable order by group, or None if that is the order already."""
    if not bool((group[1:] < group[:-1]).any()):
        return None
    return stable_order(group, int(group.max()))


def _narrow(values: NDArray[Any]) -> NDArray[Any]:
    """The same values as the narrowest little-endian type of their kind; at least one value."""
    kind, size = values.dtype.kind, values.dtype.itemsize
    if kind not in "uifb" or size > 8:
        raise TypeError(f"a trace holds no columns of type {values.dtype}")
    if kind in "ui":
        low, high = int(values.min()), int(values.max())
        for width in (1, 2, 4):
            if width < size:
                limits = np.iinfo(f"{kind}{width}")
                if limits.min <= low and high <= limits.max:
                    return values.astype(f"<{kind}{width}")
    return values.astype(values.dtype.newbyteorder("<"), copy=False)


def _transforms(values: NDArray[Any]) -> list[str]:
    """The steps that make the values clearly smaller, judged by the first few thousand: those to undo them."""
    if values.dtype.kind not in "ui" or values.itemsize < 4 or len(values) < 3:
        return []
    sample = values[:SAMPLE_ROWS]
    bits = sample.view(_unsigned(sample.dtype))
    plain = _bits_needed(bits[1:])
    differences = _bits_needed(_zigzag(bits[1:] - bits[:-1]))
    around_zero = _bits_needed(_zigzag(bits[1:]))
    if min(differences, around_zero) >= 0.8 * plain:
        return []
    return ["zigzag", "delta"] if differences < around_zero else ["zigzag"]


def _bits_needed(bits: NDArray[Any]) -> float:
    return float(np.log2(1.0 + bits.astype(np.float64)).sum())


def _zigzag(bits: NDArray[Any]) -> NDArray[Any]:
    """Differences of either sign, as unsigned numbers that are small when they are near zero."""
    signed = bits.view(f"<i{bits.itemsize}")
    result: NDArray[Any] = ((signed << 1) ^ (signed >> (8 * bits.itemsize - 1))).view(bits.dtype)
    return result


def _unsigned(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"<u{dtype.itemsize}")
