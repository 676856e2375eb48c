"""`report --format json`: report.schema.json beside this file is the contract; further keys are explained here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from typing import Any

from rlscope_ebpf.analysis.breakdown import Breakdown, Operation, Process
from rlscope_ebpf.model.categories import CATEGORY_NAMES, ThreadState
from rlscope_ebpf.model.durations import Durations
from rlscope_ebpf.model.figures import CallTotal, GpuTotal, KernelTotal, OperationTotal, by_activity
from rlscope_ebpf.model.sampling import CONFIDENCE
from rlscope_ebpf.report import json_session

SCHEMA_NAME = "rlscope-ebpf.report/1"
GPU_MODES = ("cupti", "simulated", "unavailable", "off")


def schema() -> dict[str, Any]:
    """The contract, as a JSON schema."""
    value: dict[str, Any] = json.loads(schema_text())
    return value


def schema_text() -> str:
    """The same as it is written."""
    return resources.files(__package__).joinpath("report.schema.json").read_text(encoding="utf-8")


def report_text(breakdown: Breakdown) -> str:
    """The report as JSON text, ASCII only, with a newline at its end."""
    return json.dumps(report_dict(breakdown), indent=2) + "\n"


def report_dict(breakdown: Breakdown) -> dict[str, Any]:
    """The report as plain values. Times are ns.

    Beyond the contract: `session` has `problems` (what is missing or damaged, in sentences), `loss_fraction` (of the
    events that the probes wanted to send), `shares_refused` (so much is missing that no percentage should be made of
    these figures), `gpu_records_inherited` (activities that a thread without operations launched while one other thread
    waited for it, whose operation they are charged to) and `gpu_loss_fraction` (of the GPU's records); an operation has
    `inclusive_ns` (with nested operations), `open_now`, `state_ns` and `hits`; a process has its phases, threads,
    progress and metadata. Of the GPU: an operation's `gpu_activities`, and how long they were `queued` from launch to
    start (of a graph the first counts), the same per kernel; a process's `gpu_copies` by direction ("set": memory
    filled) and `gpu_ns`, in which some GPU worked for it; a device's `reported_utilization` is 0 to 1, whoever's work
    that was, the mean over `reported_ns`, and `reported_own_utilization` the driver's word of this process's work
    alone, null if it gives none; `longest_pause_ns` is the longest time between two pieces of work. `gpus` has the same
    of each GPU, whatever numbers processes give it, for all of them together: what several do at once counts once.
    `overhead` is `plausible` as long as it is no more than the time that the
    target's threads ran; only otherwise `fraction` may be above 1. `notices` are the sentences that the profiler had
    for the user, each with its time; the `important` ones say that something is counted differently from then on.

    What an operation's threads were doing, `activities_ns`, adds up to its raw wall time, and within each category to
    the category's: `running`, `runnable` (waiting for a CPU), or blocked, waiting for a `lock`, for `io` (pipes,
    sockets), for `disk` (files), in a `sleep`, for the `gpu` (in a CUDA call) or for something `other`.
    `quality.scheduler` compares that with the kernel's own accounting (TaskStats) of the threads that could be
    compared, null if there was none: of the same `time_ns`, what was `told` and what was `accounted`; `off` is the
    difference as a share of what was accounted, or of a hundredth of the time if that is more; it `agrees` while none
    is above 0.05, but for the disk's, of which kernels from 6.12 on tell too much where threads compete for a CPU.

    Of several processes, `overlap` says how much of the session's time anything was busy at all, and `total` is the sum
    of all; both are explained in `rlscope_ebpf.report.json_session`. A process's `phases` have, beside their threads'
    time, the time by the clock; its `iterations` are those that ended in each phase, from one progress report to the
    next: times by category (`cpu_ns`) and operation are those of the thread that reports and add up to the duration,
    transitions and `gpu_ns` (of `gpu_iterations` of them) those of all threads; `slowest` have what they spent
    `more_than_usual` on, beyond the medians of all. An operation's `instances` are whole ones, with what is nested in
    them.

    `session.mode` is how time was told apart: trace, sample or auto. An operation's `sampled` is null if all of its
    times are exact; otherwise it says of how much of its time (`time_ns`) samples told the category, how many there
    were of each, and between which times each category's `raw` one lies with this `confidence`. Wall times, counts,
    states and GPU times are exact in any case.
    """
    info, end = breakdown.info, breakdown.end
    return {
        "schema": SCHEMA_NAME,
        "session": {
            "host": info.host,
            "kernel": info.kernel,
            "tool_version": info.tool_version,
            "started_at": info.started_at,
            "ended_at": None if end is None else end.ended_at,
            "end_reason": None if end is None else end.reason,
            "duration_ns": breakdown.duration_ns,
            "complete": breakdown.complete,
            "problems": list(breakdown.problems),
            "gpu": info.gpu if info.gpu in GPU_MODES else "unavailable",
            "gpu_reason": info.gpu_reason,
            "probes_attached": breakdown.counters.probes_attached,
            "probes_armed": breakdown.counters.probes_armed,
            "events_received": breakdown.counters.received,
            "events_sent": breakdown.counters.sent,
            "loss_fraction": breakdown.loss_fraction,
            "shares_refused": breakdown.shares_refused,
            "gpu_records_received": breakdown.counters.gpu_records,
            "gpu_records_inherited": breakdown.counters.gpu_inherited,
            "gpu_loss_fraction": breakdown.gpu_loss_fraction,
            "mode": info.capture.get("mode", "trace"),
            "samples": breakdown.counters.samples,
        },
        "losses": breakdown.losses.as_dict(),
        "overhead": {
            "probe_hits": breakdown.overhead.probe_hits,
            "estimated_ns": breakdown.overhead.estimated_ns,
            "fraction": breakdown.overhead.fraction,
            "plausible": breakdown.overhead.plausible,
            "calibrated": breakdown.overhead.calibrated,
            "probes_shed": breakdown.overhead.probes_shed,
            "overcorrected_ns": breakdown.overhead.overcorrected_ns,
            "in_place": [asdict(cost) for cost in breakdown.overhead.in_place],
        },
        "quality": {"scheduler": _scheduler(breakdown)},
        "overlap": json_session.overlap(breakdown),
        "total": json_session.together(breakdown),
        "notices": [
            {"text": notice.text, "time_ns": notice.time_ns, "important": notice.important}
            for notice in breakdown.notices
        ],
        "processes": [_process(process) for process in breakdown.processes],
        "gpus": [_gpu(gpu) for gpu in breakdown.gpus],
    }


def _scheduler(breakdown: Breakdown) -> dict[str, Any] | None:
    found = breakdown.accounting
    if found is None:
        return None
    return {
        "source": "TaskStats",
        "threads": found.threads,
        "threads_left_out": found.left_out,
        "time_ns": found.time_ns,
        **{
            each.name: {"told_ns": each.told_ns, "accounted_ns": each.accounted_ns, "off": each.off}
            for each in found.compared
        },
        "agrees": found.agrees,
    }


def _process(process: Process) -> dict[str, Any]:
    total, info = process.total, process.total.info
    return {
        "pid": info.pid,
        "ppid": info.ppid,
        "namespace_pids": list(info.namespace_pids),
        "name": total.name,
        "command": list(info.command),
        "start_ns": info.start_ns,
        "end_ns": process.end_ns,
        "exit_status": info.exit_status,
        "wall_ns": process.wall_ns,
        "threads": total.threads,
        "steps": total.steps,
        "step": total.step,
        "total_steps": total.total_steps,
        "metadata": total.metadata,
        "phases": json_session.phases(process),
        "iterations": [json_session.iterations(each) for each in process.iterations],
        "operations": [_operation(operation) for operation in process.operations],
        "cuda_api": [_call(call) for call in process.cuda_calls],
        "gpu_ns": total.gpu_ns,
        "gpu_kernels": [_kernel(kernel) for kernel in process.gpu_kernels],
        "gpu_copies": [
            {
                "direction": copy.direction,
                "count": copy.count,
                "total_ns": copy.total_ns,
                "bytes": copy.bytes,
            }
            for copy in process.gpu_copies
        ],
        "gpu_devices": [
            {
                "index": device.index,
                "busy_ns": device.busy_ns,
                "reported_utilization": device.reported,
                "reported_own_utilization": device.reported_own,
                "reported_ns": device.asked_ns,
                "kernels": device.kernels,
                "longest_pause_ns": device.pause_ns,
            }
            for device in process.gpu_devices
        ],
    }  # fmt: skip


def _gpu(gpu: GpuTotal) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "name": "" if gpu.info is None else gpu.info.name,
        "uuid": "" if gpu.info is None else gpu.info.uuid,
        "busy_ns": gpu.busy_ns,
        "kernels": gpu.kernels,
        "longest_pause_ns": gpu.pause_ns,
        "reported_utilization": gpu.reported,
        "reported_ns": gpu.asked_ns,
        "processes": [device.pid for device in gpu.devices],
    }


def _operation(operation: Operation) -> dict[str, Any]:
    total = operation.total
    return {
        "name": operation.name,
        "path": list(total.path),
        "phase": total.phase,
        "count": total.count,
        "open_now": total.open_now,
        "inclusive_ns": operation.inclusive_ns,
        "corrected": _times(total, total.corrected_ns),
        "raw": _times(total, total.category_ns),
        "activities_ns": total.activities_ns,
        "activities_by_category_ns": {
            name: by_activity(total.activity_ns, category) for category, name in enumerate(CATEGORY_NAMES)
        },
        "state_ns": {state.name.lower(): total.state_ns[state] for state in ThreadState},
        "hits": total.hits,
        "gpu_activities": total.gpu_activities,
        "queued": _durations(total.queued),
        "transitions": dict(total.transitions),
        "instances": json_session.instances(total.instances),
        "sampled": _sampled(total) if total.sampled.time_ns else None,
    }


def _sampled(total: OperationTotal) -> dict[str, Any]:
    return {
        "time_ns": total.sampled.time_ns,
        "samples": dict(zip(CATEGORY_NAMES, total.sampled.samples, strict=True)),
        "confidence": CONFIDENCE,
        "cpu_ns": {name: list(bounds) for name, bounds in zip(CATEGORY_NAMES, total.bounds_ns, strict=True)},
    }


def _times(total: OperationTotal, category_ns: Sequence[int]) -> dict[str, Any]:
    return {
        "wall_ns": sum(category_ns),
        "cpu_ns": dict(zip(CATEGORY_NAMES, category_ns, strict=True)),
        "gpu_ns": total.gpu_ns,
        "resources_ns": total.resources_of(sum(category_ns)),
    }


def _kernel(kernel: KernelTotal) -> dict[str, Any]:
    return {"name": kernel.name, **_durations(kernel.ran), "queued": _durations(kernel.queued)}


def _durations(found: Durations) -> dict[str, int]:
    return {"count": found.count, "total_ns": found.total_ns, "p50_ns": found.p50_ns, "p99_ns": found.p99_ns}


def _call(call: CallTotal) -> dict[str, Any]:
    return {
        "name": call.name,
        "count": call.count,
        "total_ns": call.total_ns,
        "p50_ns": call.p50_ns,
        "p99_ns": call.p99_ns,
    }
