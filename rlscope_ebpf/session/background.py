"""Planning in the background: finding where thousands of functions end takes seconds, and the rings must be read."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from rlscope_ebpf.capture.known_files import keep_facts
from rlscope_ebpf.capture.maps import MappedObject
from rlscope_ebpf.capture.plan import Plan, Planner
from rlscope_ebpf.capture.privileges import confine_thread
from rlscope_ebpf.errors import ProfilerError

_TURNS = threading.Lock()
"""One plan at a time: what it finds in a file spares the next one most of the work."""


class BackgroundPlan:
    """A plan that is being made. The planner belongs to it until it is `done`."""

    def __init__(self, planner: Planner, objects: Sequence[MappedObject]) -> None:
        self._planner = planner
        self._objects = list(objects)
        self._plan = Plan()
        self._done = threading.Event()
        threading.Thread(target=self._make, name="planner", daemon=True).start()

    @property
    def done(self) -> bool:
        """Whether it has been made."""
        return self._done.is_set()

    def result(self) -> Plan:
        """The plan, once it is done; an empty one if the process has ended meanwhile."""
        return self._plan

    def _make(self) -> None:
        confine_thread()
        try:
            with _TURNS:
                self._plan = self._planner.plan(self._objects)
        except (ProfilerError, OSError):
            pass
        finally:
            self._done.set()


def keep_what_was_found() -> None:
    """Keep for later sessions what planning has found out, unless a plan is being made: it is still growing then."""
    if _TURNS.acquire(blocking=False):
        try:
            keep_facts()
        finally:
            _TURNS.release()
