"""When calls of a target must not get return probes: see docs/design/returns.md."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from rlscope_ebpf.capture.engine import Engine
from rlscope_ebpf.capture.maps import MappedObject, MapsWatcher
from rlscope_ebpf.capture.objects import KnownObject
from rlscope_ebpf.capture.privileges import confine_thread
from rlscope_ebpf.capture.process import TargetProcess
from rlscope_ebpf.capture.switching import greenlet_is_installed
from rlscope_ebpf.errors import ProfilerError
from rlscope_ebpf.session.target import Target

_INSTEAD = "the ends of calls are watched at the instructions by which functions are left, which costs more."
_CONTEXTS = 1 << 32  # of Engine.loads, from here on: stacks made


def why_switching(target: Target, new: Sequence[MappedObject], *, loads: int = 0, alone: bool = True) -> str | None:
    """A sentence why a target's calls must get no return probes; None if they may have them.

    `new` are the objects that have been mapped since the last look. Not `alone`: nothing keeps return probes off the
    calls that are made between the loading of more and the next look.
    """
    switcher = target.planners[-1].find_switcher(new)
    if switcher is not None:
        return f"{switcher.name} can switch stacks or cancel threads, which is no good with return probes: {_INSTEAD}"
    if loads >= _CONTEXTS:
        return f"{target.process.name} makes stacks to switch to, under which return probes end a program: {_INSTEAD}"
    if not alone and greenlet_is_installed(target.pid, target.watcher.objects.values()):
        return (
            "The target's Python has greenlet installed, which can switch stacks once it is imported, and return "
            f"probes would end the program then: {_INSTEAD}"
        )
    return None


def nests_deeply(process: TargetProcess, method: str) -> bool:
    """Whether the interpreter's frames nest deeper than the kernel keeps return probes: 64.

    In CPython 3.10 every Python call is a native call, too. A session sets return probes only where the category
    changes.
    """
    return method != "session" and process.python_version.startswith("3.10")


class ReturnGuard:
    """Allows return probes again, in a thread of its own, as soon as what a target has loaded is seen to be harmless.

    The session looks, too, but may be busy planning the probes on what has come just before. Where a library is probed
    before it is loaded, and called at once, that matters. What may do harm is left to the session.
    """

    TURN_S, LATER_TURN_S = 0.01, 0.05
    START_S = 60.0  # from then on the longer turn will do

    def __init__(self, engine: Engine, pid: int) -> None:
        """It begins at once."""
        self._engine = engine
        self._pid = pid
        self._watcher = MapsWatcher(pid)
        self._allowed = -1
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="return-guard", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        confine_thread()
        later = time.monotonic() + self.START_S
        while not self._over.wait(self.TURN_S if time.monotonic() < later else self.LATER_TURN_S):
            loads = self._engine.loads(self._pid)  # before the look, so that nothing is missed
            if loads == self._allowed:
                continue
            try:
                new = self._watcher.poll()
            except ProfilerError:
                return
            if new is None or loads >= _CONTEXTS or any(map(self._switches, new)):
                return
            self._engine.allow_returns(self._pid, loads)
            self._allowed = loads

    def _switches(self, mapped: MappedObject) -> bool:
        known = KnownObject(self._pid, mapped)
        try:
            return known.switches
        finally:
            known.close()
