"""Which kernel runs, which ways to attach a probe it has, and what it lets this process do."""

from __future__ import annotations

import os
import re
from pathlib import Path

from rlscope_ebpf.errors import UnsupportedError

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


def choose_attach_method(wanted: str) -> str:
    """The attach method to use: the wanted one, or for "auto" the best. Raises UnsupportedError if there is none."""
    available = attach_methods(kernel_version())
    if wanted != "auto":
        if wanted not in available:
            raise UnsupportedError(
                f"Kernel {kernel_release()} has no attach method {wanted!r}.",
                f"It has: {', '.join(available) or 'none'}; leave --attach-method away to take the best.",
            )
        return wanted
    if not available:
        raise UnsupportedError(
            f"Kernel {kernel_release()} is too old: probes with cookies need 5.15 or newer.",
            "Run the profiler on a machine with a newer kernel.",
        )
    return available[0]


CAPABILITIES: dict[str, int] = {
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_SYS_RESOURCE": 24,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
}
"""Bits of CapEff (include/uapi/linux/capability.h)."""


def effective_capabilities(status: Path = Path("/proc/self/status")) -> frozenset[str]:
    """Names of the capabilities that this process has, of those in CAPABILITIES."""
    match = re.search(r"^CapEff:\s*([0-9a-f]+)", status.read_text(), re.MULTILINE)
    bits = int(match.group(1), 16) if match else 0
    return frozenset(name for name, bit in CAPABILITIES.items() if bits >> bit & 1)
