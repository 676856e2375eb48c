"""Finds the demo's simulator library: the packaged one, or one compiled from the checkout's source when first used."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from rlscope_ebpf.errors import UnsupportedError

LIBRARY = "librlscope_cartpole.so"
PACKAGE = Path(__file__).resolve().parents[1]
SOURCE = PACKAGE.parent / "userspace" / "demo" / "cartpole.c"
FLAGS = ("-O2", "-g", "-fPIC", "-shared", "-fvisibility=hidden", f"-Wl,-soname,{LIBRARY}")


def simulator_library() -> Path:
    """Path of the simulator's shared library.

    Raises UnsupportedError if it is neither packaged nor can be compiled.
    """
    packaged = packaged_simulator()
    if packaged is not None:
        return packaged
    if not SOURCE.is_file():
        raise UnsupportedError(
            f"The demo's simulator, {LIBRARY}, is not part of this installation.",
            "Reinstall rlscope-ebpf from a wheel, or run the demo from a checkout of its repository.",
        )
    return _compiled(SOURCE)


def packaged_simulator() -> Path | None:
    """The library that comes with the package, if it does."""
    packaged = PACKAGE / LIBRARY
    return packaged if packaged.is_file() else None


def _compiled(source: Path) -> Path:
    """The library made from `source`, kept in the user's cache folder under a name that depends on its content."""
    compiler = next((found for found in map(shutil.which, ("cc", "gcc", "clang")) if found), None)
    if compiler is None:
        raise UnsupportedError(
            "The demo's simulator is not built yet, and there is no C compiler to build it.",
            "Install one: apt-get install gcc (Debian, Ubuntu) or dnf install gcc (Fedora).",
        )
    digest = hashlib.sha256(source.read_bytes() + " ".join((compiler, *FLAGS)).encode()).hexdigest()[:16]
    library = _cache_folder() / digest / LIBRARY
    if library.is_file():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:  # renamed into place whole: others may build it too
        fresh = Path(folder) / LIBRARY
        done = subprocess.run(
            [compiler, *FLAGS, str(source), "-o", str(fresh)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise UnsupportedError(
                f"The demo's simulator could not be compiled: {done.stderr.strip() or compiler}.",
                f"Check that `{compiler}` can build a shared library, with the C library's headers installed.",
            )
        fresh.replace(library)
    return library


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rlscope-ebpf"
