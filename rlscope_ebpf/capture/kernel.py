"""Which kernel runs, and which ways to attach a probe it has."""

from __future__ import annotations

import os
import re

MINIMUM_KERNEL = (5, 15)
"""Oldest kernel whose perf-event uprobes carry a BPF cookie, which tells one probe from another."""

MINIMUM_KERNEL_OF_METHOD: dict[str, tuple[int, int]] = {"session": (6, 13), "multi": (6, 6), "perf": MINIMUM_KERNEL}
"""Attach methods, best first, and the kernel each needs."""


def kernel_release() -> str:
    """As `uname -r` prints it."""
    return os.uname().release


def kernel_version() -> tuple[int, ...]:
    """The running kernel's version as numbers: (6, 12, 48)."""
    return parse_release(kernel_release())


def parse_release(release: str) -> tuple[int, ...]:
    """Numbers at the start of a release; () if there are none."""
    match = re.match(r"\d+(?:\.\d+)*", release)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def attach_methods(version: tuple[int, ...]) -> tuple[str, ...]:
    """The attach methods a kernel has, best first; () if it is too old for any."""
    return tuple(method for method, needed in MINIMUM_KERNEL_OF_METHOD.items() if version >= needed)
