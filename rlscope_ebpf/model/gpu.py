"""GPU activity: records as the helper in the target writes them, and the table made of them."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

NO_CUDA = "The target has not loaded CUDA"
NO_USE = "The target has loaded CUDA, and has not made use of it"
"""Why there are no GPU times (`SessionInfo.gpu_reason`) of a program that uses no GPU."""


def is_unused(mode: str, reason: str) -> bool:
    """Whether there are no GPU times since nothing uses a GPU: then nothing need be said of it."""
    return mode == "unavailable" and reason in (NO_CUDA, NO_USE)


class GpuKind(IntEnum):
    """What a record, or a row of the table, tells of (`enum rlscope_gpu_kind`)."""

    KERNEL = 1
    COPY = 2  # detail: a key of COPY_NAMES
    SET = 3
    SYNC = 4  # the host waited: no work of the GPU; detail: 1 event, 3 stream, 4 context
    LAUNCH = 5  # records only; detail: GpuLaunch
    GRAPH = 6  # a whole graph launch in place of its kernels


class GpuLaunch(IntEnum):
    """What a launch launched (`enum rlscope_gpu_launch`)."""

    KERNEL = 1
    COPY = 2
    SET = 3
    GRAPH = 4


COPY_NAMES: dict[int, str] = {
    0: "unknown",
    1: "host_to_device",
    2: "device_to_host",
    3: "host_to_array",
    4: "array_to_host",
    5: "array_to_array",
    6: "array_to_device",
    7: "device_to_array",
    8: "device_to_device",
    9: "host_to_host",
    10: "peer_to_peer",
}
"""Direction of a copy by its detail (CUpti_ActivityMemcpyKind)."""

SET_NAME = "set"
"""In place of a direction: memory was filled."""


def copy_name(kind: int, detail: int) -> str:
    """The direction of a copy, "set" for filling memory."""
    return SET_NAME if kind == GpuKind.SET else COPY_NAMES.get(detail, COPY_NAMES[0])


GPU_RECORD_DTYPE = np.dtype(
    [
        ("start_ns", "<u8"),  # CLOCK_MONOTONIC; of a launch: the call
        ("end_ns", "<u8"),
        ("bytes", "<u8"),
        ("graph_node", "<u8"),
        ("correlation", "<u4"),  # per process; wraps
        ("name", "<u4"),
        ("device", "<u4"),
        ("context", "<u4"),
        ("stream", "<u4"),
        ("graph", "<u4"),
        ("thread", "<u4"),  # of a launch: thread id, as the process's pid namespace numbers it
        ("kind", "u1"),  # GpuKind
        ("detail", "u1"),
        ("reserved", "<u2"),
    ]
)
"""`struct rlscope_gpu_record` of userspace/rlscope_cupti.h, 64 bytes."""

GPU_DTYPE = np.dtype(
    [
        ("pid", "<u4"),  # ProcessInfo.pid
        ("thread", "<u4"),  # ThreadInfo.id of the thread that launched it; 0: not known
        ("path", "<u4"),  # PathInfo.id in which it was launched
        ("phase", "<u4"),  # StringInfo.id of the phase in which it was launched
        ("name", "<u4"),  # StringInfo.id: kernels; 0: none
        ("device", "<u4"),  # as the process numbers its devices
        ("context", "<u4"),
        ("stream", "<u4"),
        ("graph", "<u4"),  # 0: not launched by a graph
        ("start_ns", "<u8"),
        ("duration_ns", "<u8"),
        ("launch_ns", "<u8"),  # when the launching call was made; 0: not known
        ("bytes", "<u8"),  # copies, sets
        ("kind", "u1"),  # GpuKind, never LAUNCH
        ("detail", "u1"),
    ]
)
"""One row per activity of a GPU, and per wait for one (GpuKind.SYNC), in no order."""

KINDS_OF_WORK = (GpuKind.KERNEL, GpuKind.COPY, GpuKind.SET, GpuKind.GRAPH)
"""Kinds during which a GPU is busy."""

IS_WORK = np.zeros(256, np.bool_)
IS_WORK[list(KINDS_OF_WORK)] = True
"""The same by kind."""
