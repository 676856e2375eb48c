"""Compiles the simulated CUDA and the native test programs into a cache folder; needs make and gcc, no CUDA toolkit.

The folder is keyed by the sources and the compiler, so that once made it never changes and tests may share it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


class BuildError(RuntimeError):
    """A compiler said no; the message holds what it said."""


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise BuildError(f"{command[0]} is missing. Install make and a C compiler (Debian: make gcc).") from error
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


def _key() -> str:
    digest = hashlib.sha256(_run([os.environ.get("CC", "gcc"), "--version"]).encode())
    sources = sorted(path for folder in ("simcuda", "native", "selfplay") for path in (HERE / folder).glob("*.[ch]"))
    for path in (HERE / "Makefile", HERE.parent / "userspace" / "cupti_abi.h", *sources):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def native() -> Path:
    """Folder with libcuda.so.1, libcudart.so.13 and the liblaunches_*.so, built if need be. Raises BuildError.

    It lies in $RLSCOPE_TEST_CACHE, otherwise in a folder of the user's below the temporary one.
    """
    chosen = os.environ.get("RLSCOPE_TEST_CACHE")
    cache = Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"rlscope-targets-{os.getuid()}"
    cache.mkdir(mode=0o755, parents=True, exist_ok=True)
    final = cache / f"simcuda-{_key()}"
    with open(final.with_name(f"{final.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not final.is_dir():
            part = final.with_name(f"{final.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            compiler = os.environ.get("CC", "gcc")
            _run(["make", "--no-print-directory", "-C", str(HERE), f"OUT={part}", f"CC={compiler}"])
            part.rename(final)
    return final


if __name__ == "__main__":
    print(native())
