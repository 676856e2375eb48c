"""Images kept between sessions: compiling takes longer than all else of an attach.

They are loaded into the kernel with the profiler's privileges, so they are believed only where nobody else could have
written them. Whatever goes wrong here only costs time.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from rlscope_ebpf.capture.image import Image
from rlscope_ebpf.capture.state_files import replace_file
from rlscope_ebpf.paths import state_dir

MOST = 16
"""So many are kept, the latest used; a host needs one for each attach method, and one for the GPU."""

_FOLDER = "programs"
_SUFFIX = ".image"


def load(key: str) -> Image | None:
    """The image kept under a key; None if there is none to be believed."""
    place = _place(key)
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not (_is_ours(os.fstat(file.fileno())) and _is_ours(os.stat(place.parent))):
                return None
            image = Image.unpacked(file.read())
        os.utime(place)
    except (OSError, ValueError):
        return None
    return image


def save(key: str, image: Image) -> None:
    """Keep an image, if that can be done."""
    place = _place(key)
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.parent.chmod(0o755)
        replace_file(place, image.packed(), 0o600)
        _forget_oldest(place.parent)


def forget(key: str) -> None:
    """Keep it no longer: the kernel refuses it."""
    with suppress(OSError):
        _place(key).unlink()


def _place(key: str) -> Path:
    return state_dir() / _FOLDER / (key + _SUFFIX)


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _forget_oldest(folder: Path) -> None:
    kept = sorted(folder.glob("*" + _SUFFIX), key=lambda place: place.stat().st_mtime)
    for place in kept[:-MOST]:
        place.unlink(missing_ok=True)
