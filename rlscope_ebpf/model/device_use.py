"""How long each GPU worked, for each process and for all of them together, and the longest pauses in between."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.busy_time import MOST_WAITING, STRETCH_DTYPE, WINDOW_NS, Slabs
from rlscope_ebpf.model.gpu import GpuKind
from rlscope_ebpf.model.keys import LOW_HALF, Ints, KeyRows, grown, pair
from rlscope_ebpf.model.tables import DeviceInfo
from rlscope_ebpf.model.unions import Spans, clipped, union

_NONE: Ints = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Use:
    """Union of activity by key, ns. Arrays may end early (zeros); without activity all of them are zero."""

    busy: Ints
    first: Ints  # when it began
    last: Ints  # when it ended
    pause: Ints  # the longest time between two activities

    def __add__(self, later: Use) -> Use:
        """This and what came after it."""
        if not len(later.busy):
            return self
        if not len(self.busy):
            return later
        keys = max(len(self.busy), len(later.busy))
        busy, first, last, pause = (_long(getattr(self, name), keys) for name in Use.__slots__)
        more, begins, ends, paused = (_long(getattr(later, name), keys) for name in Use.__slots__)
        between = np.where((last > 0) & (ends > 0), begins - last, 0)
        return Use(
            busy + more,
            np.where(last > 0, first, begins),
            np.where(ends > 0, ends, last),
            np.maximum(np.maximum(pause, paused), between),
        )

    @classmethod
    def of(cls, spans: Spans) -> Use:
        """Of spans that are in order."""
        if not len(spans.key):
            return _NO_USE
        keys = int(spans.key.max()) + 1
        first, last, pause = (np.zeros(keys, np.int64) for _ in range(3))
        begins = np.append(True, spans.key[1:] != spans.key[:-1])
        ends = np.append(begins[1:], True)
        first[spans.key[begins]], last[spans.key[ends]] = spans.start_ns[begins], spans.end_ns[ends]
        paused = np.where(begins[1:], 0, spans.start_ns[1:] - spans.end_ns[:-1])
        np.maximum.at(pause, spans.key[1:], paused)
        return cls(spans.total_by_key(keys), first, last, pause)


_NO_USE = Use(_NONE, _NONE, _NONE, _NONE)


@dataclass(frozen=True, slots=True)
class UseSums:
    """The same by process and device number, and by GPU."""

    own: Use
    whole: Use

    def __add__(self, later: UseSums) -> UseSums:
        return UseSums(self.own + later.own, self.whole + later.whole)


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What one GPU did, for one process or for all."""

    busy_ns: int = 0
    pause_ns: int = 0  # the longest time between two activities
    kernels: int = 0


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One GPU of the machine, as all profiled processes together used it."""

    devices: tuple[tuple[int, int], ...]  # (pid, number that the process gives it)
    use: DeviceUse

    @property
    def index(self) -> int:
        """The lowest number that a process gives it."""
        return min(index for _, index in self.devices)


class DeviceUses(Slabs[UseSums]):
    """Adds up activity of GPUs, told of late as it is.

    Until it is known which GPU a process means by a number, the same number means the same GPU.
    """

    def __init__(self, window_ns: int = WINDOW_NS, most_waiting: int = MOST_WAITING) -> None:
        super().__init__(UseSums(_NO_USE, _NO_USE), window_ns, most_waiting)
        self._places = KeyRows()  # (pid, device)
        self._kernels: Ints = np.zeros(0, np.int64)  # by place
        self._gpu_of: list[int] = []  # by place
        self._gpus: dict[str, int] = {}  # by UUID, and by "#number" of those whose UUID is not known
        self._named: dict[int, str] = {}  # UUID by GPU
        self._uuids: dict[int, str] = {}  # UUID by (pid, device) as one key

    def define(self, info: DeviceInfo) -> None:
        """Learn which GPU a process means."""
        key = info.pid << 32 | info.index
        if not info.uuid or self._uuids.get(key) == info.uuid:
            return
        self._uuids[key] = info.uuid
        if key not in self._places.keys:
            return
        place = self._places.keys.index(key)
        before = self._gpu_of[place]
        if info.uuid not in self._gpus and before not in self._named:
            self._name(info.uuid, before)
        self._gpu_of[place] = self._gpu(key)
        if self._gpu_of[place] != before:
            for slab in self._slabs:
                slab.sums = None
            self._latest = None

    def add_rows(self, rows: NDArray[np.void]) -> None:
        """Add GPU activity (GPU_DTYPE): rows of kinds of work only."""
        if not len(rows):
            return
        place = self._places.rows(pair(rows["pid"], rows["device"]))
        for key in self._places.keys[len(self._gpu_of) :]:
            self._gpu_of.append(self._gpu(key))
        size = len(self._places)
        self._kernels = grown(self._kernels, size)
        self._kernels[:size] += np.bincount(place[rows["kind"] == GpuKind.KERNEL], minlength=size)
        pieces = np.zeros(len(rows), STRETCH_DTYPE)
        pieces["start"] = clipped(rows["start_ns"])
        pieces["end"] = pieces["start"] + clipped(rows["duration_ns"])
        pieces["place"] = place
        self.add(pieces, gpu=True)

    def by_process(self) -> dict[tuple[int, int], DeviceUse]:
        """By pid and the number that the process gives the GPU."""
        uses = _uses(self.sums().own, self._kernels, len(self._places))
        return {(key >> 32, key & int(LOW_HALF)): use for key, use in zip(self._places.keys, uses, strict=True)}

    def gpus(self) -> list[GpuUse]:
        """All that worked, by number."""
        count = max(self._gpu_of, default=-1) + 1
        kernels = np.bincount(self._gpu_of, self._kernels[: len(self._gpu_of)], count).astype(np.int64)
        devices: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        for key, gpu in zip(self._places.keys, self._gpu_of, strict=True):
            devices[gpu].append((key >> 32, key & int(LOW_HALF)))
        uses = _uses(self.sums().whole, kernels, count)
        found = [GpuUse(tuple(users), use) for users, use in zip(devices, uses, strict=True) if users]
        return sorted(found, key=lambda gpu: (gpu.index, gpu.devices))

    def _gpu(self, key: int) -> int:
        uuid = self._uuids.get(key)
        if uuid is None:
            return self._gpus.setdefault(f"#{key & int(LOW_HALF)}", len(set(self._gpus.values())))
        if uuid not in self._gpus:
            unnamed = self._gpus.get(f"#{key & int(LOW_HALF)}")
            if unnamed is None:
                unnamed = self._gpus[f"#{key & int(LOW_HALF)}"] = len(set(self._gpus.values()))
            self._name(uuid, len(set(self._gpus.values())) if unnamed in self._named else unnamed)
        return self._gpus[uuid]

    def _name(self, uuid: str, gpu: int) -> None:
        self._gpus[uuid], self._named[gpu] = gpu, uuid

    def _evaluate(self, gpu: NDArray[np.void], cpu: NDArray[np.void]) -> UseSums:
        place = gpu["place"].astype(np.int64)
        own = union(place, gpu["start"], gpu["end"])
        whole = union(np.array(self._gpu_of, np.int64)[own.key], own.start_ns, own.end_ns)
        return UseSums(Use.of(own), Use.of(whole))


def _long(values: Ints, size: int) -> Ints:
    return np.append(values, np.zeros(size - len(values), np.int64)) if len(values) < size else values


def _uses(use: Use, kernels: Ints, size: int) -> list[DeviceUse]:
    columns = (_long(each, size)[:size].tolist() for each in (use.busy, use.pause, kernels))
    return [DeviceUse(*each) for each in zip(*columns, strict=True)]
