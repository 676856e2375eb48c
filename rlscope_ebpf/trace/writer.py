"""The sink that writes a trace file."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.errors import ProfilerError, UsageError
from rlscope_ebpf.model.rows import copied, joined
from rlscope_ebpf.model.session import SessionEnd, SessionInfo
from rlscope_ebpf.model.tables import (
    Batch,
    Counters,
    Definition,
    DeviceInfo,
    GpuSource,
    ImportantNotice,
    Losses,
    Notice,
    ProcessInfo,
)
from rlscope_ebpf.trace.codecs import ColumnEncoder
from rlscope_ebpf.trace.definitions import (
    definition_entries,
    footer_entries,
    gpu_entries,
    header_entries,
    notice_entries,
    totals_entries,
)
from rlscope_ebpf.trace.format import CHUNK_ROWS, pack_object

FLUSH_NS = 1_500_000_000
"""A batch that comes this long after the last flush flushes; leaves room for half a second between two batches."""

FLUSH_ROWS = 65_536
"""So many rows of a table flush as well."""


def owner_from_sudo(environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """User and group of whoever called sudo, or None: the owner of what root writes on their behalf."""
    if os.geteuid() != 0:
        return None
    try:
        return int(environment["SUDO_UID"]), int(environment["SUDO_GID"])
    except (KeyError, ValueError):
        return None


class TraceWriter:
    """Writes a session into a file that is readable up to the last flush at any moment.

    Rows wait for at most two seconds while batches come, or until there are enough for a chunk. `failed` is None or
    the sentence that says why the file takes no more: the failing call raises a `ProfilerError` once, later ones do
    nothing, and what is on disk stays valid up to its last whole object.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        force: bool = False,
        owner: tuple[int, int] | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.path = Path(path)
        self.failed: str | None = None
        self.bytes_written = 0
        self.rows: dict[str, int] = {}
        self._force = force
        self._owner = owner
        self._clock = clock
        self._descriptor = -1
        self._encoder = ColumnEncoder()
        self._info: SessionInfo | None = None
        self._objects = 0
        self._last_flush = 0
        self._definitions: list[Definition] = []
        self._changed: list[
            Definition
        ] = []  # processes defined again, devices: written behind the rows that came before
        self._notices: list[Notice] = []
        self._gpu: GpuSource | None = None  # if it has changed
        self._pids: set[int] = set()
        self._waiting: dict[str, list[NDArray[np.void]]] = {}
        self._waiting_rows: dict[str, int] = {}
        self._totals = (Losses(), Counters(), 0)
        self._written_totals = self._totals

    def open(self) -> None:
        """Create the file. `start` does it if nobody did; doing it before attaching shows errors early.

        Raises `UsageError` if the file exists (and `force` is not set) or cannot be created.
        """
        if self._descriptor >= 0:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            if self._force:
                self._remove_old()
            self._descriptor = os.open(self.path, flags, 0o644)
        except FileExistsError as error:
            raise UsageError(
                f"{self.path} already exists.", "Choose another name with --output, or replace it with --force."
            ) from error
        except (OSError, ValueError) as error:
            raise self._refused(error) from error
        if self._owner is not None:
            with suppress(OSError):  # a file system without owners, or not root: the file is as usable as it can be
                os.fchown(self._descriptor, *self._owner)

    def check(self) -> None:
        """Raise what `open` would, but leave everything as it is: with `force`, an old file is still there."""
        if self._force and os.path.lexists(self.path):
            try:
                self._check_old()
                tempfile.TemporaryFile(dir=self.path.parent).close()
            except OSError as error:
                raise self._refused(error) from error
        else:
            self.open()
            self.discard()

    def start(self, info: SessionInfo) -> None:
        """Write the header."""
        self.open()
        self._info = info
        self._last_flush = self._clock()
        self._totals = self._written_totals = (Losses(), Counters(), info.start_ns)
        try:
            self._write([pack_object(header_entries(info))])
        except ProfilerError:
            self.discard()
            raise

    def batch(self, batch: Batch) -> None:
        """Take a batch; write when rows have waited long enough or are many."""
        if not self._writing():
            return
        for definition in batch.definitions:
            if isinstance(definition, DeviceInfo):
                # Of several in one flush the last one says all.
                older = (isinstance(each, DeviceInfo) and each.id == definition.id for each in self._changed)
                self._changed = [each for each, old in zip(self._changed, older, strict=True) if not old]
                self._changed.append(definition)
                continue
            if isinstance(definition, ProcessInfo):
                if definition.pid in self._pids:
                    self._changed.append(definition)
                    continue
                self._pids.add(definition.pid)
            self._definitions.append(definition)
        self._notices += [Notice(text, batch.now_ns, isinstance(text, ImportantNotice)) for text in batch.notices]
        self._gpu = batch.gpu or self._gpu
        full = False
        for table, rows in batch.tables.items():
            if len(rows):
                self._waiting.setdefault(table, []).append(copied(rows))
                self._waiting_rows[table] = self._waiting_rows.get(table, 0) + len(rows)
                full = full or self._waiting_rows[table] >= FLUSH_ROWS
        self._totals = (batch.losses, batch.counters, batch.now_ns)
        if full or self._clock() - self._last_flush >= FLUSH_NS:
            self.flush()

    def flush(self) -> None:
        """Write all that waits: definitions, a chunk or more per table, then what changed, and the rest."""
        if not self._writing():
            return
        self._last_flush = self._clock()
        objects = [pack_object(definition_entries(definition)) for definition in self._definitions]
        for table, parts in self._waiting.items():
            rows = joined(parts)
            chunks = (rows[first : first + CHUNK_ROWS] for first in range(0, len(rows), CHUNK_ROWS))
            objects += [pack_object(self._encoder.chunk(table, chunk)) for chunk in chunks]
            self.rows[table] = self.rows.get(table, 0) + len(rows)
        objects += [pack_object(definition_entries(definition)) for definition in self._changed]
        objects += [pack_object(notice_entries(notice)) for notice in self._notices]
        if self._gpu is not None:
            objects.append(pack_object(gpu_entries(self._gpu, self._totals[2])))
            self._gpu = None
        if self._totals != self._written_totals:
            objects.append(pack_object(totals_entries(*self._totals)))
            self._written_totals = self._totals
        self._definitions.clear()
        self._changed.clear()
        self._notices.clear()
        self._waiting.clear()
        self._waiting_rows.clear()
        self._write(objects)

    def finish(self, end: SessionEnd) -> None:
        """Write what waits and the footer, and close the file."""
        if self._descriptor < 0:
            return
        try:
            self.flush()
            if self._writing() and self._info is not None:
                losses, counters, _ = self._totals
                footer = footer_entries(self._info, end, self.rows, self._objects, losses, counters)
                self._write([pack_object(footer)])
        finally:
            self.close()

    def close(self) -> None:
        """Close the file as it is; without a footer it reads as incomplete."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            try:
                os.close(descriptor)
            except OSError as error:
                self._fail(error)

    def discard(self) -> None:
        """Close and remove the file that this writer created: the session never began."""
        if self._descriptor >= 0:
            self.close()
            self.path.unlink(missing_ok=True)

    def _writing(self) -> bool:
        return self.failed is None and self._descriptor >= 0 and self._info is not None

    def _refused(self, error: OSError | ValueError) -> UsageError:
        reason = (os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)).lower()
        return UsageError(
            f"The trace file {self.path} cannot be created: {reason}.",
            "Choose a place that can be written with --output, or run with --no-trace.",
        )

    def _remove_old(self) -> None:
        with suppress(FileNotFoundError):
            self._check_old()
            os.unlink(self.path)

    def _check_old(self) -> None:
        """Raise OSError if what is there is no trace that could be replaced."""
        kind = os.lstat(self.path).st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISLNK(kind):
            raise OSError(errno.EEXIST if not stat.S_ISDIR(kind) else errno.EISDIR, "not a regular file")

    def _write(self, objects: list[bytes]) -> None:
        """Append whole objects. If the disk takes only a part, the file is cut behind the last whole one."""
        blob = b"".join(objects)
        done = 0
        view = memoryview(blob)
        try:
            while done < len(blob):
                written = os.write(self._descriptor, view[done:])
                if written == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                done += written
        except OSError as error:
            whole = 0
            for item in objects:
                if whole + len(item) > done:
                    break
                whole += len(item)
            self.bytes_written += whole
            with suppress(OSError):  # the reader stops at the last whole object by itself
                os.ftruncate(self._descriptor, self.bytes_written)
            self._fail(error)
        self.bytes_written += len(blob)
        self._objects += len(objects)

    def _fail(self, error: OSError) -> None:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        if self._objects:
            problem = f"The trace {self.path} could not be written further: {reason}."
            remedy = f"Its first {self.bytes_written} bytes can be read; for the next one free some space or choose "
        else:
            problem = f"The trace {self.path} could not be written: {reason}."
            remedy = "Free some space or choose "
        self.failed = problem
        raise ProfilerError(problem, remedy + "another place with --output.") from error
