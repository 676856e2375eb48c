"""Deterministic snapshots and sources for the tests of the terminal UI."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np

from rlscope_ebpf.live.latest import Latest
from rlscope_ebpf.live.snapshot import CallRow, CopyRow, DeviceRow, OperationRow, ProcessRow, Snapshot
from rlscope_ebpf.live.timeline import BUCKET_NS, Timeline
from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.model.figures import ACTIVITIES
from rlscope_ebpf.model.iteration_figures import IterationOperation, IterationTotal, SlowIteration
from rlscope_ebpf.model.session import SessionInfo
from rlscope_ebpf.model.tables import Counters, Losses
from rlscope_ebpf.model.trend import NO_TREND, Trend
from rlscope_ebpf.tui.source import ReplayState

MS = 1_000_000
S = 1_000_000_000

INFO = SessionInfo(
    tool_version="0.1.0",
    host="trainer",
    kernel="6.18.0",
    started_at="2026-11-30T04:00:00Z",
    start_ns=100 * S,
    realtime_offset_ns=0,
    gpu="unavailable",
    gpu_reason="no CUPTI library was found",
    calibration={"calibrated": False},
)


def operation(
    path: tuple[str, ...],
    category_ms: tuple[int, int, int, int, int],
    count: int = 0,
    *,
    pid: int = 4242,
    phase: str = "training",
    open_now: int = 0,
    gpu_ms: int = 0,
    transitions: dict[str, int] | None = None,
) -> OperationRow:
    """A row whose corrected figures are 10 % below the raw ones, and which ran four fifths of its time."""
    raw = tuple(ms * MS for ms in category_ms)
    wall = sum(raw)
    return OperationRow(
        pid=pid,
        phase=phase,
        path=path,
        count=count,
        open_now=open_now,
        category_ns=raw,
        corrected_ns=tuple(ns * 9 // 10 for ns in raw),
        state_ns=(wall * 8 // 10, wall // 10, wall - wall * 8 // 10 - wall // 10),
        activity_ns=activities(raw),
        gpu_ns=gpu_ms * MS,
        resources_ns={},
        transitions=transitions or {},
    )


def activities(category_ns: tuple[int, ...]) -> tuple[int, ...]:
    """Four fifths of each category's time on a CPU, a tenth of it waiting for one, the rest for a lock and asleep."""
    found: list[int] = []
    for ns in category_ns:
        parts = dict.fromkeys(ACTIVITIES, 0) | {"running": ns * 8 // 10, "runnable": ns // 10, "lock": ns // 15}
        found += (parts | {"sleep": ns - sum(parts.values())}).values()
    return tuple(found)


OPERATIONS = (
    operation((), (420, 0, 15, 0, 180), phase="(default)"),
    operation(("rollout",), (2_310, 0, 160, 0, 95), 24, transitions={"python_to_backend": 120}),
    operation(("rollout", "inference"), (2_950, 0, 6_420, 880, 260), 49_152, open_now=1, gpu_ms=512,
              transitions={"python_to_backend": 1_130_496, "backend_to_cuda_api": 393_216,
                           "backend_to_python": 49_152}),
    operation(("rollout", "simulation"), (1_180, 7_860, 0, 0, 120), 49_152,
              transitions={"python_to_simulator": 49_152, "simulator_to_python": 0}),
    operation(("train",), (640, 0, 310, 0, 70), 24),
    operation(("train", "backpropagation"), (1_020, 0, 5_150, 1_940, 230), 1_920, gpu_ms=2_840,
              transitions={"python_to_backend": 82_560, "backend_to_cuda_api": 268_800}),
    operation(("train", "backpropagation", "optimizer_step"), (510, 0, 1_460, 720, 85), 1_920, gpu_ms=388,
              transitions={"python_to_backend": 23_040, "backend_to_cuda_api": 57_600}),
    operation(("evaluate",), (390, 1_240, 610, 85, 44), 12, phase="evaluation",
              transitions={"python_to_simulator": 12_000, "python_to_backend": 24_000}),
)  # fmt: skip

CALLS = (
    CallRow(4242, "cudaLaunchKernel", 587_520, 2_340 * MS, 3_400, 11_800),
    CallRow(4242, "cudaMemcpyAsync", 98_304, 870 * MS, 7_100, 42_000),
    CallRow(4242, "cudaStreamSynchronize", 49_152, 398 * MS, 5_900, 61_000),
    CallRow(4242, "cudaMalloc", 96, 12 * MS, 88_000, 1_240_000),
    CallRow(4242, "cudaEventRecord", 3_840, 5 * MS, 1_200, 2_600),
)

TRAINER = ProcessRow(4242, 1, "python3", ("python3", "train.py", "--env", "HalfCheetah-v5", "--algo", "ppo"), True, 9,
                     "training", 49_152, 49_152, 1_000_000, 100 * S, 142 * S)  # fmt: skip
WORKER = ProcessRow(4250, 4242, "worker-0", ("python3", "-c", "from multiprocessing.spawn import spawn_main"), True, 2,
                    "training", 0, 0, 0, 104 * S, 142 * S)  # fmt: skip
GONE = ProcessRow(4251, 4242, "worker-1", ("python3", "-c", "from multiprocessing.spawn import spawn_main"), False, 0,
                  "(default)", 0, 0, 0, 104 * S, 120 * S)  # fmt: skip


def running(**changes: Any) -> Snapshot:
    """A training run of one process, 42 s old."""
    snapshot = Snapshot(
        info=INFO,
        now_ns=142 * S,
        finished=False,
        events_per_s=68_214.4,
        losses=Losses(healed=2),
        counters=Counters(received=2_864_000, sent=2_864_000, hits=3_912_000, estimated_overhead_ns=1_350 * MS,
                          probes_attached=1024, probes_armed=1024),
        overhead_fraction=0.0321,
        operations=OPERATIONS,
        cuda_calls=CALLS,
        processes=(TRAINER,),
        phases=("(default)", "training", "evaluation"),
    )  # fmt: skip
    return replace(snapshot, **changes)


def empty() -> Snapshot:
    """Attached, nothing seen yet."""
    return running(operations=(), cuda_calls=(), phases=(), events_per_s=0.0, now_ns=101 * S, overhead_fraction=0.0,
                   processes=(replace(TRAINER, phase="(default)", steps=0, step=0, total_steps=0),))  # fmt: skip


def unmarked() -> Snapshot:
    """A process without markers."""
    return replace(empty(), operations=OPERATIONS[:1], events_per_s=1_204.0, phases=("(default)",), now_ns=107 * S)


def many(number: int = 60) -> Snapshot:
    """More operations than rows, nested deep, with long and wide names."""
    rows = [
        operation((f"stage_{n % 7}", f"operation number {n:02d} with a rather long name"),
                  (30 + n, 7 * (n % 5), 20 * (n % 4), n % 3, 5), 10 * n + 1)
        for n in range(number)
    ]  # fmt: skip
    path: tuple[str, ...] = ()
    for depth in range(9):
        path = (*path, f"level_{depth}")
        rows.append(operation(path, (900 - 90 * depth, 0, 40, 0, 10), 5))
    rows.append(operation(("模拟环境",), (100, 900, 0, 0, 3), 7))
    return running(operations=(*OPERATIONS, *rows))


def lossy() -> Snapshot:
    """The rings were too small, a probe is not armed, and the profiler says so."""
    return running(
        losses=Losses(events=123_456, late=78, healed=2),
        counters=replace(running().counters, probes_attached=1030, probes_armed=1024, probes_shed=4),
        notices=(
            "4 probes were given up to stay within the overhead budget of 5 %.",
            "The events ring was full for a moment: a larger one (--ring-size) would help.",
        ),
    )


def timeline(processes: tuple[ProcessRow, ...], now_ns: int = 142 * S, gpu: bool = False) -> Timeline:
    """A minute in which every process does one thing after the other, and the later ones less than the first."""
    buckets = 240
    busy_ns = np.zeros((len(processes), buckets, len(Category)), np.int64)
    gpu_ns = np.zeros((len(processes), buckets), np.int64)
    number = np.arange(buckets)
    at_ns = now_ns - (buckets - number) * BUCKET_NS
    for place, process in enumerate(processes):
        there = (at_ns >= process.start_ns) & (at_ns < process.end_ns)
        what = (number + 7 * place) // 20 % len(Category)
        part = BUCKET_NS // (1 + place % 4)
        busy_ns[place, number[there], what[there]] = part * 3 // 4
        busy_ns[place, there, Category.PYTHON] += part // 5
        if gpu and place == 0:
            gpu_ns[place, there] = BUCKET_NS * (number[there] % 9) // 8
    return Timeline(BUCKET_NS, now_ns // BUCKET_NS * BUCKET_NS, tuple(row.pid for row in processes), busy_ns, gpu_ns)


def family(workers: int = 64) -> Snapshot:
    """A trainer, helpers, and many workers, of which some came late and some have ended, one way or another."""
    trainer = replace(TRAINER, gpu_ns=4 * S)
    rollout = replace(WORKER, pid=4243, name="rollout-server", start_ns=100 * S)
    rows = [trainer, rollout]
    for number in range(workers):
        late_ns = 30 * S if number % 16 == 5 else 0
        ended = {3: 0, 7: 1, 11: -9}.get(number)
        rows.append(
            replace(
                WORKER, pid=4300 + number, ppid=4243, name=f"selfplay-{number:02d}", start_ns=104 * S + late_ns,
                alive=ended is None, exit_status=ended, end_ns=142 * S if ended is None else (130 + number) * S,
            )
        )  # fmt: skip
    operations = [*OPERATIONS, operation((), (3_000, 0, 0, 0, 37_000), pid=4243)]
    for row in rows[2:]:
        ms = 100 * (row.pid - 4299)
        operations += (
            operation((), (900, 0, 0, 0, 3_000), pid=row.pid),
            operation(("play", "simulation"), (ms, 3 * ms, 0, 0, 20), 50 * (row.pid % 9 + 1), pid=row.pid),
            operation(("play", "inference"), (200, 0, ms, 0, 10), 50, pid=row.pid, gpu_ms=4),
        )
    return running(
        processes=tuple(rows),
        operations=tuple(operations),
        gpu_devices=(DeviceRow(4242, 0, 4 * S),),
        timeline=timeline(tuple(rows), gpu=True),
    )


def iterations(pid: int = 4242, phase: str = "training", **changes: Any) -> IterationTotal:
    """Two thousand iterations that become slower; one took ten times as long, for the simulator's sake."""
    typical = (6 * MS, 9 * MS, 5 * MS, 0, 0)
    simulation = ("rollout", "simulation")
    spent = {simulation: 196 * MS, ("train",): 10 * MS, (): 4 * MS}
    took = (7 * MS, 195 * MS, 8 * MS, 0, 0)
    slow = SlowIteration(1_234, 30_850, 120 * S, 210 * MS, took, (0,) * 5, 0, {"python_to_simulator": 24}, spent)
    usual = (IterationOperation(simulation, 20 * S, 1_966, 9 * MS), IterationOperation(("train",), S, 1_966, 6 * MS))
    total = IterationTotal(
        pid=pid, phase=phase, count=1_966, total_ns=41 * S, min_ns=18 * MS, p50_ns=20 * MS, p99_ns=31 * MS,
        max_ns=210 * MS, category_ns=tuple(1_966 * ns for ns in typical), overhead_ns=(MS,) * 5, others_running_ns=0,
        transitions={"python_to_backend": 1_966 * 23, "python_to_simulator": 1_966 * 24}, typical_ns=typical,
        operations=usual, trend=Trend(16, (19e6, 20e6, 23e6), 19e6, 23e6, direction=1),
        slowest=(slow, replace(slow, duration_ns=20 * MS)), steps=(25, 49_152),
    )  # fmt: skip
    return replace(total, **changes)


def looping() -> Snapshot:
    """A trainer whose iterations are known, in two phases."""
    evaluation = iterations(phase="evaluation", count=12, p50_ns=150 * MS, trend=NO_TREND, slowest=())
    times = tuple(100 * S + n * 20 * MS + 4 * MS * (n % 7) for n in range(200))
    latest = Latest(times, tuple(44_177 + 25 * n for n in range(200)))
    return running(iterations=(iterations(), evaluation), latest={4242: latest})


def several() -> Snapshot:
    """Three processes."""
    worker = tuple(replace(row, pid=4250, path=row.path) for row in OPERATIONS[3:4])
    calls = (*CALLS, CallRow(4250, "cuLaunchKernel", 12, MS, 80_000, 90_000))
    kernels = (
        CallRow(4242, "ampere_sgemm_128x64_tn", 120_000, 1_900 * MS, 15_000, 31_000),
        CallRow(4242, "vectorized_elementwise_kernel<4, FillFunctor<float>>", 250_000, 740 * MS, 2_900, 4_100),
    )
    return running(
        processes=(TRAINER, WORKER, GONE),
        operations=(*OPERATIONS, *worker),
        cuda_calls=calls,
        gpu_kernels=kernels,
        timeline=timeline((TRAINER, WORKER, GONE)),
    )


def on_gpu() -> Snapshot:
    """The GPU is used and recorded."""
    rows = []
    for row in OPERATIONS:
        on_cpu, blocked = row.wall_ns - row.state_ns[2], row.state_ns[2]
        both, alone = min(row.gpu_ns, on_cpu) // 2, min(row.gpu_ns, blocked) // 3
        resources = {"cpu_only": on_cpu - both, "cpu_gpu": both, "gpu_only": alone, "idle": blocked - alone}
        activities = row.gpu_ns // 8_000
        rows.append(
            replace(
                row, resources_ns=resources, gpu_activities=activities, queued=activities, queued_ns=activities * 5_300
            )
        )
    add = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >"
    names = ("ampere_sgemm_128x64_tn", f"{add}(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)",
             "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::Adam>(int)")  # fmt: skip
    return running(
        info=replace(INFO, gpu="cupti", gpu_reason=""),
        operations=tuple(rows),
        gpu_kernels=tuple(
            CallRow(4242, name, 240_000 // (n + 1), 1_700 * MS // (n + 1), 15_000 // (n + 2), 31_000)
            for n, name in enumerate(names)
        ),
        gpu_copies=(
            CopyRow(4242, "host_to_device", 98_304, 410 * MS, 3_221_225_472),
            CopyRow(4242, "device_to_host", 49_152, 120 * MS, 12_582_912),
            CopyRow(4242, "set", 1_920, 6 * MS, 125_829_120),
        ),
        gpu_devices=(DeviceRow(4242, 0, 3_670 * MS), DeviceRow(4242, 1, 70 * MS)),
    )


def finished() -> Snapshot:
    """The process has exited."""
    return running(finished=True, events_per_s=0.0, processes=(replace(TRAINER, alive=False),))


class FakeSource:
    """Hands out one snapshot; counts the questions, and can fail or take its time."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.current = snapshot
        self.asked = 0
        self.error: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()

    def snapshot(self) -> Snapshot:
        """The snapshot, once the gate is open."""
        self.asked += 1
        self.gate.wait(10)
        if self.error is not None:
            raise self.error
        return self.current


class FakeReplay(FakeSource):
    """A replay that remembers what it was told."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self.told: list[tuple[str, float]] = []
        self.now = ReplayState(playing=False, speed=1.0, position_ns=42 * S, duration_ns=42 * S)

    def play(self) -> None:
        """Remember."""
        self.told.append(("play", 0))
        self.now = replace(self.now, playing=True)

    def pause(self) -> None:
        """Remember."""
        self.told.append(("pause", 0))
        self.now = replace(self.now, playing=False)

    def seek(self, fraction: float) -> None:
        """Remember."""
        self.told.append(("seek", round(fraction, 3)))
        self.now = replace(self.now, position_ns=int(fraction * self.now.duration_ns))

    def speed(self, factor: float) -> None:
        """Remember."""
        self.told.append(("speed", factor))
        self.now = replace(self.now, speed=factor)

    def state(self) -> ReplayState:
        """What was told."""
        return self.now
