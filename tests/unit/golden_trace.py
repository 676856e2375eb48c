"""The golden traces: small files, one of each version of the format, that every later version must read alike.

Run it to write that of the present version and what it holds. Those of older versions are never written again.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

import trace_samples as samples  # noqa: E402

from rlscope_ebpf.model.tables import TABLES  # noqa: E402
from rlscope_ebpf.trace.reader import TraceReader  # noqa: E402

DATA = Path(__file__).resolve().parents[1] / "data"
VERSIONS = ("1.0", "1.1", "1.2", "1.3", "1.4", "1.5")
PATHS = {version: DATA / f"golden-v{version}.rlscope" for version in VERSIONS}
PATH = PATHS[VERSIONS[-1]]


def expected(version: str) -> dict[str, Any]:
    """What the golden trace of a version holds."""
    found: dict[str, Any] = json.loads(PATHS[version].with_suffix(".json").read_text())
    return found


def decoded(reader: TraceReader) -> dict[str, Any]:
    """Everything that the trace holds, as JSON can hold it."""
    kinds = {
        "processes": reader.processes,
        "threads": reader.threads,
        "strings": reader.strings,
        "paths": reader.paths,
        "probes": reader.probes,
        "devices": reader.devices,
    }
    tables = {name: reader.table(name) for name in TABLES}
    found = {
        "version": reader.version,
        "info": dataclasses.asdict(reader.info),
        "end": dataclasses.asdict(reader.end) if reader.end is not None else None,
        "losses": reader.losses.as_dict(),
        "counters": dataclasses.asdict(reader.counters),
        "notices": [dataclasses.asdict(notice) for notice in reader.notices],
        **{kind: [dataclasses.asdict(value) for value in held.values()] for kind, held in kinds.items()},
        "tables": {
            table: {name: rows[name].tolist() for name in rows.dtype.names or ()} for table, rows in tables.items()
        },
    }
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


if __name__ == "__main__":
    PATH.unlink(missing_ok=True)
    samples.write(PATH, samples.batches(3, 120))  # every kind of definition, every table, every codec step
    PATH.with_suffix(".json").write_text(json.dumps(decoded(TraceReader(PATH)), separators=(",", ":")) + "\n")
