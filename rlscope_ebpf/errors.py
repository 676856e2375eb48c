"""Errors that people see: one sentence on what is wrong, one on what to do, and the exit status."""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """Exit statuses of the command line (contract)."""

    OK = 0
    FAILED = 1
    USAGE = 2  # wrong usage, no such process, no such file
    NOT_PERMITTED = 3
    UNSUPPORTED = 4  # the kernel, BCC or the target lacks something needed
    DAMAGED = 5  # a trace is damaged


class ProfilerError(Exception):
    """What is wrong and what to do about it, as two sentences.

    `status` is the process's exit status if nobody handles it.
    """

    status = ExitStatus.FAILED

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem} {remedy}")
        self.problem = problem
        self.remedy = remedy


class UsageError(ProfilerError):
    """Wrong usage, no such process, no such file."""

    status = ExitStatus.USAGE


class NotPermittedError(ProfilerError):
    """Root or capabilities are missing."""

    status = ExitStatus.NOT_PERMITTED


class UnsupportedError(ProfilerError):
    """The kernel, BCC or the target lacks something needed."""

    status = ExitStatus.UNSUPPORTED


class DamagedTraceError(ProfilerError):
    """Nothing of the trace could be read."""

    status = ExitStatus.DAMAGED
