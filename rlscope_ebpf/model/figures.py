"""What totals are handed out as: one value per operation, function, kernel, device, process. Times are ns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlscope_ebpf.model.categories import Category, Wait
from rlscope_ebpf.model.durations import NO_DURATIONS, Durations
from rlscope_ebpf.model.instances import NO_INSTANCES, Instances
from rlscope_ebpf.model.phase_times import PhaseTime
from rlscope_ebpf.model.sampling import NOT_SAMPLED, Sampled
from rlscope_ebpf.model.tables import DeviceInfo, ProcessInfo

ACTIVITIES = ("running", "runnable", "lock", "io", "disk", "sleep", "gpu", "other")
"""What a thread can be doing: run, wait for a CPU, or be blocked, by what it waits for; the last is all the rest."""

KNOWN_WAITS = tuple(Wait[name.upper()] for name in ACTIVITIES[2:-1])
"""`Wait` of those in between."""


PROCESS_NAME = "process_name"
"""The piece of metadata by which a process says what it is called."""

NO_ACTIVITY = (0,) * (len(Category) * len(ACTIVITIES))


def by_activity(activity_ns: Sequence[int], category: int | None = None) -> dict[str, int]:
    """Of times by category and activity (`OperationTotal.activity_ns`): those of a category, or of all, by name."""
    size = len(ACTIVITIES)
    if category is not None:
        return dict(zip(ACTIVITIES, activity_ns[category * size : (category + 1) * size], strict=True))
    return {name: sum(activity_ns[number::size]) for number, name in enumerate(ACTIVITIES)}


@dataclass(frozen=True, slots=True)
class OperationTotal:
    """Self time of one operation path in one phase of one process, summed over its threads."""

    pid: int
    phase: str
    path: tuple[str, ...]  # outermost first; () is the time outside any operation
    count: int  # instances that began in this phase or were open when profiling began; open ones included
    open_now: int
    time_ns: tuple[int, ...]  # by category and state: [Category * len(ThreadState) + ThreadState]
    category_ns: tuple[int, ...]  # [Category]
    state_ns: tuple[int, ...]  # [ThreadState]
    overhead_ns: tuple[int, ...]  # [Category]: of the time in it, the estimated cost of probe hits
    hits: int  # probe hits charged to it
    transitions: dict[str, int]  # "python_to_backend" -> calls; kinds without calls are left out
    gpu_ns: int = 0  # union of the GPU activity that it launched, whenever that ran
    gpu_activities: int = 0  # kernels, copies and sets that it launched
    cpu_gpu_ns: int = 0  # of the time on a CPU or waiting for one, while a GPU worked for its process
    gpu_only_ns: int = 0  # the same of the time in which its threads slept
    queued: Durations = NO_DURATIONS  # from launch to start, of its GPU activity
    sampled: Sampled = NOT_SAMPLED  # what of its time was told apart by samples; the rest is exact
    activity_ns: tuple[int, ...] = NO_ACTIVITY  # by category and activity: [Category * len(ACTIVITIES) + its number]
    instances: Instances = NO_INSTANCES  # how long they took, with nested operations

    @property
    def activities_ns(self) -> dict[str, int]:
        """All of its time by `ACTIVITIES`."""
        return by_activity(self.activity_ns)

    @property
    def bounds_ns(self) -> tuple[tuple[int, int], ...]:
        """Between which times each category's lies with `sampling.CONFIDENCE`, [Category]; the same twice if exact."""
        found = []
        for category, ns in enumerate(self.category_ns):
            less, more = self.sampled.errors_ns(category)
            found.append((max(0, round(ns - less)), min(self.wall_ns, round(ns + more))))
        return tuple(found)

    @property
    def wall_ns(self) -> int:
        """Wall time of all categories."""
        return sum(self.category_ns)

    @property
    def corrected_ns(self) -> tuple[int, ...]:
        """Time by category without the estimated cost of probe hits, [Category]; never below zero."""
        return tuple(max(0, raw - cost) for raw, cost in zip(self.category_ns, self.overhead_ns, strict=True))

    @property
    def overcorrected_ns(self) -> int:
        """By how much the estimated cost exceeds the time that it is to be taken from: above zero, it is wrong."""
        return sum(max(0, cost - raw) for raw, cost in zip(self.category_ns, self.overhead_ns, strict=True))

    @property
    def resources_ns(self) -> dict[str, int]:
        """Wall time by what was busy meanwhile: the CPU (a thread that waits for one counts), a GPU, both, neither."""
        return self.resources_of(self.wall_ns)

    def resources_of(self, wall_ns: int) -> dict[str, int]:
        """The same of a corrected wall time: what probes took, they took of a CPU, whether a GPU worked or not."""
        running, runnable, blocked = self.state_ns
        raw_on_cpu = running + runnable
        on_cpu = raw_on_cpu - (self.wall_ns - wall_ns)
        cpu_gpu = self.cpu_gpu_ns * max(0, on_cpu) // raw_on_cpu if raw_on_cpu else 0
        asleep = blocked + min(0, on_cpu)
        gpu_only = min(self.gpu_only_ns, asleep)
        return {
            "cpu_only": max(0, on_cpu) - cpu_gpu,
            "cpu_gpu": cpu_gpu,
            "gpu_only": gpu_only,
            "idle": asleep - gpu_only,
        }


