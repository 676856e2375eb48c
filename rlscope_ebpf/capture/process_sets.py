"""Sets of processes that a person can name: by name, by control group, as a tree."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from rlscope_ebpf.capture.process import inspect, script_name, vanished
from rlscope_ebpf.capture.process_events import descendants
from rlscope_ebpf.errors import ProfilerError, UsageError

_CGROUPS = Path("/sys/fs/cgroup")


class ProcessSet:
    """Processes of some names, or in some control groups: those that are there, and those that come."""

    def __init__(self, names: Sequence[str], cgroups: Sequence[str]) -> None:
        self._names = tuple(names)
        self._groups = tuple(_folder(group) for group in cgroups)

    def __bool__(self) -> bool:
        return bool(self._names or self._groups)

    def has(self, pid: int) -> bool:
        """Whether a process is one of them now. Never this process itself."""
        if pid == os.getpid():
            return False
        if any(fnmatchcase(name, glob) for name in (_names(pid) if self._names else ()) for glob in self._names):
            return True
        return any(
            _is_below(path, group) for path in (_groups_of(pid) if self._groups else ()) for group in self._groups
        )

    def members(self) -> list[int]:
        """All of them, in order."""
        found = {int(entry) for entry in os.listdir("/proc") if entry.isdigit()} if self._names else set()
        found = {pid for pid in found if any(fnmatchcase(name, glob) for name in _names(pid) for glob in self._names)}
        for group in self._groups:
            found.update(_listed(group))
        return sorted(found - {os.getpid()})


def find_processes(
    pids: Sequence[int], names: Sequence[str] = (), cgroups: Sequence[str] = (), trees: Sequence[int] = ()
) -> tuple[int, ...]:
    """All processes meant, each once, in the order in which they were asked for. Never this process itself.

    Raises:
        UsageError: nothing is asked for, or a name, group or tree has no process.
        ProfilerError: none of them can be profiled: why the first one cannot.
    """
    found: list[int] = []
    for glob in names:
        found += _some(_named(glob), f"No process has a name that matches {glob!r}.")
    for group in cgroups:
        found += _some(_in_cgroup(group), f"No process is in the control group {group}.")
    for root in trees:
        if not os.path.exists(f"/proc/{root}"):
            raise vanished(root)
        found += [root, *descendants([root])]
    own = os.getpid()
    usable = [pid for pid in found if pid != own and _can_be_profiled(pid)]
    if found and not usable and not pids:
        inspect(found[0])  # says why
    return tuple(dict.fromkeys([*pids, *usable]))


def _can_be_profiled(pid: int) -> bool:
    """Those that were not named one by one need not all be: some end just now, some are shells of another user."""
    try:
        inspect(pid)
    except ProfilerError:
        return False
    return True


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
    folder = _folder(path)
    found = _listed(folder)
    if not found and not folder.is_dir():
        raise UsageError(f"There is no control group {folder}.", "`cat /proc/PID/cgroup` tells a process's group.")
    return sorted(found)


def _folder(group: str) -> Path:
    return Path(group) if group.startswith(str(_CGROUPS)) else _CGROUPS / group.lstrip("/")


def _groups_of(pid: int) -> list[Path]:
    """Folders of the control groups that a process is in."""
    try:
        text = Path(f"/proc/{pid}/cgroup").read_text(errors="replace")
    except OSError:
        return []
    paths = [line.split(":", 2) for line in text.splitlines()]
    return [
        _CGROUPS / controllers.removeprefix("name=") / path.lstrip("/")
        for _, controllers, path in (parts for parts in paths if len(parts) == 3)
    ]


def _is_below(path: Path, folder: Path) -> bool:
    return path == folder or folder in path.parents


def _listed(folder: Path) -> list[int]:
    found: list[int] = []
    for root, _, files in os.walk(folder):
        if "cgroup.procs" in files:
            try:
                text = Path(root, "cgroup.procs").read_text()
            except OSError:
                continue
            found += [int(line) for line in text.split() if line != "0"]
    return found
