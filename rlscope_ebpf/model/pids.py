"""Process numbers in words: as the profiler sees them, and as the process's own container does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

PAIR_TITLE = "PID (INSIDE)"
"""What stands over `pid_pair` where a process has two numbers."""


def pid_text(pid: int, namespace_pids: Sequence[int]) -> str:
    """ "4711", or "4711 (1 in its container)"."""
    return f"{pid} ({namespace_pids[-1]} in its container)" if namespace_pids else str(pid)


def pid_pair(pid: int, namespace_pids: Sequence[int]) -> str:
    """The same where there is little room: "4711", or "4711 (1)"."""
    return f"{pid} ({namespace_pids[-1]})" if namespace_pids else str(pid)


def pid_title(all_namespace_pids: Iterable[Sequence[int]]) -> str:
    """The title of a column of pairs."""
    return PAIR_TITLE if any(all_namespace_pids) else "PID"


def pair_of(pid: int, namespace_pids: Mapping[int, Sequence[int]]) -> str:
    """The pair of one of many processes, whose inner numbers are known by pid."""
    return pid_pair(pid, namespace_pids.get(pid, ()))
