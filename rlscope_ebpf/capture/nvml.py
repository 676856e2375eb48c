"""How busy the driver reports GPUs to be (NVML, what nvidia-smi shows), asked again and again by a thread.

It is an optional dependency (nvidia-ml-py). Without it, or without a driver, nothing is known, and nothing is said.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from rlscope_ebpf.capture.process import read_environment

PERIOD_S: Final = 0.25
"""Between two questions. The driver's answer is about a period of a sixth of a second to a second before."""

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
ORDER: Final = "CUDA_DEVICE_ORDER"
BY_BUS: Final = "PCI_BUS_ID"


@dataclass(frozen=True, slots=True)
class Reported:
    """What was answered about one GPU of one process so far."""

    pid: int
    index: int  # as the process numbers its devices
    name: str
    since_ns: int  # CLOCK_MONOTONIC
    until_ns: int
    samples: int
    percent: int  # sum of the answers
    uuid: str  # which GPU it is, whatever number a process gives it
    own_samples: int = 0  # answers about what it does for this process; 0: the driver does not tell
    own_percent: int = 0  # their sum


@dataclass(slots=True)
class _Device:
    """One GPU as NVML has it."""

    handle: Any
    name: str
    uuid: str
    tells_processes: bool = True  # how busy it is for whom; until it is seen not to
    told_us: int = 0  # of the latest that it has told of them, by its own clock


@dataclass(slots=True)
class _Asked:
    device: _Device
    since_ns: int
    until_ns: int = 0
    samples: int = 0
    percent: int = 0
    own_samples: int = 0
    own_percent: int = 0


@dataclass(frozen=True, slots=True)
class _Answer:
    """What NVML says of one GPU at a moment."""

    percent: int
    of_processes: dict[int, int] | None  # by pid; who is not there is not active. None: there is nothing new


class Utilization:
    """Asks for the GPUs of the processes that are being watched. Not thread-safe."""

    def __init__(self) -> None:
        self._pids: dict[int, bool] = {}  # whether its devices have been found
        self._asked: dict[tuple[int, int], _Asked] = {}  # (pid, index)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, pid: int) -> None:
        """Ask about the GPUs of a process from now on."""
        with self._lock:
            if pid in self._pids:
                return
            self._pids[pid] = False
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="nvml", daemon=True)
            thread.start()
            self._thread = thread

    def forget(self, pid: int) -> None:
        """Ask no more about a process's; what was answered stays."""
        with self._lock:
            self._pids.pop(pid, None)

    def reported(self) -> list[Reported]:
        """What was answered."""
        with self._lock:
            return [
                Reported(
                    pid,
                    index,
                    each.device.name,
                    each.since_ns,
                    each.until_ns,
                    each.samples,
                    each.percent,
                    each.device.uuid,
                    each.own_samples,
                    each.own_percent,
                )
                for (pid, index), each in self._asked.items()
                if each.samples
            ]

    def close(self) -> None:
        """Ask no more. The thread may still be waiting for an answer: it ends by itself."""
        self._stop.set()

    def _run(self) -> None:
        # Whatever goes wrong in here, nothing is reported: this is beside the point of a session.
        with suppress(Exception):
            nvml = importlib.import_module("pynvml")
            nvml.nvmlInit()
            devices = [_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
            while devices and not self._stop.wait(PERIOD_S):
                self._find(nvml, devices)
                self._ask(nvml)

    def _find(self, nvml: Any, devices: Sequence[_Device]) -> None:
        with self._lock:
            missing = [pid for pid, found in self._pids.items() if not found]
        for pid in missing:
            found = devices_of(pid, devices, lambda device: _users(nvml, device))
            if not found:
                continue  # it does not use any yet
            with self._lock:
                self._pids[pid] = True
                for index, device in found.items():
                    self._asked[pid, index] = _Asked(device, time.monotonic_ns())

    def _ask(self, nvml: Any) -> None:
        with self._lock:
            asked = [(pid, each) for (pid, _), each in self._asked.items() if pid in self._pids]
        answers: dict[int, _Answer] = {}
        for _, each in asked:
            if id(each.device) not in answers:
                answers[id(each.device)] = _ask_about(nvml, each.device)
        now_ns = time.monotonic_ns()
        with self._lock:
            for pid, each in asked:
                if pid in self._pids:
                    each.samples += 1
                    answer = answers[id(each.device)]
                    each.percent += answer.percent
                    if answer.of_processes is not None:
                        each.own_samples += 1
                        each.own_percent += answer.of_processes.get(pid, 0)
                    each.until_ns = now_ns


def devices_of(pid: int, devices: Sequence[_Device], users: Callable[[_Device], set[int] | None]) -> dict[int, _Device]:
    """Which of the driver's devices a process means by its numbers; those that are not certain are left out.

    `users(device)`: processes that use a device, None if the driver does not tell. One device alone needs no proof.
    Otherwise a number stands for what the process's environment makes it stand for, if the process does use that.
    """
    if len(devices) == 1:
        return {0: devices[0]}
    try:
        environment = dict(read_environment(pid))
    except OSError:
        return {}
    if environment.get(ORDER) != BY_BUS and len({device.name for device in devices}) > 1:
        return {}  # CUDA puts the fastest first
    seen = _visible(environment.get(VISIBLE), devices)
    return {index: device for index, device in enumerate(seen) if pid in (users(device) or ())}


def _visible(variable: str | None, devices: Sequence[_Device]) -> list[_Device]:
    """CUDA's rules: numbers or beginnings of UUIDs; what stands behind one that is none does not count."""
    if variable is None:
        return list(devices)
    found: list[_Device] = []
    for word in (part.strip() for part in variable.split(",")):
        if word.isdigit() and int(word) < len(devices):
            found.append(devices[int(word)])
            continue
        of_uuid = [device for device in devices if word.startswith("GPU-") and device.uuid.startswith(word)]
        if len(of_uuid) != 1:
            break
        found += of_uuid
    return found


def _device(nvml: Any, index: int) -> _Device:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    return _Device(handle, _text(nvml.nvmlDeviceGetName(handle)), _text(nvml.nvmlDeviceGetUUID(handle)))


def _ask_about(nvml: Any, device: _Device) -> _Answer:
    percent = min(int(nvml.nvmlDeviceGetUtilizationRates(device.handle).gpu), 100)
    if not device.tells_processes:
        return _Answer(percent, None)
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(device.handle, device.told_us)
    except Exception as error:  # NVMLError, of whatever version
        if getattr(error, "value", None) != nvml.NVML_ERROR_NOT_FOUND:
            device.tells_processes = False
            return _Answer(percent, None)
        return _Answer(percent, None if percent else {})  # nothing new; or nobody was active
    found: dict[int, list[int]] = {}
    for sample in samples:
        if sample.timeStamp > device.told_us:
            found.setdefault(int(sample.pid), []).append(min(int(sample.smUtil), 100))
    device.told_us = max((int(sample.timeStamp) for sample in samples), default=device.told_us)
    return _Answer(percent, {pid: round(sum(each) / len(each)) for pid, each in found.items()})


def _users(nvml: Any, device: _Device) -> set[int] | None:
    try:
        return {int(process.pid) for process in nvml.nvmlDeviceGetComputeRunningProcesses(device.handle)}
    except Exception:  # NVMLError, of whatever version
        return None


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
