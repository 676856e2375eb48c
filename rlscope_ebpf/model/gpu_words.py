"""What to make of a GPU's use, in words: where its driver's figure and the time in which work ran there differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rlscope_ebpf.model import format as fmt

MUCH = 0.2
"""With more than this between what NVML reports and what was measured (0 to 1), a sentence says why."""

_WHOLE_PERIODS = "NVML counts a whole period in which anything ran, however short, and other processes' work, too."
_SHORT_LOOKS = "NVML's figure is a mean of short looks, and late."


class DeviceUse(Protocol):
    """One GPU as one process uses it: a `DeviceTotal`, or a row made of one."""

    @property
    def index(self) -> int:
        """Its number."""

    @property
    def busy_ns(self) -> int:
        """With work of the profiled."""

    @property
    def reported(self) -> float | None:
        """How busy its driver reports it to be, 0 to 1; None: not known."""

    @property
    def asked_ns(self) -> int:
        """The time of which that is the mean."""


class GpuUse(DeviceUse, Protocol):
    """One GPU as all profiled processes together use it."""

    @property
    def devices(self) -> Sequence[DeviceUse]:
        """As each of them does."""


def disagreement(device: DeviceUse) -> str:
    """What to make of it if NVML reports a GPU to be much busier, or less busy, than it worked; otherwise empty."""
    if device.reported is None or not device.asked_ns:
        return ""
    busy = device.busy_ns / device.asked_ns
    if abs(device.reported - busy) < MUCH:
        return ""
    text = (
        f"NVML (nvidia-smi) reported device {device.index} to be busy for {fmt.percent(device.reported)} of "
        f"{fmt.duration(device.asked_ns)}; this process's work ran there for {fmt.percent(busy)} of it."
    )
    return f"{text} {_WHOLE_PERIODS if device.reported > busy else _SHORT_LOOKS}"


def shared_disagreement(gpu: GpuUse) -> str:
    """The same as `disagreement` of a GPU that several processes use."""
    if gpu.reported is None or not gpu.asked_ns:
        return ""
    busy = min(1.0, gpu.busy_ns / gpu.asked_ns)
    if abs(gpu.reported - busy) < MUCH:
        return ""
    whose, each = "the profiled process", ""
    if len(gpu.devices) > 1:
        most = min(1.0, max(device.busy_ns for device in gpu.devices) / gpu.asked_ns)
        whose = f"{len(gpu.devices)} processes"
        each = f", of each one for {fmt.percent(most)} at most"
    text = (
        f"NVML (nvidia-smi) reported device {gpu.index} to be busy for {fmt.percent(gpu.reported)} of "
        f"{fmt.duration(gpu.asked_ns)}; work of {whose} ran there for {fmt.percent(busy)} of it{each}."
    )
    return f"{text} {_WHOLE_PERIODS if gpu.reported > busy else _SHORT_LOOKS}"
