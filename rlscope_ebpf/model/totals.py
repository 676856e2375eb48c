"""Totals of a session: what the live screens and the reports show, added up batch by batch.

All arithmetic on rows is on whole arrays; Python objects appear only when somebody looks. Times are ns, exact as long
as one batch sums up to less than 2^53 ns (104 days).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.calls import CallTotals
from rlscope_ebpf.model.categories import (
    CATEGORY_NAMES,
    DEFAULT_PHASE,
    UNKNOWN_OPERATION,
    Category,
    Opened,
    ThreadState,
    Wait,
)
from rlscope_ebpf.model.device_use import DeviceUse, DeviceUses
from rlscope_ebpf.model.durations import NO_DURATIONS, DurationSum, DurationTotals
from rlscope_ebpf.model.figures import (
    KNOWN_WAITS,
    NO_ACTIVITY,
    CallTotal,
    CopyTotal,
    DeviceTotal,
    GpuTotal,
    KernelTotal,
    OperationTotal,
    ProcessTotal,
    merged,
)
from rlscope_ebpf.model.gpu import copy_name
from rlscope_ebpf.model.gpu_totals import GpuTotals, work_only
from rlscope_ebpf.model.histogram import percentiles
from rlscope_ebpf.model.instances import InstanceTotals
from rlscope_ebpf.model.iteration_figures import IterationOperation, IterationTotal, SlowIteration
from rlscope_ebpf.model.iteration_scopes import ScopeSums, Slow
from rlscope_ebpf.model.iterations import OTHERS, SAMPLED, SAMPLES, Iterations
from rlscope_ebpf.model.keys import LOW_HALF, Ints, KeyRows, grown, pair
from rlscope_ebpf.model.open_operations import OpenOperations
from rlscope_ebpf.model.overlap import Overlap, OverlapTotal
from rlscope_ebpf.model.phase_times import PhaseTimes
from rlscope_ebpf.model.rows import chosen
from rlscope_ebpf.model.sampling import NOT_SAMPLED, Sampled, split
from rlscope_ebpf.model.tables import (
    Batch,
    Counters,
    Definition,
    DeviceInfo,
    Losses,
    MarkKind,
    PathInfo,
    ProbeInfo,
    ProcessInfo,
    StringInfo,
    ThreadInfo,
)
from rlscope_ebpf.model.unions import clipped

_CATEGORIES = len(Category)
_STATES = len(ThreadState)
_CELLS = _CATEGORIES * _STATES
_WAITS = _CATEGORIES * len(Wait)
_KINDS = _CATEGORIES * _CATEGORIES

_TRANSITION_NAMES = tuple(f"{origin}_to_{category}" for origin in CATEGORY_NAMES for category in CATEGORY_NAMES)

BLOCK_ROWS = 1 << 17
"""Longer tables are added in blocks of this size: what one block needs stays in the caches."""

_HANDED_OUT_LATER_NS = 100_000_000
"""Hits are counted at once, and time is handed out a turn later."""

REPORTS_LATE_NS = 150_000_000
"""A progress report may wait so long, behind the time of its batch, for its total (see the session's marks)."""

INTERVAL_COLUMNS = (
    "thread", "path", "phase", "site", "start_ns", "duration_ns", "hits", "overhead_ns",
    "category", "origin", "state", "opened", "wait", "sampled",
)  # fmt: skip
"""The columns of the intervals table that `Totals.add_intervals` reads."""


@dataclass(slots=True)
class _Process:
    info: ProcessInfo
    threads: int = 0
    phases: PhaseTimes = field(default_factory=PhaseTimes)
    step: int = 0
    total_steps: int = 0
    metadata: dict[int, int] = field(default_factory=dict)


class Totals:
    """Adds up batches. Not thread-safe.

    Instances of a path are its spans (closed or cut) and those open now, which are known from the rows themselves (see
    `rlscope_ebpf.model.open_operations`). Transitions are the intervals opened by a call from another category, by
    category before and after.
    """

    def __init__(self) -> None:
        self.losses = Losses()
        self.counters = Counters()
        self.now_ns = 0
        """Everything before this moment has been added."""
        self._processes: dict[int, _Process] = {}
        self._strings: dict[int, str] = {0: ""}
        self._paths: dict[int, PathInfo] = {}
        self._probes: dict[int, ProbeInfo] = {}
        self._chains: dict[int, tuple[int, ...]] = {0: ()}
        self._path_names: dict[int, tuple[str, ...]] = {}
        self._thread_pid: NDArray[np.uint32] = np.zeros(1, np.uint32)  # by thread id; 0 stands for unknown threads
        self._scopes = KeyRows()  # (pid, phase)
        self._steps: Ints = np.zeros(0, np.int64)  # by scope
        self._rows = KeyRows()  # (scope, path)
        self._time_ns: Ints = np.zeros((0, _CELLS), np.int64)
        self._waits_ns: Ints = np.zeros((0, _WAITS), np.int64)  # of the blocked state
        self._transitions: Ints = np.zeros((0, _KINDS), np.int64)
        self._hits: Ints = np.zeros(0, np.int64)
        self._overhead_ns: Ints = np.zeros((0, _CATEGORIES), np.int64)
        # Of intervals whose category samples tell: time by state, overhead, and the samples.
        self._sampled_ns: Ints = np.zeros((0, _STATES), np.int64)
        self._sampled_overhead_ns: Ints = np.zeros((0, 1), np.int64)
        self._samples: Ints = np.zeros((0, _CATEGORIES), np.int64)
        self._closed: Ints = np.zeros(0, np.int64)
        self._calls = CallTotals()
        self._open = OpenOperations(self._chain)
        self._instances = InstanceTotals()
        self._gpu = GpuTotals()
        self._iterations = Iterations()
        self._overlap = Overlap()
        self._overlap.on_settling = self._settle_gpu
        self._devices: dict[tuple[int, int], DeviceInfo] = {}  # (pid, number)
        self._uses = DeviceUses()

    def expect_gpu(self, expected: bool) -> None:
        """Whether GPU activity may come; if not, a little work is saved. If it comes, it counts all the same."""
        self._gpu.expected = expected

    def add(self, batch: Batch) -> None:
        """Add what one turn of a session produced."""
        for definition in batch.definitions:
            self.define(definition)
        marks = batch.tables.get("marks")
        if marks is not None:
            self.add_marks(marks)
        self.reports_known(batch.now_ns - REPORTS_LATE_NS)
        for table, add in (
            ("intervals", self.add_intervals), ("spans", self.add_spans), ("samples", self.add_samples),
            ("gpu", self.add_gpu),
        ):  # fmt: skip
            rows = batch.tables.get(table)
            if rows is not None:
                add(rows)
        self.losses, self.counters = batch.losses, batch.counters
        self.advance(batch.now_ns)

    def advance(self, now_ns: int) -> None:
        """Everything before this moment has been added, but for GPU activity that comes late."""
        self.now_ns = max(self.now_ns, now_ns)
        self._gpu.advance(self.now_ns)
        self._iterations.advance(self.now_ns)
        self._overlap.advance(self.now_ns)
        self._uses.advance(self.now_ns)

    def reports_known(self, until_ns: int | None) -> None:
        """All progress reports before a moment have been added, or (None) all there are: iterations can be told."""
        self._iterations.reports_known(until_ns)

    def finish(self) -> None:
        """Nothing more comes."""
        self.reports_known(None)
        self._iterations.advance(np.iinfo(np.int64).max)
        self._settle_gpu(np.iinfo(np.int64).max)

    def _settle_gpu(self, until_ns: int) -> None:
        self._iterations.settle_gpu(until_ns, self._overlap.gpu_until)

    def define(self, definition: Definition) -> None:
        """Learn what an id means; a later definition of the same id replaces the earlier one."""
        match definition:
            case ProcessInfo():
                process = self._processes.get(definition.pid)
                if process is None:
                    self._processes[definition.pid] = _Process(definition)
                else:
                    process.info = definition
            case ThreadInfo():
                self._thread_pid = grown(self._thread_pid, definition.id + 1)
                self._thread_pid[definition.id] = definition.pid
                self._process(definition.pid).threads += 1
            case StringInfo():
                self._strings[definition.id] = definition.text
                self._path_names.clear()
            case PathInfo():
                if definition.id in self._paths:
                    self._chains = {0: ()}
                self._paths[definition.id] = definition
                self._path_names.clear()
            case ProbeInfo():
                self._probes[definition.id] = definition
            case DeviceInfo():
                self._devices[definition.pid, definition.index] = definition
                self._uses.define(definition)

    def add_intervals(self, rows: NDArray[np.void]) -> None:
        """Add rows that have INTERVAL_COLUMNS, those of one thread in order of time."""
        for begin in range(0, len(rows), BLOCK_ROWS):
            self._add_block(rows[begin : begin + BLOCK_ROWS])

    def add_spans(self, rows: NDArray[np.void]) -> None:
        """Add spans (SPAN_DTYPE), after the intervals up to their ends."""
        if not len(rows):
            return
        thread, row = self._locate(rows)
        size = len(self._rows)
        self._closed[:size] += np.bincount(row, minlength=size)
        self._instances.add(row, rows)
        self._open.add_spans(thread, rows)

    def add_marks(self, rows: NDArray[np.void]) -> None:
        """Add marks (MARK_DTYPE), those of one process in order of time."""
        kind = rows["kind"]
        pid = self._thread_pid[self._known(rows["thread"])]
        for process_pid in np.unique(pid).tolist():
            mine = np.flatnonzero(pid == process_pid)
            self._add_marks_of(process_pid, rows[mine], kind[mine])

    def add_samples(self, rows: NDArray[np.void]) -> None:
        """Add samples (SAMPLE_ROW_DTYPE), in any order."""
        if not len(rows):
            return
        thread, row = self._locate(rows)
        self._iterations.add_samples(self._thread_pid[thread], thread, rows)
        size = len(self._rows)
        cell = row * _CATEGORIES + np.minimum(rows["category"], Category.OTHER)
        self._samples[:size] += np.bincount(cell, minlength=size * _CATEGORIES).reshape(size, _CATEGORIES)

    def add_gpu(self, rows: NDArray[np.void]) -> None:
        """Add GPU activity (GPU_DTYPE), in any order."""
        rows = work_only(rows)
        for begin in range(0, len(rows), BLOCK_ROWS):
            block = rows[begin : begin + BLOCK_ROWS]
            for pid in np.unique(block["pid"]).tolist():
                self._process(pid)
            self._gpu.add(block, self._rows_of(block["pid"], block))
            self._overlap.add_gpu(block)
            self._uses.add_rows(block)

    def operations(self) -> list[OperationTotal]:
        """One for every operation path of every phase and process, in the order in which they were first seen."""
        open_now: dict[int, int] = {}
        for (thread, phase, path), instances in self._open.counts().items():
            scope = int(self._scopes.rows(np.array([int(self._thread_pid[thread]) << 32 | phase], np.uint64))[0])
            row = int(self._rows.rows(np.array([scope << 32 | path], np.uint64))[0])
            open_now[row] = open_now.get(row, 0) + instances
        self._reserve()
        size = len(self._rows)
        cells, overhead_ns = self._time_ns[:size].reshape(size, _CATEGORIES, _STATES), self._overhead_ns[:size]
        sampled = [NOT_SAMPLED] * size
        if self._sampled_ns.any():
            sampled_ns, samples = self._sampled_ns[:size], self._samples[:size]
            cells = cells + split(sampled_ns, samples)
            overhead_ns = overhead_ns + split(self._sampled_overhead_ns[:size], samples)[:, :, 0]
            told = zip(sampled_ns.sum(1).tolist(), samples.tolist(), strict=True)
            sampled = [Sampled(time_ns, tuple(counts)) for time_ns, counts in told]
        times = cells.reshape(size, _CELLS).tolist()
        categories, states = cells.sum(2).tolist(), cells.sum(1).tolist()
        hits, closed = self._hits[:size].tolist(), self._closed[:size].tolist()
        overhead = overhead_ns.tolist()
        waits = self._waits_ns[:size].reshape(size, _CATEGORIES, len(Wait))[:, :, list(KNOWN_WAITS)]
        rest = cells[:, :, ThreadState.BLOCKED :] - waits.sum(2, keepdims=True)
        doing = (
            np.concatenate((cells[:, :, : ThreadState.BLOCKED], waits, rest), 2)
            .reshape(size, len(NO_ACTIVITY))
            .tolist()
        )
        transitions: list[dict[str, int]] = [{} for _ in range(size)]
        sums = self._gpu.sums()
        gpu_ns, cpu_gpu_ns, gpu_only_ns, activities = (
            grown(each, size).tolist()
            for each in (sums.gpu_ns, sums.cpu_gpu_ns, sums.gpu_only_ns, self._gpu.activities)
        )
        queued = {row: found.durations for row, found in self._gpu.delays.entries()}
        calls = self._transitions[:size]
        at_row, at_kind = np.nonzero(calls)
        for row, kind, number in zip(at_row.tolist(), at_kind.tolist(), calls[at_row, at_kind].tolist(), strict=True):
            transitions[row][_TRANSITION_NAMES[kind]] = number
        result = []
        for row, key in enumerate(self._rows.keys):
            scope_key = self._scopes.keys[key >> 32]
            running = open_now.get(row, 0)
            result.append(
                OperationTotal(
                    pid=scope_key >> 32,
                    phase=self.phase_name(scope_key & int(LOW_HALF)),
                    path=self.path_names(key & int(LOW_HALF)),
                    count=closed[row] + running,
                    open_now=running,
                    time_ns=tuple(times[row]),
                    category_ns=tuple(categories[row]),
                    state_ns=tuple(states[row]),
                    overhead_ns=tuple(overhead[row]),
                    hits=hits[row],
                    transitions=transitions[row],
                    gpu_ns=gpu_ns[row],
                    gpu_activities=activities[row],
                    cpu_gpu_ns=cpu_gpu_ns[row],
                    gpu_only_ns=gpu_only_ns[row],
                    queued=queued.get(row, NO_DURATIONS),
                    sampled=sampled[row],
                    activity_ns=tuple(doing[row]),
                    instances=self._instances.of(row),
                )
            )
        return merged(result)

    def cuda_calls(self) -> list[CallTotal]:
        """CUDA API calls by process and function."""
        found: dict[tuple[int, str], tuple[int, int, Ints]] = {}
        for pid, site, count, total_ns, bins in self._calls.entries():
            if count:
                key = (pid, self.site_name(site))
                before = found.get(key)
                found[key] = (
                    (count, total_ns, bins) if before is None
                    else (before[0] + count, before[1] + total_ns, before[2] + bins)
                )  # fmt: skip
        return [
            CallTotal(pid, name, count, total_ns, *percentiles(bins, (0.5, 0.99)))
            for (pid, name), (count, total_ns, bins) in found.items()
        ]

    def gpu_kernels(self) -> list[KernelTotal]:
        """Kernels by process and name."""
        ran = self._by_kernel(self._gpu.kernels)
        queued = self._by_kernel(self._gpu.kernel_delays)
        return [
            KernelTotal(*key, found.durations, queued[key].durations if key in queued else NO_DURATIONS)
            for key, found in ran.items()
        ]

    def _by_kernel(self, totals: DurationTotals) -> dict[tuple[int, str], DurationSum]:
        """By process and name; kernels of the same name are added up."""
        found: dict[tuple[int, str], DurationSum] = {}
        for number, durations in totals.entries():
            key = (number >> 32, self.kernel_name(number & int(LOW_HALF)))
            found[key] = found[key] + durations if key in found else durations
        return found

    def gpu_copies(self) -> list[CopyTotal]:
        """Copies by process and direction."""
        found: dict[tuple[int, str], CopyTotal] = {}
        for copy in self._gpu.copies():
            key = (copy.pid, copy_name(copy.kind, copy.detail))
            before = found.get(key, CopyTotal(*key, 0, 0, 0))
            found[key] = CopyTotal(
                *key, before.count + copy.count, before.total_ns + copy.total_ns, before.bytes + copy.bytes
            )
        return list(found.values())

    def gpu_devices(self) -> list[DeviceTotal]:
        """GPUs by process and number."""
        devices = self._gpu.devices()
        busy_ns = grown(self._gpu.sums().device_ns, len(devices)).tolist()
        uses, nothing = self._uses.by_process(), DeviceUse()
        found = []
        for key, ns in zip(devices, busy_ns, strict=False):
            use = uses.get(key, nothing)
            found.append(DeviceTotal(*key, ns, self._devices.get(key), use.kernels, use.pause_ns))
        return sorted(found, key=lambda device: (device.pid, device.index))

    def gpus(self) -> list[GpuTotal]:
        """GPUs, whatever numbers processes give them."""
        devices = {(device.pid, device.index): device for device in self.gpu_devices()}
        return [
            GpuTotal(gpu.use.busy_ns, gpu.use.pause_ns, gpu.use.kernels, tuple(devices[key] for key in gpu.devices))
            for gpu in self._uses.gpus()
        ]

    def missing(self) -> Losses:
        """`losses` with what was noticed here: GPU activity whose time is missing in `gpu_ns` and `busy_ns`."""
        return replace(self.losses, gpu_late=self._gpu.late)

    def processes(self) -> list[ProcessTotal]:
        """All processes in the order in which they were defined."""
        gpu_ns = dict(self._gpu_time())
        steps: dict[int, dict[str, int]] = {}
        for key, count in zip(self._scopes.keys, self._steps.tolist(), strict=False):
            if count:
                by_phase = steps.setdefault(key >> 32, {})
                phase = self.phase_name(key & int(LOW_HALF))
                by_phase[phase] = by_phase.get(phase, 0) + count
        return [
            ProcessTotal(
                info=process.info,
                threads=process.threads,
                phase=self.phase_name(process.phases.current),
                steps=sum(steps.get(pid, {}).values()),
                step=process.step,
                total_steps=process.total_steps,
                steps_by_phase=steps.get(pid, {}),
                metadata={self.string(key): self.string(value) for key, value in process.metadata.items()},
                gpu_ns=gpu_ns.get(pid, 0),
                phase_times=process.phases.times(
                    process.info.start_ns,
                    self.now_ns if process.info.end_ns is None else process.info.end_ns,
                    self.phase_name,
                ),
            )
            for pid, process in self._processes.items()
        ]

    def iterations(self) -> list[IterationTotal]:
        """By process and phase, in the order in which they were first seen."""
        return [self._iteration_total(pid, phase, sums) for pid, phase, sums in self._iterations.scopes()]

    def _iteration_total(self, pid: int, phase: int, sums: ScopeSums) -> IterationTotal:
        p50_ns, p99_ns = sums.duration_percentiles()
        operations = (
            IterationOperation(self.path_names(path), ns, present, median)
            for path, ns, present, median in sums.operations()
        )
        return IterationTotal(
            pid=pid,
            phase=self.phase_name(phase),
            count=sums.count,
            total_ns=sums.total_ns,
            min_ns=sums.min_ns,
            p50_ns=p50_ns,
            p99_ns=p99_ns,
            max_ns=sums.max_ns,
            category_ns=tuple(sums.category_ns.tolist()),
            overhead_ns=tuple(sums.cost_ns.tolist()),
            others_running_ns=int(sums.columns[OTHERS]),
            transitions=_named(sums.transitions),
            typical_ns=sums.typical_ns(),
            sampled=Sampled(int(sums.columns[SAMPLED]), tuple(sums.columns[SAMPLES].tolist())),
            gpu_ns=sums.gpu_ns,
            gpu_iterations=sums.gpu_iterations if self.uses_gpu(pid) else 0,
            operations=tuple(sorted(operations, key=lambda each: (-each.total_ns, each.path))),
            trend=sums.trend.trend(),
            slowest=tuple(self._slow_iteration(pid, slow) for slow in sums.slowest),
            steps=sums.steps,
        )

    def _slow_iteration(self, pid: int, slow: Slow) -> SlowIteration:
        operations: dict[tuple[str, ...], int] = {}
        for path, ns in slow.operations.items():
            names = self.path_names(path)
            operations[names] = operations.get(names, 0) + ns
        return SlowIteration(
            number=slow.number,
            step=slow.step,
            start_ns=slow.start_ns,
            duration_ns=slow.duration_ns,
            category_ns=tuple(slow.category_ns.tolist()),
            overhead_ns=tuple(slow.cost_ns.tolist()),
            others_running_ns=slow.others_running_ns,
            transitions=_named(slow.transitions),
            operations=operations,
            sampled=Sampled(slow.sampled_ns, tuple(slow.samples.tolist())),
            gpu_ns=slow.gpu_ns if self.uses_gpu(pid) else None,
        )

    def uses_gpu(self, pid: int) -> bool:
        """Whether a GPU has worked for a process."""
        return any(one == pid and ns for one, ns in self._gpu_time())

    def _gpu_time(self) -> Iterator[tuple[int, int]]:
        """(pid, time in which a GPU worked for it)."""
        return zip(self._gpu.processes(), self._gpu.sums().process_ns.tolist(), strict=False)

    def overlap(self, start_ns: int, end_ns: int) -> OverlapTotal:
        """What was busy, over all processes, of a session that lasted from `start_ns` to `end_ns`."""
        return self._overlap.total(max(0, end_ns - start_ns))

    def phases(self) -> tuple[str, ...]:
        """Names of all phases in the order in which they were first seen."""
        return tuple(dict.fromkeys(self.phase_name(key & int(LOW_HALF)) for key in self._scopes.keys))

    def wall_ns(self) -> int:
        """Wall time of all threads of all processes."""
        return int(self._time_ns.sum() + self._sampled_ns.sum())

    def running_ns(self) -> int:
        """The time that threads ran, all of them together."""
        exact = self._time_ns.reshape(-1, _CATEGORIES, _STATES)[:, :, ThreadState.RUNNING]
        return int(exact.sum() + self._sampled_ns[:, ThreadState.RUNNING].sum())

    def target_ns(self) -> int:
        """The processes' time: their wall time, or, if several threads ran at once, the time that threads ran."""
        infos = [process.info for process in self._processes.values()]
        wall = sum(max(0, (info.end_ns or self.now_ns) - info.start_ns) for info in infos)
        return max(self.running_ns(), wall)

    def overhead_fraction(self) -> float:
        """Estimated cost of the probes as a share of `target_ns`: at most 1 of an estimate that is plausible."""
        target_ns = self.target_ns()
        return self.counters.estimated_overhead_ns / target_ns if target_ns else 0.0

    def overhead_is_plausible(self) -> bool:
        """Whether the estimate can be right: threads spend the time in probes running."""
        return self.counters.estimated_overhead_ns <= self.running_ns() + _HANDED_OUT_LATER_NS

    def string(self, number: int) -> str:
        """The text of a StringInfo.id."""
        return self._strings.get(number, UNKNOWN_OPERATION)

    def phase_name(self, number: int) -> str:
        """The name of a phase by its StringInfo.id."""
        return self.string(number) if number else DEFAULT_PHASE

    def path_names(self, number: int) -> tuple[str, ...]:
        """The names of a PathInfo.id, outermost first."""
        known = self._path_names.get(number)
        if known is None:
            infos = (self._paths.get(level) for level in self._chain(number))
            known = tuple(UNKNOWN_OPERATION if info is None else self.string(info.name) for info in infos)
            self._path_names[number] = known
        return known

    def kernel_name(self, number: int) -> str:
        """The name of a kernel by its StringInfo.id."""
        return self.string(number) if number else UNKNOWN_OPERATION

    def site_name(self, number: int) -> str:
        """The function of a ProbeInfo.id, without its symbol version."""
        info = self._probes.get(number)
        return UNKNOWN_OPERATION if info is None else info.symbol.partition("@")[0]

    def _chain(self, number: int) -> tuple[int, ...]:
        known = self._chains.get(number)
        if known is not None:
            return known
        levels: list[int] = []
        current = number
        while current and current not in levels:  # a damaged trace may hold a circle
            levels.append(current)
            info = self._paths.get(current)
            current = 0 if info is None else info.parent
        chain = tuple(reversed(levels))
        if number in self._paths:
            self._chains[number] = chain
        return chain

    def _process(self, pid: int) -> _Process:
        process = self._processes.get(pid)
        if process is None:
            process = self._processes[pid] = _Process(ProcessInfo(pid, None, UNKNOWN_OPERATION, (), 0))
        return process

    def _known(self, thread: NDArray[np.uint32]) -> Ints:
        """Thread ids, 0 in place of those never defined (whose definition a damaged trace may have lost)."""
        numbers = thread.astype(np.int64)
        if len(numbers) and int(numbers.max()) >= len(self._thread_pid):
            numbers[numbers >= len(self._thread_pid)] = 0
        return numbers

    def _locate(self, rows: NDArray[np.void]) -> tuple[Ints, Ints]:
        """Thread and accumulator row of every row of a table."""
        thread = self._known(rows["thread"])
        pid = self._thread_pid[thread]
        if not pid.all():
            self._process(0)
        return thread, self._rows_of(pid, rows)

    def _rows_of(self, pid: NDArray[np.uint32], rows: NDArray[np.void]) -> Ints:
        """Accumulator row of every row of a table."""
        scope = self._scopes.rows(pair(pid, rows["phase"]))
        row = self._rows.rows(pair(scope, rows["path"]))
        self._reserve()
        return row

    def _reserve(self) -> None:
        size = len(self._rows)
        self._time_ns = grown(self._time_ns, size)
        self._waits_ns = grown(self._waits_ns, size)
        self._transitions = grown(self._transitions, size)
        self._hits = grown(self._hits, size)
        self._overhead_ns = grown(self._overhead_ns, size)
        self._sampled_ns = grown(self._sampled_ns, size)
        self._sampled_overhead_ns = grown(self._sampled_overhead_ns, size)
        self._samples = grown(self._samples, size)
        self._closed = grown(self._closed, size)
        self._steps = grown(self._steps, len(self._scopes))

    def _add_block(self, rows: NDArray[np.void]) -> None:
        thread, row = self._locate(rows)
        size = len(self._rows)
        category = np.minimum(rows["category"], Category.OTHER).astype(np.int64)
        state = np.minimum(rows["state"], ThreadState.BLOCKED)
        cell = (row * _CATEGORIES + category) * _STATES + state
        duration_ns, cost_ns = rows["duration_ns"], rows["overhead_ns"]
        sampled = rows["sampled"] != 0
        if sampled.any():
            self._add_sampled(row[sampled], state[sampled], chosen(rows, sampled))
            duration_ns, cost_ns = np.where(sampled, 0, duration_ns), np.where(sampled, 0, cost_ns)
        time_ns = np.bincount(cell, duration_ns, size * _CELLS)
        self._time_ns[:size] += time_ns.astype(np.int64).reshape(size, _CELLS)
        known = np.flatnonzero((state == ThreadState.BLOCKED) & (rows["wait"] != Wait.OTHER) & ~sampled)
        if len(known):
            wait = rows["wait"][known]
            wait = np.where(wait < len(Wait), wait, Wait.OTHER)
            place = (row[known] * _CATEGORIES + category[known]) * len(Wait) + wait
            waits_ns = np.bincount(place, rows["duration_ns"][known], size * _WAITS)
            self._waits_ns[:size] += waits_ns.astype(np.int64).reshape(size, _WAITS)
        self._hits[:size] += np.bincount(row, rows["hits"], size).astype(np.int64)
        overhead_ns = np.bincount(row * _CATEGORIES + category, cost_ns, size * _CATEGORIES)
        self._overhead_ns[:size] += overhead_ns.astype(np.int64).reshape(size, _CATEGORIES)
        calls = np.flatnonzero((rows["opened"] == Opened.CALL) & (rows["origin"] != category))
        origin = np.minimum(rows["origin"][calls], Category.OTHER)
        kind = (row[calls] * _CATEGORIES + origin) * _CATEGORIES + category[calls]
        self._transitions[:size] += np.bincount(kind, minlength=size * _KINDS).reshape(size, _KINDS)
        self._calls.add(self._thread_pid[thread], thread, rows)
        self._open.add_intervals(thread, rows)
        pid = self._thread_pid[thread]
        self._gpu.add_time(pid, thread, row, rows)
        self._iterations.add_intervals(pid, thread, rows)
        self._overlap.add_time(pid, thread, rows)

    def _add_sampled(self, row: Ints, state: NDArray[np.uint8], rows: NDArray[np.void]) -> None:
        size = len(self._rows)
        time_ns = np.bincount(row * _STATES + state, rows["duration_ns"], size * _STATES)
        self._sampled_ns[:size] += time_ns.astype(np.int64).reshape(size, _STATES)
        overhead_ns = np.bincount(row, rows["overhead_ns"], size)
        self._sampled_overhead_ns[:size, 0] += overhead_ns.astype(np.int64)

    def _add_marks_of(self, pid: int, rows: NDArray[np.void], kind: NDArray[np.uint32]) -> None:
        process = self._process(pid)
        changes = np.flatnonzero(kind == MarkKind.PHASE)
        progress = np.flatnonzero(kind == MarkKind.PROGRESS)
        process.phases.add(
            clipped(rows["time_ns"][changes]), rows["a"][changes].astype(np.int64), process.info.start_ns
        )
        if len(progress):
            time_ns, step = clipped(rows["time_ns"][progress]), clipped(rows["a"][progress])
            phase = process.phases.at(time_ns)
            scope = self._scopes.rows((np.uint64(pid) << np.uint64(32)) | phase.astype(np.uint64))
            self._reserve()
            size = len(self._scopes)
            self._steps[:size] += np.bincount(scope, minlength=size)
            self._iterations.add_reports(pid, time_ns, phase, rows["thread"][progress].astype(np.int64), step)
            latest = rows[progress[-1]]
            process.step, process.total_steps = int(latest["a"]), int(latest["b"])
        metadata = np.flatnonzero(kind == MarkKind.METADATA)
        if len(metadata):
            keys = rows["a"][metadata]
            distinct, first = np.unique(keys[::-1], return_index=True)
            values = rows["b"][metadata[::-1][first]]
            process.metadata.update(zip(distinct.tolist(), values.tolist(), strict=True))


def _named(transitions: NDArray[np.integer]) -> dict[str, int]:
    """Counts by kind of transition, those that occurred."""
    return {_TRANSITION_NAMES[kind]: int(transitions[kind]) for kind in np.flatnonzero(transitions).tolist()}
