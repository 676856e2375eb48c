"""Where the files that are no Python lie: in a checkout (also installed in editable mode) and in an installed wheel."""

from __future__ import annotations

import os
from pathlib import Path

from rlscope_ebpf.errors import UnsupportedError

PACKAGE = Path(__file__).resolve().parent
"""The folder of `rlscope_ebpf`."""

MARKER_LIBRARY = "librlscope_markers.so"
"""File name (and soname) of the marker library."""

CALIBRATION_LIBRARY = "librlscope_calibration.so"
"""File name of what calibration probes."""

GPU_LIBRARY = "librlscope_cupti.so"
"""File name (and soname) of the GPU helper."""

INJECTION_LIBRARY = "librlscope_inject.so"
"""File name of what loads the GPU helper into a running process."""

STATE_VARIABLE = "RLSCOPE_EBPF_STATE"
"""Environment variable that names another folder for what is kept of this host."""

SYSTEM_STATE = Path("/var/lib/rlscope-ebpf")


def state_dir() -> Path:
    """Folder of what is kept of this host between sessions: its calibration, compiled programs. May not exist yet."""
    named = os.environ.get(STATE_VARIABLE)
    return Path(named) if named else SYSTEM_STATE


def probes_dir() -> Path:
    """Folder of the BPF sources: it holds `abi.h`, `*.bpf.c` and `include/`.

    Raises `UnsupportedError` if the installation lacks it.
    """
    return _first_with("abi.h", PACKAGE.parent / "probes", PACKAGE / "_probes")


def include_dir() -> Path:
    """Folder of `rlscope_markers.h`, for programs that link with the marker library.

    Raises `UnsupportedError` if the installation lacks it.
    """
    return _first_with("rlscope_markers.h", PACKAGE.parent / "userspace", PACKAGE / "_include")


def userspace_dir() -> Path:
    """Folder of what was compiled from `userspace/`: the shared objects that are loaded into targets.

    Raises `UnsupportedError` if they have not been built.
    """
    return _first_with(MARKER_LIBRARY, PACKAGE)


def marker_library() -> Path:
    """`librlscope_markers.so`. Raises `UnsupportedError` if it has not been built."""
    return userspace_dir() / MARKER_LIBRARY


def calibration_library() -> Path:
    """`librlscope_calibration.so`. Raises `UnsupportedError` if it has not been built."""
    return _first_with(CALIBRATION_LIBRARY, PACKAGE) / CALIBRATION_LIBRARY


def gpu_library() -> Path:
    """`librlscope_cupti.so`. Raises `UnsupportedError` if it has not been built."""
    return _first_with(GPU_LIBRARY, PACKAGE) / GPU_LIBRARY


def target_python() -> Path:
    """The folder of what a target's own Python imports for `--gpu cupti-python`."""
    return PACKAGE / "target_python"


def injection_library() -> Path:
    """`librlscope_inject.so`. Raises `UnsupportedError` if it has not been built."""
    return _first_with(INJECTION_LIBRARY, PACKAGE) / INJECTION_LIBRARY


def _first_with(name: str, *folders: Path) -> Path:
    for folder in folders:
        if (folder / name).is_file():
            return folder
    raise UnsupportedError(
        f"This installation of rlscope-ebpf lacks {name} (looked in {', '.join(map(str, folders))}).",
        "Install it again with `pip install .` (in a checkout: `make setup`), which compiles and packs it.",
    )
