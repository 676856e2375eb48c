"""What a report says of the GPU: nothing for a process that uses none."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import RenderableType
from rich.text import Text

from rlscope_ebpf.analysis.breakdown import Breakdown, Phase, Process
from rlscope_ebpf.model import format as fmt
from rlscope_ebpf.model.figures import DeviceTotal, GpuTotal
from rlscope_ebpf.model.gpu_words import disagreement, shared_disagreement
from rlscope_ebpf.report.tables import NOTHING, WIDE, add_figures, new_table

MAX_KERNELS = 20
"""Kernels shown per process."""

Share = Callable[[float], str]

_RESOURCES = {"cpu_only": "CPU ONLY", "cpu_gpu": "CPU + GPU", "gpu_only": "GPU ONLY", "idle": "IDLE"}
_NARROW_RESOURCES = {"cpu_only": "CPU\nONLY", "cpu_gpu": "CPU +\nGPU", "gpu_only": "GPU\nONLY", "idle": "IDLE"}
# Columns of a table beside its names, (narrow, wide).
_RESOURCE_FIGURES = (44, 86)
_KERNEL_FIGURES = (37, 62)


def used_by(phase: Phase) -> bool:
    """Whether anything in the phase launched work of a GPU, or ran while one worked."""
    return any(
        operation.total.gpu_activities or operation.total.cpu_gpu_ns or operation.total.gpu_only_ns
        for operation in phase.operations
    )


def resources(phase: Phase, width: int, share: Share, operations: int) -> Iterator[RenderableType]:
    """Per operation: what was busy in its time, and the GPU's work that it launched."""
    if not used_by(phase):
        return
    wide = width >= WIDE
    found = new_table(gap=2 if wide else 1)
    found.add_column("RESOURCES", no_wrap=True, overflow="ellipsis", min_width=12)
    titles = (*_RESOURCES.values(), "GPU WORK", "LAUNCHED", "QUEUED", "99 %")
    for title in titles if wide else (*_NARROW_RESOURCES.values(), "GPU\nWORK", "QUEUED"):
        add_figures(found, title)
    for operation in phase.operations[:operations]:
        total, parts = operation.total, operation.total.resources_ns
        shares = (share(parts[key] / operation.wall_ns) if parts[key] else NOTHING for key in _RESOURCES)
        work = launched = queued = longest = NOTHING
        if total.gpu_activities:
            work, launched = fmt.duration(total.gpu_ns), fmt.count(total.gpu_activities)
        if total.queued.count:
            queued, longest = fmt.duration(total.queued.mean_ns), fmt.duration(total.queued.p99_ns)
        name, room = fmt.path(total.path), width - _RESOURCE_FIGURES[wide]
        name = name if len(name) <= room else "…" + name[1 - room :]  # what tells paths apart is at their end
        found.add_row(name, *shares, work, *((launched, queued, longest) if wide else (queued,)))
    yield Text()
    yield found


def kernels(process: Process, width: int) -> Iterator[RenderableType]:
    """The kernels that took longest."""
    if not process.gpu_kernels:
        return
    wide = width >= WIDE
    found = new_table()
    found.add_column("GPU KERNELS", no_wrap=True, overflow="ellipsis", min_width=12)
    for title in ("COUNT", "TOTAL", "MEAN", *(("MEDIAN", "99 %") if wide else ()), "QUEUED"):
        add_figures(found, title)
    for kernel in process.gpu_kernels[:MAX_KERNELS]:
        ran, queued = kernel.ran, kernel.queued
        found.add_row(
            fmt.shorten(fmt.printable(fmt.kernel(kernel.name)), width - _KERNEL_FIGURES[wide]),
            fmt.count(ran.count),
            fmt.duration(ran.total_ns),
            fmt.duration(ran.mean_ns),
            *((fmt.duration(ran.p50_ns), fmt.duration(ran.p99_ns)) if wide else ()),
            fmt.duration(queued.mean_ns) if queued.count else NOTHING,
        )
    yield Text()
    yield found
    hidden = process.gpu_kernels[MAX_KERNELS:]
    if hidden:
        rest = fmt.duration(sum(kernel.ran.total_ns for kernel in hidden))
        yield Text(f"… and {fmt.plural(len(hidden), 'more kernel')}, {rest}; --format json has all of them.", "dim")


