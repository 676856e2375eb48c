"""Reading a trace, whole or damaged."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.errors import (
    DamagedTraceError,
    NotPermittedError,
    UnsupportedError,
    UsageError,
)
from rlscope_ebpf.model import format as fmt
from rlscope_ebpf.model.rows import joined
from rlscope_ebpf.model.session import SessionEnd, SessionInfo
from rlscope_ebpf.model.tables import (
    TABLES,
    Batch,
    Counters,
    Definition,
    DeviceInfo,
    Losses,
    Notice,
    PathInfo,
    ProbeInfo,
    ProcessInfo,
    StringInfo,
    ThreadInfo,
)
from rlscope_ebpf.trace.codecs import ColumnDecoder, check_chunk, check_known_columns
from rlscope_ebpf.trace.definitions import (
    KINDS,
    UNKNOWN,
    read_definition,
    read_footer,
    read_gpu,
    read_header,
    read_list,
    read_notice,
    read_totals,
)
from rlscope_ebpf.trace.format import (
    FORMAT_NAME,
    HEADER_MARK,
    MAP_TAGS,
    VERSION,
    BrokenObject,
    MoreBytesNeeded,
    object_end,
    unpack_object,
)
from rlscope_ebpf.trace.placeholders import (
    circular_paths,
    collect_ids,
    lost_definitions,
    refers,
)
from rlscope_ebpf.trace.scan import Damage, Intact, ObjectScanner, read_at
from rlscope_ebpf.trace.slices import slices

Progress = Callable[[int, int], None]
MAX_PROBLEMS = 20  # sentences kept; the rest is counted in the last one


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Where a chunk lies."""

    table: str
    rows: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class _Totals:
    losses: Losses
    counters: Counters
    now_ns: int


