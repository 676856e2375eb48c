"""Inside a target: takes records from CUPTI with cupti-python and sends them to the profiler.

It is for targets where the native helper cannot be used. Every record becomes a Python object in here, which costs the
target about 25 us each. It uses the standard library and cupti-python alone, and is no part of the package for whoever
runs it: it is found by its folder. `start` is called with the path of the profiler's socket.

A frame is `kind, length` (two u32) and its data: 1 records (GPU_RECORD_DTYPE), 2 a kernel's name (its id, u32, and the
name), 3 the state (JSON).
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import json
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

LIBRARY_VARIABLE = "RLSCOPE_LIBCUPTI"
RECORDS, NAME, STATE = 1, 2, 3
PERIOD_S = 0.1
LOOK_S = 0.02  # for CUDA
MOST_QUEUED = 1 << 20  # records
SEND_S = 1.0  # a profiler that takes nothing for so long is gone
AT_EXIT_S = 2.0
BUFFER_BYTES = 1 << 20

_FORCED = 1  # CUPTI's flag
_FRAME = struct.Struct("<II")
_RECORD = struct.Struct("<QQQQIIIIIIIBBH")
_KERNEL, _COPY, _SET, _SYNC, _LAUNCH = 1, 2, 3, 4, 5
_LAUNCHES = (  # functions that give a GPU work, and what
    (re.compile(r"(cu|cuda)Launch(Cooperative)?Kernel(Ex|ExC)?(_ptsz)?(_v\d+)?$"), 1),
    (re.compile(r"(cu|cuda)(Memcpy)(?!.*(Symbol|Node|Attribute|Batch)).*"), 2),
    (re.compile(r"(cu|cuda)Memset(?!.*(Node|MemPool|Attribute)).*"), 3),
    (re.compile(r"(cu|cuda)GraphLaunch(_ptsz)?(_v\d+)?$"), 4),
)


class Helper:
    """One per process."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: socket.socket | None = None
        self._queue: list[bytes] = []  # packed records; appended to by CUPTI's threads
        self._names: dict[str, int] = {}
        self._new_names: list[tuple[int, str]] = []
        self._details: dict[tuple[int, int], int] = {}  # (kind of API record, function) -> what it launches
        self._shift = 0
        self._ending, self._ended = threading.Event(), threading.Event()
        self._simulated = False
        self._pack: dict[int, Callable[[Any], None]] = {}  # by kind
        self.counters = dict.fromkeys(
            (
                "records",
                "kernels",
                "copies",
                "sets",
                "syncs",
                "launches",
                "zero_time",
                "reversed_time",
                "unfinished",
                "dropped",
                "errors",
            ),
            0,
        )

    def run(self) -> None:
        """Until the profiler is gone."""
        while not _has_cuda():
            time.sleep(LOOK_S)
        try:
            self._connection = socket.socket(socket.AF_UNIX)
            self._connection.settimeout(SEND_S)
            self._connection.connect(self._path)
        except OSError:
            return
        cupti: Any = None
        kinds: list[Any] = []
        try:
            if os.environ.get(LIBRARY_VARIABLE):
                ctypes.CDLL(os.environ[LIBRARY_VARIABLE])  # cupti-python then finds it by its name
            cupti = importlib.import_module("cupti.cupti")
            kinds = self._begin(cupti)
            self._send_state("active")
            atexit.register(self._at_exit)
            while not self._ending.wait(PERIOD_S):
                self._tick(cupti, 0)
            self._tick(cupti, _FORCED)
        except OSError:
            pass  # nobody listens
        except Exception as error:
            self.counters["errors"] += 1
            with suppress(OSError):
                self._send_state("failed", f"{type(error).__name__}: {error}")
        finally:
            self._end(cupti, kinds)
            self._ended.set()

    def _at_exit(self) -> None:
        """The last records, of a program that ends."""
        self._ending.set()
        self._ended.wait(AT_EXIT_S)

    def _begin(self, cupti: Any) -> list[Any]:
        kind = cupti.ActivityKind
        kinds = [kind.CONCURRENT_KERNEL, kind.MEMCPY, kind.MEMCPY2, kind.MEMSET, kind.SYNCHRONIZATION]
        apis = [kind.DRIVER, kind.RUNTIME]
        self._simulated = _is_simulated()
        cupti.set_thread_id_type(cupti.ActivityThreadIdType.SYSTEM)
        cupti.activity_register_callbacks(lambda: (BUFFER_BYTES, 0), self._completed)
        self._pack = {
            int(kind.CONCURRENT_KERNEL): self._kernel,
            int(kind.MEMCPY): self._copy,
            int(kind.MEMCPY2): self._copy,
            int(kind.MEMSET): self._set,
            int(kind.SYNCHRONIZATION): self._sync,
            int(kind.DRIVER): self._launch,
            int(kind.RUNTIME): self._launch,
        }
        self._look_at_clock(cupti)
        enabled = []
        for each in (*kinds, *apis):
            cupti.activity_enable(each)
            enabled.append(each)
        for api, functions, enable in (
            (kind.DRIVER, cupti.DriverApiTraceCbid, cupti.activity_enable_driver_api),
            (kind.RUNTIME, cupti.RuntimeApiTraceCbid, cupti.activity_enable_runtime_api),
        ):
            for function in functions:
                detail = next((what for pattern, what in _LAUNCHES if pattern.match(function.name)), 0)
                if detail:
                    self._details[int(api), int(function)] = detail
                elif 0 < int(function) < 1 << 16:
                    with suppress(Exception):  # this CUPTI does not have it
                        enable(int(function), 0)
        return enabled

    def _end(self, cupti: Any, kinds: list[Any]) -> None:
        for each in kinds:
            with suppress(Exception):
                cupti.activity_disable(each)
        if self._connection is not None:
            self._connection.close()

    def _look_at_clock(self, cupti: Any) -> None:
        """What is to be added to CUPTI's times: by the closest of a few looks at both clocks."""
        looks = []
        for _ in range(5):
            before = time.monotonic_ns()
            there = cupti.get_timestamp()
            after = time.monotonic_ns()
            looks.append((after - before, (before + after) // 2 - there))
        self._shift = min(looks)[1]

    def _completed(self, activities: list[Any]) -> None:
        """A buffer, from whichever thread: nothing may be raised in here."""
        try:
            for activity in activities:
                pack = self._pack.get(int(activity.kind))
                if pack is not None:
                    pack(activity)
        except Exception:
            self.counters["errors"] += 1

    def _add(
        self,
        kind: int,
        activity: Any,
        detail: int = 0,
        size: int = 0,
        *,
        name: int = 0,
        thread: int = 0,
        graph: int = 0,
        node: int = 0,
        device: int = 0,
        context: int = 0,
        stream: int = 0,
    ) -> bool:
        start, end = activity.start, activity.end
        if not start or not end:
            self.counters["unfinished" if self._ending.is_set() else "zero_time"] += 1
        elif end < start:
            self.counters["reversed_time"] += 1
        elif len(self._queue) >= MOST_QUEUED:
            self.counters["dropped"] += 1
        else:
            correlation = activity.correlation_id
            fields = (start + self._shift, end + self._shift, size, node, correlation, name)
            self._queue.append(_RECORD.pack(*fields, device, context, stream, graph, thread, kind, detail, 0))
            return True
        return False

    def _kernel(self, each: Any) -> None:
        number = self._names.get(each.name)
        if number is None:
            number = self._names[each.name] = len(self._names) + 1
            self._new_names.append((number, each.name))
        self.counters["kernels"] += self._add(
            _KERNEL, each, name=number, graph=each.graph_id, node=each.graph_node_id, **_place(each)
        )

    def _copy(self, each: Any) -> None:
        self.counters["copies"] += self._add(
            _COPY,
            each,
            int(each.copy_kind) & 0xFF,
            each.bytes,
            graph=each.graph_id,
            node=each.graph_node_id,
            **_place(each),
        )

    def _set(self, each: Any) -> None:
        self.counters["sets"] += self._add(
            _SET, each, 0, each.bytes, graph=each.graph_id, node=each.graph_node_id, **_place(each)
        )

    def _sync(self, each: Any) -> None:
        where = {"context": each.context_id, "stream": each.stream_id & 0xFFFFFFFF}
        self.counters["syncs"] += self._add(_SYNC, each, int(each.type) & 0xFF, **where)

    def _launch(self, each: Any) -> None:
        detail = self._details.get((int(each.kind), int(each.cbid)), 0)
        if detail and not each.return_value:
            self.counters["launches"] += self._add(_LAUNCH, each, detail, thread=each.thread_id)

    def _tick(self, cupti: Any, flags: int) -> None:
        self._look_at_clock(cupti)
        cupti.activity_flush_all(flags)
        names, self._new_names = self._new_names, []
        records, self._queue = self._queue, []
        for number, name in names:
            self._send(NAME, struct.pack("<I", number) + name.encode("utf-8", "replace"))
        self.counters["records"] += len(records)
        for first in range(0, len(records), 4096):
            self._send(RECORDS, b"".join(records[first : first + 4096]))
        self._send_state("active")

    def _send_state(self, state: str, reason: str = "") -> None:
        values = {"state": state, "reason": reason, "simulated": self._simulated, "counters": self.counters}
        self._send(STATE, json.dumps(values).encode())

    def _send(self, kind: int, data: bytes) -> None:
        assert self._connection is not None
        self._connection.sendall(_FRAME.pack(kind, len(data)) + data)


def _place(each: Any) -> dict[str, int]:
    return {"device": each.device_id, "context": each.context_id, "stream": each.stream_id}


def _maps() -> str:
    with open("/proc/self/maps", errors="replace") as file:
        return file.read()


def _has_cuda() -> bool:
    return "/libcuda.so" in _maps()


def _is_simulated() -> bool:
    paths = {line.split(None, 5)[5].strip() for line in _maps().splitlines() if "/libcupti.so" in line}
    return any(hasattr(ctypes.CDLL(path), "simcupti_get") for path in paths)


_started: int = 0


def start(path: str) -> None:
    """Once per process; does nothing in a child of one that has it."""
    global _started
    if _started != os.getpid():
        _started = os.getpid()
        threading.Thread(target=Helper(path).run, name="rlscope-cupti", daemon=True).start()
