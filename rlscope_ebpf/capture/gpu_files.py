"""Where a target can read the GPU helper: its user and its mount namespace may not be ours."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rlscope_ebpf.errors import UnsupportedError

HELPER_PREFIX = "librlscope_cupti"
"""What the helper's file is called, wherever it lies."""

INJECTION_VARIABLE = "CUDA_INJECTION64_PATH"
"""Environment variable by which the CUDA driver is told of a library to load."""

LIBRARY_VARIABLE = "RLSCOPE_LIBCUPTI"
"""Environment variable by which the helper is told of the libcupti to use if the process has none mapped."""

_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # for copies, in this order


@dataclass(slots=True)
class PlacedFiles:
    """Files that a target can load: `paths` as it sees them, in the order asked for. Copies go when it is closed."""

    root: str  # the target's root folder as we see it
    paths: tuple[str, ...]
    _folder: str | None = field(default=None)

    def host_path(self, index: int) -> str:
        """The same file as we can open it."""
        return self.root + self.paths[index] if self.root != "/" else self.paths[index]

    def close(self) -> None:
        """Remove the copies. What has been loaded of them stays loaded."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def place(files: Sequence[Path], *, root: str, uid: int, gids: Sequence[int]) -> PlacedFiles:
    """The files where a process of this user, whose root folder is `root`, can load them; copied only if need be.

    Raises UnsupportedError if there is no such place.
    """
    if all(_is_visible(root, path) and _may(uid, gids, _steps(root, str(path))) for path in files):
        return PlacedFiles(root, tuple(map(str, files)))
    for base in _FOLDERS:
        outside = root.rstrip("/") + base
        if not _is_usable(outside, root, base, uid, gids):
            continue
        folder = None
        try:
            folder = tempfile.mkdtemp(prefix="rlscope-", dir=outside)
            for path in files:
                copy = shutil.copyfile(path, os.path.join(folder, path.name))
                os.chmod(copy, 0o755)
            os.chmod(folder, 0o755)
        except OSError:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            continue
        inside = os.path.join(base, os.path.basename(folder))
        return PlacedFiles(root, tuple(os.path.join(inside, path.name) for path in files), folder)
    raise UnsupportedError(
        f"There is no folder from which the target could load {files[0].name} (tried {', '.join(_FOLDERS)}).",
        "Make one of them writable in its container, or install rlscope-ebpf where the target can read it.",
    )


def _is_visible(root: str, path: Path) -> bool:
    """Whether the target finds the very same file under the same path."""
    with suppress(OSError):
        return os.path.samefile(root.rstrip("/") + str(path), path)
    return False


def _steps(root: str, path: str) -> list[str]:
    """The folders on the way to a file, and the file."""
    parts = Path(os.path.realpath(path) if root == "/" else path).parts[1:]
    return [root.rstrip("/") + "/" + "/".join(parts[: index + 1]) for index in range(len(parts))]


def _may(uid: int, gids: Sequence[int], steps: Sequence[str]) -> bool:
    """Whether a user may go through the folders and read the last of `steps`, by owner, group and mode."""
    if uid == 0:
        return True
    for step in steps:
        try:
            status = os.stat(step)
        except OSError:
            return False
        shift = 6 if status.st_uid == uid else 3 if status.st_gid in gids else 0
        wanted = 1 if stat.S_ISDIR(status.st_mode) else 4
        if not status.st_mode >> shift & wanted:
            return False
    return True


def _is_usable(outside: str, root: str, base: str, uid: int, gids: Sequence[int]) -> bool:
    """Whether libraries can be loaded from a folder."""
    steps = _steps(root, base)
    try:
        mounted = os.statvfs(outside)
    except OSError:
        return False
    if root != "/" and any(map(os.path.islink, steps)):  # it would lead through our root, not the target's
        return False
    return not mounted.f_flag & (os.ST_NOEXEC | os.ST_RDONLY) and _may(uid, gids, steps)
