"""Categories, thread states and the causes that open an interval: the vocabulary of every figure."""

from __future__ import annotations

from enum import IntEnum


class Category(IntEnum):
    """Where a thread's wall time goes; exactly one holds at any instant (`enum rls_category` in probes/abi.h)."""

    PYTHON = 0
    SIMULATOR = 1
    BACKEND = 2
    CUDA_API = 3
    OTHER = 4


CATEGORY_NAMES: tuple[str, ...] = tuple(category.name.lower() for category in Category)


class ThreadState(IntEnum):
    """What the scheduler did with the thread during an interval."""

    RUNNING = 0
    RUNNABLE = 1  # preempted or woken: waits for a CPU
    BLOCKED = 2  # sleeps or waits for something


class Wait(IntEnum):
    """What a blocked thread waits for."""

    OTHER = 0  # another process, a signal, something unknown
    LOCK = 1  # a lock or condition: a futex, or one in the kernel
    IO = 2  # a pipe, a socket, a terminal, or whichever of several has something to read
    SLEEP = 3  # for time to pass
    GPU = 4  # in a CUDA call
    DISK = 5  # a file: uninterruptibly, as the kernel does for storage


WAIT_NAMES: tuple[str, ...] = tuple(wait.name.lower() for wait in Wait)


class Opened(IntEnum):
    """What opened an interval."""

    CONTINUED = 0  # nothing happened: a long interval is handed out in slices
    CALL = 1  # a call entered the category
    RETURN = 2  # a call returned into the category
    GIL_RELEASE = 3
    GIL_ACQUIRE = 4
    OP_BEGIN = 5
    OP_END = 6
    PHASE = 7
    SCHEDULER = 8  # the thread went on or off a CPU


UNTRACKED = "(untracked)"
"""Name of the time outside any operation: path id 0."""

UNKNOWN_OPERATION = "(unknown)"
"""Name of an operation whose begin was not seen and whose name could not be read."""

DEFAULT_PHASE = "(default)"
"""Name of the phase a process is in before it names one: phase id 0."""