def copies(process: Process) -> Iterator[RenderableType]:
    """Copies by direction."""
    if not process.gpu_copies:
        return
    found = new_table()
    found.add_column("GPU COPIES", no_wrap=True)
    for title in ("COUNT", "TOTAL", "MEAN", "BYTES", "BYTES/S"):
        add_figures(found, title)
    for copy in process.gpu_copies:
        found.add_row(
            fmt.direction(copy.direction),
            fmt.count(copy.count),
            fmt.duration(copy.total_ns),
            fmt.duration(copy.total_ns / copy.count),
            fmt.size(copy.bytes),
            f"{fmt.size(round(copy.bytes * 1e9 / copy.total_ns))}/s" if copy.total_ns else NOTHING,
        )
    yield Text()
    yield found


def devices(process: Process, share: Share, *, alone: bool = True) -> Iterator[RenderableType]:
    """How long each GPU worked for the process. `alone`: no other process used any."""
    if not process.gpu_devices:
        return
    found = new_table()
    found.add_column("GPU", no_wrap=True)
    reports = any(device.reported is not None for device in process.gpu_devices)
    for title in ("BUSY", "OF THE TIME", *(("NVML REPORTS",) if reports else ()), "LONGEST PAUSE"):
        add_figures(found, title)
    for device in process.gpu_devices:
        part = share(device.busy_ns / process.duration_ns) if process.duration_ns else NOTHING
        said = (_reported(device.reported),) if reports else ()
        found.add_row(
            f"device {device.index}", fmt.duration(device.busy_ns), part, *said, fmt.duration(device.pause_ns)
        )
    yield Text()
    yield found
    for device in process.gpu_devices if alone else ():
        sentence = disagreement(device)
        if sentence:
            yield Text(sentence)


def shared(breakdown: Breakdown, share: Share) -> Iterator[RenderableType]:
    """What several processes made of each GPU, and what its driver reports: nothing where only one process uses any."""
    if not is_shared(breakdown):
        return
    names = {
        process.total.info.pid: f"{_name(process)} {process.total.info.pid_pair}" for process in breakdown.processes
    }
    found = new_table()
    found.add_column("GPU", no_wrap=True, overflow="ellipsis", min_width=12)
    reports = any(gpu.reported is not None for gpu in breakdown.gpus)
    for title in (*(("NVML\nREPORTS", "REALLY\nBUSY") if reports else ("BUSY",)), "KERNELS", "LONGEST\nPAUSE"):
        add_figures(found, title)
    for gpu in breakdown.gpus:
        span_ns = gpu.asked_ns or breakdown.duration_ns
        name = fmt.printable(gpu.info.name) if gpu.info is not None else ""
        rows: list[tuple[str, DeviceTotal | GpuTotal, float | None]] = [
            (f"device {gpu.index}{f', {name}' if name else ''}", gpu, gpu.reported)
        ]
        rows += [(f"  {names.get(device.pid, device.pid)}", device, device.reported_own) for device in gpu.devices]
        for label, used, reported in rows:
            busy = share(min(1.0, used.busy_ns / span_ns)) if span_ns else NOTHING
            said = (_reported(reported),) if reports else ()
            found.add_row(label, *said, busy, fmt.count(used.kernels), fmt.duration(used.pause_ns))
    yield Text()
    yield found
    for gpu in breakdown.gpus:
        sentence = shared_disagreement(gpu)
        if sentence:
            yield Text(sentence)


def is_shared(breakdown: Breakdown) -> bool:
    """Whether several processes used GPUs."""
    return sum(process.uses_gpu for process in breakdown.processes) > 1


def _name(process: Process) -> str:
    return fmt.printable(process.total.name)


def _reported(share: float | None) -> str:
    return NOTHING if share is None else fmt.percent(share)
