"""Files in which something is kept of this host between sessions (`paths.state_dir`)."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

_DIGEST_BYTES: Final = 32


def replace_file(path: Path, data: bytes, mode: int) -> None:
    """Put a file in the place of an older one, as a whole or not at all. Raises OSError."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_own(path: Path) -> bytes:
    """A file that nobody else could have written. Raises OSError, also if somebody could."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not (_is_ours(os.fstat(file.fileno())) and _is_ours(os.stat(path.parent))):
            raise PermissionError(f"{path} may be somebody else's")
        return file.read()


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def forget_oldest(folder: Path, suffix: str, most: int) -> None:
    """Leave only so many files of this suffix in a folder, the ones written or touched last."""
    kept = sorted(folder.glob("*" + suffix), key=lambda path: path.stat().st_mtime)
    for path in kept[:-most]:
        path.unlink(missing_ok=True)


def digested(body: bytes) -> bytes:
    """With a digest before it, for `undigested`."""
    return hashlib.sha256(body).digest() + body


def undigested(data: bytes) -> bytes:
    """What `digested` was given. Raises ValueError if anything has changed since."""
    digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError("damaged")
    return body
