"""FORMAT.md in code: reads an intact trace with msgpack, NumPy and zstandard alone."""

from __future__ import annotations

import msgpack
import numpy as np
import zstandard


def undo(column: dict, n: int) -> np.ndarray:
    kind = np.dtype(column["dtype"])
    data, unsigned = column["data"], f"<u{kind.itemsize}"
    for step in column["codec"]:
        if step == "zstd":
            data = zstandard.ZstdDecompressor().decompress(data)
        elif step == "shuffle":
            data = np.frombuffer(data, "u1").reshape(kind.itemsize, n).T.tobytes()
        elif step == "zigzag":
            items = np.frombuffer(data, unsigned)
            data = ((items >> 1) ^ -(items & 1)).tobytes()
        elif step == "delta":
            data = np.cumsum(np.frombuffer(data, unsigned), dtype=unsigned).tobytes()
    return np.frombuffer(data, kind)


def read(path: str) -> tuple[list[dict], dict[str, dict[str, np.ndarray]]]:
    objects, parts = [], {}
    with open(path, "rb") as file:
        for item in msgpack.Unpacker(file):
            if "chunk" not in item:
                objects.append(item)
                continue
            columns = {name: undo(column, item["n"]) for name, column in item["columns"].items()}
            if "gap_ns" in columns:
                columns["start_ns"] = np.cumsum(columns.pop("gap_ns").astype("<u8"), dtype="<u8")
                columns["start_ns"][1:] += np.cumsum(columns["duration_ns"], dtype="<u8")[:-1]
            for name, values in columns.items():
                parts.setdefault(item["chunk"], {}).setdefault(name, []).append(values)
    return objects, {table: {name: np.concatenate(p) for name, p in c.items()} for table, c in parts.items()}
