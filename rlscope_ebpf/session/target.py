"""One profiled process: its libraries, its probes, and what it says about itself."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rlscope_ebpf.capture.engine import Attaching, ProbeSite
from rlscope_ebpf.capture.maps import MappedObject, MapsWatcher
from rlscope_ebpf.capture.placement import Setting
from rlscope_ebpf.capture.plan import Plan, Planner
from rlscope_ebpf.capture.pointers import ProcessMemory
from rlscope_ebpf.capture.process import TargetProcess
from rlscope_ebpf.capture.tasks import read_of_thread
from rlscope_ebpf.model.events import TEXT_MAX
from rlscope_ebpf.model.tables import ProbeInfo, ProcessInfo
from rlscope_ebpf.session.background import BackgroundPlan

Image = tuple[int, int, int]

_START_STACK = 25  # index of the field "startstack" of /proc/PID/stat, counted after the name
_CLOCK_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Attachment:
    """Probes of a target that are being set, in the background."""

    attaching: Attaching
    mapped: list[bool]  # of each site: its file is mapped, rather than expected

    @property
    def setting(self) -> Setting:
        """What the kernel has to do for it."""
        return self.attaching.setting


@dataclass(slots=True)
class Target:
    """State of one process in a session."""

    process: TargetProcess
    watcher: MapsWatcher
    pidfd: int
    planners: tuple[Planner, ...] = ()
    unplanned: list[MappedObject] = field(default_factory=list)  # found while attaching
    loads: int = 0  # what it had loaded when it was last looked at: Engine.loads
    replan: bool = False  # the planners have more to say of what is known already
    telling: bool = False  # whether any of its probes tells something by itself
    returning: list[ProbeInfo] = field(default_factory=list)  # probes with returns, but for CUDA's
    expected: list[tuple[ProbeSite, ProbeInfo]] = field(default_factory=list)  # probed before the file is mapped
    polled_ns: int = 0  # when its libraries were last looked at
    start_ns: int = 0  # when its probes were attached
    cpu_ns: int = 0
    runqueue_ns: int = 0
    end_ns: int | None = None
    image: Image | None = None  # what it ran when it was last looked at
    parent: int | None = None  # who forked it; None: whom /proc names
    planning: BackgroundPlan | None = None  # of a followed process: what is being planned for it
    attaching: list[Attachment] = field(default_factory=list)  # what has been planned, and is being set
    follows_gil: bool = False  # the interpreter lock is probed
    exit_ns: int | None = None  # when its main thread ended
    exit_status: int | None = None

    def __post_init__(self) -> None:
        self.image = read_image(self.pid)

    def has_ended(self) -> bool:
        """Whether it is gone, though perhaps not waited for by its parent."""
        poll = select.poll()  # select itself knows no descriptors beyond 1023
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Let go of it. Safe to call twice."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def end(self, time_ns: int) -> None:
        """It has ended: when the kernel told so, or, if it did not, at `time_ns`.

        Never before its beginning, which is the end of what was done to profile it: it may have ended meanwhile.
        """
        self.end_ns = max(self.start_ns, time_ns if self.exit_ns is None else self.exit_ns)

    def has_executed(self) -> bool:
        """Whether it runs another program than it did when it was last looked at."""
        return read_image(self.pid) not in (self.image, None)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def expects_returns(self) -> bool:
        """Whether a library is probed and not mapped yet whose calls are followed to their returns."""
        return any(site.returns for site, _ in self.expected)

    def info(self) -> ProcessInfo:
        """As sinks want it."""
        return ProcessInfo(
            pid=self.pid,
            ppid=self.process.ppid if self.parent is None else self.parent,
            name=self.process.name,
            command=self.process.command,
            start_ns=self.start_ns,
            end_ns=self.end_ns,
            exit_status=self.exit_status,
            is_python=self.process.is_python,
            namespace_pids=self.process.namespace_pids[1:],
        )

    def plan(self, objects: Sequence[MappedObject]) -> list[Plan]:
        """One plan of each planner, for newly mapped objects."""
        return [planner.plan(objects) for planner in self.planners]

    @property
    def is_told_of(self) -> bool:
        """Whether its threads' time can be told at all."""
        return self.telling or self.process.is_python

    def take_unplanned(self) -> list[MappedObject]:
        """The objects found while attaching, once."""
        found, self.unplanned = self.unplanned, []
        return found

    def cpu_time_ns(self) -> int:
        """CPU time of all its threads so far; the last known one once it is gone."""
        used = read_cpu_ns(self.pid)
        if used is not None:
            self.cpu_ns = used
        return self.cpu_ns

    def waited_ns(self) -> int:
        """How long its main thread has waited for a CPU so far; the last known time once it is gone."""
        try:
            with open(f"/proc/{self.pid}/schedstat", "rb") as file:
                self.runqueue_ns = int(file.read().split()[1])
        except (OSError, IndexError, ValueError):
            pass
        return self.runqueue_ns


def read_image(pid: int) -> Image | None:
    """What is another after each execve: the executable, and where the stack begins. None if the process is gone."""
    try:
        status = os.stat(f"/proc/{pid}/exe")
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return status.st_dev, status.st_ino, int(fields[_START_STACK])
    except (OSError, IndexError, ValueError):
        return None


def read_cpu_ns(pid: int) -> int | None:
    """CPU time of all threads that a process has and had; None once it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) * 1_000_000_000 // _CLOCK_TICK
    except (OSError, IndexError, ValueError):
        return None


def thread_name(pid: int, tid: int) -> str:
    """The name the system knows a thread by; its number if it is gone."""
    try:
        return read_of_thread(pid, tid, "comm").decode(errors="replace").strip()
    except OSError:
        return str(tid)


def sleeps(pid: int, tid: int) -> bool:
    """Whether a thread waits for something rather than runs or could run."""
    try:
        return read_of_thread(pid, tid, "stat").rpartition(b")")[2].split()[0] in (b"S", b"D")
    except (OSError, IndexError):
        return False


def read_names(pid: int, addresses: list[int]) -> list[str]:
    """Names at addresses in a process; unreadable ones are empty."""
    with ProcessMemory(pid) as memory:
        return [_text_at(memory, address) or "" for address in addresses]


def read_text(pid: int, address: int) -> str | None:
    """Text at an address in a process; None if it cannot be read."""
    with ProcessMemory(pid) as memory:
        return _text_at(memory, address)


def _text_at(memory: ProcessMemory, address: int) -> str | None:
    try:
        return memory.read(address, TEXT_MAX).split(b"\0")[0].decode("utf-8", "replace")
    except (OSError, ValueError, OverflowError):
        return None


def monotonic_ns() -> int:
    """CLOCK_MONOTONIC, the clock of every event."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
