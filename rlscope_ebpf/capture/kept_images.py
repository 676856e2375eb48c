"""Images kept between sessions: compiling takes longer than all else of an attach.

They are loaded into the kernel with the profiler's privileges, so they are believed only where nobody else could have
written them. Whatever goes wrong here only costs time.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from rlscope_ebpf.capture.image import Image
from rlscope_ebpf.capture.state_files import forget_oldest, read_own, replace_file
from rlscope_ebpf.paths import state_dir

MOST = 16
"""So many are kept, the latest used; a host needs one for each attach method, and one for the GPU."""

_FOLDER = "programs"
_SUFFIX = ".image"


def load(key: str) -> Image | None:
    """The image kept under a key; None if there is none to be believed."""
    place = _place(key)
    try:
        image = Image.unpacked(read_own(place))
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
        forget_oldest(place.parent, _SUFFIX, MOST)


def forget(key: str) -> None:
    """Keep it no longer: the kernel refuses it."""
    with suppress(OSError):
        _place(key).unlink()


def _place(key: str) -> Path:
    return state_dir() / _FOLDER / (key + _SUFFIX)
