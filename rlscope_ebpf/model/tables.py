"""The tables that the session hands to its sinks and that a trace stores. Times are ns of CLOCK_MONOTONIC."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, IntFlag

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.gpu import GPU_DTYPE
from rlscope_ebpf.model.pids import Numbered

INTERVAL_DTYPE = np.dtype(
    [
        ("thread", "<u4"),  # ThreadInfo.id
        ("path", "<u4"),  # PathInfo.id; 0: outside any operation
        ("phase", "<u4"),  # StringInfo.id; 0: no phase named yet
        ("site", "<u4"),  # ProbeInfo.id of the event that opened it, or 0
        ("start_ns", "<u8"),
        ("duration_ns", "<u8"),
        ("hits", "<u4"),  # probe hits on this thread charged to this interval (the opening one and silent ones)
        ("overhead_ns", "<u4"),  # of the duration, the estimated cost of probe hits
        ("category", "u1"),  # Category
        ("origin", "u1"),  # Category before
        ("state", "u1"),  # ThreadState
        ("opened", "u1"),  # Opened
        ("wait", "u1"),  # Wait, where it is blocked
        ("sampled", "u1"),  # 1: `category` is only what the probes that are set can tell; samples tell more
    ]
)
"""One row per stretch of a thread's time in which operation, phase, category and state stay the same.

Rows of one thread are in order, do not overlap and leave no gap between the thread's first event and its end.
"""


class SpanFlag(IntFlag):
    """Flags of an operation span."""

    OPEN_AT_START = 1  # began before the profiler came; start_ns is the attach time
    CUT_AT_END = 2  # still open at detach or thread exit; end_ns is that time


SPAN_DTYPE = np.dtype(
    [
        ("thread", "<u4"),
        ("path", "<u4"),
        ("phase", "<u4"),
        ("flags", "<u4"),  # SpanFlag
        ("start_ns", "<u8"),
        ("end_ns", "<u8"),
    ]
)
"""One row per closed (or cut) operation instance, in order of closing."""


class MarkKind(IntEnum):
    """Kinds of a mark."""

    PHASE = 1  # a: StringInfo.id of the phase
    PROGRESS = 2  # a: step, b: total (0: unknown)
    METADATA = 3  # a: StringInfo.id of the key, b: StringInfo.id of the value


MARK_DTYPE = np.dtype([("thread", "<u4"), ("kind", "<u4"), ("time_ns", "<u8"), ("a", "<u8"), ("b", "<u8")])
"""One row per phase change, progress report or piece of metadata."""

SAMPLE_ROW_DTYPE = np.dtype(
    [("thread", "<u4"), ("path", "<u4"), ("phase", "<u4"), ("time_ns", "<u8"), ("category", "u1")]
)
"""One row per sample that fell into a `sampled` interval, in order of time per thread: what the thread ran then."""

TABLES: dict[str, np.dtype[np.void]] = {
    "intervals": INTERVAL_DTYPE,
    "spans": SPAN_DTYPE,
    "marks": MARK_DTYPE,
    "gpu": GPU_DTYPE,
    "samples": SAMPLE_ROW_DTYPE,
}
"""Every table by its name in a trace; sinks treat tables alike."""


@dataclass(frozen=True, slots=True)
class ProcessInfo(Numbered):
    """A process, defined before any of its threads. Sent again when something of it becomes known (end, name)."""

    pid: int
    ppid: int | None
    name: str
    command: tuple[str, ...]
    start_ns: int  # when profiling of it began
    end_ns: int | None = None
    exit_status: int | None = None
    is_python: bool = True
    namespace_pids: tuple[
        int, ...
    ] = ()  # its numbers in pid namespaces inside of the profiler's, from the outer one on


@dataclass(frozen=True, slots=True)
class ThreadInfo:
    """A thread; `id` counts from 1 within the session."""

    id: int
    pid: int
    tid: int
    name: str


@dataclass(frozen=True, slots=True)
class StringInfo:
    """A text that rows refer to; `id` counts from 1, 0 is the empty text."""

    id: int
    text: str


@dataclass(frozen=True, slots=True)
class PathInfo:
    """A nesting of operations: `name` (StringInfo.id) inside `parent` (PathInfo.id, 0 at the top)."""

    id: int
    parent: int
    name: int


@dataclass(frozen=True, slots=True)
class ProbeInfo:
    """A probe site. `id` counts from 1."""

    id: int
    group: str  # marker, cuda, boundary, reentry, gil, catch
    category: int  # Category it enters
    library: str  # path as the target sees it
    symbol: str
    offset: int  # file offset of the probed instruction
    site_class: str  # nop5, emulated, stepped: what a hit costs depends on it
    method: str  # session, multi, perf
    armed: bool


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A GPU as one process numbers it, and how busy its driver reports it to be: sent again as that goes on."""

    id: int
    pid: int
    index: int  # as the process numbers its devices
    name: str
    since_ns: int  # between these two the driver was asked again and again
    until_ns: int
    samples: int  # so often
    reported: int  # sum of its answers, percent
    uuid: str = ""  # which GPU it is, whatever number a process gives it; empty: not known
    own_samples: int = 0  # so often the driver also told how busy it was with this process's work; 0: it does not tell
    own_reported: int = 0  # sum of these answers, percent

    @property
    def own_utilization(self) -> float | None:
        """Mean of the answers about this process's work alone, 0 to 1; None if there are none."""
        return self.own_reported / (100 * self.own_samples) if self.own_samples else None

    @property
    def utilization(self) -> float | None:
        """Mean of the answers, 0 to 1; None if there are none."""
        return self.reported / (100 * self.samples) if self.samples else None


