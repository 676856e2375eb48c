"""A stand-in for `rlscope_ebpf.session.runner`: hands out made-up batches, attaches nothing, needs no root.

`install()` puts it where the command line looks for the real one. Environment variables steer it:
`FAKE_ATTACH_ERROR`: attaching fails; `FAKE_RUN_ERROR`: the capture fails after a few turns; `FAKE_LINGER_S`: how long
finishing takes.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import nullcontext
from types import ModuleType, TracebackType

import numpy as np

from rlscope_ebpf.capture.process import TargetProcess, inspect, is_alive
from rlscope_ebpf.errors import UnsupportedError
from rlscope_ebpf.model.categories import Category, Opened, ThreadState
from rlscope_ebpf.model.session import SessionEnd, SessionInfo, Sink
from rlscope_ebpf.model.tables import (
    INTERVAL_DTYPE,
    SPAN_DTYPE,
    Batch,
    Counters,
    Losses,
    PathInfo,
    ProcessInfo,
    StringInfo,
    ThreadInfo,
)
from rlscope_ebpf.session.options import CaptureOptions

TURN_NS = 20_000_000


class Profiler:
    """One thread that spends half its time in Python and half in a backend, in the operation "train"."""

    def __init__(self, options: CaptureOptions) -> None:
        self.options = options
        self.sinks: list[Sink] = []
        self.notices: list[str] = []
        self.processes: list[TargetProcess] = []

    def __enter__(self) -> Profiler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def attach(self) -> None:
        self.processes = [inspect(pid) for pid in self.options.pids]
        if "FAKE_ATTACH_ERROR" in os.environ:
            raise UnsupportedError("Nothing can be attached.", "Try something else.")
        self.notices.append("One probe was not armed.")

    def run(self, stop: threading.Event) -> SessionEnd:
        start = time.monotonic_ns()
        for sink in self.sinks:
            sink.start(SessionInfo("0", "host", "6.18", "2026-11-30T00:00:00Z", start, 0))
        reason, turn = "detached", 0
        while not stop.wait(TURN_NS / 1e9):
            self._hand_out(start, turn)
            turn += 1
            if turn == 3 and "FAKE_RUN_ERROR" in os.environ:
                raise RuntimeError("the ring broke")
            if self.options.duration_s and time.monotonic_ns() - start > self.options.duration_s * 1e9:
                reason = "duration"
                break
            if not any(is_alive(process) for process in self.processes):
                reason = "exited"
                break
        time.sleep(float(os.environ.get("FAKE_LINGER_S", "0")))
        end = SessionEnd("2026-11-30T00:00:01Z", start + turn * TURN_NS, reason)
        for sink in self.sinks:
            sink.finish(end)
        return end

    @property
    def probes_to_detach(self) -> int:
        return 7

    def wait_until_detached(self, seconds: float) -> bool:
        """Never, until there is the file that is named for that."""
        gone = os.environ.get("FAKE_DETACHED_FILE")
        if gone is None or os.path.exists(gone):
            return True
        time.sleep(min(seconds, 0.05))
        return False

    def _hand_out(self, start: int, turn: int) -> None:
        begin, half = start + turn * TURN_NS, TURN_NS // 2
        running = int(ThreadState.RUNNING)
        rows = [
            (1, 1, 0, 0, begin, half, 1, 0, Category.PYTHON, Category.PYTHON, running, Opened.RETURN, 0, 0),
            (1, 1, 0, 0, begin + half, half, 1, 0, Category.BACKEND, Category.PYTHON, running, Opened.CALL, 0, 0),
        ]
        batch = Batch(begin + TURN_NS, losses=Losses(), counters=Counters(received=turn * 2, sent=turn * 2))
        batch.notices = self.notices if turn == 0 else []
        batch.tables["intervals"] = np.array(rows, INTERVAL_DTYPE)
        batch.tables["spans"] = np.array([(1, 1, 0, 0, begin, begin + TURN_NS)], SPAN_DTYPE)
        if turn == 0:
            first = self.processes[0]
            batch.definitions = [
                *(ProcessInfo(p.pid, p.ppid, p.name, p.command, start) for p in self.processes),
                ThreadInfo(1, first.pid, first.pid, "main"),
                StringInfo(1, "train"),
                PathInfo(1, 0, 1),
            ]
        for sink in self.sinks:
            sink.batch(batch)


def install() -> None:
    """Put it in the place of the real one."""
    module = ModuleType("rlscope_ebpf.session.runner")
    module.__dict__["Profiler"] = Profiler
    sys.modules[module.__name__] = module
    module = ModuleType("rlscope_ebpf.capture.preparation")
    module.__dict__["Preparation"] = lambda _method: nullcontext()
    module.__dict__["leave_working_folder"] = lambda: False
    sys.modules[module.__name__] = module
