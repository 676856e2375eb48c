"""Which threads run Python, where no probe tells it: looked for by the clock."""

from __future__ import annotations

from collections.abc import Iterable

from rlscope_ebpf.capture.elf import ElfFile
from rlscope_ebpf.capture.links import Link, attach_perf_event
from rlscope_ebpf.capture.maps import MappedObject, host_path
from rlscope_ebpf.capture.pointers import load_bias
from rlscope_ebpf.errors import ProfilerError

TICK_NS = 4_999_000
"""CPU time between two looks at what runs there: in no step with loops and timers of round numbers."""

LOOP = "_PyEval_EvalFrameDefault"
"""The function in which CPython runs Python; who runs in it holds the interpreter lock."""

_PERF_TYPE_SOFTWARE = 1
_PERF_COUNT_SW_CPU_CLOCK = 0
_EXCLUDE_KERNEL, _EXCLUDE_IDLE = 1 << 5, 1 << 7  # bits of perf_event_attr


def attach_ticks(prog_fd: int) -> Link:
    """Run a program every `TICK_NS` on every CPU, where that is in user space. Raises OSError."""
    link = Link([])
    try:
        for cpu in sorted(_online_cpus()):
            link.fds.extend(
                attach_perf_event(
                    prog_fd,
                    _PERF_TYPE_SOFTWARE,
                    _PERF_COUNT_SW_CPU_CLOCK,
                    0,
                    cpu=cpu,
                    period=TICK_NS,
                    flags=_EXCLUDE_KERNEL | _EXCLUDE_IDLE,
                )
            )
    except OSError:
        link.close()
        raise
    return link


def interpreter_loop(pid: int, objects: Iterable[MappedObject]) -> tuple[int, int] | None:
    """Begin and end of the interpreter's loop in a process that has `objects` mapped; None if none of them has it."""
    for mapped in objects:
        path = host_path(pid, mapped)
        if path is None:
            continue
        try:
            with ElfFile(path) as elf:
                if not elf.exports_any([LOOP]):
                    continue
                found = [function for function in elf.exports if function.name == LOOP]
                bias = load_bias(elf, mapped)
                if found and bias is not None:
                    start = found[0].vaddr + bias
                    return start, start + elf.size_of(found[0])
        except (ProfilerError, OSError):
            continue
    return None


def _online_cpus() -> set[int]:
    """`0-3,6` in a file: {0, 1, 2, 3, 6}."""
    with open("/sys/devices/system/cpu/online") as file:
        parts = [part.split("-") for part in file.read().strip().split(",")]
    return {cpu for part in parts for cpu in range(int(part[0]), int(part[-1]) + 1)}
