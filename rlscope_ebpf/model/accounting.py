"""How far what the scheduler's events tell agrees with what the kernel has accounted for the same threads and times."""

from __future__ import annotations

from dataclasses import dataclass

from rlscope_ebpf.model.tables import Counters

LIMIT = 0.05
"""Above this difference (see `Compared.off`) the two do not agree."""

FLOOR = 0.01
"""Of the time: what is less is compared as if it were that much. Of very short waits events tell other parts."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure, from both."""

    name: str
    told_ns: int
    accounted_ns: int
    time_ns: int  # of the threads, all in all

    @property
    def off(self) -> float:
        """The difference, as a share of what was accounted, or of `FLOOR` of the time if that is more."""
        of_ns = max(self.accounted_ns, FLOOR * self.time_ns)
        return abs(self.told_ns - self.accounted_ns) / of_ns if of_ns else 0.0


@dataclass(frozen=True, slots=True)
class Accounting:
    """All that was compared."""

    threads: int
    left_out: int
    time_ns: int
    compared: tuple[Compared, ...]

    @property
    def agrees(self) -> bool:
        """Whether no figure is off by more than `LIMIT`, but for disks: of them the kernel itself may tell too much."""
        return all(each.off <= LIMIT for each in self.compared if each.name != "disk")


def accounting_of(counters: Counters) -> Accounting | None:
    """None if nothing could be compared."""
    if not counters.accounted_threads:
        return None
    time_ns = counters.accounted_time_ns
    compared = [
        Compared("running", counters.told_running_ns, counters.accounted_running_ns, time_ns),
        Compared("runnable", counters.told_runnable_ns, counters.accounted_runnable_ns, time_ns),
    ]
    if counters.accounted_disk:
        compared.append(Compared("disk", counters.told_disk_ns, counters.accounted_disk_ns, time_ns))
    return Accounting(counters.accounted_threads, counters.unaccounted_threads, time_ns, tuple(compared))
