"""What the GPU helper in a target tells: mirror of probes/gpu.h and of the state in userspace/rlscope_cupti.h."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from rlscope_ebpf.model.gpu import GPU_RECORD_DTYPE

BATCH_RECORDS: Final = 256
TEXT_MAX: Final = 1024

BATCH_DTYPE = np.dtype(
    [
        ("time_ns", "<u8"),
        ("before", "<u8"),
        ("pid", "<u4"),
        ("count", "<u4"),
        ("records", GPU_RECORD_DTYPE, (BATCH_RECORDS,)),
    ]
)
"""`struct rls_gpu_batch`; only the first `count` records mean anything."""

TEXT_DTYPE = np.dtype(
    [
        ("time_ns", "<u8"),
        ("pid", "<u4"),
        ("kind", "<u4"),
        ("id", "<u4"),
        ("length", "<u4"),
        ("text", f"V{TEXT_MAX}"),
    ]
)
"""`struct rls_gpu_text`."""


class TextKind(IntEnum):
    """`enum rls_gpu_text_kind`."""

    NAME = 1
    STATUS = 2
    FOREIGN = 3


class Function(IntEnum):
    """`enum rls_gpu_function`: the attach cookie of each probed function; the last two are CUPTI's."""

    RECORDS = 1
    NAME = 2
    STATUS = 3
    SUBSCRIBE = 4
    REGISTER = 5


SYMBOLS: Final[dict[str, Function]] = {
    "rlscope_gpu_records": Function.RECORDS,
    "rlscope_gpu_name": Function.NAME,
    "rlscope_gpu_status": Function.STATUS,
}
"""The helper's functions that are probed."""


CUPTI_SYMBOLS: Final[dict[str, Function]] = {
    "cuptiSubscribe": Function.SUBSCRIBE,
    "cuptiSubscribe_v2": Function.SUBSCRIBE,
    "cuptiActivityRegisterCallbacks": Function.REGISTER,
}
"""CUPTI's functions by which another profiler comes."""

STATE_SYMBOL: Final = "rlscope_gpu_state"
"""The data symbol of the helper's state."""


class HelperState(IntEnum):
    """`enum rlscope_gpu_state_number`."""

    DORMANT = 0
    STARTING = 1
    ACTIVE = 2
    LEAVING = 3
    FOREIGN = 4
    FAILED = 5
    NO_LIBRARY = 6
    WRONG_VERSION = 7


COUNTERS: Final = (
    *("records", "batches", "kernels", "copies", "sets", "syncs", "launches", "graphs", "graph_kernels", "names"),
    *("dropped", "no_buffer", "zero_time", "reversed_time", "out_of_range", "unfinished", "unknown_kind", "broken"),
    *("late", "nameless", "cut_names", "lost_names", "lost_launches", "failed_launches", "errors"),
)
"""`RLSCOPE_GPU_COUNTERS`, in its order."""

MAGIC: Final = 0x55504752
VERSION: Final = 1

STATUS_DTYPE = np.dtype(
    [
        *((name, "<u4") for name in ("magic", "version", "size", "pid", "state", "error", "failed_call")),
        *((name, "<u4") for name in ("cupti_version", "clock", "listening", "starts", "finalized", "simulated")),
        ("reserved", "<u4"),
        ("updated_ns", "<u8"),
        *((name, "<u8") for name in COUNTERS),
    ]
)
"""`struct rlscope_gpu_status`."""

CUPTI_CALLS: Final = (
    *("cuptiGetVersion", "cuptiGetTimestamp", "cuptiSubscribe", "cuptiUnsubscribe", "cuptiEnableCallback"),
    *("cuptiEnableDomain", "cuptiGetCallbackName", "cuptiActivityRegisterCallbacks", "cuptiActivityEnable"),
    *("cuptiActivityDisable", "cuptiActivityFlushAll", "cuptiActivityGetNextRecord"),
    *("cuptiActivityGetNumDroppedRecords", "cuptiActivityRegisterTimestampCallback", "cuptiFinalize"),
)
"""What `failed_call` counts from 1."""


@dataclass(frozen=True, slots=True)
class HelperStatus:
    """The helper in one process, as it last told."""

    pid: int
    state: HelperState
    error: int  # CUptiResult of the last call that failed, 0: none did
    failed_call: str  # "" if none did
    cupti_version: int
    simulated: bool
    finalized: int
    counters: dict[str, int]  # running totals, by COUNTERS
    reason: str = ""  # what cupti-python said when it failed


def parse_status(pid: int, data: bytes) -> HelperStatus | None:
    """`pid` as the profiler sees it. None if this is no state of a helper of this version."""
    if len(data) < STATUS_DTYPE.itemsize:
        return None
    row = np.frombuffer(data, STATUS_DTYPE, count=1)[0]
    known = {state.value for state in HelperState}
    if (int(row["magic"]), int(row["version"])) != (MAGIC, VERSION) or int(row["state"]) not in known:
        return None
    call = int(row["failed_call"])
    return HelperStatus(
        pid=pid,
        state=HelperState(int(row["state"])),
        error=int(row["error"]),
        failed_call=CUPTI_CALLS[call - 1] if 0 < call <= len(CUPTI_CALLS) else "",
        cupti_version=int(row["cupti_version"]),
        simulated=bool(row["simulated"]),
        finalized=int(row["finalized"]),
        counters={name: int(row[name]) for name in COUNTERS},
    )
