"""Attaching a loaded BPF program to probe sites: uprobe sessions, uprobe multi-links and perf-event uprobes.

A link lives as long as its descriptor: however the profiler ends, its probes go with it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rlscope_ebpf.capture.bpf import create_link, last_error

_SYS_PERF_EVENT_OPEN = 298
_BPF_PERF_EVENT = 41
_BPF_F_UPROBE_MULTI_RETURN = 1
_PERF_EVENT_IOC_ENABLE = 0x2400
_PERF_FLAG_FD_CLOEXEC = 8
_UPROBE_PMU = Path("/sys/bus/event_source/devices/uprobe")

ATTACH_TYPES: dict[str, int] = {"session": 57, "multi": 48, "perf": -1}
"""`enum bpf_attach_type` by attach method: BPF_TRACE_UPROBE_SESSION, BPF_TRACE_UPROBE_MULTI; perf events need none."""

_libc = ctypes.CDLL(None, use_errno=True)


class _UprobeMulti(ctypes.Structure):
    """`union bpf_attr` of BPF_LINK_CREATE for uprobe_multi (include/uapi/linux/bpf.h)."""

    _fields_ = (
        ("prog_fd", ctypes.c_uint32),
        ("target_fd", ctypes.c_uint32),
        ("attach_type", ctypes.c_uint32),
        ("attr_flags", ctypes.c_uint32),
        ("path", ctypes.c_uint64),
        ("offsets", ctypes.c_uint64),
        ("ref_ctr_offsets", ctypes.c_uint64),
        ("cookies", ctypes.c_uint64),
        ("cnt", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("pid", ctypes.c_uint32),
        ("path_fd", ctypes.c_uint32),
    )


class _PerfLink(ctypes.Structure):
    """The same for a perf event with a cookie."""

    _fields_ = (
        ("prog_fd", ctypes.c_uint32),
        ("target_fd", ctypes.c_uint32),
        ("attach_type", ctypes.c_uint32),
        ("attr_flags", ctypes.c_uint32),
        ("bpf_cookie", ctypes.c_uint64),
    )


class _PerfAttr(ctypes.Structure):
    """The first fields of `struct perf_event_attr`; the rest stays zero."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("config", ctypes.c_uint64),
        ("sample_period", ctypes.c_uint64),
        ("sample_type", ctypes.c_uint64),
        ("read_format", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("wakeup_events", ctypes.c_uint32),
        ("bp_type", ctypes.c_uint32),
        ("config1", ctypes.c_uint64),
        ("config2", ctypes.c_uint64),
        ("rest", ctypes.c_uint64 * 6),
    )


@dataclass(slots=True)
class Link:
    """Attached probes; closing detaches them."""

    fds: list[int]
    probes: int = 1

    def pieces(self) -> list[Link]:
        """What can be closed by itself; this link is empty then."""
        each = len(self.fds) // self.probes
        if each < 1:
            return [self]
        fds, self.fds = self.fds, []
        return [Link(fds[first : first + each]) for first in range(0, len(fds), each)]

    def close(self) -> None:
        """Detach."""
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()


def attach(
    method: str, prog_fd: int, path: str, offsets: Sequence[int], cookies: Sequence[int], pid: int, *, returns: bool
) -> Link:
    """Attach a program to file offsets of `path` in process `pid`.

    `returns` asks for the functions' returns: of a session it is implied, a multi-link then sees only returns. Raises
    OSError with the kernel's errno.
    """
    if method == "perf":
        return _attach_perf(prog_fd, path, offsets, cookies, pid, returns)
    return Link([_attach_multi(method, prog_fd, path, offsets, cookies, pid, returns)], len(offsets))


def _attach_multi(
    method: str, prog_fd: int, path: str, offsets: Sequence[int], cookies: Sequence[int], pid: int, returns: bool
) -> int:
    count = len(offsets)
    name = ctypes.create_string_buffer(os.fsencode(path))
    offset_array = (ctypes.c_uint64 * count)(*offsets)
    cookie_array = (ctypes.c_uint64 * count)(*cookies)
    attr = _UprobeMulti(
        prog_fd=prog_fd,
        attach_type=ATTACH_TYPES[method],
        path=ctypes.addressof(name),
        offsets=ctypes.addressof(offset_array),
        cookies=ctypes.addressof(cookie_array),
        cnt=count,
        flags=_BPF_F_UPROBE_MULTI_RETURN if returns and method == "multi" else 0,
        pid=pid,
    )
    return create_link(attr)


def _attach_perf(
    prog_fd: int, path: str, offsets: Sequence[int], cookies: Sequence[int], pid: int, returns: bool
) -> Link:
    # The events belong to the first thread, but what the kernel goes by is its memory: breakpoints are set in that, and
    # the program runs for every thread that shares it. No other process ever gets a return probe from us.
    kind, return_bit = _uprobe_pmu()
    name = ctypes.create_string_buffer(os.fsencode(path))
    link = Link([], len(offsets))
    try:
        config = 1 << return_bit if returns else 0
        address = ctypes.addressof(name)
        for offset, cookie in zip(offsets, cookies, strict=True):
            link.fds.extend(attach_perf_event(prog_fd, kind, config, cookie, pid=pid, config1=address, config2=offset))
    except OSError:
        link.close()
        raise
    return link


def attach_perf_event(
    prog_fd: int,
    kind: int,
    config: int,
    cookie: int,
    *,
    pid: int = -1,
    cpu: int = 0,
    config1: int = 0,
    config2: int = 0,
    period: int = 1,
    flags: int = 0,
) -> tuple[int, int]:
    """Open a perf event and attach a program to it: descriptors of event and link.

    `pid`: the process whose memory a uprobe goes into; -1: every process. One CPU is enough: for uprobes and
    tracepoints the kernel runs the program wherever the event happens; others count on one CPU.

    Raises OSError.
    """
    attr = _PerfAttr(
        type=kind,
        size=ctypes.sizeof(_PerfAttr),
        config=config,
        sample_period=period,
        flags=flags,
        wakeup_events=1,
        config1=config1,
        config2=config2,
    )
    ctypes.set_errno(0)
    place = cpu if pid == -1 else -1
    event: int = _libc.syscall(_SYS_PERF_EVENT_OPEN, ctypes.byref(attr), pid, place, -1, _PERF_FLAG_FD_CLOEXEC)
    if event < 0:
        raise last_error()
    try:
        link = create_link(_PerfLink(prog_fd=prog_fd, target_fd=event, attach_type=_BPF_PERF_EVENT, bpf_cookie=cookie))
    except OSError:
        os.close(event)
        raise
    _libc.ioctl(event, _PERF_EVENT_IOC_ENABLE, 0)
    return event, link


@lru_cache(maxsize=1)
def _uprobe_pmu() -> tuple[int, int]:
    """Type number of the uprobe PMU and the config bit that asks for returns."""
    kind = int((_UPROBE_PMU / "type").read_text())
    return kind, int((_UPROBE_PMU / "format" / "retprobe").read_text().strip().removeprefix("config:"))
