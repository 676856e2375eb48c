"""The figures of a report: a trace in, sums per process, phase and operation out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.accounting import Accounting, accounting_of
from rlscope_ebpf.model.categories import CATEGORY_NAMES, UNTRACKED, ThreadState
from rlscope_ebpf.model.figures import (
    ACTIVITIES,
    CallTotal,
    CopyTotal,
    DeviceTotal,
    GpuTotal,
    KernelTotal,
    OperationTotal,
    ProcessTotal,
)
from rlscope_ebpf.model.in_place import InPlaceCost, in_place_costs
from rlscope_ebpf.model.iteration_figures import IterationTotal
from rlscope_ebpf.model.overlap import NO_OVERLAP, OverlapTotal
from rlscope_ebpf.model.session import SessionEnd, SessionInfo
from rlscope_ebpf.model.tables import (
    Counters,
    DeviceInfo,
    Losses,
    Notice,
    PathInfo,
    ProbeInfo,
    ProcessInfo,
    StringInfo,
    ThreadInfo,
)
from rlscope_ebpf.model.totals import INTERVAL_COLUMNS, Totals

Progress = Callable[[int, int], None]
"""Called with what is done and what there is to do in all."""

FLUSH_NS = 2_000_000_000
"""The rows of one flush are in the order of their threads; it holds no more time than this."""

LOSS_LIMIT = 0.01
"""Above this share of lost events percentages are refused: what was lost need not look like what was not."""

NAME_SEPARATOR = "/"
"""Between the names of a path where it is one text."""


class TraceSource(Protocol):
    """What is read of a trace; `rlscope_ebpf.trace.reader.TraceReader` is one."""

    @property
    def info(self) -> SessionInfo: ...
    @property
    def complete(self) -> bool: ...
    @property
    def problems(self) -> list[str]: ...
    @property
    def losses(self) -> Losses: ...
    @property
    def counters(self) -> Counters: ...
    @property
    def end(self) -> SessionEnd | None: ...
    @property
    def now_ns(self) -> int: ...
    @property
    def notices(self) -> Sequence[Notice]: ...
    @property
    def processes(self) -> Mapping[int, ProcessInfo]: ...
    @property
    def threads(self) -> Mapping[int, ThreadInfo]: ...
    @property
    def strings(self) -> Mapping[int, StringInfo]: ...
    @property
    def paths(self) -> Mapping[int, PathInfo]: ...
    @property
    def probes(self) -> Mapping[int, ProbeInfo]: ...
    @property
    def devices(self) -> Mapping[int, DeviceInfo]: ...

    def chunks(
        self, table: str, columns: Sequence[str] | None = None, progress: Progress | None = None
    ) -> Iterator[NDArray[np.void]]:
        """The rows of a table in file order."""
        ...


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation path in one phase of one process. Times are ns of its own, not of operations nested in it."""

    total: OperationTotal
    inclusive_ns: int  # wall time with nested operations
    process_wall_ns: int  # of all operations of the process, all phases
    steps: int  # progress reports in this phase

    @property
    def wall_ns(self) -> int:
        """Wall time."""
        return self.total.wall_ns

    @property
    def share(self) -> float:
        """Its part of the process's wall time, 0 to 1."""
        return self.wall_ns / self.process_wall_ns if self.process_wall_ns else 0.0

    @property
    def mean_ns(self) -> float | None:
        """Wall time per instance; None for the untracked time, which has no instances."""
        return self.wall_ns / self.total.count if self.total.path and self.total.count else None

    @property
    def text(self) -> str:
        """The path as one text, "(untracked)" for the time outside any operation. Names may have the separator, too."""
        return NAME_SEPARATOR.join(self.total.path) if self.total.path else UNTRACKED

    @property
    def name(self) -> str:
        """The innermost name."""
        return self.total.path[-1] if self.total.path else UNTRACKED


@dataclass(frozen=True, slots=True)
class Phase:
    """What one process did in one phase."""

    name: str
    operations: tuple[Operation, ...]  # as a tree: parents first, siblings by inclusive time; untracked last
    steps: int  # progress reports

    @property
    def wall_ns(self) -> int:
        """Wall time of all threads."""
        return sum(operation.wall_ns for operation in self.operations)


