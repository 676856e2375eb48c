"""Programs that the kernel runs by a clock of the time that each CPU works."""

from __future__ import annotations

from rlscope_ebpf.capture.links import Link, attach_perf_event

EXCLUDE_KERNEL, EXCLUDE_IDLE = 1 << 5, 1 << 7  # bits of perf_event_attr

_PERF_TYPE_SOFTWARE = 1
_PERF_COUNT_SW_CPU_CLOCK = 0


def attach_clock(prog_fd: int, period_ns: int, flags: int) -> Link:
    """Run a program on every CPU each time that it has worked for `period_ns`. Raises OSError."""
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
                    period=period_ns,
                    flags=flags,
                )
            )
    except OSError:
        link.close()
        raise
    return link


def _online_cpus() -> set[int]:
    """`0-3,6` in a file: {0, 1, 2, 3, 6}."""
    with open("/sys/devices/system/cpu/online") as file:
        parts = [part.split("-") for part in file.read().strip().split(",")]
    return {cpu for part in parts for cpu in range(int(part[0]), int(part[-1]) + 1)}
