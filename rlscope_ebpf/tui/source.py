"""Where the screens get their figures from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from rlscope_ebpf.live.snapshot import Snapshot


class SnapshotSource(Protocol):
    """Something that can be asked for the figures of this moment."""

    def snapshot(self) -> Snapshot:
        """The figures now. Called from a worker thread, never twice at once; may take its time."""


@dataclass(frozen=True, slots=True)
class ReplayState:
    """How far a replay is."""

    playing: bool
    speed: float  # seconds of the recording per second
    position_ns: int  # since the recording's start
    duration_ns: int  # of the whole recording; 0 while unknown
    loading: bool = False  # still reading its way to the position that was asked for
    read: float = 1.0  # share of that way which has been read

    @property
    def fraction(self) -> float:
        """Position as a share of the duration, 0 to 1."""
        return min(1.0, self.position_ns / self.duration_ns) if self.duration_ns else 0.0


@runtime_checkable
class ReplaySource(SnapshotSource, Protocol):
    """A source that replays a recording. Calls come from the screen's thread and must return at once."""

    def play(self) -> None:
        """Go on from here; from the start if at the end."""

    def pause(self) -> None:
        """Stay here."""

    def seek(self, fraction: float) -> None:
        """Go to this share of the duration (0 to 1)."""

    def speed(self, factor: float) -> None:
        """Seconds of the recording per second."""

    def state(self) -> ReplayState:
        """Where the replay is."""
