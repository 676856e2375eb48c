"""Damaged traces: never a traceback, never a wrong figure without `complete` being False."""

from __future__ import annotations

import os
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

import trace_samples as samples

from rlscope_ebpf.errors import (
    DamagedTraceError,
    ExitStatus,
    NotPermittedError,
    ProfilerError,
    UnsupportedError,
    UsageError,
)
from rlscope_ebpf.model.tables import TABLES, Batch
from rlscope_ebpf.trace.format import object_end, pack_object, unpack_object
from rlscope_ebpf.trace.reader import TraceReader

quick = settings(
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small finished trace."""
    path = tmp_path_factory.mktemp("small") / "a.rlscope"
    samples.write(path, samples.batches(2, 8))
    return path.read_bytes()


def objects(blob: bytes) -> list[bytes]:
    """The objects of an intact trace."""
    found, offset = [], 0
    while offset < len(blob):
        end = object_end(blob, offset)
        found.append(blob[offset:end])
        offset = end
    return found


def kind(blob: bytes) -> str:
    return next(iter(unpack_object(blob)))


def opened(path: Path, blob: bytes) -> TraceReader | None:
    """A reader of these bytes after everything of it has been used; None if it refused with a proper error."""
    path.write_bytes(blob)
    try:
        reader = TraceReader(path)
    except ProfilerError as refused:
        error = refused
    else:
        exercise(reader)
        return reader
    assert error.problem.endswith(".")
    assert error.remedy.endswith(".")
    assert error.status in (ExitStatus.USAGE, ExitStatus.UNSUPPORTED, ExitStatus.DAMAGED)
    return None


def exercise(reader: TraceReader) -> None:
    """Use everything; what ids refer to must be there."""
    for name in TABLES:
        rows = reader.table(name)
        nobody = {0} if "pid" in (rows.dtype.names or ()) else set()
        assert set(rows["thread"].tolist()) <= reader.threads.keys() | nobody
        for column, known in (
            ("path", reader.paths),
            ("phase", reader.strings),
            ("site", reader.probes),
            ("name", reader.strings),
        ):
            if column in (rows.dtype.names or ()):
                assert set(rows[column].tolist()) <= {0, *known}
        if nobody:
            assert set(rows["pid"].tolist()) <= reader.processes.keys()
    assert {thread.pid for thread in reader.threads.values()} <= reader.processes.keys()
    assert {path.name for path in reader.paths.values()} <= {0, *reader.strings}
    for path in reader.paths.values():
        depth = 0
        while path.parent:
            path = reader.paths[path.parent]
            depth += 1
            assert depth <= len(reader.paths)
    for step in (None, 300_000_000):
        for batch in reader.batches(step):
            assert batch.now_ns >= 0


def chunk_rows(reader: TraceReader) -> dict[str, set[bytes]]:
    return {name: {part.tobytes() for part in reader.chunks(name)} for name in TABLES}


@pytest.fixture(scope="module")
def original(
    small: bytes, tmp_path_factory: pytest.TempPathFactory
) -> tuple[tuple[object, ...], dict[str, set[bytes]]]:
    path = tmp_path_factory.mktemp("original") / "a.rlscope"
    path.write_bytes(small)
    reader = TraceReader(path)
    assert reader.complete
    exercise(reader)
    return samples.content(reader), chunk_rows(reader)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A smaller one, for what is done at every byte."""
    path = tmp_path_factory.mktemp("tiny") / "a.rlscope"
    samples.write(path, samples.batches(1, 8))
    return path.read_bytes()


def _written(path: Path, blob: bytes) -> Path:
    path.write_bytes(blob)
    return path


def test_truncated_at_every_byte(tiny: bytes, tmp_path: Path) -> None:
    path = _written(tmp_path / "a.rlscope", tiny)
    whole = chunk_rows(TraceReader(path))
    header = len(objects(tiny)[0])
    rows_before = 0
    for length in range(len(tiny)):
        if length < header:
            assert opened(path, tiny[:length]) is None
            continue
        reader = TraceReader(_written(path, tiny[:length]))
        assert not reader.complete
        assert reader.end is None
        rows = sum(reader.rows.values())
        assert rows >= rows_before
        if rows > rows_before or length % 50 == 0:
            exercise(reader)
            assert all(part <= whole[name] for name, part in chunk_rows(reader).items())
        rows_before = rows
    assert rows_before == 8 + 2 + 1 + 4 + 4


@pytest.mark.parametrize("bits", ["one", "all"])
def test_every_byte_flipped(tiny: bytes, tmp_path: Path, bits: str) -> None:
    path = _written(tmp_path / "a.rlscope", tiny)
    whole = samples.content(TraceReader(path))
    for position in range(len(tiny)):
        blob = bytearray(tiny)
        blob[position] ^= 0xFF if bits == "all" else 1 << position % 8
        reader = TraceReader(_written(path, bytes(blob)))  # one byte never costs the whole trace
        assert not reader.complete or samples.content(reader) == whole, position


def test_a_flipped_byte_costs_one_object(small: bytes, original: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.rlscope"
    for position in range(0, len(small), 7):
        blob = bytearray(small)
        blob[position] ^= 0x20 if position % 2 else 0xFF
        reader = opened(path, bytes(blob))
        assert reader is not None
        found = chunk_rows(reader)
        assert all(found[name] <= original[1][name] for name in TABLES), "a row that was never written"
        lost = sum(len(original[1][name]) - len(found[name]) for name in TABLES)
        assert lost <= 2, "two, where objects meet"


def test_every_object_missing_or_twice(small: bytes, original: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.rlscope"
    parts = objects(small)
    for index in range(len(parts)):
        without = opened(path, b"".join(parts[:index] + parts[index + 1 :]))
        assert without is None or not without.complete
        assert (without is None) == (index == 0)
        twice = opened(path, b"".join(parts[: index + 1] + parts[index:]))
        assert twice is not None
        assert not twice.complete


def test_lost_definitions_read_as_unknown(small: bytes, tmp_path: Path) -> None:
    parts = [part for part in objects(small) if kind(part) in ("format", "chunk", "end", "losses")]
    reader = opened(tmp_path / "a.rlscope", b"".join(parts))
    assert reader is not None
    assert not reader.complete
    assert {thread.name for thread in reader.threads.values()} == {"(unknown)"}
    assert {string.text for string in reader.strings.values()} == {"(unknown)"}
    first = next(iter(reader.batches()))
    assert {type(definition).__name__ for definition in first.definitions} == {
        "ProcessInfo",
        "ThreadInfo",
        "StringInfo",
        "PathInfo",
        "ProbeInfo",
    }


def test_zeroed_blocks(small: bytes, original: Any, tmp_path: Path) -> None:
    header = len(objects(small)[0])
    for position in range(header, len(small), 97):
        blob = small[:position] + bytes(min(512, len(small) - position)) + small[position + 512 :]
        reader = opened(tmp_path / "a.rlscope", blob)
        assert reader is not None
        assert not reader.complete
        found = chunk_rows(reader)
        assert all(found[name] <= original[1][name] for name in TABLES)


def test_damaged_header_keeps_the_rows(small: bytes, tmp_path: Path) -> None:
    header = objects(small)[0]
    blob = header[:30] + bytes(len(header) - 30) + small[len(header) :]
    reader = opened(tmp_path / "a.rlscope", blob)
    assert reader is not None
    assert not reader.complete
    assert reader.info.host == "(unknown)"
    assert reader.info.start_ns == samples.START_NS  # the first process's
    assert reader.rows["intervals"] == 16


@given(data=st.data())
@quick
def test_any_mutation(small: bytes, original: Any, tmp_path: Path, data: st.DataObject) -> None:
    blob = bytearray(small)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(blob)))
        length = data.draw(st.integers(0, 40))
        blob[at : at + length] = data.draw(st.binary(max_size=40))
    reader = opened(tmp_path / "a.rlscope", bytes(blob))
    if reader is not None:
        if reader.complete:
            assert samples.content(reader) == original[0]
        found = chunk_rows(reader)
        assert all(found[name] <= original[1][name] for name in TABLES)


@given(blob=st.binary(max_size=300), prefix=st.booleans())
@quick
def test_any_bytes(small: bytes, tmp_path: Path, blob: bytes, prefix: bool) -> None:
    reader = opened(tmp_path / "a.rlscope", (objects(small)[0] if prefix else b"") + blob)
    assert reader is None or not reader.complete


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def places(entries: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a value of an object can be replaced."""
    items = entries.items() if isinstance(entries, dict) else enumerate(entries) if isinstance(entries, list) else ()
    for key, value in items:
        yield (*at, key)
        yield from places(value, (*at, key))


@given(data=st.data())
@quick
def test_intact_objects_of_strange_content(small: bytes, tmp_path: Path, data: st.DataObject) -> None:
    """An object whose check is right but whose values are not ours: a faulty writer, or malice."""
    parts = objects(small)
    index = data.draw(st.integers(0, len(parts) - 1))
    entries = unpack_object(parts[index])
    del entries["check"]
    place = data.draw(st.sampled_from(list(places(entries))))
    target = entries
    for key in place[:-1]:
        target = target[key]
    if isinstance(target, dict) and data.draw(st.booleans()):
        del target[place[-1]]
    else:
        target[place[-1]] = data.draw(values)
    parts[index] = pack_object(entries)
    opened(tmp_path / "a.rlscope", b"".join(parts))


def changed(small: bytes, which: str, change: Callable[[dict[str, Any]], None]) -> bytes:
    """The trace with the first object of a kind changed and checked again."""
    parts = objects(small)
    index = [kind(part) for part in parts].index(which)
    entries = unpack_object(parts[index])
    del entries["check"]
    change(entries)
    parts[index] = pack_object(entries)
    return b"".join(parts)


def test_newer_major_version_is_refused_with_both_numbers(small: bytes, tmp_path: Path) -> None:
    path = _written(tmp_path / "a.rlscope", changed(small, "format", lambda header: header.update(version=[2, 7])))
    with pytest.raises(UnsupportedError, match=r"2\.7.*1\.x"):
        TraceReader(path)
    # The next version may check its objects in another way.
    path.write_bytes(msgpack.packb({"format": "rlscope-ebpf", "version": [3, 0], "host": "x"}) + b"\x81\xa1a\x01")
    with pytest.raises(UnsupportedError, match=r"3\.0.*1\.x"):
        TraceReader(path)


def test_newer_minor_version_is_read(small: bytes, original: Any, tmp_path: Path) -> None:
    def more(header: dict[str, Any]) -> None:
        header["version"] = [1, 9]
        header["further"] = {"a": [1, 2]}

    parts = objects(changed(small, "format", more))
    footer = unpack_object(parts.pop())
    del footer["check"]
    unknown = pack_object({"gpu_context": 1, "thread": "not ours"})
    footer.update(objects=footer["objects"] + 1, rows={**footer["rows"], "future": 7})
    reader = opened(tmp_path / "a.rlscope", b"".join([parts[0], unknown, *parts[1:], pack_object(footer)]))
    assert reader is not None
    assert reader.problems == []
    assert samples.content(reader) == original[0]


def test_unknown_column_is_skipped(small: bytes, original: Any, tmp_path: Path) -> None:
    def more(chunk: dict[str, Any]) -> None:
        chunk["columns"]["cpu"] = {"dtype": "<U4", "codec": ["brotli"], "data": b""}

    reader = opened(tmp_path / "a.rlscope", changed(small, "chunk", more))
    assert reader is not None
    assert reader.complete
    assert samples.content(reader) == original[0]


def test_unknown_codec_of_a_known_column_is_no_silent_loss(small: bytes, tmp_path: Path) -> None:
    def other(chunk: dict[str, Any]) -> None:
        chunk["columns"]["path"]["codec"] = ["brotli"]

    reader = opened(tmp_path / "a.rlscope", changed(small, "chunk", other))
    assert reader is not None
    assert not reader.complete
    assert any("brotli" in problem for problem in reader.problems)
    assert reader.rows["intervals"] == 8


def test_checksum_of_the_data_is_compared(small: bytes, tmp_path: Path) -> None:
    reader = opened(tmp_path / "a.rlscope", changed(small, "chunk", lambda chunk: chunk.update(crc32=1)))
    assert reader is not None
    assert not reader.complete


@pytest.mark.parametrize(
    "bomb",
    [
        b"\xdd\xff\xff\xff\xff",  # an array of four billion
        b"\x81\xa1a\xdd\xff\xff\xff\xff" + bytes(100),
        b"\x81\xa1a\xdf\x7f\xff\xff\xff" + bytes(100),
        b"\x81\xa1a\xc6\xff\xff\xff\xff" + bytes(100),
        b"\x81\xa1a\xdb\xff\xff\xff\xff" + bytes(100),
        b"\x81\xa1a" + b"\x91" * 100_000,
        b"\x81\xa1a" * 50_000,
        b"\x81\xa1a\xdc\xff\xff" + b"\xdc\xff\xff" * 1000 + bytes(100_000),
    ],
)
def test_msgpack_bombs(small: bytes, tmp_path: Path, bomb: bytes) -> None:
    begun = time.monotonic()
    parts = objects(small)
    reader = opened(tmp_path / "a.rlscope", parts[0] + bomb + b"".join(parts[1:]))
    assert reader is not None
    assert not reader.complete
    assert reader.rows["intervals"] in (8, 16)
    assert opened(tmp_path / "a.rlscope", bomb) is None
    assert time.monotonic() - begun < 5


def test_compression_bombs(small: bytes, tmp_path: Path) -> None:
    huge = zstandard.compress(bytes(200 << 20))
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000))
    lying = bytearray(zstandard.compress(bytes(64), 1))

    for data in (huge, unsized, bytes(lying), zstandard.compress(bytes(8))[:-2], b"", b"\x28\xb5\x2f\xfd"):

        def change(chunk: dict[str, Any], data: bytes = data) -> None:
            chunk["columns"]["path"].update(codec=["zstd"], data=data)
            crc = 0
            for column in chunk["columns"].values():
                crc = zlib.crc32(column["data"], crc)
            chunk["crc32"] = crc

        reader = opened(tmp_path / "a.rlscope", changed(small, "chunk", change))
        assert reader is not None
        assert not reader.complete


def test_claimed_rows_without_data(small: bytes, tmp_path: Path) -> None:
    for count in (0, -1, 9, 1 << 20, 1 << 40, True, None, "8"):
        reader = opened(tmp_path / "a.rlscope", changed(small, "chunk", lambda chunk, n=count: chunk.update(n=n)))
        assert reader is not None
        assert not reader.complete


def test_circular_paths_are_cut(small: bytes, tmp_path: Path) -> None:
    reader = opened(tmp_path / "a.rlscope", changed(small, "path", lambda path: path.update(parent=2)))
    assert reader is not None
    assert not reader.complete
    assert any("within itself" in problem for problem in reader.problems)


def test_many_marks_do_not_make_it_slow(small: bytes, tmp_path: Path) -> None:
    begun = time.monotonic()
    hostile = (b"\xa5check\xce" + b"\x00" * 4 + b"\x81\xc6\x03\xff\xff\xff") * 200_000
    reader = opened(tmp_path / "a.rlscope", objects(small)[0] + hostile)
    assert reader is not None
    assert not reader.complete
    assert time.monotonic() - begun < 20


def test_a_damaged_chunk_of_a_large_trace_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.rlscope"
    samples.write(path, samples.batches(6, 30_000))
    blob = bytearray(path.read_bytes())
    parts = objects(bytes(blob))
    offset = 0
    for part in parts:
        if kind(part) == "chunk" and unpack_object(part)["chunk"] == "intervals":
            break
        offset += len(part)
    for position in (offset + 2, offset + 8, offset + len(part) // 2, offset + len(part) - 2):
        damaged = bytearray(blob)
        damaged[position] ^= 0x55
        path.write_bytes(damaged)
        reader = TraceReader(path)
        assert not reader.complete
        assert len(reader.table("intervals")) == 5 * 30_000
        assert len(reader.problems) <= 5


def test_garbage_behind_the_footer(small: bytes, tmp_path: Path) -> None:
    for behind in (b"\x00", b"garbage", objects(small)[1], bytes(5000)):
        reader = opened(tmp_path / "a.rlscope", small + behind)
        assert reader is not None
        assert not reader.complete


def test_problems_are_bounded(small: bytes, tmp_path: Path) -> None:
    piece = objects(small)[1]
    broken = bytes([piece[0], *piece[1:-1], piece[-1] ^ 1])
    reader = opened(tmp_path / "a.rlscope", objects(small)[0] + (broken + piece) * 100)
    assert reader is not None
    assert len(reader.problems) <= 20
    assert "There is more: " in reader.problems[-1]


def test_what_is_no_trace(tmp_path: Path) -> None:
    missing = tmp_path / "missing.rlscope"
    text = tmp_path / "notes.txt"
    text.write_text("# Notes\n\nnothing\n" * 100)
    other = tmp_path / "other.bin"
    other.write_bytes(msgpack.packb({"format": "other", "version": [1, 0]}))
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (missing, text / "x", tmp_path, text, other, fifo, Path("/dev/null"), tmp_path / ("x" * 300)):
        with pytest.raises(UsageError) as error:
            TraceReader(path)
        assert error.value.status == ExitStatus.USAGE
        assert str(path) in error.value.problem
    empty = tmp_path / "empty.rlscope"
    empty.touch()
    with pytest.raises(DamagedTraceError, match="empty"):
        TraceReader(empty)


def test_a_trace_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.rlscope"
    samples.write(path)

    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(NotPermittedError, match="may not be read"):
        TraceReader(path)


def test_a_trace_that_changes_underneath(tmp_path: Path) -> None:
    path = tmp_path / "a.rlscope"
    samples.write(path)
    reader = TraceReader(path)
    assert reader.complete
    blob = path.read_bytes()
    path.write_bytes(blob[: len(blob) // 2])
    assert len(reader.table("intervals")) < 120
    assert not reader.complete
    path.unlink()
    with pytest.raises(UsageError, match="There is no file"):
        reader.table("intervals")


def test_a_trace_still_being_written(tmp_path: Path) -> None:
    path = tmp_path / "a.rlscope"
    session = samples.write(path, finish=False)
    reader = TraceReader(path)
    assert not reader.complete
    assert "no footer" in reader.problems[0]
    assert reader.now_ns == session[-1].now_ns
    assert samples.same_rows(reader.table("intervals"), samples.session_tables(session)["intervals"])


def test_a_float_column_does_not_become_a_count(small: bytes, tmp_path: Path) -> None:
    def other(chunk: dict[str, Any]) -> None:
        chunk["columns"]["hits"] = {"dtype": "<f8", "codec": [], "data": struct.pack("<8d", *range(8))}

    reader = opened(tmp_path / "a.rlscope", changed(small, "chunk", other))
    assert reader is not None
    assert not reader.complete


def test_progress_covers_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.rlscope"
    samples.write(path, [Batch(samples.START_NS, samples.definitions(), {"spans": samples.spans(1, 10)})])
    seen: list[tuple[int, int]] = []
    TraceReader(path, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)
    assert np.all(np.diff([done for done, _ in seen]) > 0)
