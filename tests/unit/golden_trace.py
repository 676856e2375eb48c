"""The golden trace: a small file of format 1.0 that every later version must read alike.

Run it to write the file and what it holds anew. That is right only together with a change of the format's version.
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
PATH = DATA / "golden-v1.rlscope"
EXPECTED = DATA / "golden-v1.json"


def decoded(reader: TraceReader) -> dict[str, Any]:
    """Everything that the trace holds, as JSON can hold it."""
    kinds = {
        "processes": reader.processes,
        "threads": reader.threads,
        "strings": reader.strings,
        "paths": reader.paths,
        "probes": reader.probes,
    }
    tables = {name: reader.table(name) for name in TABLES}
    found = {
        "version": reader.version,
        "info": dataclasses.asdict(reader.info),
        "end": dataclasses.asdict(reader.end) if reader.end is not None else None,
        "losses": reader.losses.as_dict(),
        "counters": dataclasses.asdict(reader.counters),
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
    EXPECTED.write_text(json.dumps(decoded(TraceReader(PATH)), separators=(",", ":")) + "\n")
