"""Attaching programs to tracepoints, also where tracefs is not mounted."""

from __future__ import annotations

import ctypes
import os
import tempfile
from pathlib import Path

from rlscope_ebpf.capture.bpf import open_raw_tracepoint
from rlscope_ebpf.capture.links import Link, attach_perf_event

_PERF_TYPE_TRACEPOINT = 2
TRACEFS = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))


def attach_tracepoints(system: str, programs: dict[str, int], raw: dict[str, int] | None = None) -> Link:
    """Attach each program (tracepoint name → descriptor) to its tracepoint. Raises OSError.

    Those of `raw` get the tracepoint's own arguments.
    """
    link = Link([])
    try:
        for name, prog_fd in (raw or {}).items():
            link.fds.append(open_raw_tracepoint(name, prog_fd))
        for name, number in _tracepoint_ids(system, list(programs)).items():
            link.fds.extend(attach_perf_event(programs[name], _PERF_TYPE_TRACEPOINT, number, 0))
    except OSError:
        link.close()
        raise
    return link


def _tracepoint_ids(system: str, names: list[str]) -> dict[str, int]:
    for root in TRACEFS:
        if (root / "events").is_dir():
            return _read_ids(root, system, names)
    # Not mounted: a mount of our own, gone before anyone sees it.
    libc = ctypes.CDLL(None, use_errno=True)
    with tempfile.TemporaryDirectory(prefix="rlscope-tracefs-") as folder:
        if libc.mount(b"tracefs", os.fsencode(folder), b"tracefs", 0, None) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"tracefs cannot be mounted: {os.strerror(number)}")
        try:
            return _read_ids(Path(folder), system, names)
        finally:
            libc.umount2(os.fsencode(folder), 0)


def _read_ids(root: Path, system: str, names: list[str]) -> dict[str, int]:
    return {name: int((root / "events" / system / name / "id").read_text()) for name in names}
