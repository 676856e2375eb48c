"""GPU records matched and added up per second, on one core; bytes per row in a trace.

python benchmarks/bench_gpu.py
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rlscope_ebpf.model.categories import Category, Opened, ThreadState
from rlscope_ebpf.model.gpu import GPU_RECORD_DTYPE, GpuKind, GpuLaunch
from rlscope_ebpf.model.session import SessionEnd, SessionInfo
from rlscope_ebpf.model.tables import INTERVAL_DTYPE, Batch, PathInfo, ProcessInfo, ThreadInfo
from rlscope_ebpf.model.totals import Totals
from rlscope_ebpf.session.gpu import GpuMatcher
from rlscope_ebpf.session.registry import Registry
from rlscope_ebpf.trace.writer import TraceWriter

PID = 100
TURN_NS = 100_000_000
KERNELS = 60
OPERATIONS = 8
LATE_TURNS = 3
"""Records come up to so many turns after their time."""

SHAPES = {"eager": (60_000, 1), "graphs": (265_000, 50)}
"""Kernels a second of the simulated run, and how many one launch makes."""


def make_turns(shape: str, seconds: float) -> list[tuple[Batch, NDArray[np.void]]]:
    """One batch of intervals per turn, and the records that come in it, in blocks like CUPTI's buffers."""
    rate, nodes = SHAPES[shape]
    random = np.random.default_rng(3)
    turns = int(seconds * 1e9 / TURN_NS)
    launches = int(rate * seconds / nodes)
    launch = np.zeros(launches, GPU_RECORD_DTYPE)
    launch["start_ns"] = np.sort(random.integers(0, turns * TURN_NS, launches)) + 1
    launch["end_ns"] = launch["start_ns"] + random.integers(2_000, 6_000, launches)
    launch["correlation"] = 5 + np.cumsum(random.integers(1, 6, launches))
    launch["kind"], launch["thread"] = GpuKind.LAUNCH, PID
    launch["detail"] = GpuLaunch.GRAPH if nodes > 1 else GpuLaunch.KERNEL
    kernel = np.zeros(launches * nodes, GPU_RECORD_DTYPE)
    kernel["correlation"] = np.repeat(launch["correlation"], nodes)
    pattern = random.integers(1, KERNELS + 1, 400)  # a training step makes the same kernels again and again
    kernel["name"] = np.resize(pattern, len(kernel))
    typical = random.lognormal(7.5, 0.5, KERNELS + 1)
    duration = (typical[kernel["name"]] * random.normal(1, 0.03, len(kernel))).astype(np.int64) + 500
    duration = np.minimum(duration, int(0.9e9 / rate))
    # One after the other on one stream, none before its launch.
    ready = np.repeat(launch["start_ns"].astype(np.int64), nodes) + 6_000
    gap = random.integers(900, 1_300, len(kernel)) if nodes > 1 else random.integers(1_000, 2_000, len(kernel))
    cost = np.cumsum(duration + np.minimum(gap, int(0.1e9 / rate)))
    start = np.maximum.accumulate(ready - (cost - duration)) + cost - duration
    kernel["start_ns"], kernel["end_ns"] = start, start + duration
    kernel["kind"], kernel["stream"], kernel["context"] = GpuKind.KERNEL, 7, 1
    kernel["graph"] = 1 if nodes > 1 else 0
    buffer = np.arange(len(kernel)) // 5000
    late = random.integers(0, LATE_TURNS, len(kernel) // 5000 + 1)[buffer]
    arrives = np.concatenate([launch["end_ns"] // TURN_NS + 1, kernel["end_ns"] // TURN_NS + 1 + late])
    records = np.concatenate([launch, kernel])
    order = np.argsort(arrives, kind="stable")
    bounds = np.searchsorted(arrives[order], np.arange(1, turns + LATE_TURNS + 2))
    parts = np.split(records[order], bounds)[1:]
    return [(_batch(turn), part) for turn, part in enumerate(parts)]


def _batch(turn: int) -> Batch:
    per_turn = 2_000
    rows = np.zeros(per_turn, INTERVAL_DTYPE)
    rows["thread"] = 1
    rows["path"] = np.arange(per_turn) // 10 % OPERATIONS + 1
    rows["start_ns"] = turn * TURN_NS + np.arange(per_turn) * (TURN_NS // per_turn)
    rows["duration_ns"] = TURN_NS // per_turn
    rows["category"] = np.where(np.arange(per_turn) % 2, Category.CUDA_API, Category.PYTHON)
    rows["opened"] = np.where(np.arange(per_turn) % 2, Opened.CALL, Opened.RETURN)
    rows["state"] = np.where(np.arange(per_turn) % 50 == 7, ThreadState.BLOCKED, ThreadState.RUNNING)
    return Batch((turn + 1) * TURN_NS, [], {"intervals": rows})


def start(matcher: GpuMatcher, registry: Registry) -> Batch:
    """What there is to know before the first record."""
    for number in range(1, KERNELS + 1):
        matcher.add_name(PID, number, f"void at::native::kernel_{number}<float, 4>(int, float*)")
    names = [registry.string(f"operation {number}") for number in range(OPERATIONS)]
    found = [PathInfo(number, 0, name) for number, name in enumerate(names, 1)]
    return Batch(0, [*registry.drain(), ProcessInfo(PID, 1, "train", (), 0), ThreadInfo(1, PID, PID, ""), *found])


def measure(shape: str, seconds: float) -> dict[str, float]:
    """Million records per second of CPU time, matched, and matched and added up; bytes per row in a trace."""
    turns = make_turns(shape, seconds)
    registry = Registry()
    matcher, totals = GpuMatcher(registry), Totals()
    first = start(matcher, registry)
    matcher.advance(first, np.zeros(0, GPU_RECORD_DTYPE), np.zeros(0, np.uint32))
    totals.add(first)
    matching = adding = asking = 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gpu.rlscope"
        writer = TraceWriter(path)
        writer.start(SessionInfo("0", "bench", os.uname().release, "2026-01-01T00:00:00Z", 0, 0))
        writer.batch(first)
        rows = records = 0
        for number, (batch, part) in enumerate(turns):
            pid = np.full(len(part), PID, np.uint32)
            begun = time.process_time()
            matcher.advance(batch, part, pid, last=number == len(turns) - 1)
            matched = time.process_time()
            gpu = batch.tables.pop("gpu", None)
            totals.add(batch)
            if gpu is not None:
                batch.tables = {"gpu": gpu}
                middle = time.process_time()
                totals.add(batch)
                adding += time.process_time() - middle
                writer.batch(batch)
                rows += len(gpu)
            matching += matched - begun
            records += len(part)
            if number % 5 == 4:
                middle = time.process_time()
                totals.operations()
                asking += time.process_time() - middle
        writer.finish(SessionEnd("2026-01-01T00:01:00Z", turns[-1][0].now_ns, "detached"))
        size = path.stat().st_size
    if batch.losses.gpu_unmatched or batch.losses.gpu_launches or totals.missing().gpu_late:
        raise AssertionError(
            f"the benchmark's records do not fit together: {batch.losses}, {totals.missing().gpu_late} late"
        )
    return {
        "matched": records / matching / 1e6,
        "both": records / (matching + adding) / 1e6,
        "asked_ms": asking / (len(turns) // 5) * 1e3,
        "bytes": size / rows,
        "records": records,
    }


def main() -> None:
    """Print the figures of every shape."""
    for shape in SHAPES:
        found = measure(shape, 10)
        print(
            f"{shape}: {found['records']:,.0f} records, {found['matched']:.2f} million/s matched, "
            f"{found['both']:.2f} million/s matched and added up, {found['asked_ms']:.0f} ms a question, "
            f"{found['bytes']:.2f} bytes per row"
        )


if __name__ == "__main__":
    main()
