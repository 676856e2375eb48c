"""Snapshots: immutable pictures of the totals, made by the live model, drawn by the terminal UI."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlscope_ebpf.live.latest import Latest
from rlscope_ebpf.live.timeline import Timeline, no_timeline
from rlscope_ebpf.model.figures import NO_ACTIVITY
from rlscope_ebpf.model.instances import NO_INSTANCES, Instances
from rlscope_ebpf.model.iteration_figures import IterationTotal
from rlscope_ebpf.model.overlap import NO_OVERLAP, OverlapTotal
from rlscope_ebpf.model.phase_times import PhaseTime
from rlscope_ebpf.model.pids import Numbered
from rlscope_ebpf.model.sampling import NOT_SAMPLED, Sampled
from rlscope_ebpf.model.session import SessionInfo
from rlscope_ebpf.model.tables import Counters, Losses


@dataclass(frozen=True, slots=True)
class OperationRow:
    """Self time of one operation path in one phase of one process. Times are ns, summed over threads."""

    pid: int
    phase: str
    path: tuple[str, ...]  # outermost first; () is the time outside any operation
    count: int  # instances closed, and those open now
    open_now: int
    category_ns: tuple[int, ...]  # indexed by Category
    corrected_ns: tuple[int, ...]  # the same after overhead correction
    state_ns: tuple[int, ...]  # indexed by ThreadState
    gpu_ns: int
    resources_ns: dict[str, int]  # cpu_only, cpu_gpu, gpu_only, idle
    transitions: dict[str, int]  # "python_to_backend" -> calls
    gpu_activities: int = 0  # kernels, copies and sets that it launched
    queued_ns: int = 0  # from launch to start, of all of these that `queued` counts
    queued: int = 0
    sampled: Sampled = NOT_SAMPLED  # what of its time was told apart by samples; the rest is exact
    activity_ns: tuple[int, ...] = NO_ACTIVITY  # by category and activity, see OperationTotal.activity_ns
    instances: Instances = NO_INSTANCES  # how long they took, with nested operations

    @property
    def name(self) -> str:
        """Innermost name."""
        from rlscope_ebpf.model.categories import UNTRACKED

        return self.path[-1] if self.path else UNTRACKED

    @property
    def wall_ns(self) -> int:
        """Self time of all categories."""
        return sum(self.category_ns)


@dataclass(frozen=True, slots=True)
class CallRow:
    """Calls of one function, by name."""

    pid: int
    name: str
    count: int
    total_ns: int
    p50_ns: int
    p99_ns: int


@dataclass(frozen=True, slots=True)
class CopyRow:
    """Copies of one direction, or (direction "set") memory that was filled."""

    pid: int
    direction: str
    count: int
    total_ns: int
    bytes: int


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One GPU as one process uses it."""

    pid: int
    index: int
    busy_ns: int
    reported: float | None = None  # how busy its driver reports it to be, 0 to 1
    reported_own: float | None = None  # the same of this process's work alone
    asked_ns: int = 0  # the time of which these are means
    kernels: int = 0
    pause_ns: int = 0  # the longest time between two pieces of work


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One GPU, as all profiled processes together used it."""

    index: int  # the lowest number that a process gives it
    name: str  # empty: not known
    busy_ns: int  # what several do at once counted once
    kernels: int
    pause_ns: int
    reported: float | None
    asked_ns: int
    devices: tuple[DeviceRow, ...]  # as each process uses it


@dataclass(frozen=True, slots=True)
class ProcessRow(Numbered):
    """One process of the session."""

    pid: int
    ppid: int | None
    name: str
    command: tuple[str, ...]
    alive: bool
    threads: int
    phase: str
    steps: int  # progress reports
    step: int  # latest reported step
    total_steps: int  # 0: unknown
    start_ns: int
    end_ns: int  # now, if alive
    exit_status: int | None = None  # negative: the signal that ended it; None: alive, or not known
    gpu_ns: int = 0  # time in which some GPU worked for it
    phase_times: tuple[PhaseTime, ...] = ()  # by the clock, in the order in which phases were first entered
    namespace_pids: tuple[int, ...] = ()  # see ProcessInfo.namespace_pids


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything the screens show at one moment."""

    info: SessionInfo
    now_ns: int
    finished: bool
    events_per_s: float
    losses: Losses
    counters: Counters
    overhead_fraction: float  # estimated overhead / the target's time, see Totals.target_ns
    operations: tuple[OperationRow, ...] = ()
    cuda_calls: tuple[CallRow, ...] = ()
    gpu_kernels: tuple[CallRow, ...] = ()
    gpu_copies: tuple[CopyRow, ...] = ()
    gpu_devices: tuple[DeviceRow, ...] = ()
    gpus: tuple[GpuRow, ...] = ()
    processes: tuple[ProcessRow, ...] = ()
    phases: tuple[str, ...] = ()
    overhead_plausible: bool = True  # no more than the time that the target's threads ran
    iterations: tuple[IterationTotal, ...] = ()  # by process and phase, of processes that report progress
    overlap: OverlapTotal = NO_OVERLAP  # what was busy at all, of the session's time
    notices: tuple[str, ...] = field(default=())  # sentences for the user, oldest first; see ImportantNotice
    timeline: Timeline = field(default_factory=no_timeline)
    latest: dict[int, Latest] = field(default_factory=dict)  # by pid, of processes that report progress

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU has worked for any process."""
        return bool(self.gpu_kernels or self.gpu_copies or self.gpu_devices)

    @property
    def elapsed_ns(self) -> int:
        """Since the session's start."""
        return max(0, self.now_ns - self.info.start_ns)
