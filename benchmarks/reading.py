"""How many events one core takes from the ring, decodes and matches; BCC's Python callback beside it."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks import bench_gpu, bench_matching
from benchmarks.engines import loaded_engine
from benchmarks.figures import Benchmark, Effort, Figure, Goal, Results
from benchmarks.processes import BenchmarkError, Target, load_target_module
from rlscope_ebpf.capture.bcc_import import load_bcc
from rlscope_ebpf.capture.compiler import EVENT_RING_BYTES
from rlscope_ebpf.capture.elf import ElfFile
from rlscope_ebpf.capture.engine import Engine
from rlscope_ebpf.capture.links import attach
from rlscope_ebpf.capture.maps import MapsWatcher
from rlscope_ebpf.capture.plan import Planner
from rlscope_ebpf.capture.probe_sites import probe_sites
from rlscope_ebpf.model.tables import ProcessInfo
from rlscope_ebpf.paths import marker_library, probes_dir
from rlscope_ebpf.session.context import SETTLE_NS
from rlscope_ebpf.session.matching import Matcher
from rlscope_ebpf.session.options import LibraryPattern, parse_library
from rlscope_ebpf.session.target import monotonic_ns

BCC_SOURCE = Path(__file__).parent / "native" / "records.bpf.c"
FILL_S = 1.0
BOUNDARY_RATE, MARKER_RATE = 900_000, 500_000
"""Events a second: together they stay below the ring's 1.6 million records."""

THREADS = 2  # of each process
BCC_EVENTS = 300_000  # a ring has room for five times as many
MATCHED_EVENTS = 2_000_000
MATCHED_BATCH = 200_000
FEWEST_EVENTS = 300_000
"""A ring with fewer says that the machine was too busy to fill it."""

GPU_GOAL = Goal("at least", 1)
GPU_SECONDS = (8, 4)  # of the simulated run, full and quick

FIGURES = (
    Figure("matched", "taken from the ring, decoded and matched", "M events/s", 2, Goal("at least", 2)),
    Figure("decoded", "taken from the ring and decoded", "M events/s", 2),
    Figure("bcc", "BCC's ring_buffer_consume, a Python callback each", "M events/s", 2),
    Figure("nested", "matched alone, 8 threads, nested operations (synthetic)", "M events/s", 2),
    Figure("gpu_eager", "GPU records matched and added up, 60 k kernels/s (synthetic)", "M records/s", 2, GPU_GOAL),
    Figure("gpu_graphs", "GPU records matched and added up, 265 k kernels/s in graphs", "M records/s", 2, GPU_GOAL),
    Figure("gpu_bytes", "GPU activity in a trace, 60 k kernels/s", "bytes a row", 2),
)

REMARKS = (
    "The session's own ring (64 MiB), filled by two programs of two threads each: one calls a probed function, one "
    "opens and closes operations; then emptied by the session's reader and matcher. Per second of CPU time, one core.",
    "GPU records are made up: launches and kernels of one stream, up to 0.3 s late, in no order; beside them the "
    "intervals of a thread, in eight operations.",
    "BCC's callback, on a ring and with records of the same size, reads three fields of each and keeps them.",
)


class _Record(ctypes.Structure):
    """`struct rls_event`, for BCC's callback."""

    _fields_ = (
        ("time_ns", ctypes.c_uint64),
        ("pid", ctypes.c_uint32),
        ("tid", ctypes.c_uint32),
        ("site", ctypes.c_uint32),
        ("kind", ctypes.c_uint8),
        ("category", ctypes.c_uint8),
        ("origin", ctypes.c_uint8),
        ("flags", ctypes.c_uint8),
        ("arg", ctypes.c_uint64),
    )


def measure(results: Results, effort: Effort) -> None:
    """Fill and empty the ring, again and again; then the synthetic events."""
    events = bench_matching.make_events(MATCHED_EVENTS)
    for _ in range(effort.of(5, 1)):
        results.add("nested", len(events) / bench_matching.seconds(events, MATCHED_BATCH) / 1e6)
    for _ in range(effort.of(5, 1)):
        for shape in bench_gpu.SHAPES:
            found = bench_gpu.measure(shape, effort.of(*GPU_SECONDS))
            results.add(f"gpu_{shape}", found["both"])
            if shape == "eager":
                results.add("gpu_bytes", found["bytes"])
    with loaded_engine() as engine:
        for _ in range(effort.of(7, 2)):
            _take(engine, results)
    results.add("bcc", *_bcc_rates(effort.of(3, 1)))


