"""Thread ids of a process that lives in a pid namespace of its own, as the profiler sees them."""

from __future__ import annotations

import os
import re

from rlscope_ebpf.capture.process import TargetProcess

_NSPID = re.compile(rb"^NSpid:((?:\t\d+)+)$", re.MULTILINE)


class ThreadIds:
    """A function: id of a thread as the process's innermost namespace numbers it -> as the profiler does."""

    def __init__(self, process: TargetProcess) -> None:
        self._pid = process.pid
        self._differs = len(process.namespace_pids) > 1
        self._known: dict[int, int] = {}

    def __call__(self, tid: int) -> int:
        """The thread's id here; of one that has ended unseen, what the process calls it."""
        if self._differs and tid not in self._known:
            self._look()
        return self._known.get(tid, tid)

    def _look(self) -> None:
        try:
            threads = os.listdir(f"/proc/{self._pid}/task")
        except OSError:
            return
        for thread in threads:
            try:
                with open(f"/proc/{self._pid}/task/{thread}/status", "rb") as file:
                    found = _NSPID.search(file.read())
            except OSError:
                continue
            if found:
                self._known[int(found[1].split()[-1])] = int(thread)
