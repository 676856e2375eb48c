"""Sessions for the tests of totals' consumers: a training run with round figures, and a source that needs no file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.categories import Category, Opened, ThreadState, Wait
from rlscope_ebpf.model.gpu import GPU_DTYPE, GpuKind
from rlscope_ebpf.model.session import SessionEnd, SessionInfo
from rlscope_ebpf.model.tables import (
    INTERVAL_DTYPE,
    MARK_DTYPE,
    SPAN_DTYPE,
    TABLES,
    Batch,
    Counters,
    Definition,
    DeviceInfo,
    Losses,
    MarkKind,
    Notice,
    PathInfo,
    ProbeInfo,
    ProcessInfo,
    StringInfo,
    ThreadInfo,
)

START_NS = 5_000_000_000
MS = 1_000_000
ITERATION_MS = 100
ITERATIONS = 20
EVALUATIONS = 5
END_NS = START_NS + (ITERATIONS + EVALUATIONS) * ITERATION_MS * MS

INFO = SessionInfo(
    tool_version="0.1.0",
    host="trainer",
    kernel="6.18.5",
    started_at="2026-11-30T05:00:00+00:00",
    start_ns=START_NS,
    realtime_offset_ns=0,
    gpu="unavailable",
    gpu_reason="libcuda is not loaded in the target",
    capture={"attach_method": "session"},
    calibration={"calibrated": False},
)
END = SessionEnd("2026-11-30T05:00:02+00:00", END_NS, "detached")
COUNTERS = Counters(
    received=123_456,
    sent=123_456,
    hits=234_567,
    estimated_overhead_ns=90 * MS,
    probes_attached=1_234,
    probes_armed=1_230,
)

STRINGS = ("rollout", "inference", "env.step", "train", "backprop", "evaluation", "algorithm", "PPO")
PATHS = {(): 0, ("rollout",): 1, ("rollout", "inference"): 2, ("rollout", "env.step"): 3, ("train",): 4,
         ("train", "backprop"): 5}  # fmt: skip

P, S, B, C, X = Category.PYTHON, Category.SIMULATOR, Category.BACKEND, Category.CUDA_API, Category.OTHER
RUN, WAIT, SLEEP = ThreadState.RUNNING, ThreadState.RUNNABLE, ThreadState.BLOCKED

# One iteration of the main thread, 100 ms: path, category before and after, state, how it began, ms.
ITERATION: tuple[tuple[tuple[str, ...], Category, Category, ThreadState, Opened, int], ...] = (
    (("rollout",), P, P, RUN, Opened.OP_BEGIN, 4),
    (("rollout", "inference"), P, P, RUN, Opened.OP_BEGIN, 3),
    (("rollout", "inference"), P, B, RUN, Opened.CALL, 9),
    (("rollout", "inference"), B, C, RUN, Opened.CALL, 2),
    (("rollout", "inference"), C, C, SLEEP, Opened.SCHEDULER, 4),
    (("rollout", "inference"), C, B, RUN, Opened.RETURN, 1),
    (("rollout", "inference"), B, P, RUN, Opened.RETURN, 1),
    (("rollout",), P, P, RUN, Opened.OP_END, 1),
    (("rollout", "env.step"), P, P, RUN, Opened.OP_BEGIN, 5),
    (("rollout", "env.step"), P, S, RUN, Opened.CALL, 20),
    (("rollout", "env.step"), S, P, RUN, Opened.CALL, 2),
    (("rollout", "env.step"), P, S, RUN, Opened.RETURN, 3),
    (("rollout", "env.step"), S, P, WAIT, Opened.RETURN, 2),
    (("rollout",), P, P, RUN, Opened.OP_END, 1),
    ((), P, P, RUN, Opened.OP_END, 2),
    (("train",), P, P, RUN, Opened.OP_BEGIN, 6),
    (("train", "backprop"), P, P, RUN, Opened.OP_BEGIN, 2),
    (("train", "backprop"), P, B, RUN, Opened.CALL, 26),
    (("train", "backprop"), B, P, RUN, Opened.RETURN, 1),
    (("train",), P, P, RUN, Opened.OP_END, 1),
    ((), P, X, SLEEP, Opened.OP_END, 4),
)  # fmt: skip


@dataclass
class FakeTrace:
    """`rlscope_ebpf.analysis.breakdown.TraceSource` out of memory."""

    info: SessionInfo = INFO
    complete: bool = True
    problems: list[str] = field(default_factory=list)
    losses: Losses = field(default_factory=Losses)
    counters: Counters = COUNTERS
    end: SessionEnd | None = END
    now_ns: int = END_NS
    notices: list[Notice] = field(default_factory=list)
    processes: dict[int, ProcessInfo] = field(default_factory=dict)
    threads: dict[int, ThreadInfo] = field(default_factory=dict)
    strings: dict[int, StringInfo] = field(default_factory=dict)
    paths: dict[int, PathInfo] = field(default_factory=dict)
    probes: dict[int, ProbeInfo] = field(default_factory=dict)
    devices: dict[int, DeviceInfo] = field(default_factory=dict)
    tables: dict[str, NDArray[np.void]] = field(default_factory=dict)

    def define(self, definition: Definition) -> None:
        """Take a definition."""
        match definition:
            case ProcessInfo():
                self.processes[definition.pid] = definition
            case ThreadInfo():
                self.threads[definition.id] = definition
            case StringInfo():
                self.strings[definition.id] = definition
            case PathInfo():
                self.paths[definition.id] = definition
            case ProbeInfo():
                self.probes[definition.id] = definition
            case DeviceInfo():
                self.devices[definition.id] = definition

    def chunks(
        self,
        table: str,
        columns: Sequence[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Iterator[NDArray[np.void]]:
        """Two chunks, or none."""
        rows = self.tables.get(table, np.zeros(0, TABLES[table]))
        half = len(rows) // 2
        for part in (rows[:half], rows[half:]):
            if len(part):
                yield part[list(columns)] if columns is not None else part
                if progress is not None:
                    progress(half if part is rows else len(rows), len(rows))


def definitions() -> list[Definition]:
    """Of the training run."""
    return [
        ProcessInfo(100, 1, "train.py", ("python", "train.py", "--lr", "3e-4"), START_NS),
        ThreadInfo(1, 100, 100, "python"),
        ThreadInfo(2, 100, 101, "pool"),
        *(StringInfo(number, text) for text, number in string_ids().items()),
        *(
            PathInfo(number, PATHS[path[:-1]], string_ids()[path[-1]])
            for path, number in PATHS.items()
            if path
        ),
        ProbeInfo(1, "cuda", Category.CUDA_API, "libcuda.so.1", "cuStreamSynchronize", 64, "emulated", "session", True),
    ]  # fmt: skip


def string_ids() -> dict[str, int]:
    """Text to StringInfo.id."""
    return {text: number for number, text in enumerate((*STRINGS, *KERNELS), 1)}


def tables() -> dict[str, NDArray[np.void]]:
    """20 iterations of training, then 5 of evaluation; beside it a thread that sleeps."""
    ids = string_ids()
    rows: list[tuple[int, ...]] = []
    spans: list[tuple[int, ...]] = []
    marks: list[tuple[int, ...]] = [(1, MarkKind.METADATA, START_NS, ids["algorithm"], ids["PPO"])]
    now = START_NS
    stack: list[tuple[int, int, int]] = []
    for iteration in range(ITERATIONS + EVALUATIONS):
        phase = 0 if iteration < ITERATIONS else ids["evaluation"]
        if iteration == ITERATIONS:
            marks.append((1, MarkKind.PHASE, now, ids["evaluation"], 0))
        for path, origin, category, state, opened, ms in ITERATION:
            number = PATHS[path]
            if opened == Opened.OP_END:
                closed, phase_then, began = stack.pop()
                spans.append((1, closed, phase_then, 0, began, now))
            elif opened == Opened.OP_BEGIN:
                stack.append((number, phase, now))
            site = 1 if category == C else 0
            wait = (Wait.GPU if category == C else Wait.SLEEP) if state == SLEEP else Wait.OTHER
            rows.append((1, number, phase, site, now, ms * MS, 1, 0, category, origin, state, opened, wait, 0))
            now += ms * MS
        marks.append((1, MarkKind.PROGRESS, now - 1, iteration + 1, ITERATIONS + EVALUATIONS))
    # A thread that has nothing to do all the time; another thread's phase change cuts it.
    change = START_NS + ITERATIONS * ITERATION_MS * MS
    rows += [
        (2, 0, 0, 0, START_NS, change - START_NS, 0, 0, X, X, SLEEP, Opened.CONTINUED, Wait.LOCK, 0),
        (2, 0, ids["evaluation"], 0, change, END_NS - change, 0, 0, X, X, SLEEP, Opened.PHASE, Wait.LOCK, 0),
    ]
    return {
        "intervals": np.array(rows, INTERVAL_DTYPE),
        "spans": np.array(spans, SPAN_DTYPE),
        "marks": np.array(marks, MARK_DTYPE),
    }


KERNELS = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int, float*)",
    "ampere_sgemm_128x64_tn",
)

# GPU activity of one iteration: launching operation, name, kind, direction, stream, launch, start and end in ms, bytes.
GPU_ITERATION: tuple[tuple[tuple[str, ...], str, GpuKind, int, int, float, float, float, int], ...] = (
    (("rollout", "inference"), "", GpuKind.COPY, 1, 7, 16, 16.5, 17, 1_048_576),
    (("rollout", "inference"), KERNELS[1], GpuKind.KERNEL, 0, 7, 17, 17.2, 20.2, 0),
    (("rollout", "inference"), "", GpuKind.COPY, 2, 7, 17.5, 20.2, 20.7, 4_096),
    (("train", "backprop"), KERNELS[0], GpuKind.KERNEL, 0, 7, 70, 71, 75, 0),
    (("train", "backprop"), KERNELS[1], GpuKind.KERNEL, 0, 13, 72, 73, 85, 0),
    (("train", "backprop"), KERNELS[1], GpuKind.KERNEL, 0, 7, 80, 90, 98, 0),  # runs on when backprop has ended
    (("train", "backprop"), "", GpuKind.SET, 0, 7, 94, 98, 98.5, 65_536),
)
GPU_NS_OF_ITERATION = {("rollout", "inference"): 4 * MS, ("train", "backprop"): 45 * MS // 2}


def gpu_rows() -> NDArray[np.void]:
    """GPU activity of the training run, unordered."""
    ids = string_ids()
    rows = np.zeros(0, GPU_DTYPE)
    for iteration in range(ITERATIONS + EVALUATIONS):
        begin = START_NS + iteration * ITERATION_MS * MS
        part = np.zeros(len(GPU_ITERATION), GPU_DTYPE)
        part["pid"], part["thread"], part["context"] = 100, 1, 1
        part["phase"] = 0 if iteration < ITERATIONS else ids["evaluation"]
        for row, (path, name, kind, detail, stream, launch, start, end, size) in zip(part, GPU_ITERATION, strict=True):
            row["path"], row["name"], row["kind"] = PATHS[path], ids[name] if name else 0, kind
            row["detail"], row["stream"], row["bytes"] = detail, stream, size
            row["launch_ns"], row["start_ns"] = (round(begin + ms * MS) for ms in (launch, start))
            row["duration_ns"] = round((end - start) * MS)
        rows = np.concatenate([part[::-1], rows])
    return rows


def gpu_training(**changes: object) -> FakeTrace:
    """The training run with GPU activity."""
    reason = "CUPTI 13 in the target"
    trace = training(info=replace(INFO, gpu="cupti", gpu_reason=reason), **changes)
    for number, text in enumerate(KERNELS, len(STRINGS) + 1):
        trace.define(StringInfo(number, text))
    trace.tables["gpu"] = gpu_rows()
    return trace


def training(**changes: object) -> FakeTrace:
    """The training run as a trace; `changes` replace fields."""
    trace = FakeTrace(tables=tables())
    for definition in definitions():
        trace.define(definition)
    return replace(trace, **changes)  # type: ignore[arg-type]


def training_batch() -> Batch:
    """The training run as one batch."""
    return Batch(END_NS, definitions(), tables(), Losses(), COUNTERS)
