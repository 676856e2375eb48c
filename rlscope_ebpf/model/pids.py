"""Process numbers in words: as the profiler sees them, and as the process's own container does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

PAIR_TITLE = "PID (INSIDE)"
"""What stands over `pid_pair` where a process has two numbers."""


def pid_pair(pid: int, namespace_pids: Sequence[int]) -> str:
    """Both numbers where there is little room: "4711", or "4711 (1)"."""
    return f"{pid} ({namespace_pids[-1]})" if namespace_pids else str(pid)


def pid_title(all_namespace_pids: Iterable[Sequence[int]]) -> str:
    """The title of a column of pairs."""
    return PAIR_TITLE if any(all_namespace_pids) else "PID"


class Numbered:
    """A process with its numbers, the inner ones from the outermost pid namespace on."""

    __slots__ = ()
    pid: int
    namespace_pids: tuple[int, ...]

    @property
    def pid_text(self) -> str:
        """ "4711", or "4711 (1 in its container)"."""
        inner = self.namespace_pids
        return f"{self.pid} ({inner[-1]} in its container)" if inner else str(self.pid)

    @property
    def pid_pair(self) -> str:
        """ "4711", or "4711 (1)"."""
        return pid_pair(self.pid, self.namespace_pids)


def pair_of(pid: int, namespace_pids: Mapping[int, Sequence[int]]) -> str:
    """The pair of one of many processes, whose inner numbers are known by pid."""
    return pid_pair(pid, namespace_pids.get(pid, ()))
