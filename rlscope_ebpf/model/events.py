"""Raw events as the BPF programs write them: the mirror of probes/abi.h."""

from __future__ import annotations

from enum import IntEnum, IntFlag

import numpy as np


class EventKind(IntEnum):
    """`enum rls_event_kind`."""

    CALL = 1
    RETURN = 2
    GIL_RELEASE = 3
    GIL_ACQUIRE = 4
    OP_BEGIN = 5
    OP_END = 6
    PHASE = 7
    PROGRESS = 8
    PROGRESS_TOTAL = 9
    METADATA = 10
    OFF_CPU = 11
    ON_CPU = 12
    THREAD_EXIT = 13
    WAKEUP = 14


class EventFlag(IntFlag):
    """`RLS_F_*`."""

    HEALED = 1
    FIRST = 2
    PYTHON = 4


OFF_STATE = 0xFF
OFF_CALL_SHIFT = 16
OFF_ARG0_ZERO = 1 << 32
OFF_ARG1_ZERO = 1 << 33
"""`RLS_OFF_*`: the parts of `arg` of an `EventKind.OFF_CPU`."""


class TextKind(IntEnum):
    """`enum rls_text_kind`."""

    NAME = 1
    VALUE = 2
    OPEN_OPS = 3
    NAME_AT = 4
    VALUE_AT = 5


class SampleKind(IntEnum):
    """`enum rls_sample_kind`."""

    CLOCK = 0
    OFF = 1


TEXT_MAX = 128
OPEN_OPS_MAX = 16
SAMPLE_WORDS = 127

EVENT_DTYPE = np.dtype(
    [
        ("time_ns", "<u8"),
        ("pid", "<u4"),
        ("tid", "<u4"),
        ("site", "<u4"),
        ("kind", "u1"),
        ("category", "u1"),
        ("origin", "u1"),  # `from` in C
        ("flags", "u1"),
        ("arg", "<u8"),
    ]
)
"""`struct rls_event`, 32 bytes."""

TEXT_DTYPE = np.dtype(
    [
        ("time_ns", "<u8"),
        ("key", "<u8"),
        ("pid", "<u4"),
        ("tid", "<u4"),
        ("kind", "<u4"),
        ("length", "<u4"),
        ("text", f"V{TEXT_MAX}"),
    ]
)
"""`struct rls_text`, 160 bytes."""

SAMPLE_DTYPE = np.dtype(
    [
        ("time_ns", "<u8"),
        ("ip", "<u8"),
        ("pid", "<u4"),
        ("tid", "<u4"),
        ("words", "<u4"),
        ("kind", "<u4"),  # SampleKind
        ("stack", "<u8", (SAMPLE_WORDS,)),
    ]
)
"""`struct rls_sample`, 1,048 bytes."""
