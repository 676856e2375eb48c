"""Programs that the kernel runs by a clock of the time that each CPU works."""

from __future__ import annotations

import statistics
import time
from contextlib import suppress

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


INTERRUPT_NS = 5_000.0
"""What an interrupt takes where it cannot be measured: 1 µs on bare metal, 10 or 20 µs in some virtual machines."""

_PLAUSIBLE_NS = (500.0, 40_000.0)
_PERIOD_NS = 100_000
_ROUNDS = 4
_ROUND_NS = 2_000_000


def interrupt_ns(prog_fd: int) -> float:
    """Measure what an interrupt of the clock takes of this thread's time, with a program that does nothing to it.

    Takes 16 ms.
    """
    found = []
    with suppress(OSError):
        for _ in range(_ROUNDS):
            plain = _turns()
            link = Link(
                list(
                    attach_perf_event(
                        prog_fd, _PERF_TYPE_SOFTWARE, _PERF_COUNT_SW_CPU_CLOCK, 0, pid=0, period=_PERIOD_NS
                    )
                )
            )
            try:
                interrupted = _turns()
            finally:
                link.close()
            found.append((1 - interrupted / plain) * _PERIOD_NS)
    if not found:
        return INTERRUPT_NS
    least, most = _PLAUSIBLE_NS
    return min(max(statistics.median(found), least), most)


def _turns() -> int:
    """How often this thread can read its clock in `_ROUND_NS` of its time."""
    turns, end = 0, time.thread_time_ns() + _ROUND_NS
    while time.thread_time_ns() < end:
        turns += 1
    return turns


def _online_cpus() -> set[int]:
    """`0-3,6` in a file: {0, 1, 2, 3, 6}."""
    with open("/sys/devices/system/cpu/online") as file:
        parts = [part.split("-") for part in file.read().strip().split(",")]
    return {cpu for part in parts for cpu in range(int(part[0]), int(part[-1]) + 1)}
