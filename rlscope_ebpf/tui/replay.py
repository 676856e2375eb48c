"""A recording played back through the live model, as a source of snapshots."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from rlscope_ebpf.live.model import LiveModel
from rlscope_ebpf.live.snapshot import Snapshot
from rlscope_ebpf.model.session import SessionEnd, SessionInfo
from rlscope_ebpf.model.tables import Batch, ImportantNotice
from rlscope_ebpf.tui.source import ReplayState

SHORTEST_STEP_NS = 100_000_000
STEPS = 2_000
"""A recording is played in at most so many steps, so that an hour of it is not slower to wind through than a minute."""

READING_BUDGET_S = 0.25
"""A snapshot is handed out after so long even if the place asked for is not reached yet."""


class Recording(Protocol):
    """What is played: `rlscope_ebpf.trace.reader.TraceReader` is one."""

    info: SessionInfo
    end: SessionEnd | None  # None: the end is missing
    now_ns: int  # everything before this moment is in the recording
    problems: list[str]

    def batches(self, step_ns: int | None = None) -> Iterator[Batch]:
        """The session again, in steps of its time, or in steps of any size."""


class TraceReplay:
    """Plays a recording: a `rlscope_ebpf.tui.source.ReplaySource`. It begins at the end, with the whole trace shown.

    Controls only note what is wanted, and may be called while `snapshot()`, which reads, runs in another thread.
    """

    def __init__(self, recording: Recording, clock: Callable[[], float] = time.monotonic) -> None:
        self._recording = recording
        self._clock = clock
        self._lock = threading.Lock()
        end_ns = recording.end.end_ns if recording.end else recording.now_ns
        self._start_ns = recording.info.start_ns
        self._duration_ns = max(0, end_ns - self._start_ns)
        self._step_ns = max(SHORTEST_STEP_NS, self._duration_ns // STEPS)
        # What is wanted: under the lock.
        self._wanted_ns = float(self._duration_ns)
        self._playing = False
        self._speed = 1.0
        self._asked_at = clock()
        self._loading = True
        # What is there: only snapshot() changes it.
        self._model = LiveModel()
        self._batches: Iterator[Batch] = iter(())
        self._next: Batch | None = None
        self._reached_ns = 0
        self._done = False
        self._rewind(whole=True)

    def play(self) -> None:
        """Go on; from the start if at the end."""
        with self._lock:
            self._advance()
            if self._wanted_ns >= self._duration_ns:
                self._wanted_ns = 0.0
            self._playing = True

    def pause(self) -> None:
        """Stay."""
        with self._lock:
            self._advance()
            self._playing = False

    def seek(self, fraction: float) -> None:
        """Go to this share of the duration."""
        with self._lock:
            self._advance()
            self._wanted_ns = max(0.0, min(1.0, fraction)) * self._duration_ns

    def speed(self, factor: float) -> None:
        """Seconds of the trace per second."""
        with self._lock:
            self._advance()
            self._speed = factor

    def state(self) -> ReplayState:
        """Where the replay is."""
        with self._lock:
            self._advance()
            wanted_ns = int(self._wanted_ns)
            read = min(1.0, self._reached_ns / wanted_ns) if self._loading and wanted_ns else 1.0
            return ReplayState(self._playing, self._speed, wanted_ns, self._duration_ns, self._loading, read)

    def _advance(self) -> None:
        """Time has passed. While the reading lags behind, the replay waits for it."""
        now = self._clock()
        passed, self._asked_at = now - self._asked_at, now
        if self._playing and not self._loading:
            self._wanted_ns = min(float(self._duration_ns), self._wanted_ns + passed * self._speed * 1e9)
            self._playing = self._wanted_ns < self._duration_ns

    def snapshot(self) -> Snapshot:
        """The figures at the place that is wanted, or on the way there if that takes long."""
        with self._lock:
            self._advance()
            wanted = int(self._wanted_ns)
        whole = wanted >= self._duration_ns
        if wanted < self._reached_ns or (self._done and not whole):
            self._rewind(whole=whole)
        arrived = self._read(wanted, whole, time.monotonic() + READING_BUDGET_S)
        with self._lock:
            self._advance()
            self._loading = not arrived
        return self._model.snapshot()

    def _rewind(self, *, whole: bool) -> None:
        self._model = LiveModel()
        self._model.start(self._recording.info)
        for problem in self._recording.problems:
            self._model.notice(ImportantNotice(problem))
        self._batches = self._recording.batches(None if whole else self._step_ns)
        self._next = next(self._batches, None)
        self._reached_ns = 0
        self._done = False

    def _read(self, wanted_ns: int, whole: bool, until: float) -> bool:
        """Feed the model up to a place; whether it got there in time."""
        while self._next is not None:
            place = self._next.now_ns - self._start_ns
            if place > wanted_ns and not whole:
                return True
            self._model.batch(self._next)
            self._reached_ns = max(0, place)
            self._next = next(self._batches, None)
            if time.monotonic() >= until and self._next is not None:
                return False
        if whole and not self._done:
            self._model.finish(self._recording.end or SessionEnd("", self._recording.now_ns, "interrupted"))
            self._done = True
        return True
