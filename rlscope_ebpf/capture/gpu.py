"""Listening to the GPU helper (librlscope_cupti.so) in target processes: programs on its functions, and their rings.

A program of its own, apart from the engine's: it is compiled only when there is a helper. The helper notices by the
probes that somebody listens, and leaves by itself when they are gone: there is nothing else to tell it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.capture.bpf import PROGRAM_KPROBE, BpfMap
from rlscope_ebpf.capture.compiler import load_compiled
from rlscope_ebpf.capture.elf import ElfFile
from rlscope_ebpf.capture.gpu_layout import (
    BATCH_DTYPE,
    CUPTI_SYMBOLS,
    STATE_SYMBOL,
    STATUS_DTYPE,
    SYMBOLS,
    TEXT_DTYPE,
    Function,
    HelperStatus,
    TextKind,
    parse_status,
)
from rlscope_ebpf.capture.links import ATTACH_TYPES, Link, attach
from rlscope_ebpf.capture.maps import MappedObject, host_path
from rlscope_ebpf.capture.pid_namespace import compiler_flags
from rlscope_ebpf.capture.pointers import ProcessMemory, load_bias
from rlscope_ebpf.capture.preparation import leave_working_folder
from rlscope_ebpf.capture.programs import possible_cpus
from rlscope_ebpf.capture.ring import Ring
from rlscope_ebpf.errors import ProfilerError, UnsupportedError

BATCH_RING_BYTES = 32 << 20
"""Half a million records: two seconds of the fastest graph replays."""

TEXT_RING_BYTES = 2 << 20
_PAGE = 4096
_MAX_READ = 512  # batches at a time: 8 MB
_COUNTERS = 4
_PROGRAM = "rls_gpu"


@dataclass(frozen=True, slots=True)
class GpuBatch:
    """Records of one process, GPU_RECORD_DTYPE, in the order in which the helper handed them out."""

    pid: int
    before: int  # records that it had handed out before them
    records: NDArray[np.void]


@dataclass(frozen=True, slots=True)
class GpuName:
    """A kernel's name, mangled as the compiler made it; records of the process have the id."""

    pid: int
    id: int
    text: str


@dataclass(frozen=True, slots=True)
class GpuForeign:
    """Somebody else called CUPTI while the helper used it: SUBSCRIBE, or REGISTER to get its records."""

    pid: int
    called: Function


@dataclass(frozen=True, slots=True)
class GpuRead:
    """What has come since the last read. `names` has every name that `batches` needs and that was not read before."""

    batches: list[GpuBatch] = field(default_factory=list)
    names: list[GpuName] = field(default_factory=list)
    statuses: list[HelperStatus] = field(default_factory=list)
    foreign: list[GpuForeign] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GpuLosses:
    """Running totals of what did not come through."""

    lost_records: int  # the ring was full
    unreadable_records: int
    lost_texts: int


class GpuCapture:
    """Not thread-safe. `method` is an attach method of `links`. Raises UnsupportedError if BPF cannot be used."""

    def __init__(self, method: str) -> None:
        self._method = "multi" if method == "session" else method  # only entries are of interest
        flags = [
            f"-DGPU_RING_PAGES={BATCH_RING_BYTES // _PAGE}",
            f"-DGPU_TEXT_RING_PAGES={TEXT_RING_BYTES // _PAGE}",
            *compiler_flags(),
        ]
        kind = ATTACH_TYPES[self._method]
        try:
            self._image, self._fd = load_compiled(
                ["gpu.bpf.c"], flags, [_PROGRAM], lambda image: (image, image.load(_PROGRAM, PROGRAM_KPROBE, kind))
            )
        except OSError as error:
            raise UnsupportedError(
                f"The BPF program for GPU records could not be loaded ({error}).",
                "Use --gpu off, or run `rlscope-ebpf doctor` to see which requirement is not met.",
            ) from error
        maps = self._image.maps
        self._batches = Ring(maps["gpu_batches"], BATCH_RING_BYTES, BATCH_DTYPE)
        self._texts = Ring(maps["gpu_texts"], TEXT_RING_BYTES, TEXT_DTYPE)
        self._targets = BpfMap(maps["gpu_targets"])
        self._counters = BpfMap(maps["gpu_counters"])
        self._cpus = possible_cpus()
        self._links: dict[int, Link] = {}
        self._guards: dict[int, list[Link]] = {}  # on CUPTI itself

    def attach(self, pid: int, path: str) -> None:
        """Listen to the helper in a process; `path`: the helper's file, as it can be opened from here.

        Raises ElfError if that is no helper, OSError if the kernel refuses the probes.
        """
        offsets, cookies = _sites(path)
        self._targets.update(pid.to_bytes(4, "little"), bytes(8))
        try:
            self._links[pid] = attach(self._method, self._fd, path, offsets, cookies, pid, returns=False)
        except OSError:
            self._targets.delete(pid.to_bytes(4, "little"))
            raise

    def settle(self, pid: int) -> None:
        """Nothing is on its way: the ring has all of it."""

    def detach(self, pid: int) -> None:
        """Listen no more; the helper leaves within a second or two. What is in the rings can still be read."""
        for guard in self._guards.pop(pid, ()):
            guard.close()
        link = self._links.pop(pid, None)
        if link is not None:
            link.close()

    def guard(self, pid: int, path: str) -> None:
        """Hear of others that use a libcupti in a process from now on: once the helper itself has called it.

        Raises ElfError if `path` cannot be read, OSError if the kernel refuses the probes.
        """
        with ElfFile(path) as elf:
            found = [(elf.offset_of(each.vaddr), CUPTI_SYMBOLS.get(each.name)) for each in elf.exports]
        sites = dict(sorted((offset, int(called)) for offset, called in found if called and offset is not None))
        if sites:
            link = attach(self._method, self._fd, path, list(sites), list(sites.values()), pid, returns=False)
            self._guards.setdefault(pid, []).append(link)

    def read(self) -> GpuRead:
        """What has come. Call it again at once if it returned 512 batches."""
        found = GpuRead()
        raw = self._batches.read(_MAX_READ)
        texts = self._texts.read(1 << 16)  # afterwards: a name is told before the first record that has it
        for row in raw:
            count = min(int(row["count"]), len(row["records"]))
            found.batches.append(GpuBatch(int(row["pid"]), int(row["before"]), row["records"][:count]))
        for row in texts:
            data = row["text"].tobytes()[: int(row["length"])]
            pid = int(row["pid"])
            if int(row["kind"]) == TextKind.NAME:
                found.names.append(GpuName(pid, int(row["id"]), data.decode("utf-8", "replace")))
            elif int(row["kind"]) == TextKind.FOREIGN:
                found.foreign.append(GpuForeign(pid, Function(int(row["id"]))))
            elif (status := parse_status(pid, data)) is not None:
                found.statuses.append(status)
        return found

    def losses(self) -> GpuLosses:
        """Running totals."""
        totals = []
        per_cpu = np.zeros(self._cpus, np.uint64)
        for index in range(_COUNTERS):
            known = self._counters.lookup_into(index.to_bytes(4, "little"), per_cpu)
            totals.append(int(per_cpu.sum()) if known else 0)
        return GpuLosses(lost_records=totals[1], unreadable_records=totals[2], lost_texts=totals[3])

    def close(self) -> None:
        """Detach and unload."""
        for pid in list(self._links):
            self.detach(pid)
        self._batches.close()
        self._texts.close()
        self._image.close()


