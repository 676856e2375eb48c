"""Thread ids of a process that lives in a pid namespace of its own, as the profiler sees them."""

from __future__ import annotations

from rlscope_ebpf.capture.process import TargetProcess
from rlscope_ebpf.capture.tasks import tids_by_namespace_tid


class ThreadIds:
    """A function: id of a thread as the process's innermost namespace numbers it -> as the profiler does."""

    def __init__(self, process: TargetProcess) -> None:
        self._pid = process.pid
        self._differs = len(process.namespace_pids) > 1
        self._known: dict[int, int] = {}

    def __call__(self, tid: int) -> int:
        """The thread's id here; of one that has ended unseen, what the process calls it."""
        if self._differs and tid not in self._known:
            self._known.update(tids_by_namespace_tid(self._pid))
        return self._known.get(tid, tid)
