"""The kind of machine that figures were measured on: enough to compare, nothing that names one machine."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path

from rlscope_ebpf.capture.bcc_import import bcc_version, load_bcc
from rlscope_ebpf.capture.kernel import kernel_version
from rlscope_ebpf.errors import ProfilerError


def _field(text: str, name: str) -> str | None:
    match = re.search(rf"^{re.escape(name)}\s*[:=]\s*\"?([^\"\n]*)", text, re.MULTILINE)
    return match.group(1).strip() if match else None


def describe(cpuinfo: str, meminfo: str, release: str, cores: int, kernel: tuple[int, ...]) -> str:
    """CPU model, cores, memory, whether it is a VM, kernel (numbers only), distribution."""
    model = _field(cpuinfo, "model name") or platform.machine()
    virtual = "VM, " if "hypervisor" in (_field(cpuinfo, "flags") or "").split() else ""
    plural = "" if cores == 1 else "s"
    numbers = ".".join(map(str, kernel))
    memory_gib = int((_field(meminfo, "MemTotal") or "0").split()[0]) / (1 << 20)
    system = _field(release, "PRETTY_NAME") or "Linux"
    return f"{virtual}{model}, {cores} core{plural}, {memory_gib:.0f} GiB, kernel {numbers}, {system}"


def this_machine() -> str:
    """The same of this machine."""
    return describe(
        Path("/proc/cpuinfo").read_text(),
        Path("/proc/meminfo").read_text(),
        Path("/etc/os-release").read_text() if Path("/etc/os-release").exists() else "",
        len(os.sched_getaffinity(0)),
        kernel_version(),
    )


def software() -> str:
    """Versions of what takes part."""
    parts = [f"CPython {platform.python_version()}"]
    try:
        parts.append("BCC " + ".".join(map(str, bcc_version(load_bcc()))))
    except ProfilerError:
        parts.append("no BCC")
    parts += map(_package, ("numpy", "torch", "stable-baselines3", "nvtx", "py-spy"))
    return ", ".join(parts)


def _package(name: str) -> str:
    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:
        return f"no {name}"


def load() -> float:
    """Runnable threads, averaged over the last minute; this process and what it starts included."""
    return os.getloadavg()[0]
