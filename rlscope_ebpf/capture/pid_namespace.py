"""The pid namespace of this process, and what another one than the host's means for the numbers of processes.

The kernel numbers a process anew in each pid namespace that it is in. The BPF programs tell the numbers of the
profiler's own namespace (probes/pids.h); the kernel does so only for processes of just that one, not further in.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from rlscope_ebpf.errors import UnsupportedError

INITIAL_INODE = 0xEFFFFFFC
"""Of the host's (PROC_PID_INIT_INO, include/linux/proc_ns.h)."""

_OWN = "/proc/self/ns/pid"


@dataclass(frozen=True, slots=True)
class PidNamespace:
    """Device and inode name it."""

    device: int
    inode: int

    @property
    def is_initial(self) -> bool:
        """Whether it is the host's, in which processes have the kernel's own numbers."""
        return self.inode == INITIAL_INODE


def own_namespace() -> PidNamespace | None:
    """That of this process; None if /proc does not tell."""
    try:
        status = os.stat(_OWN)
    except OSError:
        return None
    return PidNamespace(status.st_dev, status.st_ino)


def is_own_namespace_initial() -> bool:
    """Whether this process is in the host's pid namespace, as far as can be told."""
    namespace = own_namespace()
    return namespace is None or namespace.is_initial


def compiler_flags() -> list[str]:
    """What lets the BPF programs number processes as this one does; none in the host's namespace."""
    namespace = own_namespace()
    if namespace is None or namespace.is_initial:
        return []
    return [f"-DRLS_PID_NAMESPACE={namespace.inode}ULL", f"-DRLS_PID_NAMESPACE_DEVICE={namespace.device}ULL"]


def proc_is_ours() -> bool:
    """Whether /proc numbers processes as the system calls of this process do."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def require_own_proc() -> None:
    """Raises UnsupportedError where /proc is missing, or is that of another pid namespace."""
    if proc_is_ours():
        return
    if not os.path.exists("/proc/self"):
        raise UnsupportedError(
            "There is no /proc here that shows this process.",
            "Mount it with `mount -t proc proc /proc`, or run the profiler on the host.",
        )
    raise UnsupportedError(
        "/proc is that of another pid namespace than the profiler's, so no process can be found by its number.",
        "Mount one of its own with `mount -t proc proc /proc` (in a mount namespace of its own), or run on the host.",
    )


def require_numbered(pid: int, name: str, namespace_pids: tuple[int, ...]) -> None:
    """Raises UnsupportedError if hits in a process cannot be told to be its own.

    Args:
        pid: of the process.
        name: of its program.
        namespace_pids: its numbers, from the profiler's namespace on inwards.
    """
    if len(namespace_pids) > 1 and not is_own_namespace_initial():
        raise UnsupportedError(
            f"Process {pid} ({name}) lives in a further pid namespace inside of this container's, where the kernel "
            "tells no probe its number.",
            "Run the profiler on the host, where its number is another, or share the host's processes with this "
            "container (--pid=host).",
        )
