"""Sessions for the tests of the trace file: definitions of every kind, rows of every table, made from a seed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.gpu import GPU_DTYPE, GpuKind
from rlscope_ebpf.model.session import SessionEnd, SessionInfo
from rlscope_ebpf.model.tables import (
    INTERVAL_DTYPE,
    MARK_DTYPE,
    SAMPLE_ROW_DTYPE,
    SPAN_DTYPE,
    TABLES,
    Batch,
    Counters,
    Definition,
    DeviceInfo,
    ImportantNotice,
    Losses,
    MarkKind,
    PathInfo,
    ProbeInfo,
    ProcessInfo,
    StringInfo,
    ThreadInfo,
)
from rlscope_ebpf.trace.reader import TraceReader
from rlscope_ebpf.trace.writer import TraceWriter

START_NS = 1_000_000_000_000
BATCH_NS = 1_000_000_000
LONGEST_GAP_NS = 1 << 33
"""Between two rows of a thread, so that the file has every kind of gap; then some lie in later batches' time."""

INFO = SessionInfo(
    tool_version="0.1.0",
    host="trainer",
    kernel="6.18.0",
    started_at="2026-01-02T03:04:05Z",
    start_ns=START_NS,
    realtime_offset_ns=1_700_000_000_000_000_000,
    gpu="off",
    gpu_reason="",
    capture={"method": "session", "groups": ["marker", "boundary"]},
    calibration={"calibrated": False},
)
END = SessionEnd("2026-01-02T03:04:15Z", START_NS + 10 * BATCH_NS, "detached", None)


def definitions() -> list[Definition]:
    """Two processes, three threads, a few of everything else."""
    return [
        ProcessInfo(100, 1, "train.py", ("python", "train.py", "--lr", "3e-4"), START_NS),
        ProcessInfo(101, 100, "worker", ("python",), START_NS, is_python=False),
        ThreadInfo(1, 100, 100, "main"),
        ThreadInfo(2, 100, 110, "pool-é"),
        ThreadInfo(3, 101, 101, "main"),
        StringInfo(1, "rollout"),
        StringInfo(2, "inference"),
        StringInfo(3, "evaluation"),
        StringInfo(4, "algorithm"),
        StringInfo(5, "PPO"),
        PathInfo(1, 0, 1),
        PathInfo(2, 1, 2),
        ProbeInfo(1, "boundary", 2, "/lib/libtorch.so", "add", 4096, "emulated", "session", True),
        ProbeInfo(2, "marker", 0, "/lib/librlscope_markers.so", "rlscope_phase", 64, "nop5", "session", False),
    ]


def intervals(seed: int, rows: int, start_ns: int = START_NS, longest_gap_ns: int = LONGEST_GAP_NS) -> NDArray[np.void]:
    """`rows` intervals on three threads, grouped by thread, without gaps but for a few."""
    random = np.random.default_rng(seed)
    part = np.zeros(rows, INTERVAL_DTYPE)
    part["thread"] = np.sort(random.integers(1, 4, rows))
    part["path"] = random.integers(0, 3, rows)
    part["phase"] = random.choice([0, 3], rows)
    part["site"] = random.integers(0, 3, rows)
    part["duration_ns"] = random.lognormal(9, 2, rows)
    gap = np.where(random.random(rows) < 0.02, random.integers(0, longest_gap_ns, rows), 0)
    for thread in (1, 2, 3):
        mine = part["thread"] == thread
        part["start_ns"][mine] = start_ns + np.cumsum(gap[mine] + np.r_[0, part["duration_ns"][mine]][:-1])
    part["hits"] = random.integers(0, 4, rows)
    part["overhead_ns"] = random.integers(0, 4, rows) * 1_301
    part["category"] = random.integers(0, 5, rows)
    part["origin"] = random.integers(0, 5, rows)
    part["state"] = random.integers(0, 3, rows)
    part["opened"] = random.integers(0, 9, rows)
    part["sampled"] = part["thread"] == 2
    part["wait"] = np.where(part["state"] == 2, random.integers(0, 6, rows), 0)
    return part


def spans(seed: int, rows: int, start_ns: int = START_NS) -> NDArray[np.void]:
    """`rows` operation spans in order of closing."""
    random = np.random.default_rng(seed)
    part = np.zeros(rows, SPAN_DTYPE)
    part["thread"] = random.integers(1, 4, rows)
    part["path"] = random.integers(1, 3, rows)
    part["flags"] = random.integers(0, 4, rows)
    part["end_ns"] = start_ns + np.cumsum(random.integers(1, 100_000, rows))
    part["start_ns"] = part["end_ns"] - random.integers(1, 90_000, rows).astype("u8")
    return part


def marks(seed: int, rows: int, start_ns: int = START_NS) -> NDArray[np.void]:
    """`rows` progress marks, the first a phase, the last a piece of metadata."""
    part = np.zeros(rows, MARK_DTYPE)
    part["thread"] = 1
    part["kind"] = MarkKind.PROGRESS
    part["time_ns"] = start_ns + 1_000_003 * np.arange(rows)
    part["a"] = seed * 1000 + np.arange(rows)
    part["b"] = 50_000
    if rows:
        part[0] = (1, MarkKind.PHASE, start_ns, 3, 0)
        part[-1] = (1, MarkKind.METADATA, start_ns + 1_000_003 * rows, 4, 5)
    return part