@dataclass(frozen=True, slots=True)
class Process:
    """What one process did."""

    total: ProcessTotal
    end_ns: int  # its own end, or that of the session
    phases: tuple[Phase, ...]  # in the order in which they were first seen
    cuda_calls: tuple[CallTotal, ...]  # by total time
    gpu_kernels: tuple[KernelTotal, ...] = ()  # by total time
    gpu_copies: tuple[CopyTotal, ...] = ()  # by total time
    gpu_devices: tuple[DeviceTotal, ...] = ()  # by number
    iterations: tuple[IterationTotal, ...] = ()  # by phase

    @property
    def wall_ns(self) -> int:
        """Wall time of all threads."""
        return sum(phase.wall_ns for phase in self.phases)

    @property
    def duration_ns(self) -> int:
        """From the start of its profiling to its end."""
        return max(0, self.end_ns - self.total.info.start_ns)

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU has worked for it."""
        return bool(self.gpu_devices)

    @property
    def operations(self) -> Iterator[Operation]:
        """Of all phases."""
        for phase in self.phases:
            yield from phase.operations


@dataclass(frozen=True, slots=True)
class Overhead:
    """What the profiler itself cost."""

    probe_hits: int
    estimated_ns: int
    fraction: float  # of the target's time, see Totals.target_ns; above 1 only if not plausible
    plausible: bool  # no more than the time that the target's threads ran
    calibrated: bool  # the costs behind it were measured on this host
    probes_shed: int
    overcorrected_ns: int  # by how much the estimates exceed the times that they were to be taken from
    in_place: tuple[InPlaceCost, ...] = ()  # what was measured in the program itself


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where the time of a session went."""

    info: SessionInfo
    end: SessionEnd | None
    end_ns: int  # of the session; without a footer, of what is known
    complete: bool
    problems: tuple[str, ...]
    losses: Losses
    counters: Counters
    overhead: Overhead
    notices: tuple[Notice, ...]  # oldest first
    processes: tuple[Process, ...]
    accounting: Accounting | None = None  # None: nothing could be compared
    overlap: OverlapTotal = NO_OVERLAP
    gpus: tuple[GpuTotal, ...] = ()  # by number

    @property
    def duration_ns(self) -> int:
        """Of the session."""
        return max(0, self.end_ns - self.info.start_ns)

    @property
    def loss_fraction(self) -> float:
        """Lost events as a share of those that the probes wanted to send, 0 to 1."""
        sent = max(self.counters.sent, self.counters.received + self.losses.events)
        return self.losses.events / sent if sent else 0.0

    @property
    def gpu_loss_fraction(self) -> float:
        """GPU records that are missing as a share of all, 0 to 1: figures of the GPU are too low by about so much."""
        lost = self.losses.gpu_records + self.losses.gpu_invalid
        return lost / (lost + self.counters.gpu_records) if lost else 0.0

    @property
    def shares_refused(self) -> bool:
        """Whether so much was lost that no percentage should be believed."""
        return self.loss_fraction > LOSS_LIMIT


def add_up(trace: TraceSource, progress: Progress | None = None) -> Totals:
    """The totals of a whole trace. `progress` counts rows of the intervals table."""
    totals = Totals()
    for kind in (trace.processes, trace.threads, trace.strings, trace.paths, trace.probes, trace.devices):
        for definition in kind.values():
            totals.define(definition)
    gpu = _InTime(trace.chunks("gpu"))
    totals.expect_gpu(gpu.any)
    marks, samples = _Ahead(trace.chunks("marks")), _Ahead(trace.chunks("samples"))
    for rows in trace.chunks("intervals", INTERVAL_COLUMNS, progress):
        reached_ns = _end_of(rows)
        for found in marks.until(reached_ns):
            totals.add_marks(found)
        totals.reports_known(reached_ns)
        totals.add_intervals(rows)
        for found in samples.until(reached_ns):
            totals.add_samples(found)
        for activity in gpu.until(reached_ns):
            totals.add_gpu(activity)
        totals.advance(reached_ns - FLUSH_NS)
    for activity in gpu.until(None):
        totals.add_gpu(activity)
        totals.advance(_end_of(activity))
    for rows in marks.until(None):
        totals.add_marks(rows)
    for rows in samples.until(None):
        totals.add_samples(rows)
    for rows in trace.chunks("spans"):
        totals.add_spans(rows)
    totals.finish()
    totals.losses, totals.counters, totals.now_ns = trace.losses, trace.counters, trace.now_ns
    return totals


class _InTime:
    """The chunks of a table as they are due, so that no more of it is held than needed."""

    def __init__(self, chunks: Iterator[NDArray[np.void]]) -> None:
        self._chunks = chunks
        self._next = next(chunks, None)

    @property
    def any(self) -> bool:
        """Whether there are more."""
        return self._next is not None

    def until(self, time_ns: int | None) -> Iterator[NDArray[np.void]]:
        """Those that end by then; None: all."""
        while self._next is not None and (time_ns is None or _end_of(self._next) <= time_ns):
            yield self._next
            self._next = next(self._chunks, None)


