"""What a process has mapped: shared objects by (device, inode), and where to open their files from here.

A file is known by device and inode, never by its path alone: the target may live in another mount namespace, and its
library may have been replaced or deleted since it was loaded.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from rlscope_ebpf.errors import NotPermittedError, ProfilerError, UsageError

ObjectKey = tuple[int, int, int]
"""Device major, device minor, inode."""

_LINE = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) ([-rwxsp]{4}) ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) ([1-9][0-9]*) +(/.*)$", re.MULTILINE
)
_CODE = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ ..x. [0-9a-f]+ ([0-9a-f]+:[0-9a-f]+ [1-9][0-9]*) +/.*$", re.MULTILINE)
_DELETED = b" (deleted)"
# Device mappings, System V and memfd memory have an inode and a path, but no file that holds a library.
_NOT_FILES = (b"/dev/", b"/memfd:", b"/SYSV", b"/anon_hugepage", b"/[")


@dataclass(frozen=True, slots=True)
class Segment:
    """One mapping of a file: addresses [start, end) show the file from `offset` on."""

    start: int
    end: int
    offset: int
    permissions: str  # as in /proc: "r-xp"


@dataclass(frozen=True, slots=True)
class MappedObject:
    """A file of which a process has mapped code."""

    key: ObjectKey
    path: str  # as the target sees it
    deleted: bool
    segments: tuple[Segment, ...]  # in order of address; none if it is only expected to be mapped

    @property
    def name(self) -> str:
        """The path's last part."""
        return self.path.rsplit("/", 1)[-1]

    def address(self, offset: int) -> int | None:
        """Where the byte at file offset `offset` is mapped, or None."""
        for segment in self.segments:
            if segment.offset <= offset < segment.offset + segment.end - segment.start:
                return segment.start + offset - segment.offset
        return None


def read_maps(pid: int) -> list[MappedObject]:
    """Files of which the process has mapped code, in order of address.

    Kernel threads and zombies have none. Raises `UsageError` if there is no such process and `NotPermittedError` if
    its mappings may not be read.
    """
    return parse_maps(_read(pid))


def parse_maps(text: bytes) -> list[MappedObject]:
    """The same from the text of /proc/PID/maps."""
    found: dict[ObjectKey, tuple[bytes, list[Segment]]] = {}
    for match in _LINE.finditer(text):
        start, end, permissions, offset, major, minor, inode, path = match.groups()
        if path.startswith(_NOT_FILES):
            continue
        key = (int(major, 16), int(minor, 16), int(inode))
        segment = Segment(int(start, 16), int(end, 16), int(offset, 16), permissions.decode())
        found.setdefault(key, (path, []))[1].append(segment)
    objects = []
    for key, (path, segments) in found.items():
        if not any("x" in segment.permissions for segment in segments):
            continue
        deleted = path.endswith(_DELETED)
        if deleted:
            path = path[: -len(_DELETED)]
        # The kernel escapes newlines, and nothing else.
        name = os.fsdecode(path.replace(rb"\012", b"\n"))
        objects.append(MappedObject(key, name, deleted, tuple(segments)))
    return objects


def expected_object(pid: int, path: str) -> MappedObject | None:
    """A file that a process may map later, by its path as the process sees it; None if there is no such file."""
    try:
        status = os.stat(f"/proc/{pid}/root{path}")
    except (OSError, ValueError):
        return None
    return MappedObject((os.major(status.st_dev), os.minor(status.st_dev), status.st_ino), path, False, ())


def host_path(pid: int, mapped: MappedObject) -> str | None:
    """A path by which this process can open the very file that the target has mapped, or None.

    Through the target's root if device and inode agree; otherwise, for deleted or replaced files and file systems
    whose devices differ (overlayfs, btrfs), through /proc/PID/map_files, which needs privileges and a living target.
    """
    direct = f"/proc/{pid}/root{mapped.path}"
    try:
        status = os.stat(direct)
        if (os.major(status.st_dev), os.minor(status.st_dev), status.st_ino) == mapped.key:
            return direct
    except (OSError, ValueError):
        pass
    for segment in mapped.segments:
        link = f"/proc/{pid}/map_files/{segment.start:x}-{segment.end:x}"
        try:
            os.stat(link)
        except OSError:
            continue
        return link
    return None


class MapsWatcher:
    """Tells which objects a process has mapped since the last look; cheap enough to ask several times a second."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.objects: dict[ObjectKey, MappedObject] = {}
        """Every object seen so far, as it was mapped when first seen."""
        self._files: frozenset[bytes] = frozenset()

    def poll(self) -> list[MappedObject] | None:
        """Objects not seen before; None once the process is gone. Raises `NotPermittedError`."""
        try:
            text = _read(self.pid)
        except UsageError:
            return None
        files = frozenset(_CODE.findall(text))
        if files <= self._files:
            return []
        new = [mapped for mapped in parse_maps(text) if mapped.key not in self.objects]
        self.objects.update((mapped.key, mapped) for mapped in new)
        self._files |= files
        return new


def _read(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/maps", "rb", buffering=0) as file:
            return file.readall()
    except (FileNotFoundError, ProcessLookupError):
        raise UsageError(f"There is no process {pid}.", "Check the number: it may have just ended.") from None
    except PermissionError:
        raise NotPermittedError(
            f"The memory map of process {pid} may not be read.", "Run as root (sudo), or with CAP_SYS_PTRACE."
        ) from None
    except OSError as error:
        raise ProfilerError(
            f"The memory map of process {pid} cannot be read: {error.strerror}.", "Check that /proc is mounted."
        ) from error
