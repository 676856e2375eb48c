"""Which kernel runs, which ways to attach a probe it has, and what it lets this process do."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
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
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_FOWNER": 3,
    "CAP_NET_ADMIN": 12,
    "CAP_SYS_CHROOT": 18,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_SYS_RESOURCE": 24,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
    "CAP_CHECKPOINT_RESTORE": 40,
}
"""Bits of CapEff (include/uapi/linux/capability.h)."""


def effective_capabilities(status: Path = Path("/proc/thread-self/status")) -> frozenset[str]:
    """Names of the capabilities that the calling thread has, of those in CAPABILITIES."""
    bits = capability_sets(status).effective
    return frozenset(name for name, bit in CAPABILITIES.items() if bits >> bit & 1)


def how_to_get(*names: str, euid: int | None = None, held: frozenset[str] | None = None) -> str:
    """A sentence that says how this process comes by capabilities that it lacks; which one depends on who it is."""
    if (os.geteuid() if euid is None else euid) == 0:
        options = " ".join(f"--cap-add {name.removeprefix('CAP_')}" for name in names)
        whom = "it" if len(names) == 1 else "them"
        return f"Give {whom} to this container ({options}), or run on the host."
    if not (effective_capabilities() if held is None else held):
        return "Run the profiler as root, for example with sudo."
    more = " and ".join(names)
    return f"Run the profiler as root, for example with sudo, or with {more} as well (AmbientCapabilities, setpriv)."


@dataclass(frozen=True, slots=True)
class CapabilitySet:
    """Of a thread, one bit each."""

    effective: int
    permitted: int
    inheritable: int


def capability_sets(status: Path = Path("/proc/thread-self/status")) -> CapabilitySet:
    """Of the calling thread; none where /proc does not tell."""
    try:
        text = status.read_text()
    except OSError:
        text = ""
    found = dict(re.findall(r"^(Cap\w+):\s*([0-9a-f]+)", text, re.MULTILINE))
    effective, permitted, inheritable = (int(found.get(name, "0"), 16) for name in ("CapEff", "CapPrm", "CapInh"))
    return CapabilitySet(effective, permitted, inheritable)
