"""What a session is: host, clock, capture settings; and the protocol of whatever consumes its batches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from rlscope_ebpf.model.tables import Batch, GpuSource


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """Constant facts of a session; the trace header is made of them."""

    tool_version: str
    host: str
    kernel: str
    started_at: str  # RFC 3339
    start_ns: int  # CLOCK_MONOTONIC
    realtime_offset_ns: int  # CLOCK_REALTIME minus CLOCK_MONOTONIC
    gpu: str = "unavailable"  # cupti, simulated, unavailable, off; at the start: batches tell what becomes of it
    gpu_reason: str = ""
    capture: dict[str, Any] = field(default_factory=dict)  # attach method, options, probe groups
    calibration: dict[str, Any] = field(default_factory=dict)  # costs in ns by site class; "calibrated": bool

    def with_gpu(self, source: GpuSource) -> SessionInfo:
        """The same with what became known of the GPU."""
        return replace(self, gpu=source.mode, gpu_reason=source.reason)


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """How a session ended."""

    ended_at: str
    end_ns: int
    reason: str  # "detached", "exited", "duration", "interrupted"
    exit_status: int | None = None


class Sink(Protocol):
    """A consumer of a session. All calls come from one thread; `start` first, `finish` last, once each."""

    def start(self, info: SessionInfo) -> None:
        """Begin. Raises an `rlscope_ebpf.errors.ProfilerError` if it cannot."""

    def batch(self, batch: Batch) -> None:
        """Take what one turn of the session produced. Must not keep or change the arrays' owner."""

    def finish(self, end: SessionEnd) -> None:
        """No more batches come."""