class TraceReader:
    """A trace file. Opening reads it once from end to end, checks every byte and decodes all but the rows.

    `complete` is True only if every object is intact and the footer, last, agrees with them; otherwise `problems` says
    in sentences what is missing. It can turn False while rows are read, if the file changes underneath: look at it
    after reading. Ids whose definition is lost are defined as "(unknown)", so that every id in the rows is found.

    Raises `UsageError` (no such file, no regular file, no trace), `NotPermittedError`, `UnsupportedError` (a newer
    major version: exit status 4) and `DamagedTraceError` (nothing could be read).
    """

    def __init__(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        self.path = Path(path)
        self.info = SessionInfo("", "", "", "", 0, 0)
        self.version: tuple[int, int] = VERSION
        self.problems: list[str] = []
        self.losses = Losses()
        self.counters = Counters()
        self.end: SessionEnd | None = None
        self.now_ns = 0
        """Everything before this moment is in the trace."""
        self.rows: dict[str, int] = dict.fromkeys(TABLES, 0)
        """Table → number of rows."""
        self.notices: list[Notice] = []
        """What the profiler had to say, oldest first."""
        self.processes: dict[int, ProcessInfo] = {}
        self.threads: dict[int, ThreadInfo] = {}
        self.strings: dict[int, StringInfo] = {}
        self.paths: dict[int, PathInfo] = {}
        self.probes: dict[int, ProbeInfo] = {}
        self.devices: dict[int, DeviceInfo] = {}
        self._decoder = ColumnDecoder()
        self._entries: list[Definition | Notice | _Chunk | _Totals] = []
        self._lost: list[Definition] = []
        self._problem_count = 0
        self._load(progress)

    @property
    def complete(self) -> bool:
        """Whether nothing is missing or damaged."""
        return not self.problems

    def chunks(
        self, table: str, columns: Sequence[str] | None = None, progress: Progress | None = None
    ) -> Iterator[NDArray[np.void]]:
        """The rows of a table in file order, as structured arrays of its dtype or of `columns`, in the order given.

        `progress` is called with rows done and rows in all. Raises KeyError for a table or column that does not exist.
        """
        dtype = TABLES[table]
        wanted = tuple(columns) if columns is not None else (dtype.names or ())
        for name in wanted:
            if name not in (dtype.names or ()):
                raise KeyError(name)
        return self._chunks(table, wanted, progress)

    def table(
        self, table: str, columns: Sequence[str] | None = None, progress: Progress | None = None
    ) -> NDArray[np.void]:
        """All rows of a table in one array."""
        parts = list(self.chunks(table, columns, progress))
        if not parts:
            dtype = TABLES[table]
            return np.zeros(0, np.dtype([(name, dtype[name]) for name in columns or dtype.names or ()]))
        return joined(parts)

    def batches(self, step_ns: int | None = None) -> Iterator[Batch]:
        """The session again, as its sinks saw it: one batch per flush, or one every `step_ns` of the session's time."""
        definitions: list[Definition] = list(self._lost)
        later: list[Definition] = []
        tables: dict[str, NDArray[np.void]] = {}
        notices: list[Notice] = []
        last = _Totals(Losses(), Counters(), self.info.start_ns)
        with self._opened() as descriptor:
            for entry in self._entries:
                if isinstance(entry, _Chunk):
                    if entry.table in tables:  # a flush of several chunks: not all at once
                        yield Batch(last.now_ns, definitions, tables, last.losses, last.counters)
                        definitions, tables = [], {}
                    names = TABLES[entry.table].names or ()
                    rows = self._decode(descriptor, entry, names)
                    if rows is not None:
                        tables[entry.table] = rows
                elif isinstance(entry, _Totals):
                    batch = Batch(max(entry.now_ns, last.now_ns), definitions, tables, entry.losses, entry.counters)
                    yield from slices(batch, later, notices, last.now_ns, last.losses, last.counters, step_ns)
                    definitions, later, notices, tables = [], [], [], {}
                    last = replace(entry, now_ns=batch.now_ns)
                elif isinstance(entry, Notice):
                    notices.append(entry)
                else:
                    (later if tables else definitions).append(entry)
            if definitions or later or notices or tables:
                batch = Batch(max(self.now_ns, last.now_ns), definitions, tables, self.losses, self.counters)
                yield from slices(batch, later, notices, last.now_ns, last.losses, last.counters, step_ns)

    def _chunks(self, table: str, columns: tuple[str, ...], progress: Progress | None) -> Iterator[NDArray[np.void]]:
        done, total = 0, self.rows[table]
        with self._opened() as descriptor:
            for entry in self._entries:
                if isinstance(entry, _Chunk) and entry.table == table:
                    rows = self._decode(descriptor, entry, columns)
                    done += entry.rows
                    if progress is not None:
                        progress(done, total)
                    if rows is not None:
                        yield rows

    def _decode(self, descriptor: int, chunk: _Chunk, columns: tuple[str, ...]) -> NDArray[np.void] | None:
        try:
            entries = unpack_object(read_at(descriptor, chunk.offset, chunk.length))
            check_chunk(entries)
            if entries.get("chunk") != chunk.table or entries["n"] != chunk.rows:
                raise BrokenObject("another chunk is there now")
            return self._decoder.rows(chunk.table, entries, TABLES[chunk.table], columns)
        except BrokenObject as error:
            self._problem(f"A chunk of {chunk.rows} {chunk.table} at byte {chunk.offset} cannot be decoded: {error}.")
            return None

    @contextmanager
    def _opened(self) -> Iterator[int]:
        try:
            if not stat.S_ISREG(os.stat(self.path).st_mode):
                raise UsageError(f"{self.path} is not a regular file.", "Give the path of a trace file.")
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UsageError(f"There is no file {self.path}.", "Give the path of a trace file.") from error
        except PermissionError as error:
            raise NotPermittedError(
                f"{self.path} may not be read.", "Run as its owner or as root, or change its permissions."
            ) from error
        except (OSError, ValueError) as error:
            raise UsageError(f"{self.path} cannot be opened: {error}.", "Give the path of a trace file.") from error
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _load(self, progress: Progress | None) -> None:
        """The first pass: everything but the rows."""
        with self._opened() as descriptor:
            size = os.fstat(descriptor).st_size
            if size == 0:
                raise DamagedTraceError(
                    f"{self.path} is empty.", "The profiler was stopped before it wrote anything: record again."
                )
            if not _looks_like_a_trace(read_at(descriptor, 0, 5 + len(HEADER_MARK))):
                raise UsageError(
                    f"{self.path} is not a trace of rlscope-ebpf.", "Give the path of a file made by attach or run."
                )
            objects = 0
            footer: tuple[dict[str, int], int] | None = None
            for item in ObjectScanner(descriptor, size):
                if item.offset == 0:
                    self._read_start(item)
                elif isinstance(item, Damage):
                    self._damage(item)
                else:
                    if footer is not None:
                        self._problem(f"Something follows the footer at byte {item.offset}.")
                    try:
                        footer = self._take(item, footer)
                    except BrokenObject as error:
                        self._problem(f"The object at byte {item.offset} cannot be used: {error}.")
                objects += isinstance(item, Intact)
                if progress is not None:
                    progress(min(size, item.offset + len(item.blob)), size)
        if objects == 0:
            raise DamagedTraceError(f"{self.path} is damaged: nothing in it could be read.", "Record again.")
        if footer is None:
            self._problem("The trace has no footer: the profiler was killed, or the end of the file is missing.")
        else:
            rows, before = footer
            if before != objects - 1:
                self._problem(f"The trace holds {objects - 1} objects instead of {before}.")
            for table in sorted({*rows, *self.rows}):
                held = self.rows.get(table, 0)
                if table in TABLES and held != rows.get(table, 0):
                    self._problem(f"The trace holds {held} {table} instead of {rows.get(table, 0)}.")
        for number in circular_paths(self.paths):
            self._problem(f"Operation path {number} lies within itself.")
            self._define(PathInfo(number, 0, self.paths[number].name))
        self._finish_info()
        self._define_lost()

    def _read_start(self, item: Intact | Damage) -> None:
        """The header. If it is damaged, what can be read of it is taken: other objects may still be whole."""
        entries: dict[str, Any] = {}
        with suppress(BrokenObject, MoreBytesNeeded):
            entries = unpack_object(item.blob[: object_end(item.blob, 0)])
        ours = entries.get("format") == FORMAT_NAME
        version = entries.get("version")
        known = False
        intact = isinstance(item, Intact)
        if isinstance(version, list) and len(version) == 2 and all(type(part) is int for part in version):
            known = True
            if ours and (intact or "check" not in entries):  # the next major version may check otherwise
                self.version = (version[0], version[1])
        if self.version[0] > VERSION[0]:
            raise UnsupportedError(
                f"{self.path} has trace format {self.version[0]}.{self.version[1]}; this rlscope-ebpf reads up to "
                f"version {VERSION[0]}.x.",
                "Update rlscope-ebpf and try again.",
            )
        self.info, wrong = read_header(entries)
        if not (intact and ours and known):
            self._problem("The header of the trace is damaged.")
            return
        for key in wrong:
            self._problem(f"The header lacks {key}.")
        try:
            for process in read_list(entries.get("processes", [])):
                self._define(read_definition("process", process))
        except BrokenObject as error:
            self._problem(f"The header names a process that cannot be read: {error}.")

    def _take(self, item: Intact, footer: tuple[dict[str, int], int] | None) -> tuple[dict[str, int], int] | None:
        """One object behind the header; returns what the footer says once it has been seen."""
        entries = unpack_object(item.blob)
        kind = next(iter(entries))
        if kind == "chunk":
            table = entries["chunk"]
            if isinstance(table, str) and table in TABLES:
                check_chunk(entries)
                check_known_columns(entries, table, TABLES[table])
                self._entries.append(_Chunk(table, entries["n"], item.offset, len(item.blob)))
                self.rows[table] += entries["n"]
        elif kind in KINDS:
            self._define(read_definition(kind, entries))
        elif kind == "notice":
            notice = read_notice(entries)
            self.notices.append(notice)
            self._entries.append(notice)
        elif kind == "gpu":
            self.info = self.info.with_gpu(read_gpu(entries))
        elif kind == "losses":
            self._totals(*read_totals(entries))
        elif kind == "end":
            self.end, rows, objects = read_footer(entries)
            losses, counters, _ = read_totals(entries)
            self._totals(losses, counters, max(self.now_ns, self.end.end_ns))
            return rows, objects
        return footer

    def _totals(self, losses: Losses, counters: Counters, now_ns: int) -> None:
        self.losses, self.counters, self.now_ns = losses, counters, max(self.now_ns, now_ns)
        self._entries.append(_Totals(losses, counters, now_ns))

    def _define(self, definition: Definition) -> None:
        self._remember(definition)
        self._entries.append(definition)

    def _remember(self, definition: Definition) -> None:
        if isinstance(definition, ProcessInfo):
            self.processes[definition.pid] = definition
        elif isinstance(definition, ThreadInfo):
            self.threads[definition.id] = definition
        elif isinstance(definition, StringInfo):
            self.strings[definition.id] = definition
        elif isinstance(definition, PathInfo):
            self.paths[definition.id] = definition
        elif isinstance(definition, DeviceInfo):
            self.devices[definition.id] = definition
        else:
            self.probes[definition.id] = definition

    def _damage(self, damage: Damage) -> None:
        if damage.cut:
            self._problem(f"The file ends in the middle of an object that begins at byte {damage.offset}.")
        else:
            self._problem(f"{fmt.plural_exact(damage.length, 'byte')} at byte {damage.offset} cannot be read.")

    def _problem(self, sentence: str) -> None:
        self._problem_count += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(sentence)
        else:
            self.problems[-1] = f"There is more: {fmt.plural_exact(self._problem_count - MAX_PROBLEMS + 1, 'problem')}."

    def _finish_info(self) -> None:
        """A start time when the header that held it is lost: the earliest known."""
        if self.info.start_ns == 0:
            known = [process.start_ns for process in self.processes.values()]
            known += [entry.now_ns for entry in self._entries if isinstance(entry, _Totals)]
            self.info = replace(self.info, start_ns=min(known, default=0))
        self.now_ns = max(self.now_ns, self.info.start_ns)

    def _define_lost(self) -> None:
        """Definitions for the ids that the trace uses and does not define: they were lost."""
        used: dict[str, set[int]] = {kind: set() for kind in KINDS}
        with self._opened() as descriptor:
            for entry in self._entries:
                if isinstance(entry, _Chunk):
                    columns = tuple(name for name in TABLES[entry.table].names or () if refers(name))
                    rows = self._decode(descriptor, entry, columns)
                    if rows is not None:
                        collect_ids(rows, used)
        self._lost = lost_definitions(
            used, self.processes, self.threads, self.strings, self.paths, self.probes, self.info.start_ns
        )
        for definition in self._lost:
            self._remember(definition)
        if self._lost:
            self._problem(f"{UNKNOWN} stands for {fmt.plural_exact(len(self._lost), 'name')} that could not be read.")


def _looks_like_a_trace(start: bytes) -> bool:
    """Whether a file's first bytes are mostly those of a header: one of them may be damaged."""
    sizes = (1, 3, 5)  # of the map's tag: up to 15 entries, and more
    alike = [sum(byte == other for byte, other in zip(start[size:], HEADER_MARK, strict=False)) for size in sizes]
    held = min(len(start) - 1, len(HEADER_MARK))
    return 2 * max(alike) >= held if held > 0 else start[0] in MAP_TAGS