@dataclass(frozen=True, slots=True)
class Losses:
    """Running totals of what is missing; every figure counts from the session's start."""

    events: int = 0  # the events ring was full
    texts: int = 0  # the texts ring was full
    gpu_records: int = 0  # GPU activity that never came: dropped by CUPTI, by the helper, or because a ring was full
    unmatched: int = 0  # ends without a begin
    healed: int = 0  # returns never seen, closed by stack pointer
    threads: int = 0  # the per-thread map was full
    truncated_names: int = 0  # names (not calls) of the full 127 bytes: longer ones are cut to that
    late: int = 0  # events that came after their time had been handed out
    not_followed: int = 0  # calls whose time counts as their caller's: too deep, or made while libraries were loading
    gpu_invalid: int = 0  # GPU records whose times cannot be true
    gpu_unmatched: int = 0  # GPU activity whose launch is not known: charged to no operation
    gpu_late: int = 0  # GPU activity told of so late that its time is missing in unions; whoever adds up counts it
    samples: int = 0  # looks of the sampling clock whose result found no room: shares rest on the others
    gpu_launches: int = 0  # launches of which no activity came: of nothing (an empty copy), or it was lost
    gpu_ambiguous: int = 0  # GPU activity of threads without operations for which several threads may have waited

    def as_dict(self) -> dict[str, int]:
        """Field name → count."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Counters:
    """Running totals of work done, for the header and the overhead figure."""

    received: int = 0  # events read from the ring
    sent: int = 0  # events the probes wanted to send: received + lost once the ring is drained
    hits: int = 0  # probe hits, also those that made no event
    hits_by_class: dict[str, int] = field(default_factory=dict)  # "<site_class>/<entry|return>" → hits
    estimated_overhead_ns: int = 0  # hits x cost of their class
    probes_attached: int = 0
    probes_armed: int = 0
    probes_shed: int = 0
    gpu_records: int = 0  # GPU records read from the ring, launches and names included
    gpu_matched: int = 0  # GPU activities whose launch was found
    samples: int = 0  # looks of the sampling clock at the targets
    gpu_early: int = 0  # GPU activities that were launched before recording began
    gpu_inherited: int = 0  # GPU activities charged to the operation of the thread that waited for the launching one
    # What the scheduler's events tell, and what the kernel has accounted (TaskStats), of the same threads and times.
    accounted_threads: int = 0  # 0: nothing could be compared
    unaccounted_threads: int = 0  # the others: they ended before, or were heard of too late
    accounted_time_ns: int = 0  # of these threads, all of it
    told_running_ns: int = 0
    accounted_running_ns: int = 0
    told_runnable_ns: int = 0
    accounted_runnable_ns: int = 0
    told_disk_ns: int = 0
    accounted_disk_ns: int = 0
    accounted_disk: int = 0  # 1: the kernel does account for that (kernel.task_delayacct)
    in_place: dict[str, int] = field(default_factory=dict)  # see model.in_place


Definition = ProcessInfo | ThreadInfo | StringInfo | PathInfo | ProbeInfo | DeviceInfo


class ImportantNotice(str):
    """A notice without which figures would be misread: screens show it before all others."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence for the user, and when it was said."""

    text: str
    time_ns: int
    important: bool = False

    @property
    def sentence(self) -> str:
        """As batches carry it."""
        return ImportantNotice(self.text) if self.important else self.text


@dataclass(frozen=True, slots=True)
class GpuSource:
    """Where GPU times come from, as far as is known by now."""

    mode: str  # as `SessionInfo.gpu`
    reason: str = ""  # a sentence, if there is something to say


@dataclass(slots=True)
class Batch:
    """What one turn of the session produced. Definitions come before the rows that use them."""

    now_ns: int  # everything before this moment has been handed out
    definitions: list[Definition] = field(default_factory=list)
    tables: dict[str, NDArray[np.void]] = field(default_factory=dict)
    losses: Losses = field(default_factory=Losses)
    counters: Counters = field(default_factory=Counters)
    notices: list[str] = field(default_factory=list)  # sentences for the user, each in one batch; see ImportantNotice
    gpu: GpuSource | None = None  # if it has changed: the latest one stands for the whole session