class GpuListener(Protocol):
    """What listens to helpers in target processes; see `GpuCapture`."""

    def attach(self, pid: int, path: str) -> None:
        """Listen to the helper in a process."""

    def guard(self, pid: int, path: str) -> None:
        """Hear of others that use a libcupti in a process from now on."""

    def detach(self, pid: int) -> None:
        """Listen no more."""

    def settle(self, pid: int) -> None:
        """Whatever a process that has ended has sent can be read afterwards."""

    def read(self) -> GpuRead:
        """What has come."""

    def losses(self) -> GpuLosses:
        """Running totals."""

    def close(self) -> None:
        """Detach from all."""


class GpuPreparation:
    """Makes a GpuCapture in a thread of its own, once it is known to be needed: compiling takes a while."""

    def __init__(self, method: str, listener: GpuListener | None = None) -> None:
        """`listener` is taken in place of a GpuCapture."""
        self._method = method
        self._listener = listener
        self._made: GpuListener | None = None
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    @property
    def begun(self) -> bool:
        """Whether it was needed."""
        return self._thread is not None

    def begin(self) -> None:
        """Start, unless that was done."""
        if self._thread is None:
            thread = threading.Thread(target=self._make, name="gpu-compiler")
            thread.start()  # Ctrl-C may come here
            self._thread = thread

    def wait(self) -> None:
        """Until it is done, if it was begun."""
        if self._thread is not None:
            self._thread.join()

    def take(self) -> GpuListener | None:
        """What was made, which then belongs to the caller; None: not yet. Raises ProfilerErrors if it cannot be."""
        if self._thread is None or self._thread.is_alive():
            return None
        if self._error is not None:
            raise self._error
        made, self._made = self._made, None
        return made

    def close(self) -> None:
        """Wait until the compiler is done, and unload what nobody took."""
        self.wait()
        if self._made is not None:
            self._made.close()
            self._made = None

    def _make(self) -> None:
        leave_working_folder()
        try:
            self._made = self._listener or GpuCapture(self._method)
        except Exception as error:  # raised where the capture is asked for
            self._error = error


def read_status(pid: int, mapped: MappedObject) -> HelperStatus | None:
    """The state of the helper mapped in a process, from its memory; None if that cannot be read or is none of ours."""
    path = host_path(pid, mapped)
    if path is None:
        return None
    try:
        with ElfFile(path) as elf, ProcessMemory(pid) as memory:
            bias = load_bias(elf, mapped)
            for vaddr, _ in elf.objects_named(STATE_SYMBOL.encode()):
                if bias is not None:
                    return parse_status(pid, memory.read(bias + vaddr, STATUS_DTYPE.itemsize))
    except (OSError, ProfilerError):
        pass
    return None


def _sites(path: str) -> tuple[list[int], list[int]]:
    """File offsets of the functions to probe, and the cookie of each. The records come last: see GpuCapture.attach."""
    offsets = []
    cookies = []
    with ElfFile(path) as elf:
        found = {function.name: function.vaddr for function in elf.exports if function.name in SYMBOLS}
        for name, cookie in reversed(SYMBOLS.items()):
            offset = elf.offset_of(found[name]) if name in found else None
            if offset is None:
                raise UnsupportedError(
                    f"{path} is not this version's GPU helper: it has no function {name}.",
                    "Install the same version of rlscope-ebpf for profiler and target.",
                )
            offsets.append(offset)
            cookies.append(int(cookie))
    return offsets, cookies