def gpu(seed: int, rows: int, start_ns: int = START_NS) -> NDArray[np.void]:
    """`rows` activities on two streams, some of which overlap; every fifth has no launch."""
    random = np.random.default_rng(seed)
    part = np.zeros(rows, GPU_DTYPE)
    part["kind"] = random.choice([GpuKind.KERNEL, GpuKind.COPY, GpuKind.SET, GpuKind.SYNC, GpuKind.GRAPH], rows)
    part["pid"] = 100
    part["name"] = np.where(part["kind"] == GpuKind.KERNEL, random.integers(1, 6, rows), 0)
    part["device"] = random.integers(0, 2, rows)
    part["context"] = 1
    part["stream"] = random.choice([7, 13], rows)
    part["graph"] = random.choice([0, 3], rows)
    part["duration_ns"] = random.lognormal(9, 1, rows)
    part["start_ns"] = start_ns + np.cumsum(random.integers(1_000, 30_000, rows))
    known = np.arange(rows) % 5 > 0
    part["thread"] = np.where(known, random.integers(1, 3, rows), 0)
    part["path"] = np.where(known, random.integers(0, 3, rows), 0)
    part["phase"] = random.choice([0, 3], rows)
    part["launch_ns"] = np.where(known, part["start_ns"] - random.integers(5_000, 9_000, rows).astype("u8"), 0)
    part["bytes"] = np.where(part["kind"] == GpuKind.COPY, random.integers(1, 1 << 33, rows), 0)
    part["detail"] = np.where(part["kind"] == GpuKind.COPY, random.integers(1, 11, rows), 0)
    return part


def sampled(seed: int, rows: int, start_ns: int = START_NS) -> NDArray[np.void]:
    """`rows` samples of two threads, grouped by thread."""
    random = np.random.default_rng(seed)
    part = np.zeros(rows, SAMPLE_ROW_DTYPE)
    part["thread"] = np.sort(random.integers(1, 3, rows))
    part["path"] = random.integers(0, 3, rows)
    part["phase"] = random.choice([0, 3], rows)
    part["category"] = random.integers(0, 5, rows)
    for thread in (1, 2):
        mine = part["thread"] == thread
        part["time_ns"][mine] = start_ns + 997_000 * np.arange(np.count_nonzero(mine))
    return part


def batches(count: int = 3, rows: int = 40, longest_gap_ns: int = LONGEST_GAP_NS) -> list[Batch]:
    """`count` batches with a notice each, one a second; process 101 ends in the last."""
    found = []
    for index in range(count):
        start = START_NS + index * BATCH_NS
        batch = Batch(
            now_ns=start + BATCH_NS,
            definitions=definitions() if index == 0 else [],
            tables={
                "intervals": intervals(index, rows, start, longest_gap_ns),
                "spans": spans(index, rows // 4, start),
                "marks": marks(index, rows // 8, start),
                "gpu": gpu(index, rows // 2, start),
                "samples": sampled(index, rows // 2, start),
            },
            losses=Losses(events=index, late=2 * index, gpu_records=3 * index, gpu_unmatched=index),
            counters=Counters(
                received=100 * index,
                sent=101 * index,
                hits_by_class={"nop5/entry": index},
                gpu_records=index,
                in_place={"gil/measured": -500 * index},
            ),
            notices=[f"Notice {index}."] if index != 1 else [ImportantNotice("Sleep counts as python from now on.")],
        )
        batch.definitions.append(DeviceInfo(1, 100, 1, "H200", START_NS, batch.now_ns, 2 * index + 2, 97 * index))
        if index == count - 1:
            batch.definitions.append(
                ProcessInfo(101, 100, "worker", ("python",), START_NS, start, exit_status=-9, is_python=False)
            )
        found.append(batch)
    return found


class Clock:
    """A clock that a test moves on."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def write(path: Path, session: Iterable[Batch] | None = None, *, finish: bool = True) -> list[Batch]:
    """Write a session with one flush per batch; returns its batches."""
    session = batches() if session is None else list(session)
    clock = Clock()
    writer = TraceWriter(path, clock=clock)
    writer.start(INFO)
    for batch in session:
        clock.now += 2 * BATCH_NS
        writer.batch(batch)
    if finish:
        writer.finish(END)
    else:
        writer.close()
    return session


def by_thread(rows: NDArray[np.void]) -> NDArray[np.void]:
    """What does not depend on how rows are grouped: each thread's, or each stream's, in their order."""
    return rows[np.argsort(rows["stream" if "stream" in (rows.dtype.names or ()) else "thread"], kind="stable")]


def session_tables(session: Iterable[Batch]) -> dict[str, NDArray[np.void]]:
    """All rows of a session by table."""
    session = list(session)
    return {
        name: np.concatenate([np.zeros(0, dtype), *(batch.tables[name] for batch in session if name in batch.tables)])
        for name, dtype in TABLES.items()
    }


def same_rows(one: NDArray[np.void], other: NDArray[np.void]) -> bool:
    """Whether two tables hold the same rows, threads apart."""
    return one.dtype == other.dtype and by_thread(one).tobytes() == by_thread(other).tobytes()


def content(reader: TraceReader) -> tuple[object, ...]:
    """Everything that a reader gives, comparable."""
    return (
        reader.info,
        reader.end,
        reader.losses,
        reader.counters,
        reader.now_ns,
        reader.notices,
        reader.processes,
        reader.threads,
        reader.strings,
        reader.paths,
        reader.probes,
        reader.devices,
        {name: by_thread(reader.table(name)).tobytes() for name in TABLES},
    )
