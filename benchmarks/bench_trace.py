"""Trace file: bytes per row, rows/s written and read, on synthetic intervals shaped like a training loop's.

Run: python benchmarks/bench_trace.py [ROWS]
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rlscope_ebpf.model.categories import Category, Opened, ThreadState
from rlscope_ebpf.model.session import SessionEnd, SessionInfo
from rlscope_ebpf.model.tables import (
    INTERVAL_DTYPE,
    Batch,
    Counters,
    PathInfo,
    ProbeInfo,
    ProcessInfo,
    StringInfo,
    ThreadInfo,
)
from rlscope_ebpf.trace.codecs import ColumnEncoder
from rlscope_ebpf.trace.reader import TraceReader
from rlscope_ebpf.trace.writer import TraceWriter

START_NS = 5_000_000_000_000
THREADS, PATHS, SITES = 3, 50, 200
BATCH_ROWS = 5_000
ITERATION_CALLS = 60  # boundary calls of one training-loop iteration: the same sites in nearly the same order


def intervals(rows: int, seed: int = 1) -> NDArray[np.void]:
    """`rows` intervals in batches of about `BATCH_ROWS`, each batch grouped by thread.

    Each thread alternates between Python and calls. The sequence of sites follows a loop body with random branches
    (one call in five is another one); every site has its own median duration, and durations are log-normal (sigma 0.6).
    """
    random = np.random.default_rng(seed)
    body = random.integers(1, SITES + 1, ITERATION_CALLS)
    site_category = random.choice([Category.SIMULATOR, Category.BACKEND, Category.CUDA_API], SITES + 1)
    median_ns = np.exp(random.normal(np.log(6_000), 1.0, SITES + 1))
    per_thread = -(-rows // THREADS)
    parts = []
    for thread in range(1, THREADS + 1):
        part = np.zeros(per_thread, INTERVAL_DTYPE)
        index = np.arange(per_thread)
        call = index // 2
        sites = body[call % ITERATION_CALLS]
        other = random.random(per_thread // 2 + 1) < 0.2
        sites = np.where(other[call], random.integers(1, SITES + 1, per_thread // 2 + 1)[call], sites)
        inside = index % 2 == 1
        part["thread"] = thread
        part["path"] = (call // 10 * 7) % PATHS
        part["phase"] = 1
        part["site"] = sites
        part["category"] = np.where(inside, site_category[sites], Category.PYTHON)
        part["origin"] = np.roll(part["category"], 1)
        part["opened"] = np.where(inside, Opened.CALL, Opened.RETURN)
        preempted = random.random(per_thread) < 0.005
        part["state"][preempted] = ThreadState.BLOCKED
        part["opened"][preempted] = Opened.SCHEDULER
        part["hits"] = np.where(random.random(per_thread) < 0.1, 3, 1)
        spread = np.exp(random.normal(0, 0.6, per_thread))
        part["duration_ns"] = np.where(inside, median_ns[sites], 3_000) * spread
        part["start_ns"][0] = START_NS + thread
        part["start_ns"][1:] = START_NS + thread + np.cumsum(part["duration_ns"])[:-1]
        parts.append(part)
    step = BATCH_ROWS // THREADS
    return np.concatenate([part[at : at + step] for at in range(0, per_thread, step) for part in parts])[:rows]


def definitions() -> list[ProcessInfo | ThreadInfo | StringInfo | PathInfo | ProbeInfo]:
    """What the rows of `intervals` refer to."""
    found: list[ProcessInfo | ThreadInfo | StringInfo | PathInfo | ProbeInfo] = [
        ProcessInfo(4321, 1, "train.py", ("python", "train.py"), START_NS)
    ]
    found += [ThreadInfo(number, 4321, 4320 + number, f"worker-{number}") for number in range(1, THREADS + 1)]
    found += [StringInfo(number, f"operation-{number}") for number in range(1, PATHS + 1)]
    found += [PathInfo(number, number // 2, number) for number in range(1, PATHS)]
    library = "/home/user/venv/lib/python3.11/site-packages/torch/lib/libtorch_python.so"
    for number in range(1, SITES + 1):
        symbol = f"_ZN5torch8autogradL15THPVariable_op{number}EP7_objectS2_S2_"
        found.append(ProbeInfo(number, "boundary", 2, library, symbol, 64 * number, "emulated", "session", True))
    return found


def main() -> None:
    rows = intervals(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.rlscope"
        writer = TraceWriter(path)
        begun = time.perf_counter()
        writer.start(SessionInfo("0", "bench", "6.0", "2026-01-01T00:00:00Z", START_NS, 0))
        for at in range(0, len(rows), BATCH_ROWS):
            part = rows[at : at + BATCH_ROWS]
            writer.batch(
                Batch(
                    now_ns=int(part["start_ns"].max()),
                    definitions=list(definitions()) if at == 0 else [],
                    tables={"intervals": part},
                    counters=Counters(received=at, hits=at),
                )
            )
        writer.finish(SessionEnd("2026-01-01T00:01:00Z", int(rows["start_ns"].max()) + 1, "detached"))
        written = time.perf_counter() - begun
        begun = time.perf_counter()
        reader = TraceReader(path)
        opened = time.perf_counter() - begun
        begun = time.perf_counter()
        count = sum(len(part) for part in reader.chunks("intervals"))
        decoded = time.perf_counter() - begun
        begun = time.perf_counter()
        for _ in reader.chunks("intervals", ("thread", "path", "category", "duration_ns")):
            pass
        some = time.perf_counter() - begun
        if count != len(rows) or not reader.complete:
            raise SystemExit(f"{count} of {len(rows)} rows: {reader.problems}")
        sizes = {
            name: round(len(column["data"]) / min(len(rows), 131_072), 2)
            for name, column in ColumnEncoder().chunk("intervals", rows[:131_072])["columns"].items()
        }
        print(
            json.dumps(
                {
                    "rows": len(rows),
                    "file_bytes": path.stat().st_size,
                    "bytes_per_row": round(path.stat().st_size / len(rows), 2),
                    "bytes_per_row_by_column": sizes,
                    "rows_per_s_written": round(len(rows) / written),
                    "rows_per_s_read": round(len(rows) / (opened + decoded)),
                    "rows_per_s_read_four_columns": round(len(rows) / (opened + some)),
                    "open_s": round(opened, 3),
                },
                indent=1,
            )
        )


if __name__ == "__main__":
    main()
