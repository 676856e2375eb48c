"""GPU records and sessions for the tests of matching and totals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.categories import Category, Opened, ThreadState
from rlscope_ebpf.model.gpu import GPU_DTYPE, GPU_RECORD_DTYPE, GpuKind, GpuLaunch
from rlscope_ebpf.model.tables import INTERVAL_DTYPE, Batch, Definition, ProcessInfo, ThreadInfo

PID = 100
MS = 1_000_000


def record(kind: int, start_ns: int, end_ns: int, correlation: int, **values: int) -> tuple[int, ...]:
    """One record, as GPU_RECORD_DTYPE has it."""
    fields = dict.fromkeys(GPU_RECORD_DTYPE.names or (), 0)
    fields |= {"start_ns": start_ns, "end_ns": end_ns, "correlation": correlation, "kind": kind}
    unknown = values.keys() - fields.keys()
    assert not unknown, unknown
    return tuple({**fields, **values}.values())


def launch(start_ns: int, correlation: int, tid: int = PID, detail: int = GpuLaunch.KERNEL) -> tuple[int, ...]:
    """A launching call that takes 5 us."""
    return record(GpuKind.LAUNCH, start_ns, start_ns + 5000, correlation, thread=tid, detail=detail)


def kernel(start_ns: int, end_ns: int, correlation: int, **values: int) -> tuple[int, ...]:
    """A kernel."""
    return record(GpuKind.KERNEL, start_ns, end_ns, correlation, **values)


def records(rows: Iterable[tuple[int, ...]]) -> NDArray[np.void]:
    """GPU_RECORD_DTYPE."""
    return np.array(list(rows), GPU_RECORD_DTYPE)


def pids(rows: Sequence[object], pid: int = PID) -> NDArray[np.uint32]:
    """One pid for all."""
    return np.full(len(rows), pid, np.uint32)


def intervals(rows: Iterable[tuple[int, int, int, int, int, int]]) -> NDArray[np.void]:
    """From thread, path, phase, start, end, state."""
    python = Category.PYTHON
    return np.array(
        [
            (thread, path, phase, 0, start, end - start, 1, 0, python, python, state, Opened.CONTINUED, 0, 0)
            for thread, path, phase, start, end, state in rows
        ],
        INTERVAL_DTYPE,
    )


def thread_rows(thread: int, *changes: tuple[int, int, int], end_ns: int, state: int = 0) -> NDArray[np.void]:
    """A thread's intervals from (start, path, phase), each up to the next."""
    ends = [*(start for start, _, _ in changes[1:]), end_ns]
    return intervals(
        (thread, path, phase, start, end, state or ThreadState.RUNNING)
        for (start, path, phase), end in zip(changes, ends, strict=True)
    )


def definitions(*threads: tuple[int, int, int]) -> list[Definition]:
    """Threads from (id, pid, tid), and their processes."""
    found: list[Definition] = [ProcessInfo(pid, 1, f"p{pid}", (), 0) for pid in sorted({pid for _, pid, _ in threads})]
    return [*found, *(ThreadInfo(number, pid, tid, "") for number, pid, tid in threads)]


def batch(
    now_ns: int, rows: NDArray[np.void] | None = None, defined: Sequence[Definition] = (), gpu: object = None
) -> Batch:
    """A batch of intervals and activity."""
    tables = {}
    if rows is not None and len(rows):
        tables["intervals"] = rows
    if isinstance(gpu, np.ndarray) and len(gpu):
        tables["gpu"] = gpu
    return Batch(now_ns, list(defined), tables)


def activity(start_ns: int, end_ns: int, **values: int) -> tuple[int, ...]:
    """One row, as GPU_DTYPE has it: a kernel of process PID."""
    fields = dict.fromkeys(GPU_DTYPE.names or (), 0)
    fields |= {"pid": PID, "start_ns": start_ns, "duration_ns": end_ns - start_ns, "kind": GpuKind.KERNEL}
    unknown = values.keys() - fields.keys()
    assert not unknown, unknown
    return tuple({**fields, **values}.values())


def activities(rows: Iterable[tuple[int, ...]]) -> NDArray[np.void]:
    """GPU_DTYPE."""
    return np.array(list(rows), GPU_DTYPE)
