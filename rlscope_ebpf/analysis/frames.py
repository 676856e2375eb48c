"""A breakdown, or the rows of a trace, as pandas DataFrames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rlscope_ebpf.analysis.breakdown import (
    NAME_SEPARATOR,
    OPERATION_COLUMNS,
    Breakdown,
    Operation,
    Process,
    TraceSource,
    operation_record,
)
from rlscope_ebpf.model.categories import (
    DEFAULT_PHASE,
    UNKNOWN_OPERATION,
    UNTRACKED,
    Category,
    Opened,
    ThreadState,
    Wait,
)
from rlscope_ebpf.model.gpu import COPY_NAMES, GpuKind
from rlscope_ebpf.model.tables import MarkKind, SpanFlag

_TRANSITION_COLUMNS = (
    "process", "pid", "phase", "operation", "transition", "origin", "category", "count", "per_instance", "per_step",
)  # fmt: skip
_CALL_COLUMNS = ("process", "pid", "name", "count", "total_ns", "mean_ns", "p50_ns", "p99_ns")
_KERNEL_COLUMNS = (
    "process", "pid", "name", "count", "total_ns", "mean_ns", "p50_ns", "p99_ns",
    "queue_mean_ns", "queue_p50_ns", "queue_p99_ns",
)  # fmt: skip
_COPY_COLUMNS = ("process", "pid", "direction", "count", "total_ns", "bytes")
_DEVICE_COLUMNS = ("process", "pid", "device", "busy_ns", "busy", "reported", "reported_own", "kernels", "pause_ns")
_PROCESS_COLUMNS = (
    "pid", "ppid", "name", "command", "start_ns", "end_ns", "exited", "exit_status", "threads",
    "phase", "steps", "step", "total_steps", "wall_ns", "gpu_ns", "metadata",
)  # fmt: skip


def operations_frame(breakdown: Breakdown) -> pd.DataFrame:
    """One row per process, phase and operation, with OPERATION_COLUMNS.

    `share` is of the process's wall time, NaN if too much was lost; `mean_ns` is NaN for the untracked time. `queue_…`
    tells how long GPU activity waited from its launch to its start; NaN where there was none.
    """
    records = [
        operation_record(process, operation, shares=not breakdown.shares_refused)
        for process, operation in _operations(breakdown)
    ]
    floats = ("share", "mean_ns", "queue_mean_ns", "queue_p50_ns", "queue_p99_ns")
    frame: pd.DataFrame = _frame(records, OPERATION_COLUMNS).astype(dict.fromkeys(floats, float))
    return frame


def transitions_frame(breakdown: Breakdown) -> pd.DataFrame:
    """One row per process, phase, operation and kind that occurred.

    `transition` is "python_to_backend" and so on; `per_instance` and `per_step` (of the phase) are NaN where there are
    no instances or no reported steps.
    """
    records = [
        {
            "process": process.total.name,
            "pid": process.total.info.pid,
            "phase": operation.total.phase,
            "operation": operation.text,
            "transition": kind,
            "origin": kind.partition("_to_")[0],
            "category": kind.partition("_to_")[2],
            "count": count,
            "per_instance": (
                count / operation.total.count if operation.total.path and operation.total.count else np.nan
            ),
            "per_step": count / operation.steps if operation.steps else np.nan,
        }
        for process, operation in _operations(breakdown)
        for kind, count in operation.total.transitions.items()
    ]
    return _frame(records, _TRANSITION_COLUMNS)


def cuda_calls_frame(breakdown: Breakdown) -> pd.DataFrame:
    """One row per process and function of the CUDA API."""
    records = [
        {
            "process": process.total.name,
            "pid": call.pid,
            "name": call.name,
            "count": call.count,
            "total_ns": call.total_ns,
            "mean_ns": call.total_ns / call.count,
            "p50_ns": call.p50_ns,
            "p99_ns": call.p99_ns,
        }
        for process in breakdown.processes
        for call in process.cuda_calls
    ]
    return _frame(records, _CALL_COLUMNS)


def gpu_kernels_frame(breakdown: Breakdown) -> pd.DataFrame:
    """One row per process and kernel. `queue_…`: from launch to start, NaN where no launch is known."""
    records = [
        {
            "process": process.total.name,
            "pid": kernel.pid,
            "name": kernel.name,
            "count": kernel.ran.count,
            "total_ns": kernel.ran.total_ns,
            "mean_ns": kernel.ran.mean_ns,
            "p50_ns": kernel.ran.p50_ns,
            "p99_ns": kernel.ran.p99_ns,
            "queue_mean_ns": kernel.queued.mean_ns if kernel.queued.count else np.nan,
            "queue_p50_ns": kernel.queued.p50_ns if kernel.queued.count else np.nan,
            "queue_p99_ns": kernel.queued.p99_ns if kernel.queued.count else np.nan,
        }
        for process in breakdown.processes
        for kernel in process.gpu_kernels
    ]
    return _frame(records, _KERNEL_COLUMNS)


def gpu_copies_frame(breakdown: Breakdown) -> pd.DataFrame:
    """One row per process and direction, `direction` "set" where memory was filled."""
    records = [
        {
            "process": process.total.name,
            "pid": copy.pid,
            "direction": copy.direction,
            "count": copy.count,
            "total_ns": copy.total_ns,
            "bytes": copy.bytes,
        }
        for process in breakdown.processes
        for copy in process.gpu_copies
    ]
    return _frame(records, _COPY_COLUMNS)


def gpu_devices_frame(breakdown: Breakdown) -> pd.DataFrame:
    """One row per process and device; `busy` is the part of the process's time, `reported` what NVML says, 0 to 1:
    whoever's work that was, and (`reported_own`) of this process's alone. `pause_ns`: the longest between two works."""
    records = [
        {
            "process": process.total.name,
            "pid": device.pid,
            "device": device.index,
            "busy_ns": device.busy_ns,
            "busy": device.busy_ns / process.duration_ns if process.duration_ns else 0.0,
            "reported": device.reported,
            "reported_own": device.reported_own,
            "kernels": device.kernels,
            "pause_ns": device.pause_ns,
        }
        for process in breakdown.processes
        for device in process.gpu_devices
    ]
    return _frame(records, _DEVICE_COLUMNS)


def processes_frame(breakdown: Breakdown) -> pd.DataFrame:
    """One row per process."""
    records = [
        {
            "pid": process.total.info.pid,
            "ppid": process.total.info.ppid,
            "name": process.total.name,
            "command": " ".join(process.total.info.command),
            "start_ns": process.total.info.start_ns,
            "end_ns": process.end_ns,
            "exited": process.total.info.end_ns is not None,
            "exit_status": process.total.info.exit_status,
            "threads": process.total.threads,
            "phase": process.total.phase,
            "steps": process.total.steps,
            "step": process.total.step,
            "total_steps": process.total.total_steps,
            "wall_ns": process.wall_ns,
            "gpu_ns": process.total.gpu_ns,
            "metadata": process.total.metadata,
        }
        for process in breakdown.processes
    ]
    return _frame(records, _PROCESS_COLUMNS)


def intervals_frame(trace: TraceSource, rows: NDArray[np.void]) -> pd.DataFrame:
    """Rows of the intervals table with names in place of ids (as categoricals)."""
    frame: pd.DataFrame = pd.DataFrame(
        {
            "start_ns": rows["start_ns"].astype(np.int64),
            "duration_ns": rows["duration_ns"].astype(np.int64),
            **_threads(trace, rows["thread"]),
            "phase": _categorical(rows["phase"], phase_names(trace)),
            "operation": _categorical(rows["path"], operation_names(trace)),
            "category": _enumerated(rows["category"], Category),
            "origin": _enumerated(rows["origin"], Category),
            "state": _enumerated(rows["state"], ThreadState),
            "wait": _enumerated(rows["wait"], Wait),
            "opened": _enumerated(rows["opened"], Opened),
            "site": _categorical(
                rows["site"], {0: "", **{number: probe.symbol for number, probe in trace.probes.items()}}
            ),
            "hits": rows["hits"].astype(np.int64),
        }
    )
    return frame


def spans_frame(trace: TraceSource, rows: NDArray[np.void]) -> pd.DataFrame:
    """Rows of the spans table: one per operation instance that ended. `wall_ns` includes nested operations."""
    start_ns, end_ns = rows["start_ns"].astype(np.int64), rows["end_ns"].astype(np.int64)
    frame: pd.DataFrame = pd.DataFrame(
        {
            "start_ns": start_ns,
            "end_ns": end_ns,
            "wall_ns": end_ns - start_ns,
            **_threads(trace, rows["thread"]),
            "phase": _categorical(rows["phase"], phase_names(trace)),
            "operation": _categorical(rows["path"], operation_names(trace)),
            "open_at_start": (rows["flags"] & SpanFlag.OPEN_AT_START) != 0,
            "cut_at_end": (rows["flags"] & SpanFlag.CUT_AT_END) != 0,
        }
    )
    return frame


def marks_frame(trace: TraceSource, rows: NDArray[np.void]) -> pd.DataFrame:
    """Rows of the marks table. By `kind`: "phase" has a `text`, "progress" `step` and `total`, "metadata" both texts.

    `step` and `total` are <NA> elsewhere, `total` also where it is unknown.
    """
    kind = rows["kind"]
    texts = {**phase_names(trace), 0: ""}
    phase, progress, metadata = (kind == each for each in MarkKind)
    text_id = np.where(phase, rows["a"], np.where(metadata, rows["b"], 0))
    frame: pd.DataFrame = pd.DataFrame(
        {
            "time_ns": rows["time_ns"].astype(np.int64),
            **_threads(trace, rows["thread"]),
            "kind": _categorical(kind, {int(each): each.name.lower() for each in MarkKind}),
            "step": _nullable(rows["a"], progress),
            "total": _nullable(rows["b"], progress & (rows["b"] != 0)),
            "key": _categorical(np.where(metadata, rows["a"], 0), texts),
            "text": _categorical(text_id, texts),
        }
    )
    return frame


def gpu_frame(trace: TraceSource, rows: NDArray[np.void]) -> pd.DataFrame:
    """Rows of the gpu table: one per activity of a GPU, and per wait of the host (`kind` "sync", without `tid`).

    `operation` and `phase` are those in which it was launched; `tid` is 0, `launch_ns` and `queued_ns` are <NA> where
    the launch is not known; `direction` is that of copies.
    """
    known = rows["launch_ns"] != 0
    start_ns = rows["start_ns"].astype(np.int64)
    kind = rows["kind"]
    copies = kind == GpuKind.COPY
    frame: pd.DataFrame = pd.DataFrame(
        {
            "start_ns": start_ns,
            "duration_ns": rows["duration_ns"].astype(np.int64),
            "pid": rows["pid"].astype(np.int64),
            "tid": _threads(trace, rows["thread"])["tid"],
            "phase": _categorical(rows["phase"], phase_names(trace)),
            "operation": _categorical(rows["path"], operation_names(trace)),
            "kind": _categorical(kind, {int(each): each.name.lower() for each in GpuKind}),
            "name": _categorical(rows["name"], {**phase_names(trace), 0: ""}),
            "direction": _categorical(np.where(copies, rows["detail"].astype(np.int64), 256), {**COPY_NAMES, 256: ""}),
            "bytes": rows["bytes"].astype(np.int64),
            "launch_ns": _nullable(rows["launch_ns"], known),
            "queued_ns": _nullable((start_ns - rows["launch_ns"].astype(np.int64)).view(np.uint64), known),
            "device": rows["device"].astype(np.int64),
            "context": rows["context"].astype(np.int64),
            "stream": rows["stream"].astype(np.int64),
            "graph": rows["graph"].astype(np.int64),
        }
    )
    return frame


def operation_names(trace: TraceSource) -> dict[int, str]:
    """Path id to the path as one text."""
    names = {0: ""}
    for number in trace.paths:
        pending = []
        current = number
        while current not in names and current not in pending and current in trace.paths:
            pending.append(current)
            current = trace.paths[current].parent
        for path in reversed(pending):
            info = trace.paths[path]
            string = trace.strings.get(info.name)
            name = UNKNOWN_OPERATION if string is None else string.text
            around = names.get(info.parent, "")
            names[path] = f"{around}{NAME_SEPARATOR}{name}" if around else name
    return {**names, 0: UNTRACKED}


def phase_names(trace: TraceSource) -> dict[int, str]:
    """StringInfo.id to the phase of that name."""
    return {**{number: string.text for number, string in trace.strings.items()}, 0: DEFAULT_PHASE}


def _operations(breakdown: Breakdown) -> Iterator[tuple[Process, Operation]]:
    return ((process, operation) for process in breakdown.processes for operation in process.operations)


def _frame(records: Sequence[Mapping[str, object]], columns: tuple[str, ...]) -> pd.DataFrame:
    frame: pd.DataFrame = pd.DataFrame(records, columns=list(columns))
    return frame


def _threads(trace: TraceSource, thread: NDArray[np.uint32]) -> dict[str, NDArray[np.int64]]:
    """`pid` and `tid` of every row; 0 where the thread is not known."""
    highest = max(trace.threads, default=0)
    pids, tids = np.zeros(highest + 1, np.int64), np.zeros(highest + 1, np.int64)
    for number, info in trace.threads.items():
        pids[number], tids[number] = info.pid, info.tid
    known = np.where(thread <= highest, thread, 0)
    return {"pid": pids[known], "tid": tids[known]}


def _categorical(ids: NDArray[np.integer[Any]], names: Mapping[int, str]) -> pd.Categorical:
    """Ids as names. Equal names become one category, only those that occur; ids without a name are "(unknown)"."""
    distinct, index = np.unique(ids, return_inverse=True)
    texts = [names.get(number, UNKNOWN_OPERATION) for number in distinct.tolist()]
    categories = {text: code for code, text in enumerate(dict.fromkeys(texts))}
    codes = np.array([categories[text] for text in texts], np.int32)
    return pd.Categorical.from_codes(codes[index], categories=pd.Index(list(categories), dtype=object))


def _enumerated(values: NDArray[np.uint8], names: type[IntEnum]) -> pd.Categorical:
    """Values of an enumeration as its names, all of which are categories; others are missing values."""
    known = {int(each): code for code, each in enumerate(names)}
    codes = np.full(256, -1, np.int8)
    codes[list(known)] = list(known.values())
    return pd.Categorical.from_codes(codes[values], categories=pd.Index([each.name.lower() for each in names]))


def _nullable(values: NDArray[np.uint64], there: NDArray[np.bool_]) -> pd.arrays.IntegerArray:
    return pd.arrays.IntegerArray(values.astype(np.int64), ~there)
