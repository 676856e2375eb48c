"""The GPU in a session: the helper in each target, what it tells, and what is to be said of it."""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.capture.demangle import demangled
from rlscope_ebpf.capture.gpu import GpuListener, GpuPreparation, GpuRead, read_status
from rlscope_ebpf.capture.gpu_files import HELPER_PREFIX, LIBRARY_VARIABLE
from rlscope_ebpf.capture.gpu_injection import Way, ways
from rlscope_ebpf.capture.gpu_layout import Function, HelperState, HelperStatus
from rlscope_ebpf.capture.maps import MappedObject, host_path
from rlscope_ebpf.capture.nvml import Utilization
from rlscope_ebpf.errors import ProfilerError
from rlscope_ebpf.model.gpu import GPU_RECORD_DTYPE, IS_WORK, NO_CUDA, NO_USE, GpuKind
from rlscope_ebpf.model.rows import joined
from rlscope_ebpf.model.tables import Batch, DeviceInfo, GpuSource, ImportantNotice
from rlscope_ebpf.session.gpu import GpuMatcher
from rlscope_ebpf.session.gpu_launch import LaunchedHelper
from rlscope_ebpf.session.gpu_loading import Loading, foreign_injection
from rlscope_ebpf.session.gpu_sentences import (
    NO_ANSWER,
    another_injected,
    clock_is_behind,
    cupti_python_costs,
    cupti_python_needs_run,
    cut_short,
    foreign_came,
    gdb_stops,
    nobody_loads,
    not_active,
    was_loaded,
    what_went_wrong,
)
from rlscope_ebpf.session.options import GpuMode
from rlscope_ebpf.session.registry import Registry
from rlscope_ebpf.session.target import Target, monotonic_ns
from rlscope_ebpf.session.thread_ids import ThreadIds

LAST_S = 0.35
"""So long after the end the helper is still listened to: it hands out what the GPU has done ten times a second."""

QUEUED_NS = 2_000_000_000
"""What was launched in the last moments may still be in a queue when a session ends before its targets do."""

SETTLING_NS = 1_000_000_000
"""A target that loads CUDA while it is watched has so long to start it before the helper comes."""

RECENT_NS = 2_000_000_000
"""CUDA in a target is noticed within so long."""

TELL_NS = 2_000_000_000
"""So often it is handed out how busy the driver reports GPUs to be."""

LAUNCH_COST_NS = 3_000.0
"""What CUPTI and the helper take at a launch, in a program: 30 launches in 0.85 ms took 10 to 11 % of it."""

GRAPH_KERNEL_COST_NS = 500.0
"""The same for each further kernel of a graph."""

PYTHON_COST_NS = 25_000.0
"""For each record that cupti-python makes a Python object of."""

FRESH_NS = 1_000_000_000
"""What began longer ago was kept until somebody came, and tells nothing of what is taken now."""

_READS = 16  # at a time: each is 8 MB at most
_CUDA = ("libcuda.so", "libcudart.so", HELPER_PREFIX)
_CUPTI = "libcupti.so"
_GPU_DEVICE = Path("/dev/nvidiactl")
_LOST = ("dropped", "lost_launches")
_INVALID = ("zero_time", "reversed_time", "out_of_range")


def expects_gpu(mode: GpuMode, launched: LaunchedHelper | None) -> bool:
    """Whether a command that is to be started may be expected to use a GPU."""
    there = _GPU_DEVICE.exists() or bool(os.environ.get(LIBRARY_VARIABLE))
    return mode != "off" and launched is not None and bool(launched.path) and there


@dataclass(slots=True)
class _Watched:
    """A target that may have a helper."""

    target: Target
    uses_cuda: bool = False
    mapped: MappedObject | None = None  # the helper
    attached_ns: int = 0  # when its probes were set; 0: they are not
    status: HelperStatus | None = None
    base: dict[str, int] = field(default_factory=dict)  # counters before this session
    was_active: bool = False
    problem: str = ""
    cuda_seen_ns: int = 0  # when libcuda was found; 1: it was there at the attach
    loading: Loading | None = None
    loaded: bool = False  # or tried to
    was_there: bool = False  # the helper, before it was loaded
    thread_ids: ThreadIds | None = None
    cupti: list[MappedObject] = field(default_factory=list)  # every copy, not guarded yet
    foreign: set[Function] = field(default_factory=set)  # what others have called


