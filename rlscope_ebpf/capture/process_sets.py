"""Sets of processes that a person can name: by name, by control group, as a tree."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from rlscope_ebpf.capture.process import script_name
from rlscope_ebpf.capture.process_events import descendants
from rlscope_ebpf.errors import UsageError

_CGROUPS = Path("/sys/fs/cgroup")


def find_processes(
    pids: Sequence[int], names: Sequence[str] = (), cgroups: Sequence[str] = (), trees: Sequence[int] = ()
) -> tuple[int, ...]:
    """All processes meant, each once, in the order in which they were asked for. Never this process itself.

    Raises:
        UsageError: nothing is asked for, or a name, group or tree has no process.
    """
    found = list(pids)
    for glob in names:
        found += _some(_named(glob), f"No process has a name that matches {glob!r}.")
    for group in cgroups:
        found += _some(_in_cgroup(group), f"No process is in the control group {group}.")
    for root in trees:
        if not os.path.exists(f"/proc/{root}"):
            raise UsageError(
                f"There is no process {root}; it may have exited.", "List candidates with `pgrep -af python`."
            )
        found += [root, *descendants([root])]
    own = os.getpid()
    return tuple(pid for pid in dict.fromkeys(found) if pid != own or pid in pids)


def _some(found: Iterable[int], problem: str) -> list[int]:
    some = [pid for pid in found if pid not in (os.getpid(), os.getppid())]
    if not some:
        raise UsageError(problem, "List candidates with `ps -ef` or `systemd-cgls`.")
    return some


def _named(glob: str) -> list[int]:
    """Processes whose name matches: of the program, or of the script that a Python runs."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return sorted(pid for pid in pids if any(fnmatchcase(name, glob) for name in _names(pid)))


def _names(pid: int) -> set[str]:
    try:
        comm = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return set()
    words = tuple(word.decode(errors="replace") for word in raw.rstrip(b"\0").split(b"\0"))
    if not raw:
        return set()  # a kernel thread, or a zombie
    names = {comm, os.path.basename(words[0])}
    if os.path.basename(words[0]).startswith("python"):
        script = script_name(words)
        names |= {script} if script else set()
    return names


def _in_cgroup(path: str) -> list[int]:
    """Processes of a control group and of the groups in it. `path`: below /sys/fs/cgroup or absolute."""
    folder = Path(path) if path.startswith(str(_CGROUPS)) else _CGROUPS / path.lstrip("/")
    found: list[int] = []
    for root, _, files in os.walk(folder):
        if "cgroup.procs" in files:
            try:
                text = Path(root, "cgroup.procs").read_text()
            except OSError:
                continue
            found += [int(line) for line in text.split() if line != "0"]
    if not found and not folder.is_dir():
        raise UsageError(f"There is no control group {folder}.", "`cat /proc/PID/cgroup` tells a process's group.")
    return sorted(found)
