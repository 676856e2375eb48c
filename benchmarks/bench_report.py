"""Seconds that `report` takes on a trace of ten million intervals (goal: 10 s).

Writes a synthetic trace (two processes, eight threads, a training loop of nine operations in two phases, with calls
into a simulator, a backend and CUDA, and a progress report of each process every 10 ms) through the real writer, then
runs the real command on it in a process of its own.

    python benchmarks/bench_report.py [--rows 10000000] [--keep FILE]
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from rlscope_ebpf.model.categories import Category, Opened, ThreadState
from rlscope_ebpf.model.session import SessionEnd, SessionInfo
from rlscope_ebpf.model.tables import (
    INTERVAL_DTYPE,
    MARK_DTYPE,
    SPAN_DTYPE,
    Batch,
    Counters,
    Definition,
    Losses,
    MarkKind,
    PathInfo,
    ProbeInfo,
    ProcessInfo,
    StringInfo,
    ThreadInfo,
)
from rlscope_ebpf.trace.writer import TraceWriter

GOAL_S = 10.0
THREADS = 8
ITERATION_NS = 10_000_000
OPERATIONS = ("rollout", "inference", "env.step", "store", "train", "sample", "forward", "backprop", "optimizer")
FLUSH_ROWS = 200_000
START_NS = 1_000_000_000


def definitions() -> list[Definition]:
    """Of the whole trace."""
    names = (*OPERATIONS, "warmup")
    return [
        ProcessInfo(100, 1, "train.py", ("python", "train.py"), START_NS),
        ProcessInfo(101, 100, "worker", ("python", "worker.py"), START_NS),
        *(ThreadInfo(number, 100 + number % 2, 100 + number, "") for number in range(1, THREADS + 1)),
        *(StringInfo(number, text) for number, text in enumerate(names, 1)),
        *(PathInfo(number, 0 if number in (1, 5) else 1 if number < 5 else 5, number) for number in range(1, 10)),
        *(
            ProbeInfo(number, "cuda", Category.CUDA_API, "libcuda.so", f"cuCall{number}", 0, "nop5", "session", True)
            for number in range(1, 31)
        ),
    ]  # fmt: skip


def batch(random: np.random.Generator, rows: int, now_ns: NDArray[np.int64], phase: int) -> Batch:
    """`rows` intervals of all threads, a span for every fifth, and reports; moves each thread's `now_ns` on."""
    per_thread = rows // THREADS
    before_ns = now_ns.copy()
    parts = []
    for thread in range(1, THREADS + 1):
        part = np.zeros(per_thread, INTERVAL_DTYPE)
        part["thread"] = thread
        part["path"] = np.repeat(random.integers(1, 10, per_thread // 10 + 1), 10)[:per_thread]
        part["phase"] = phase
        part["category"] = random.choice(5, per_thread, p=(0.45, 0.15, 0.2, 0.15, 0.05))
        part["origin"][1:] = part["category"][:-1]
        part["opened"] = random.choice(
            (Opened.CALL, Opened.RETURN, Opened.SCHEDULER, Opened.OP_BEGIN, Opened.OP_END), per_thread
        )
        part["state"] = np.where(random.random(per_thread) < 0.1, ThreadState.BLOCKED, ThreadState.RUNNING)
        part["site"] = np.where(part["category"] == Category.CUDA_API, random.integers(1, 31, per_thread), 0)
        part["hits"] = 1
        part["duration_ns"] = random.lognormal(9, 1.5, per_thread)
        ends = now_ns[thread - 1] + np.cumsum(part["duration_ns"].astype(np.int64))
        part["start_ns"] = ends - part["duration_ns"].astype(np.int64)
        now_ns[thread - 1] = ends[-1]
        parts.append(part)
    intervals = np.concatenate(parts)
    spans = np.zeros(rows // 5, SPAN_DTYPE)
    spans["thread"] = random.integers(1, THREADS + 1, len(spans))
    spans["path"] = random.integers(1, 10, len(spans))
    spans["phase"] = phase
    spans["end_ns"] = np.sort(random.integers(START_NS, int(now_ns.min()), len(spans)))
    spans["start_ns"] = spans["end_ns"] - 1000
    marks = []
    for thread in (1, 2):  # of either process
        times = np.arange(-(-before_ns[thread - 1] // ITERATION_NS), -(-now_ns[thread - 1] // ITERATION_NS))
        part = np.zeros(len(times), MARK_DTYPE)
        part["thread"], part["kind"], part["time_ns"], part["a"] = (
            thread,
            MarkKind.PROGRESS,
            times * ITERATION_NS,
            times,
        )
        marks.append(part)
    tables = {"intervals": intervals, "spans": spans, "marks": np.concatenate(marks)}
    return Batch(int(now_ns.min()), [], tables, Losses(), Counters())


def write(path: Path, rows: int) -> None:
    """Write the trace."""
    random = np.random.default_rng(1)
    now_ns = np.full(THREADS, START_NS, np.int64)
    info = SessionInfo("0.1.0", "bench", os.uname().release, "2026-01-01T00:00:00Z", START_NS, 0)
    writer = TraceWriter(path, force=True)
    writer.start(info)
    writer.batch(Batch(START_NS, definitions()))
    for done in range(0, rows, FLUSH_ROWS):
        writer.batch(batch(random, min(FLUSH_ROWS, rows - done), now_ns, 10 if done < rows // 4 else 0))
    writer.finish(SessionEnd("2026-01-01T00:01:00Z", int(now_ns.max()), "detached"))


def main() -> int:
    """Print one line per format; the exit status says whether the goal is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--keep", type=Path, help="keep the trace here, or read it from here if it exists")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or Path(folder) / "bench.rlscope"
        if not path.exists():
            begin = time.perf_counter()
            write(path, options.rows)
            print(f"written: {options.rows:,} intervals, {time.perf_counter() - begin:.1f} s")
        print(f"trace: {path.stat().st_size / 1e6:.1f} MB")
        slowest = 0.0
        for form in ("text", "json", "csv"):
            code = "import sys; from rlscope_ebpf.cli import main; sys.exit(main())"
            begin = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-c", code, "report", str(path), "--format", form],
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                stdout=subprocess.PIPE,
                check=True,
            )
            seconds = time.perf_counter() - begin
            slowest = max(slowest, seconds)
            print(f"report --format {form}: {seconds:.2f} s, {len(done.stdout):,} bytes")
        peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(f"most memory: {peak_mb:.0f} MB; goal {GOAL_S:.0f} s: {'met' if slowest <= GOAL_S else 'missed'}")
    return 0 if slowest <= GOAL_S else 1


if __name__ == "__main__":
    sys.exit(main())