class _Ahead:
    """The chunks of a table whose rows are needed as soon as others reach their time."""

    def __init__(self, chunks: Iterator[NDArray[np.void]]) -> None:
        self._chunks = chunks
        self._next = next(chunks, None)

    def until(self, time_ns: int | None) -> Iterator[NDArray[np.void]]:
        """Those that may have something by then, as chunks are no more than `FLUSH_NS` out of order; None: all."""
        while self._next is not None and (time_ns is None or self._begin(self._next) <= time_ns + FLUSH_NS):
            yield self._next
            self._next = next(self._chunks, None)

    @staticmethod
    def _begin(rows: NDArray[np.void]) -> int:
        return int(rows["time_ns"].min()) if len(rows) else 0


def _end_of(rows: NDArray[np.void]) -> int:
    return int((rows["start_ns"] + rows["duration_ns"]).max(initial=0))


def break_down(trace: TraceSource, progress: Progress | None = None) -> Breakdown:
    """Read a trace and say where the time went. `progress` counts rows of the intervals table."""
    totals = add_up(trace, progress)
    end_ns = trace.end.end_ns if trace.end is not None else max(trace.now_ns, trace.info.start_ns)
    operations: dict[int, list[OperationTotal]] = {}
    for operation in totals.operations():
        if operation.wall_ns or operation.count or operation.hits or operation.transitions or operation.gpu_activities:
            operations.setdefault(operation.pid, []).append(operation)
    calls, kernels, copies = totals.cuda_calls(), totals.gpu_kernels(), totals.gpu_copies()
    devices, iterations = totals.gpu_devices(), totals.iterations()
    processes = tuple(
        _process(
            process,
            operations.get(process.info.pid, []),
            end_ns,
            cuda_calls=_longest_first(calls, process, lambda call: (-call.total_ns, call.name)),
            gpu_kernels=_longest_first(kernels, process, lambda kernel: (-kernel.ran.total_ns, kernel.name)),
            gpu_copies=_longest_first(copies, process, lambda copy: (-copy.total_ns, copy.direction)),
            gpu_devices=_longest_first(devices, process, lambda device: (device.index, "")),
            iterations=tuple(each for each in iterations if each.pid == process.info.pid),
        )
        for process in totals.processes()
    )
    counters = totals.counters
    return Breakdown(
        info=trace.info,
        end=trace.end,
        end_ns=end_ns,
        complete=trace.complete,  # asked only now: reading the rows may have found damage
        problems=tuple(trace.problems),
        losses=totals.missing(),
        counters=counters,
        overhead=Overhead(
            probe_hits=counters.hits,
            estimated_ns=counters.estimated_overhead_ns,
            fraction=totals.overhead_fraction(),
            plausible=totals.overhead_is_plausible(),
            calibrated=trace.info.calibration.get("calibrated") is True,
            probes_shed=counters.probes_shed,
            overcorrected_ns=sum(total.overcorrected_ns for found in operations.values() for total in found),
            in_place=in_place_costs(counters.in_place),
        ),
        notices=tuple(trace.notices),
        processes=processes,
        accounting=accounting_of(counters),
        overlap=totals.overlap(trace.info.start_ns, end_ns),
        gpus=tuple(totals.gpus()),
    )


class _OfProcess(Protocol):
    @property
    def pid(self) -> int: ...


_Of = TypeVar("_Of", bound=_OfProcess)


def _longest_first(found: list[_Of], process: ProcessTotal, order: Callable[[_Of], tuple[int, str]]) -> tuple[_Of, ...]:
    """What belongs to the process, in order."""
    return tuple(sorted((each for each in found if each.pid == process.info.pid), key=order))


def _process(total: ProcessTotal, operations: list[OperationTotal], session_end_ns: int, **tables: Any) -> Process:
    wall_ns = sum(operation.wall_ns for operation in operations)
    names = dict.fromkeys(operation.phase for operation in operations)
    phases = tuple(
        _phase(
            name,
            [operation for operation in operations if operation.phase == name],
            total.steps_by_phase.get(name, 0),
            wall_ns,
        )
        for name in names
    )
    end_ns = session_end_ns if total.info.end_ns is None else total.info.end_ns
    return Process(total, max(end_ns, total.info.start_ns), phases, **tables)


