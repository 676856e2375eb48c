"""What the kernel accounts for each thread: TaskStats, through pyroute2."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlscope_ebpf.capture.privileges import ACCOUNTS, raise_in_thread

_ACCOUNTS_FOR_DISKS = Path("/proc/sys/kernel/task_delayacct")


@dataclass(frozen=True, slots=True)
class TaskAccount:
    """A thread's totals since it began, in ns; `time_ns` (CLOCK_MONOTONIC) is when they were read."""

    time_ns: int
    age_ns: int
    running_ns: int  # as precise as the scheduler itself, not counted in ticks
    runnable_ns: int
    disk_ns: int  # 0 unless the kernel accounts for it


def accounts_for_disks() -> bool:
    """Whether threads that begin now are accounted for the time in which they wait for block I/O."""
    try:
        return _ACCOUNTS_FOR_DISKS.read_text().strip() == "1"
    except OSError:  # before 5.14 it is chosen when the kernel starts, and on
        return True


class TaskAccounts:
    """Reads them. Importing pyroute2 takes half a second: make it where nobody waits.

    pyroute2's socket makes an event loop for each thread that uses it, and only closes that of the thread which closes
    the socket. So one thread does everything.

    Raises OSError or ImportError if there is no such interface.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "task-accounts")
        try:
            self._thread.submit(self._open).result()
        except BaseException:
            self._thread.shutdown()
            raise

    def _open(self) -> None:
        raise_in_thread(ACCOUNTS)
        from pyroute2.netlink.exceptions import NetlinkError
        from pyroute2.netlink.taskstats import TaskStats

        self._error: type[Exception] = NetlinkError
        self._socket: Any = TaskStats()
        try:
            self._socket.bind()
        except NetlinkError as error:
            self._socket.close()
            raise OSError(str(error)) from error

    def read(self, tid: int) -> TaskAccount | None:
        """None if there is no such thread any more."""
        return self._thread.submit(self._read, tid).result()

    def _read(self, tid: int) -> TaskAccount | None:
        try:
            message = self._socket.get_pid_stat(tid)[0]
            now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            stats = message.get_attr("TASKSTATS_TYPE_AGGR_PID").get_attr("TASKSTATS_TYPE_STATS")
            return TaskAccount(
                now,
                stats["ac_etime"] * 1000,
                stats["cpu_run_virtual_total"],
                stats["cpu_delay_total"],
                stats["blkio_delay_total"],
            )
        except (self._error, OSError, AttributeError, KeyError, IndexError):
            return None

    def close(self) -> None:
        """Close the socket. Safe to call twice."""
        with suppress(Exception):  # whatever it is, the figures have been read
            self._thread.submit(self._socket.close).result()
        self._thread.shutdown()
