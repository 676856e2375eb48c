"""The kind of machine that figures were measured on: enough to compare, nothing that names one machine."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds of all CPUs since some moment."""

    total: float
    busy: float  # of any process
    stolen: float  # by the host of a VM
    own: float  # of this process and of the children that it has waited for

    def __sub__(self, earlier: CpuTimes) -> CpuTimes:
        return CpuTimes(
            self.total - earlier.total,
            self.busy - earlier.busy,
            self.stolen - earlier.stolen,
            self.own - earlier.own,
        )

    @property
    def others_share(self) -> float:
        """Of all CPU time, what went to processes that have nothing to do with the benchmarks: 0 … 1."""
        return max(0.0, self.busy - self.own) / self.total if self.total else 0.0

    @property
    def stolen_share(self) -> float:
        """Of all CPU time, what the host took: 0 … 1."""
        return self.stolen / self.total if self.total else 0.0


def parse_cpu_times(stat: str, hertz: int, own: float) -> CpuTimes:
    """From the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal."""
    user, nice, system, idle, iowait, irq, softirq, steal = (
        int(word) / hertz for word in stat.splitlines()[0].split()[1:9]
    )
    busy = user + nice + system + irq + softirq
    return CpuTimes(busy + idle + iowait + steal, busy, steal, own)


def cpu_times() -> CpuTimes:
    """Until now."""
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return parse_cpu_times(Path("/proc/stat").read_text(), os.sysconf("SC_CLK_TCK"), own)
