"""Listening to cupti-python in target processes: what `target_python/rlscope_cupti_python.py` sends over a socket.

It takes the place of `GpuCapture` where the native helper cannot be used.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from rlscope_ebpf.capture.gpu import GpuBatch, GpuLosses, GpuName, GpuRead
from rlscope_ebpf.capture.gpu_layout import COUNTERS, HelperState, HelperStatus
from rlscope_ebpf.model.gpu import GPU_RECORD_DTYPE

SOCKET_VARIABLE: Final = "RLSCOPE_GPU_SOCKET"
"""Environment variable that tells the helper where we listen."""

SETTLE_S: Final = 5.0
"""So long an ended process's last words are waited for."""

_FRAME: Final = struct.Struct("<II")
_RECORDS, _NAME, _STATE = 1, 2, 3
_MOST_BYTES: Final = 1 << 22  # of a frame: it comes from a process that may do anything
_PEER: Final = struct.Struct("iII")
_STATES: Final = {"active": HelperState.ACTIVE, "failed": HelperState.FAILED}


class PythonCapture:
    """Accepts helpers' connections from the start on; reads those of attached processes."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="rlscope-gpu-")
        os.chmod(self._folder, 0o711)
        self.path = str(Path(self._folder) / "socket")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        os.chmod(self.path, 0o666)  # the command's user need not be ours; who it is, the kernel tells
        self._listener.listen()
        self._lock = threading.Lock()
        self._wanted: set[int] = set()
        self._waiting: dict[int, socket.socket] = {}  # connected before they are wanted
        self._open: dict[int, socket.socket] = {}
        self._readers: dict[int, threading.Thread] = {}
        self._came: deque[Callable[[GpuRead], None]] = deque()
        threading.Thread(target=self._accept, name="gpu-listener", daemon=True).start()

    def attach(self, pid: int, path: str) -> None:
        """Read what the helper in a process sends, which connects by itself. `path` is of no meaning."""
        with self._lock:
            self._wanted.add(pid)
            connection = self._waiting.pop(pid, None)
        if connection is not None:
            self._begin(pid, connection)

    def guard(self, pid: int, path: str) -> None:
        """Nothing: there is no subscriber that could get into anybody's way."""

    def detach(self, pid: int) -> None:
        """Read no more; the helper notices."""
        with self._lock:
            self._wanted.discard(pid)
            connection = self._open.pop(pid, None) or self._waiting.pop(pid, None)
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def settle(self, pid: int) -> None:
        """Wait until all has been read that a process which has ended has sent."""
        with self._lock:
            reader = self._readers.get(pid)
        if reader is not None:
            reader.join(SETTLE_S)

    def read(self) -> GpuRead:
        """What has come."""
        found = GpuRead()
        for _ in range(len(self._came)):
            self._came.popleft()(found)
        return found

    def losses(self) -> GpuLosses:
        """Nothing is lost on the way: the helper counts what it could not send."""
        return GpuLosses(0, 0, 0)

    def close(self) -> None:
        """Hang up on everybody."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the wait for another one
        self._listener.close()
        with self._lock:
            pids = [*self._open, *self._waiting]
        for pid in pids:
            self.detach(pid)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
                pid = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[0]
            except OSError:
                return
            with self._lock:
                wanted = pid in self._wanted
                if not wanted:
                    self._waiting[pid] = connection
            if wanted:
                self._begin(pid, connection)

    def _begin(self, pid: int, connection: socket.socket) -> None:
        with self._lock:
            self._open[pid] = connection
            reader = threading.Thread(target=self._follow, args=(pid, connection), name="gpu-reader", daemon=True)
            self._readers[pid] = reader
        reader.start()

    def _follow(self, pid: int, connection: socket.socket) -> None:
        before = 0
        with suppress(OSError, ValueError, KeyError, TypeError), connection.makefile("rb") as file:
            while (frame := _next_frame(file)) is not None:
                kind, data = frame
                if kind == _RECORDS:
                    records = np.frombuffer(data, GPU_RECORD_DTYPE)
                    batch = GpuBatch(pid, before, records)
                    before += len(records)
                    self._came.append(lambda found, batch=batch: found.batches.append(batch))  # type: ignore[misc]
                elif kind == _NAME:
                    number = int.from_bytes(data[:4], "little")
                    name = GpuName(pid, number, data[4:].decode("utf-8", "replace"))
                    self._came.append(lambda found, name=name: found.names.append(name))  # type: ignore[misc]
                elif kind == _STATE:
                    status = _status(pid, json.loads(data))
                    self._came.append(lambda found, status=status: found.statuses.append(status))  # type: ignore[misc]


def _next_frame(file: BinaryIO) -> tuple[int, bytes] | None:
    header = file.read(_FRAME.size)
    if len(header) < _FRAME.size:
        return None
    kind, length = _FRAME.unpack(header)
    if length > _MOST_BYTES:
        return None
    data = file.read(length)
    return (kind, data) if len(data) == length else None


def _status(pid: int, values: dict[str, Any]) -> HelperStatus:
    return HelperStatus(
        pid=pid,
        state=_STATES[values["state"]],
        error=0,
        failed_call="",
        cupti_version=0,
        simulated=bool(values["simulated"]),
        finalized=0,
        counters={name: int(values["counters"].get(name, 0)) for name in COUNTERS},
        reason=str(values["reason"]),
    )