def _phase(name: str, totals: list[OperationTotal], steps: int, process_wall_ns: int) -> Phase:
    operations = tuple(
        Operation(
            total=total,
            inclusive_ns=inclusive_ns,
            process_wall_ns=process_wall_ns,
            steps=steps,
        )
        for total, inclusive_ns in _tree_order(totals)
    )
    return Phase(name, operations, steps)


def _tree_order(totals: list[OperationTotal]) -> Iterator[tuple[OperationTotal, int]]:
    """Operations as a tree, with their inclusive time; the untracked time, which holds nothing, last.

    Nodes are numbered, for comparing paths would take long where operations nest a thousand deep.
    """
    numbers: dict[tuple[int, str], int] = {}  # (parent, name) -> node; node 0 is the root
    parents, names = [0], [""]
    nodes: dict[int, OperationTotal] = {}
    for total in totals:
        node = 0
        for name in total.path:
            parent, node = node, numbers.setdefault((node, name), len(parents))
            if node == len(parents):
                parents.append(parent)
                names.append(name)
        nodes[node] = total
    inclusive = [nodes[node].wall_ns if node in nodes else 0 for node in range(len(parents))]
    children: list[list[int]] = [[] for _ in parents]
    for node in range(len(parents) - 1, 0, -1):  # a node has a higher number than its parent
        inclusive[parents[node]] += inclusive[node]
        children[parents[node]].append(node)
    pending = [0]
    while pending:
        node = pending.pop()
        if node and node in nodes:
            yield nodes[node], inclusive[node]
        pending += sorted(children[node], key=lambda child: (inclusive[child], names[child]))
    if 0 in nodes:
        yield nodes[0], nodes[0].wall_ns


TRANSITION_KINDS = tuple(
    f"{origin}_to_{category}" for origin in CATEGORY_NAMES for category in CATEGORY_NAMES if origin != category
)
"""Every kind of transition that can be."""


OPERATION_COLUMNS = (
    "process", "pid", "phase", "operation", "path", "name", "depth", "count", "open_now",
    "wall_ns", "share", "mean_ns", "inclusive_ns",
    *(f"{name}_ns" for name in CATEGORY_NAMES),
    *(f"{state.name.lower()}_ns" for state in ThreadState),
    *(f"{name}_wait_ns" for name in ACTIVITIES[2:]),
    "gpu_ns", "cpu_only_ns", "cpu_gpu_ns", "gpu_only_ns", "idle_ns",
    "corrected_wall_ns", *(f"corrected_{name}_ns" for name in CATEGORY_NAMES),
    "hits", "gpu_activities", "queue_mean_ns", "queue_p50_ns", "queue_p99_ns",
    "sampled_ns", "samples",
    *(f"{name}_{bound}_ns" for name in CATEGORY_NAMES for bound in ("low", "high")),
)  # fmt: skip
"""Columns of the operations table. Times are ns, of the operation alone but for `inclusive_ns`.

Times of `…_wait_ns` add up to `blocked_ns`.

Of `sampled_ns` samples tell the category; a category's time then lies between `…_low_ns` and `…_high_ns`, with the
confidence of `rlscope_ebpf.model.sampling`. Without samples it is exact, and all three are the same.
`operation` is for people; `path` has the names from the outermost to the innermost, none for the untracked time.
"""

Record = dict[str, int | float | str | tuple[str, ...] | None]


def operation_record(process: Process, operation: Operation, *, shares: bool) -> Record:
    """One operation as a flat record: OPERATION_COLUMNS in order.

    `share` is None unless `shares`; `mean_ns` is None for the untracked time; what tells how long GPU activity waited
    from its launch to its start is None where there was none.
    """
    total, resources, queued = operation.total, operation.total.resources_ns, operation.total.queued
    values = (
        process.total.name,
        process.total.info.pid,
        total.phase,
        operation.text,
        total.path,
        operation.name,
        len(total.path),
        total.count,
        total.open_now,
        operation.wall_ns,
        operation.share if shares else None,
        operation.mean_ns,
        operation.inclusive_ns,
        *total.category_ns,
        *total.state_ns,
        *tuple(total.activities_ns.values())[2:],
        total.gpu_ns,
        *(resources[name] for name in ("cpu_only", "cpu_gpu", "gpu_only", "idle")),
        sum(total.corrected_ns),
        *total.corrected_ns,
        total.hits,
        total.gpu_activities,
        *((queued.mean_ns, queued.p50_ns, queued.p99_ns) if queued.count else (None, None, None)),
        total.sampled.time_ns,
        sum(total.sampled.samples),
        *(bound for bounds in total.bounds_ns for bound in bounds),
    )
    return dict(zip(OPERATION_COLUMNS, values, strict=True))