@dataclass(frozen=True, slots=True)
class CallTotal:
    """Calls of one function in one process; sites of the same name are added up."""

    pid: int
    name: str
    count: int
    total_ns: int
    p50_ns: int  # percentiles: see rlscope_ebpf.model.histogram for their error
    p99_ns: int


@dataclass(frozen=True, slots=True)
class KernelTotal:
    """One kernel in one process."""

    pid: int
    name: str
    ran: Durations
    queued: Durations  # from launch to start; nodes of a graph but for its first are left out


@dataclass(frozen=True, slots=True)
class CopyTotal:
    """Copies of one direction in one process, or (direction "set") memory that was filled."""

    pid: int
    direction: str
    count: int
    total_ns: int
    bytes: int


@dataclass(frozen=True, slots=True)
class DeviceTotal:
    """One GPU as one process uses it."""

    pid: int
    index: int  # as the process numbers its devices
    busy_ns: int  # with work of this process, several streams at once counted once
    info: DeviceInfo | None = None  # what its driver reports
    kernels: int = 0
    pause_ns: int = 0  # the longest time between two pieces of work

    @property
    def reported(self) -> float | None:
        """How busy the driver reports it to be, 0 to 1, whoever's work it is; None: not known."""
        return None if self.info is None else self.info.utilization

    @property
    def reported_own(self) -> float | None:
        """The same of this process's work alone; None: not known."""
        return None if self.info is None else self.info.own_utilization

    @property
    def uuid(self) -> str:
        """Which GPU it is, whatever number a process gives it; empty: not known."""
        return "" if self.info is None else self.info.uuid

    @property
    def asked_ns(self) -> int:
        """The time of which `reported` is the mean."""
        return 0 if self.info is None else self.info.until_ns - self.info.since_ns


@dataclass(frozen=True, slots=True)
class GpuTotal:
    """One GPU, as all profiled processes together used it."""

    busy_ns: int  # with work of any of them, what several do at once counted once
    pause_ns: int  # the longest time between two pieces of work, whoever's
    kernels: int
    devices: tuple[DeviceTotal, ...]  # as each process uses it

    @property
    def index(self) -> int:
        """The lowest number that a process gives it."""
        return min(device.index for device in self.devices)

    @property
    def info(self) -> DeviceInfo | None:
        """What its driver reports, from when it was asked most often; None: nothing."""
        known = [device.info for device in self.devices if device.info is not None and device.info.samples]
        return max(known, key=lambda info: info.samples, default=None)

    @property
    def reported(self) -> float | None:
        """How busy the driver reports it to be, 0 to 1; None: not known."""
        return None if self.info is None else self.info.utilization

    @property
    def asked_ns(self) -> int:
        """The time of which `reported` is the mean."""
        return 0 if self.info is None else self.info.until_ns - self.info.since_ns


@dataclass(frozen=True, slots=True)
class ProcessTotal:
    """One process."""

    info: ProcessInfo
    threads: int  # ever seen
    phase: str  # the latest
    steps: int  # progress reports
    step: int  # latest reported step
    total_steps: int  # 0: unknown
    steps_by_phase: dict[str, int]
    metadata: dict[str, str]
    gpu_ns: int = 0  # time in which some GPU worked for it
    phase_times: tuple[PhaseTime, ...] = ()  # in the order in which they were first entered

    @property
    def name(self) -> str:
        """As it calls itself, or else as the system does."""
        return self.metadata.get(PROCESS_NAME) or self.info.name


def merged(operations: Iterable[OperationTotal]) -> list[OperationTotal]:
    """Rows of the same names added up (a damaged trace may have several ids for "(unknown)"); others as they are."""
    found: dict[tuple[int, str, tuple[str, ...]], OperationTotal] = {}
    for operation in operations:
        key = (operation.pid, operation.phase, operation.path)
        before = found.get(key)
        found[key] = operation if before is None else _sum(before, operation)
    return list(found.values())


def _sum(left: OperationTotal, right: OperationTotal) -> OperationTotal:
    kinds = {**left.transitions}
    for kind, count in right.transitions.items():
        kinds[kind] = kinds.get(kind, 0) + count
    return OperationTotal(
        pid=left.pid,
        phase=left.phase,
        path=left.path,
        count=left.count + right.count,
        open_now=left.open_now + right.open_now,
        time_ns=_add(left.time_ns, right.time_ns),
        category_ns=_add(left.category_ns, right.category_ns),
        state_ns=_add(left.state_ns, right.state_ns),
        overhead_ns=_add(left.overhead_ns, right.overhead_ns),
        hits=left.hits + right.hits,
        transitions=kinds,
        gpu_ns=left.gpu_ns + right.gpu_ns,
        gpu_activities=left.gpu_activities + right.gpu_activities,
        cpu_gpu_ns=left.cpu_gpu_ns + right.cpu_gpu_ns,
        gpu_only_ns=left.gpu_only_ns + right.gpu_only_ns,
        sampled=left.sampled + right.sampled,
        activity_ns=_add(left.activity_ns, right.activity_ns),
        instances=left.instances + right.instances,
        queued=max(left.queued, right.queued, key=lambda queued: queued.count),
    )


def _add(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(left, right, strict=True))