@contextmanager
def _filled(engine: Engine) -> Iterator[Matcher]:
    """The ring full of events, and a matcher that knows their processes."""
    build: Any = load_target_module("build")
    native = build.native()
    libraries = {"boundary": native / "libtruth_simulator_storm.so", "marker": marker_library()}
    rules: list[LibraryPattern] = [parse_library(f"simulator={libraries['boundary']}")]
    with ExitStack() as stack:
        matcher = Matcher(monotonic_ns())
        storms = []
        for kind, rate in (("boundary", BOUNDARY_RATE), ("marker", MARKER_RATE)):
            command = [native / "storm", "--kind", kind, "--library", libraries[kind], "--rate", str(rate)]
            target = stack.enter_context(Target([*command, "--seconds", str(FILL_S), "--threads", str(THREADS)]))
            plan = Planner(target.pid, rules).plan(MapsWatcher(target.pid).poll() or [])
            engine.add_target(target.pid, is_python=False, assume_held=False)
            sites = [site for planned in plan.targets for site in probe_sites(planned, allow_returns=True)]
            engine.attach(target.pid, sites)
            matcher.add_process(ProcessInfo(target.pid, None, kind, (), monotonic_ns(), is_python=False))
            storms.append(target)
        engine.follow_scheduler()
        lost = engine.counters().lost_events
        for target in storms:
            target.tell("go")
        for target in storms:
            target.answer(60)
            engine.remove_target(target.pid)
        engine.detach()  # and wait until that is done: nothing else may take CPU time now
        lost = engine.counters().lost_events - lost
        if lost:
            raise BenchmarkError(f"the ring was too small: {lost:,} events lost")
        if engine.pending_events() < FEWEST_EVENTS:
            raise BenchmarkError(f"only {engine.pending_events():,} events came")
        yield matcher


def _take(engine: Engine, results: Results) -> None:
    """One ring, as a session takes it."""
    reading = matching = 0.0
    count = 0
    with _filled(engine) as matcher:
        while engine.pending_events():
            begun = time.process_time()
            events = engine.read_events()
            decoded = time.process_time()
            matcher.add_texts(engine.read_texts())
            matcher.process(events, int(events["time_ns"].max()) - SETTLE_NS)
            matching += time.process_time() - decoded
            reading += decoded - begun
            count += len(events)
    results.add("decoded", count / reading / 1e6)
    results.add("matched", count / (reading + matching) / 1e6)


def _bcc_rates(rounds: int) -> Iterator[float]:
    """A ring of the same size, with records of the same size, through BCC: million events a second."""
    bcc = load_bcc()
    os.environ["BCC_KERNEL_SOURCE"] = str(probes_dir())
    flags = [f"-I{probes_dir()}", "-Wno-macro-redefined", f"-DRING_PAGES={EVENT_RING_BYTES // mmap.PAGESIZE}"]
    bpf = bcc.BPF(text=BCC_SOURCE.read_text(), cflags=flags)
    kept: list[tuple[int, int, int]] = []
    pointer = ctypes.POINTER(_Record)

    def callback(_context: Any, data: Any, _size: int) -> None:
        record = ctypes.cast(data, pointer).contents
        kept.append((record.time_ns, record.tid, record.kind))

    try:
        bpf["events"].open_ring_buffer(callback)
        native = load_target_module("build").native()
        library = native / "libtruth_simulator_storm.so"
        program = bpf.load_func("hit", bcc.BPF.KPROBE).fd
        with ElfFile(str(library)) as elf:
            offset = elf.offset_of(next(each.vaddr for each in elf.exports if each.name == "storm_step")) or 0
        for _ in range(rounds):
            kept.clear()
            command = [native / "storm", "--library", library, "--rate", str(2 * BCC_EVENTS / FILL_S)]
            with Target([*command, "--seconds", str(FILL_S)]) as target:
                link = attach("perf", program, str(library), [offset], [0], target.pid, returns=False)
                target.ask("go")
                link.close()
            begun = time.process_time()
            bpf.ring_buffer_consume()
            spent = time.process_time() - begun
            if len(kept) < BCC_EVENTS / 2:
                raise BenchmarkError(f"only {len(kept):,} events came")
            yield len(kept) / spent / 1e6
    finally:
        bpf.cleanup()


BENCHMARK = Benchmark("reading", "Events per second, one core", FIGURES, measure, REMARKS)
