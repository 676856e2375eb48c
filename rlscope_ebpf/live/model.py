"""The live model: a sink that adds up a session's batches and hands out snapshots of the sums."""

from __future__ import annotations

import threading
from collections import deque

from rlscope_ebpf.live.latest import LatestReports
from rlscope_ebpf.live.snapshot import CallRow, CopyRow, DeviceRow, GpuRow, OperationRow, ProcessRow, Snapshot
from rlscope_ebpf.live.timeline import TimelineTotals
from rlscope_ebpf.model.figures import DeviceTotal, GpuTotal, OperationTotal
from rlscope_ebpf.model.session import SessionEnd, SessionInfo
from rlscope_ebpf.model.tables import Batch
from rlscope_ebpf.model.totals import Totals

RATE_WINDOW_NS = 2_000_000_000
"""Events per second are an average over about this long."""

MAX_NOTICES = 100
"""The oldest notice is forgotten when there are more."""

_BEFORE_START = SessionInfo("", "", "", "", 0, 0)


class LiveModel:
    """A sink (`rlscope_ebpf.model.session.Sink`) that any other thread may ask for snapshots meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._info = _BEFORE_START
        self._totals = Totals()
        self._timeline = TimelineTotals()
        self._latest = LatestReports()
        self._received: deque[tuple[int, int]] = deque()  # (now_ns, events received until then)
        self._now_ns = 0
        self._finished = False
        self._notices: deque[str] = deque(maxlen=MAX_NOTICES)

    def start(self, info: SessionInfo) -> None:
        """Begin."""
        with self._lock:
            self._info = info
            self._totals.expect_gpu(info.gpu != "off")  # it may come later
            self._now_ns = info.start_ns
            self._received.append((info.start_ns, 0))

    def batch(self, batch: Batch) -> None:
        """Add a batch."""
        with self._lock:
            self._totals.add(batch)
            self._timeline.add(batch)
            self._latest.add(batch)
            if batch.gpu is not None:
                self._info = self._info.with_gpu(batch.gpu)
            for text in batch.notices:
                self._add_notice(text)
            self._now_ns = max(self._now_ns, batch.now_ns)
            self._received.append((self._now_ns, batch.counters.received))
            # The one at or before the window's start stays: the rate counts from there.
            while len(self._received) > 2 and self._received[1][0] <= self._now_ns - RATE_WINDOW_NS:
                self._received.popleft()

    def finish(self, end: SessionEnd) -> None:
        """The session is over."""
        with self._lock:
            self._finished = True
            self._totals.finish()
            self._now_ns = max(self._now_ns, end.end_ns)

    def notice(self, text: str) -> None:
        """Add a sentence for the user; one that is already there is not repeated. Any thread may call."""
        with self._lock:
            self._add_notice(text)

    def snapshot(self) -> Snapshot:
        """Everything at this moment. Any thread may call; takes a few ms for hundreds of operations."""
        with self._lock:
            totals = self._totals
            return Snapshot(
                info=self._info,
                now_ns=self._now_ns,
                finished=self._finished,
                events_per_s=0.0 if self._finished else self._rate(),
                losses=totals.missing(),
                counters=totals.counters,
                overhead_fraction=totals.overhead_fraction(),
                overhead_plausible=totals.overhead_is_plausible(),
                operations=tuple(_operation_row(operation) for operation in totals.operations()),
                cuda_calls=tuple(
                    CallRow(call.pid, call.name, call.count, call.total_ns, call.p50_ns, call.p99_ns)
                    for call in totals.cuda_calls()
                ),
                gpu_kernels=tuple(
                    CallRow(each.pid, each.name, each.ran.count, each.ran.total_ns, each.ran.p50_ns, each.ran.p99_ns)
                    for each in totals.gpu_kernels()
                ),
                gpu_copies=tuple(
                    CopyRow(copy.pid, copy.direction, copy.count, copy.total_ns, copy.bytes)
                    for copy in totals.gpu_copies()
                ),
                gpu_devices=tuple(map(_device_row, totals.gpu_devices())),
                gpus=tuple(map(_gpu_row, totals.gpus())),
                processes=self._process_rows(),
                iterations=tuple(totals.iterations()),
                overlap=totals.overlap(self._info.start_ns, self._now_ns),
                phases=totals.phases(),
                notices=tuple(self._notices),
                timeline=self._timeline.picture(),
                latest=self._latest.latest(),
            )

    def _add_notice(self, text: str) -> None:
        if text not in self._notices:
            self._notices.append(text)

    def _rate(self) -> float:
        if not self._received:
            return 0.0
        (since_ns, before), (until_ns, now) = self._received[0], self._received[-1]
        return max(0, now - before) * 1e9 / (until_ns - since_ns) if until_ns > since_ns else 0.0

    def _process_rows(self) -> tuple[ProcessRow, ...]:
        return tuple(
            ProcessRow(
                pid=process.info.pid,
                ppid=process.info.ppid,
                name=process.name,
                command=process.info.command,
                alive=process.info.end_ns is None,
                threads=process.threads,
                phase=process.phase,
                steps=process.steps,
                step=process.step,
                total_steps=process.total_steps,
                start_ns=process.info.start_ns,
                end_ns=max(
                    process.info.start_ns,  # of one that has just come: its time has not been handed out yet
                    self._now_ns if process.info.end_ns is None else process.info.end_ns,
                ),
                exit_status=process.info.exit_status,
                gpu_ns=process.gpu_ns,
                phase_times=process.phase_times,
                namespace_pids=process.info.namespace_pids,
            )
            for process in self._totals.processes()
        )


def _device_row(device: DeviceTotal) -> DeviceRow:
    return DeviceRow(
        device.pid,
        device.index,
        device.busy_ns,
        device.reported,
        device.reported_own,
        device.asked_ns,
        device.kernels,
        device.pause_ns,
    )


def _gpu_row(gpu: GpuTotal) -> GpuRow:
    return GpuRow(
        index=gpu.index,
        name="" if gpu.info is None else gpu.info.name,
        busy_ns=gpu.busy_ns,
        kernels=gpu.kernels,
        pause_ns=gpu.pause_ns,
        reported=gpu.reported,
        asked_ns=gpu.asked_ns,
        devices=tuple(map(_device_row, gpu.devices)),
    )


def _operation_row(operation: OperationTotal) -> OperationRow:
    return OperationRow(
        pid=operation.pid,
        phase=operation.phase,
        path=operation.path,
        count=operation.count,
        open_now=operation.open_now,
        category_ns=operation.category_ns,
        corrected_ns=operation.corrected_ns,
        state_ns=operation.state_ns,
        gpu_ns=operation.gpu_ns,
        resources_ns=operation.resources_ns,
        transitions=operation.transitions,
        gpu_activities=operation.gpu_activities,
        queued_ns=operation.queued.total_ns,
        queued=operation.queued.count,
        sampled=operation.sampled,
        activity_ns=operation.activity_ns,
        instances=operation.instances,
    )
