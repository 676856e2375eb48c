"""The profiler's own priority, on which it depends how soon a new process is profiled."""

from __future__ import annotations

import os
from contextlib import suppress

NICE = -10
"""It gets a CPU a few milliseconds after it wants one, also where many programs compute all the time."""


def come_first() -> bool:
    """Let this thread, and those that it starts, have a CPU before programs that compute; whether that was new.

    It is not done if it is not permitted, or somebody chose a priority. All threads of a process had better be alike:
    one that has the interpreter lock and waits for a CPU keeps the others waiting, too.
    """
    with suppress(OSError):
        if os.getpriority(os.PRIO_PROCESS, 0) == 0 and os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.setpriority(os.PRIO_PROCESS, 0, NICE)
            return True
    return False


def come_as_usual() -> None:
    """The opposite, for this thread and those that it starts from now on."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