class GpuWatch:
    """Finds the helper in targets, listens to it, and adds what it tells to the session's batches.

    Not thread-safe. `notices` gets sentences for the user. Nothing here ever ends a session: what does not work is a
    sentence, and the rest of the profile goes on.
    """

    def __init__(
        self,
        mode: GpuMode,
        preparation: GpuPreparation,
        registry: Registry,
        notices: list[str],
        launched: LaunchedHelper | None = None,
    ) -> None:
        """`preparation` belongs to the watch from then on."""
        self._mode = mode
        self._notices = notices
        self._launched = launched
        self._watched: dict[int, _Watched] = {}
        self._preparation = preparation
        self._capture: GpuListener | None = None
        self._matcher = GpuMatcher(registry, host_tid=self._host_tid)
        self._problem = ""  # of the session as a whole
        self._told: GpuSource | None = None
        self._kept: list[GpuRead] = []
        self._recent: deque[tuple[int, NDArray[np.void]]] = deque()  # time, intervals
        self._received = 0  # activities of the GPU
        self._spent_ns = 0.0
        self._ended: set[int] = set()  # targets that had ended before the session did
        self._simulated = False
        self._last = False
        self._utilization = Utilization()
        self._device_ids: dict[tuple[int, int], int] = {}
        self._devices_told_ns = 0

    @property
    def source(self) -> GpuSource:
        """Where GPU times come from, as far as is known."""
        if self._mode == "off":
            return GpuSource("off")
        reason = self._problem or next((each.problem for each in self._watched.values() if each.problem), "")
        if any(each.was_active for each in self._watched.values()):
            return GpuSource("simulated" if self._simulated else "cupti", reason)
        if not reason:
            used = NO_ANSWER if self._mode == "cupti-python" else NO_USE
            reason = used if any(each.uses_cuda for each in self._watched.values()) else NO_CUDA
        return GpuSource("unavailable", reason)

    @property
    def spent_ns(self) -> float:
        """Time that the records which have come so far have taken from the targets, about."""
        return self._spent_ns

    def look(self, target: Target, new: Iterable[MappedObject]) -> None:
        """Take note of what a target has newly mapped, and go on with what has been begun."""
        if self._mode == "off":
            return
        watched = self._watched.get(target.pid)
        first = watched is None
        if watched is None:
            watched = self._watched[target.pid] = _Watched(target, thread_ids=ThreadIds(target.process))
            if self._launched is not None:
                self._preparation.wait()  # if it was begun: the command is held, and nothing of it shall be missed
        refused = self._launched is not None and not self._launched.works
        for mapped in new:
            if mapped.name.startswith(_CUDA):
                if not refused:
                    self._preparation.begin()
                if mapped.name.startswith("libcuda.so") and not watched.uses_cuda:
                    watched.uses_cuda = True
                    watched.cuda_seen_ns = 1 if first else monotonic_ns()
                if mapped.name.startswith(HELPER_PREFIX):
                    watched.mapped = mapped
            elif mapped.name.startswith(_CUPTI):
                watched.cupti.append(mapped)
        if self._launched is not None and refused and watched.uses_cuda:
            watched.problem = self._launched.obstacle
        self._go_on(watched)

    def advance(self, batch: Batch, *, last: bool = False, queued_since_ns: int | None = None) -> None:
        """Add what came to a batch that is about to be handed out; it has its losses and counters already.

        `last`: it is the session's last one; launches after `queued_since_ns` may then be without activity.
        """
        if self._mode == "off":
            return
        for watched in self._watched.values() if not last else ():
            self._go_on(watched)
        self._read()
        records, pids = self._take(batch.now_ns if last else None)
        if self._preparation.begun:
            for _, rows in self._recent:
                self._matcher.remember(rows)
            self._recent.clear()
            self._matcher.advance(batch, records, pids, read_ns=monotonic_ns(), last=last, queued_ns=queued_since_ns)
        else:
            self._remember(batch)
        if last:
            self._conclude()
        self._tell_devices(batch, last)
        source = self.source
        if source != self._told:
            batch.gpu = self._told = source

    def settle(self) -> None:
        """At the session's end: wait for what the GPU has done until now."""
        # Afterwards all have an end: that of the session.
        self._ended = {pid for pid, each in self._watched.items() if each.target.end_ns is not None}
        running = [each for each in self._watched.values() if each.target.end_ns is None and self._is_active(each)]
        for pid, each in self._watched.items():
            if self._capture is not None and each.target.end_ns is not None:
                self._capture.settle(pid)
        deadline = time.monotonic() + (LAST_S if running else 0)
        while True:
            self._read()
            if time.monotonic() >= deadline:
                break
            time.sleep(0.02)

    def close(self) -> None:
        """Listen no more; helpers go dormant by themselves."""
        for watched in self._watched.values():
            if watched.loading is not None:
                watched.loading.close()
        if self._capture is not None:
            self._capture.close()
            self._capture = None
        self._preparation.close()
        self._utilization.close()

    def _tell_devices(self, batch: Batch, last: bool) -> None:
        """Ask how busy GPUs are that work for a target, and hand that out now and then."""
        for pid, watched in self._watched.items():
            if watched.target.end_ns is not None:
                self._utilization.forget(pid)
            elif self._is_active(watched):
                self._utilization.watch(pid)
        if not last and batch.now_ns < self._devices_told_ns + TELL_NS:
            return
        self._devices_told_ns = batch.now_ns
        for each in self._utilization.reported():
            number = self._device_ids.setdefault((each.pid, each.index), len(self._device_ids) + 1)
            batch.definitions.append(
                DeviceInfo(
                    number,
                    each.pid,
                    each.index,
                    each.name,
                    each.since_ns,
                    each.until_ns,
                    each.samples,
                    each.percent,
                    each.uuid,
                    each.own_samples,
                    each.own_percent,
                )
            )

    # Steps

    def _go_on(self, watched: _Watched) -> None:
        if not self._preparation.begun or watched.problem or watched.target.end_ns is not None:
            return
        if self._capture is None:
            try:
                self._capture = self._preparation.take()
            except ProfilerError as error:
                self._give_up(watched, error)
            if self._capture is None:
                return
        if watched.loading is not None:
            self._see_loading(watched, watched.loading)
        if watched.attached_ns:
            self._ask(watched)
            self._guard(watched)
        elif watched.mapped is not None:
            path = host_path(watched.target.pid, watched.mapped)
            status = read_status(watched.target.pid, watched.mapped)
            watched.base = status.counters if status is not None and self._launched is None else {}
            if path is not None and self._listen(watched, path) and self._launched is None and not _works(status):
                self._load(watched)
        elif self._launched is not None:
            if self._launched.works:
                self._listen(watched, self._launched.path)
        elif watched.uses_cuda and monotonic_ns() >= watched.cuda_seen_ns + SETTLING_NS:
            self._load(watched)

    def _load(self, watched: _Watched) -> None:
        """Have the helper loaded into a target that ran before us, or one that is in there started again."""
        if watched.loaded:
            return
        watched.loaded = True
        watched.was_there = watched.mapped is not None
        pid = watched.target.pid
        if self._mode == "cupti-python":
            watched.problem = cupti_python_needs_run(pid)
            self._notices.append(watched.problem)
            return
        foreign = foreign_injection(pid)
        if foreign:
            watched.problem = another_injected(pid, foreign)
            self._notices.append(watched.problem)
            return
        chosen = ways(watched.target.process, allow_gdb=self._mode == "cupti")
        if not chosen:
            watched.problem = nobody_loads(pid, gdb_allowed=self._mode == "cupti")
            self._notices.append(watched.problem)
            return
        if chosen[0] == Way.GDB:
            self._notices.append(gdb_stops(pid))
        try:
            loading = Loading(watched.target.process, chosen)
        except ProfilerError as error:
            self._give_up(watched, error)
            return
        if watched.attached_ns or self._listen(watched, loading.host_path):
            watched.loading = loading
            loading.begin()
        else:
            loading.close()

    def _see_loading(self, watched: _Watched, loading: Loading) -> None:
        if not loading.over:
            return
        watched.loading = None
        loading.close()
        if loading.error is not None:
            self._give_up(watched, loading.error)
            assert self._capture is not None
            self._capture.detach(watched.target.pid)
        elif loading.result is not None:
            self._notices.append(was_loaded(watched.target.pid, loading.result.way.value, watched.was_there))

    def _listen(self, watched: _Watched, path: str) -> bool:
        assert self._capture is not None
        try:
            self._capture.attach(watched.target.pid, path)
        except ProfilerError as error:
            self._give_up(watched, error)
            return False
        except OSError as error:
            if error.errno != errno.ESRCH:  # the process ends at this moment: that is no problem
                self._give_up(watched, ProfilerError(f"The GPU helper cannot be probed: {error.strerror}.", ""))
            return False
        watched.attached_ns = monotonic_ns()
        return True

    def _ask(self, watched: _Watched) -> None:
        """Look at the helper's memory if it has not said what it does: it may have failed before we came."""
        if watched.status is None and watched.mapped is not None and not self._is_active(watched):
            status = read_status(watched.target.pid, watched.mapped)
            if status is not None and status.state >= HelperState.FOREIGN:
                self._hear(watched, status)

    def _guard(self, watched: _Watched) -> None:
        """Once the helper uses CUPTI, hear of others that want to."""
        if not watched.cupti or not self._is_active(watched):
            return
        assert self._capture is not None
        pid = watched.target.pid
        for path in filter(None, (host_path(pid, mapped) for mapped in watched.cupti)):
            with suppress(ProfilerError, OSError):  # then others are not heard of
                self._capture.guard(pid, path)
        watched.cupti.clear()

    def _give_up(self, watched: _Watched, error: ProfilerError) -> None:
        watched.problem = f"{error.problem} {error.remedy}".strip()
        self._notices.append(watched.problem)

    def _is_active(self, watched: _Watched) -> bool:
        return watched.status is not None and watched.status.state == HelperState.ACTIVE

    # What came

    def _read(self) -> None:
        if self._capture is None:
            return
        for _ in range(_READS):
            part = self._capture.read()
            for name in part.names:
                self._matcher.add_name(name.pid, name.id, demangled(name.text))
            for status in part.statuses:
                if status.pid in self._watched:
                    self._hear(self._watched[status.pid], status)
            for each in part.foreign:
                watched = self._watched.get(each.pid)
                if watched is not None and each.called not in watched.foreign:
                    watched.foreign.add(each.called)
                    self._notices.append(ImportantNotice(foreign_came(each.pid, each.called)))
            if not part.batches:
                break
            self._kept.append(part)
        losses = self._capture.losses()
        self._matcher.set_lost("ring", losses.lost_records + losses.unreadable_records)

    def _remember(self, batch: Batch) -> None:
        """While no target has CUDA, keep what would be needed if one had it by now and we had not seen it yet."""
        self._matcher.define(batch.definitions)
        if "intervals" in batch.tables:
            self._recent.append((batch.now_ns, batch.tables["intervals"]))
        while self._recent and self._recent[0][0] < batch.now_ns - RECENT_NS:
            self._recent.popleft()

    def _take(self, until_ns: int | None) -> tuple[NDArray[np.void], NDArray[np.uint32]]:
        """All records that have been read; of those that began later than `until_ns`, none."""
        batches = [batch for part in self._kept for batch in part.batches]
        self._kept.clear()
        if not batches:
            return np.zeros(0, GPU_RECORD_DTYPE), np.zeros(0, np.uint32)
        records = joined([batch.records for batch in batches])
        pids = np.repeat(
            np.array([batch.pid for batch in batches], np.uint32), [len(batch.records) for batch in batches]
        )
        if until_ns is not None:
            inside = np.flatnonzero(records["start_ns"] <= until_ns)
            records, pids = np.take(records, inside), pids[inside]
        self._received += int(np.count_nonzero(IS_WORK[records["kind"]]))
        kinds = records["kind"][records["start_ns"].astype(np.int64) > monotonic_ns() - FRESH_NS]
        work, launches = int(np.count_nonzero(IS_WORK[kinds])), int(np.count_nonzero(kinds == GpuKind.LAUNCH))
        if self._mode == "cupti-python":
            self._spent_ns += PYTHON_COST_NS * len(kinds)
        else:
            self._spent_ns += LAUNCH_COST_NS * launches + GRAPH_KERNEL_COST_NS * max(0, work - launches)
        return records, pids

    def _hear(self, watched: _Watched, status: HelperStatus) -> None:
        watched.status = status
        self._simulated |= status.simulated
        if status.state == HelperState.ACTIVE and not watched.was_active:
            watched.was_active = True
            if self._mode == "cupti-python":
                self._notices.append(cupti_python_costs(status.pid))
        since = {name: value - watched.base.get(name, 0) for name, value in status.counters.items()}
        self._matcher.set_lost(status.pid, sum(since[name] for name in _LOST), sum(since[name] for name in _INVALID))
        if not watched.problem and status.state >= HelperState.FOREIGN:
            watched.problem = not_active(status)
            self._notices.append(watched.problem)

    def _conclude(self) -> None:
        """What is only known at the end."""
        if self._last:
            return
        self._last = True
        if self._matcher.behind:
            self._notices.append(clock_is_behind(self._matcher.behind, self._matcher.most_behind_ns))
        for watched in self._watched.values():
            if watched.status is not None and watched.was_active:
                since = {name: value - watched.base.get(name, 0) for name, value in watched.status.counters.items()}
                self._notices += map(ImportantNotice, what_went_wrong(watched.target.pid, since))
        cut = [pid for pid, each in self._watched.items() if pid in self._ended and self._is_active(each)]
        if cut and self._mode != "cupti-python":
            self._notices.append(cut_short(cut))

    def _host_tid(self, pid: int, tid: int) -> int:
        watched = self._watched.get(pid)
        return watched.thread_ids(tid) if watched is not None and watched.thread_ids is not None else tid


def _works(status: HelperStatus | None) -> bool:
    return status is not None and status.state in (HelperState.STARTING, HelperState.ACTIVE)
