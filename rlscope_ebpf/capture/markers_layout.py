"""What the marker library keeps for a profiler to read: the mirror of `struct rlscope_registry` in rlscope_markers.h.

Everything read here comes from another process, which may be changing it, may be corrupt and may be hostile: sizes are
bounded, unreadable memory is left out, and nothing raises.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.capture.anchors import locate
from rlscope_ebpf.capture.elf import ElfFile
from rlscope_ebpf.capture.maps import MappedObject
from rlscope_ebpf.capture.marker_offsets import NAMES_OFFSET
from rlscope_ebpf.capture.pointers import ProcessMemory
from rlscope_ebpf.capture.tasks import tids_by_namespace_tid
from rlscope_ebpf.model.categories import UNKNOWN_OPERATION

SYMBOL: Final = "rlscope_markers_registry"
"""The data symbol of the registry."""

LIBRARY_PREFIX: Final = "librlscope_markers"

MAGIC: Final = b"RLSMARK1"
VERSION: Final = 1
NAME_MAX: Final = 127
MAX_DEPTH: Final = 64
METADATA_MAX: Final = 32
FIRST_CHUNK: Final = 32
CHUNKS: Final = 12

RECORD_DTYPE: Final = np.dtype(
    [
        ("changes", "<u8"),  # odd while the owner is changing the record
        ("tid", "<u4"),  # in the process's own pid namespace; 0: not in use
        ("depth", "<u4"),
        ("generation", "<u8"),
        ("index", "<u4"),
        ("next_free", "<u4"),
        ("cache", "<u8"),
        ("reserved", "<u8", 3),
        ("names", "<u8", MAX_DEPTH),
    ]
)
"""`struct rlscope_thread_record`, 576 bytes."""

COUNTERS: Final = (
    "truncated_names",
    "dropped_names",
    "unbalanced_ends",
    "too_deep",
    "lost_threads",
    "lost_metadata",
    "failed_mappings",
)
"""Counters of the registry, in order."""

REGISTRY_DTYPE: Final = np.dtype(
    [
        ("magic", "V8"),
        ("version", "<u4"),
        ("size", "<u4"),
        ("record_size", "<u4"),
        ("names_offset", "<u4"),
        ("max_depth", "<u4"),
        ("name_max", "<u4"),
        ("first_chunk", "<u4"),
        ("chunk_count", "<u4"),
        ("pid", "<u4"),
        ("records", "<u4"),
        *((name, "<u8") for name in COUNTERS),
        ("names", "<u8"),
        ("phase", "<u8"),
        ("progress_reports", "<u8"),
        ("progress_step", "<u8"),
        ("progress_total", "<u8"),
        ("chunks", "<u8", CHUNKS),
        ("metadata", "<u8", (METADATA_MAX, 2)),
        ("free_records", "<u8"),
    ]
)
"""`struct rlscope_registry`, 760 bytes."""


_RECORDS_AT_ONCE: Final = 512
_ATTEMPTS: Final = 20  # at a record whose owner keeps changing it
# At all records together, and names read: an attach is not to wait for a registry that is damaged or made to delay it.
_ATTEMPTS_IN_ALL: Final = 10_000
_NAMES_IN_ALL: Final = 20_000
_STACKS_IN_ALL: Final = 1 << 14  # as many threads as the programs follow

Read = Callable[[int, int], bytes]
"""`read(address, size)`: up to `size` bytes of the target's memory; fewer, or OSError, where there is none."""


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """Operations that a thread has open."""

    tid: int
    depth: int  # may exceed the number of names
    changes: int  # twice the begins, ends and changes of owner so far
    names: tuple[str, ...]  # outermost first, at most MAX_DEPTH
    record_address: int
    settled: bool = True  # False: its owner kept changing it; the innermost names may be those of another moment


@dataclass(frozen=True, slots=True)
class ProcessMarkers:
    """What a process has said about itself so far."""

    pid: int  # in its own pid namespace
    phase: str | None
    progress_reports: int
    step: int
    total: int  # 0: unknown
    metadata: dict[str, str] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)


def parse_registry(read: Read, address: int, tids: Collection[int] | None = None) -> list[ThreadStack]:
    """Open operations of every thread that has used a marker, from the registry at `address`.

    Threads that have nothing open are listed with depth 0: their record may fill at any time. Empty if there is no
    registry of a known layout at `address`. With `tids`, other threads' names are not even read: a registry may have
    records of many thousands that are gone.
    """
    registry = _registry(read, address)
    if registry is None:
        return []
    reader = _StackReader(read, tids)
    stacks = []
    remaining = min(int(registry["records"]), FIRST_CHUNK * ((1 << CHUNKS) - 1))
    for number, chunk in enumerate(registry["chunks"].tolist()):
        count = min(remaining, FIRST_CHUNK << number)
        remaining -= count
        if chunk:
            for start in range(0, count, _RECORDS_AT_ONCE):
                first = chunk + start * RECORD_DTYPE.itemsize
                stacks += reader.stacks(first, min(count - start, _RECORDS_AT_ONCE))
    return stacks


def parse_process(read: Read, address: int) -> ProcessMarkers | None:
    """Phase, progress, metadata and counters; None if there is no registry of a known layout at `address`."""
    registry = _registry(read, address)
    if registry is None:
        return None
    names = _Names(read)
    metadata = {}
    for key, value in registry["metadata"].tolist():
        if not key:
            break
        if value:
            metadata[names[key]] = names[value]
    phase = int(registry["phase"])
    return ProcessMarkers(
        pid=int(registry["pid"]),
        phase=names[phase] if phase else None,
        progress_reports=int(registry["progress_reports"]),
        step=int(registry["progress_step"]),
        total=int(registry["progress_total"]),
        metadata=metadata,
        counters={name: int(registry[name]) for name in COUNTERS},
    )


