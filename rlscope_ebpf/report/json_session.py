"""Parts of the JSON report beyond the contract: iterations, phases by the clock, all processes together."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rlscope_ebpf.analysis.breakdown import Breakdown, Process
from rlscope_ebpf.analysis.processes import Sums, by_phase, summed
from rlscope_ebpf.model.categories import CATEGORY_NAMES
from rlscope_ebpf.model.instances import Instances
from rlscope_ebpf.model.iteration_figures import IterationTotal, SlowIteration
from rlscope_ebpf.model.iteration_words import excess, trend_sentence
from rlscope_ebpf.model.trend import Trend


def overlap(breakdown: Breakdown) -> dict[str, Any]:
    """What was busy, over all processes, of the session's time; the first four add up to `duration_ns`.

    `at_once_ns` are the times in which exactly one, two, … processes ran on CPUs (`cpu`), or a GPU worked for them.
    """
    found = breakdown.overlap
    return {
        "cpu_only_ns": found.cpu_only_ns,
        "cpu_gpu_ns": found.both_ns,
        "gpu_only_ns": found.gpu_only_ns,
        "neither_ns": found.neither_ns,
        "cpu_ns": found.cpu_ns,
        "gpu_ns": found.gpu_ns,
        "cpu_at_once_ns": list(found.cpu_at_once_ns),
        "gpu_at_once_ns": list(found.gpu_at_once_ns),
        "cpu_mean_at_once": found.mean_at_once,
        "gpu_mean_at_once": found.gpu_mean_at_once,
    }


def together(breakdown: Breakdown) -> dict[str, Any]:
    """The sums of all processes, and by the name of the phase that they were in."""
    operations = (operation.total for process in breakdown.processes for operation in process.operations)
    return {
        **_sums(summed(operations)),
        "phases": [{"name": name, **_sums(sums)} for name, sums in by_phase(breakdown).items()],
    }


def phases(process: Process) -> list[dict[str, Any]]:
    """The phases of a process: their threads' time, and when they were, by the clock."""
    times = {each.name: each for each in process.total.phase_times}
    found = []
    for phase in process.phases:
        clock = times.pop(phase.name, None)
        found.append(
            {
                "name": phase.name,
                "wall_ns": phase.wall_ns,
                "steps": phase.steps,
                "first_ns": None if clock is None else clock.first_ns,
                "duration_ns": 0 if clock is None else clock.total_ns,
                "entered": 0 if clock is None else clock.entered,
            }
        )
    return found


def iterations(total: IterationTotal) -> dict[str, Any]:
    """The iterations that ended in one phase; see `rlscope_ebpf.model.iteration_figures`."""
    return {
        "phase": total.phase,
        "count": total.count,
        "first_step": total.steps[0],
        "last_step": total.steps[1],
        "total_ns": total.total_ns,
        "min_ns": total.min_ns,
        "p50_ns": total.p50_ns,
        "p99_ns": total.p99_ns,
        "max_ns": total.max_ns,
        "cpu_ns": _by_category(total.category_ns),
        "corrected_cpu_ns": _by_category(total.corrected_ns),
        "typical_cpu_ns": _by_category(total.typical_ns),
        "sampled_ns": total.sampled.time_ns,
        "other_threads_running_ns": total.others_running_ns,
        "gpu_ns": total.gpu_ns,
        "gpu_iterations": total.gpu_iterations,
        "transitions": dict(total.transitions),
        "operations": [
            {"path": list(each.path), "total_ns": each.total_ns, "iterations": each.present, "p50_ns": each.p50_ns}
            for each in total.operations
        ],
        "trend": _trend(total.trend, trend_sentence(total)),
        "slowest": [_slow(total, slow) for slow in total.slowest],
    }


def instances(found: Instances) -> dict[str, Any]:
    """How long instances of an operation took, those that were seen from begin to end."""
    return asdict(found)


def _sums(sums: Sums) -> dict[str, Any]:
    return {
        "wall_ns": sums.wall_ns,
        "cpu_ns": _by_category(sums.category_ns),
        "corrected_cpu_ns": _by_category(sums.corrected_ns),
        "transitions": sums.transitions,
    }


def _trend(trend: Trend, sentence: str) -> dict[str, Any]:
    return {
        "direction": ("steady", "slower", "faster")[trend.direction],
        "sentence": sentence,
        "first_quarter_ns": trend.first_ns,
        "last_quarter_ns": trend.last_ns,
        "first_quarter_cpu_ns": _by_category(trend.first_category_ns),
        "last_quarter_cpu_ns": _by_category(trend.last_category_ns),
        "slope_ns": trend.per_iteration_ns,
        "z": trend.z,
        "bucket_iterations": trend.bucket_size,
        "bucket_mean_ns": list(trend.mean_ns),
    }


def _slow(total: IterationTotal, slow: SlowIteration) -> dict[str, Any]:
    more = excess(total, slow)
    return {
        "number": slow.number,
        "step": slow.step,
        "start_ns": slow.start_ns,
        "duration_ns": slow.duration_ns,
        "cpu_ns": _by_category(slow.category_ns),
        "overhead_ns": _by_category(slow.overhead_ns),
        "sampled_ns": slow.sampled.time_ns,
        "other_threads_running_ns": slow.others_running_ns,
        "gpu_ns": slow.gpu_ns,
        "transitions": dict(slow.transitions),
        "operations": [{"path": list(path), "ns": ns} for path, ns in slow.operations.items()],
        "more_than_usual": {
            "ns": more.total_ns,
            "category": None if more.category is None else CATEGORY_NAMES[more.category],
            "category_ns": more.category_ns,
            "path": None if more.path is None else list(more.path),
            "path_ns": more.path_ns,
        },
    }


def _by_category(values: tuple[int, ...] | tuple[float, ...]) -> dict[str, int | float]:
    return dict(zip(CATEGORY_NAMES, values, strict=False))