def registry_address(pid: int, objects: Iterable[MappedObject]) -> int | None:
    """Where the registry lies in a process that has `objects` mapped; None if none of them has one.

    A program may have the library linked into itself, so that objects of other names are looked at too.
    """
    by_name = sorted(objects, key=lambda mapped: not mapped.name.startswith(LIBRARY_PREFIX))
    for mapped in by_name:
        found = locate(pid, mapped, SYMBOL, _find_registry)
        if found is not None:
            return found[0]
    return None


def _find_registry(elf: ElfFile) -> tuple[int, int] | None:
    if not elf.exports_any([SYMBOL]):
        return None
    found = elf.objects_named(SYMBOL.encode())
    return found[0] if found else None


def read_thread_stacks(pid: int, objects: Iterable[MappedObject]) -> list[ThreadStack]:
    """`parse_registry` of a live process. Thread ids are this pid namespace's; threads that are gone are left out."""
    address = registry_address(pid, objects)
    if address is None:
        return []
    tids = tids_by_namespace_tid(pid)
    with ProcessMemory(pid) as memory:
        stacks = parse_registry(memory.read, address, tids)
    return [ThreadStack(tids[s.tid], s.depth, s.changes, s.names, s.record_address, s.settled) for s in stacks]


def read_process_markers(pid: int, objects: Iterable[MappedObject]) -> ProcessMarkers | None:
    """`parse_process` of a live process; None if it has no marker library."""
    address = registry_address(pid, objects)
    if address is None:
        return None
    with ProcessMemory(pid) as memory:
        return parse_process(memory.read, address)


class _Names(dict[int, str]):
    """Address → name; an address is read once."""

    def __init__(self, read: Read) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, address: int) -> str:
        if len(self) >= _NAMES_IN_ALL:
            return UNKNOWN_OPERATION
        data = _read(self._read, address, NAME_MAX + 1) if address else b""
        text, end, _ = data.partition(b"\0")
        name = text.decode("utf-8", "replace") if end else UNKNOWN_OPERATION
        self[address] = name
        return name


def _read(read: Read, address: int, size: int) -> bytes:
    try:
        return read(address, size)
    except (OSError, OverflowError, ValueError):
        return b""


def _registry(read: Read, address: int) -> np.void | None:
    data = _read(read, address, REGISTRY_DTYPE.itemsize)
    if len(data) < REGISTRY_DTYPE.itemsize:
        return None
    registry: np.void = np.frombuffer(data, REGISTRY_DTYPE, 1)[0]
    known = (
        registry["magic"].tobytes() == MAGIC
        and registry["version"] == VERSION
        and registry["record_size"] == RECORD_DTYPE.itemsize
        and registry["names_offset"] == NAMES_OFFSET
        and registry["max_depth"] == MAX_DEPTH
        and registry["first_chunk"] == FIRST_CHUNK
        and registry["chunk_count"] == CHUNKS
    )
    return registry if known else None


def _records(read: Read, address: int, count: int) -> NDArray[np.void]:
    data = _read(read, address, count * RECORD_DTYPE.itemsize)
    return np.frombuffer(data, RECORD_DTYPE, min(count, len(data) // RECORD_DTYPE.itemsize))


class _StackReader:
    """Reads records, within limits."""

    def __init__(self, read: Read, tids: Collection[int] | None) -> None:
        self._read = read
        self._tids = None if tids is None else np.array([0, *tids], np.uint32)  # 0: it may be getting an owner
        self._left = _STACKS_IN_ALL
        self._names = _Names(read)
        self._attempts = _ATTEMPTS_IN_ALL

    def stacks(self, first: int, count: int) -> list[ThreadStack]:
        """Of `count` records that lie one behind the other from address `first`."""
        records = _records(self._read, first, count)
        again = _records(self._read, first, len(records))
        # A second look that finds the same even number shows that nothing moved during the first.
        common = min(len(records), len(again))
        steady = np.zeros(len(records), bool)
        steady[:common] = (records["changes"][:common] == again["changes"][:common]) & (
            records["changes"][:common] % 2 == 0
        )
        stacks = []
        for row in np.flatnonzero(self._are_wanted(records) & ((records["tid"] != 0) | ~steady)).tolist():
            address = first + row * RECORD_DTYPE.itemsize
            record, settled = records[row], bool(steady[row])
            if not settled:
                record, settled = self._settle(record, address)
            if self._left and record["tid"] != 0 and self._are_wanted(record):
                self._left -= 1
                stacks.append(self._stack(record, address, settled))
        return stacks

    def _are_wanted(self, records: NDArray[np.void] | np.void) -> NDArray[np.bool_]:
        return np.ones(np.shape(records), np.bool_) if self._tids is None else np.isin(records["tid"], self._tids)

    def _settle(self, record: np.void, address: int) -> tuple[np.void, bool]:
        """Look at a record until two looks agree, and whether they did."""
        for _ in range(min(_ATTEMPTS, self._attempts)):
            self._attempts -= 1
            one, other = _records(self._read, address, 1), _records(self._read, address, 1)
            if not len(one) or not len(other):
                break
            record = one[0]
            if record["changes"] == other[0]["changes"] and record["changes"] % 2 == 0:
                return record, True
        return record, False

    def _stack(self, record: np.void, address: int, settled: bool) -> ThreadStack:
        depth = int(record["depth"])
        return ThreadStack(
            tid=int(record["tid"]),
            depth=depth,
            changes=int(record["changes"]),
            names=tuple(self._names[pointer] for pointer in record["names"][: min(depth, MAX_DEPTH)].tolist()),
            record_address=address,
            settled=settled,
        )
