"""What goes into a trace comes out of it: rows, definitions, totals; by our reader and by the minimal one."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

sys.path.insert(0, str(Path(__file__).parent))

import minimal_reader
import trace_samples as samples

from rlscope_ebpf.model import tables as model_tables
from rlscope_ebpf.model.session import SessionEnd, SessionInfo
from rlscope_ebpf.model.tables import (
    INTERVAL_DTYPE,
    TABLES,
    Batch,
    Counters,
    GpuSource,
    Losses,
    ProcessInfo,
    StringInfo,
)
from rlscope_ebpf.trace import reader as reader_module
from rlscope_ebpf.trace.codecs import ColumnDecoder, ColumnEncoder, check_column
from rlscope_ebpf.trace.format import CHUNK_ROWS, VERSION, is_intact, object_end, pack_object, unpack_object
from rlscope_ebpf.trace.reader import TraceReader
from rlscope_ebpf.trace.writer import FLUSH_ROWS, TraceWriter


def test_a_session_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "a.rlscope"
    session = samples.write(path)
    reader = TraceReader(path)
    assert reader.problems == []
    assert reader.complete
    assert reader.info == samples.INFO
    assert reader.end == samples.END
    assert reader.losses == session[-1].losses
    assert reader.counters == session[-1].counters
    assert reader.version == VERSION
    assert [notice.sentence for notice in reader.notices] == [text for batch in session for text in batch.notices]
    assert [notice.important for notice in reader.notices] == [False, True, False]
    assert [notice.time_ns for notice in reader.notices] == [batch.now_ns for batch in session]
    for name, rows in samples.session_tables(session).items():
        assert reader.rows[name] == len(rows) > 0
        assert samples.same_rows(reader.table(name), rows)
    defined: dict[Any, Any] = {}
    for definition in samples.definitions():
        defined.setdefault(type(definition), {})[
            definition.pid if isinstance(definition, ProcessInfo) else definition.id
        ] = definition
    defined[ProcessInfo][101] = session[-1].definitions[-1]
    assert [reader.processes, reader.threads, reader.strings, reader.paths, reader.probes] == list(defined.values())


def test_the_minimal_reader_agrees(tmp_path: Path) -> None:
    path = tmp_path / "a.rlscope"
    samples.write(path, samples.batches(4, 3000))
    reader = TraceReader(path)
    objects, columns = minimal_reader.read(str(path))
    assert objects[0]["format"] == "rlscope-ebpf"
    assert objects[-1]["end"] is True
    assert objects[-1]["rows"] == reader.rows
    assert {item["string"]: item["text"] for item in objects if "string" in item} == {
        number: string.text for number, string in reader.strings.items()
    }
    for name, dtype in TABLES.items():
        rows = reader.table(name)
        assert set(columns[name]) == set(dtype.names or ())
        for column, values in columns[name].items():
            assert np.array_equal(values, rows[column]), (name, column)


def test_what_becomes_known_of_the_gpu_replaces_the_header(tmp_path: Path) -> None:
    """The latest that was flushed counts, also if no footer follows."""
    path = tmp_path / "a.rlscope"
    writer = TraceWriter(path)
    writer.start(replace(samples.INFO, gpu="unavailable", gpu_reason="The target has not loaded CUDA."))
    writer.flush()
    assert TraceReader(path).info.gpu_reason == "The target has not loaded CUDA."
    writer.batch(Batch(now_ns=samples.INFO.start_ns + 1, gpu=GpuSource("cupti", "first")))
    writer.batch(Batch(now_ns=samples.INFO.start_ns + 2, gpu=GpuSource("simulated", "a reason")))
    writer.batch(Batch(now_ns=samples.INFO.start_ns + 3))
    writer.flush()
    info = TraceReader(path).info
    assert (info.gpu, info.gpu_reason) == ("simulated", "a reason")
    writer.batch(Batch(now_ns=samples.INFO.start_ns + 4, gpu=GpuSource("cupti")))
    writer.finish(samples.END)
    reader = TraceReader(path)
    assert reader.complete
    assert reader.info == replace(samples.INFO, gpu="cupti", gpu_reason="")


def test_the_minimal_reader_is_short() -> None:
    source = Path(minimal_reader.__file__).read_text().splitlines()
    code = [line for line in source if line.strip() and not line.lstrip().startswith(("import", "from", '"""'))]
    assert len(code) <= 30


def test_first_object_is_the_header_and_definitions_precede_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.rlscope"
    samples.write(path)
    blob = path.read_bytes()
    kinds, offset = [], 0
    while offset < len(blob):
        end = object_end(blob, offset)
        assert is_intact(blob[offset:end])
        kinds.append(next(iter(unpack_object(blob[offset:end]))))
        offset = end
    assert kinds[0] == "format"
    assert kinds[-1] == "end"
    assert set(kinds[1:15]) == {"process", "thread", "string", "path", "probe"}
    assert kinds[15:18] == ["chunk", "chunk", "chunk"]
    # The process that ended is told behind its last rows, and notices behind everything that they are about.
    assert kinds[-6:] == ["chunk", "device", "process", "notice", "losses", "end"]


def test_batches_replay_the_session(tmp_path: Path) -> None:
    path = tmp_path / "a.rlscope"
    session = samples.write(path)
    replayed = list(TraceReader(path).batches())
    assert [batch.now_ns for batch in replayed[:3]] == [batch.now_ns for batch in session]
    assert replayed[0].definitions == session[0].definitions
    for old, new in zip(session, replayed, strict=False):
        assert (old.losses, old.counters, old.notices) == (new.losses, new.counters, new.notices)
        assert [type(text) for text in old.notices] == [type(text) for text in new.notices]
        for name in TABLES:
            assert samples.same_rows(old.tables[name], new.tables[name])
    assert all(not batch.tables for batch in replayed[3:])
    assert replayed[-1].now_ns == samples.END.end_ns


def test_batches_in_steps_hold_the_same_rows_in_time(tmp_path: Path) -> None:
    path = tmp_path / "a.rlscope"
    session = samples.write(path)
    step = 100_000_000
    replayed = list(TraceReader(path).batches(step))
    assert len(replayed) == 100
    times = [batch.now_ns for batch in replayed]
    assert times == [samples.START_NS + step * (index + 1) for index in range(100)]
    for name, rows in samples.session_tables(session).items():
        parts = [batch.tables[name] for batch in replayed if name in batch.tables]
        assert samples.same_rows(np.concatenate(parts), rows)
    first = [batch.tables["marks"]["time_ns"] for batch in replayed[:9] if "marks" in batch.tables]
    assert len(first) == 1
    assert replayed[0].definitions == samples.definitions()
    assert [batch.losses for batch in replayed[9:11]] == [session[0].losses] * 2
    assert replayed[19].losses == session[1].losses
    ended = [index for index, batch in enumerate(replayed) if index and batch.definitions]
    assert ended == [9, 19, 29]  # with each flush what devices have said by then, with the last one a process's end
    said = {index: batch.notices for index, batch in enumerate(replayed) if batch.notices}
    assert said == {9: session[0].notices, 19: session[1].notices, 29: session[2].notices}


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    path = tmp_path / "a.rlscope"
    samples.write(path)
    reader = TraceReader(path)
    whole = reader.table("intervals")
    for names in (("start_ns",), ("duration_ns", "thread"), ("path", "start_ns")):
        seen: list[tuple[int, int]] = []
        parts = list(reader.chunks("intervals", names, lambda done, total, seen=seen: seen.append((done, total))))
        rows = np.concatenate(parts)
        assert rows.dtype.names == names
        assert all(np.array_equal(rows[name], whole[name]) for name in names)
        assert seen == [(40, 120), (80, 120), (120, 120)]
    with pytest.raises(KeyError):
        reader.chunks("intervals", ("nothing",))
    with pytest.raises(KeyError):
        reader.chunks("nothing")


def test_an_empty_session(tmp_path: Path) -> None:
    path = tmp_path / "a.rlscope"
    samples.write(path, [])
    reader = TraceReader(path)
    assert reader.complete
    assert len(reader.table("intervals")) == 0
    assert reader.table("spans", ("thread",)).dtype.names == ("thread",)
    assert list(reader.chunks("marks")) == []


def test_a_large_batch_is_split_and_small_ones_are_gathered(tmp_path: Path) -> None:
    path = tmp_path / "a.rlscope"
    writer = TraceWriter(path, clock=samples.Clock())
    writer.start(samples.INFO)
    writer.batch(Batch(samples.START_NS, samples.definitions()))
    size_before = path.stat().st_size
    rows = samples.intervals(1, CHUNK_ROWS + 10)
    for at in range(0, FLUSH_ROWS - 1000, 1000):
        writer.batch(Batch(samples.START_NS, tables={"intervals": rows[at : at + 1000]}))
    assert path.stat().st_size == size_before
    writer.batch(Batch(samples.START_NS, tables={"intervals": rows}))
    assert path.stat().st_size > size_before
    writer.finish(samples.END)
    reader = TraceReader(path)
    assert reader.complete
    assert reader.rows["intervals"] == sum(len(part) for part in reader.chunks("intervals"))
    assert max(len(part) for part in reader.chunks("intervals")) == CHUNK_ROWS
    assert sum(len(batch.tables.get("intervals", ())) for batch in reader.batches()) == reader.rows["intervals"]


def test_rows_are_written_within_two_seconds(tmp_path: Path) -> None:
    path = tmp_path / "a.rlscope"
    clock = samples.Clock()
    writer = TraceWriter(path, clock=clock)
    writer.start(samples.INFO)
    flushed = []
    for tick in range(1, 100):
        clock.now = tick * 50_000_000
        writer.batch(Batch(samples.START_NS + tick, tables={"spans": samples.spans(tick, 2)}))
        if not flushed or TraceReader(path).rows["spans"] > flushed[-1][1]:
            flushed.append((clock.now, TraceReader(path).rows["spans"]))
    gaps = np.diff([moment for moment, _ in flushed])
    assert len(flushed) >= 3
    assert gaps.max() <= 2_000_000_000
    writer.close()


def test_the_writer_keeps_no_view_of_a_batch(tmp_path: Path) -> None:
    path = tmp_path / "a.rlscope"
    writer = TraceWriter(path, clock=samples.Clock())
    writer.start(samples.INFO)
    rows = samples.spans(1, 10)
    expected = rows.copy()
    writer.batch(Batch(samples.START_NS, tables={"spans": rows}))
    rows["path"] = 99
    writer.finish(samples.END)
    assert samples.same_rows(TraceReader(path).table("spans"), expected)


def test_threads_are_grouped_but_keep_their_order(tmp_path: Path) -> None:
    rows = samples.intervals(3, 500)
    mixed = rows[np.random.default_rng(0).permutation(500)]
    path = tmp_path / "a.rlscope"
    samples.write(path, [Batch(samples.START_NS, samples.definitions(), {"intervals": mixed})])
    got = TraceReader(path).table("intervals")
    assert (np.diff(got["thread"].astype(int)) >= 0).all()
    assert samples.same_rows(got, mixed)


def test_a_new_table_needs_no_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dtype = np.dtype([("device", "<i4"), ("name", "<u4"), ("start_ns", "<u8"), ("share", "<f8"), ("busy", "?")])
    rows = np.zeros(300, dtype)
    rows["device"] = -(np.arange(300) % 3)
    rows["start_ns"] = np.arange(300)[::-1] * 1_000_000_007
    rows["share"] = np.linspace(0, 1, 300)
    rows["busy"] = np.arange(300) % 2
    path = tmp_path / "a.rlscope"
    samples.write(path, [Batch(samples.START_NS, samples.definitions(), {"other": rows, "spans": samples.spans(1, 5)})])
    old = TraceReader(path)  # a version that does not know the table skips it
    assert old.complete
    assert len(old.table("spans")) == 5
    extended = {**TABLES, "other": dtype}
    monkeypatch.setattr(reader_module, "TABLES", extended)
    monkeypatch.setattr(model_tables, "TABLES", extended)
    reader = TraceReader(path)
    assert reader.complete
    assert reader.table("other").tobytes() == rows.tobytes()


def test_what_the_header_holds_is_made_plain(tmp_path: Path) -> None:
    class Kind(IntEnum):
        ONE = 1

    info = SessionInfo(
        "0",
        "h\udcff",
        "k",
        "t",
        1,
        -5,
        capture={"paths": {Path("/a")}, 5: Kind.ONE, "big": 1 << 70, "tuple": (1, np.int64(2)), "f": np.float32(0.5)},
        calibration={"deep": [[[[1.5, None, True]]]]},
    )
    path = tmp_path / "a.rlscope"
    writer = TraceWriter(path)
    writer.start(info)
    writer.batch(Batch(2, [StringInfo(1, "\ud800x"), ProcessInfo(1, None, "\udc80", ("\udcfe", "é"), 1)]))
    writer.finish(SessionEnd("t", 2, "exited", 3))
    reader = TraceReader(path)
    assert reader.complete
    assert reader.info.host == "h\ufffd"
    assert reader.info.realtime_offset_ns == -5
    assert reader.info.capture == {"paths": ["/a"], "5": 1, "big": str(1 << 70), "tuple": [1, 2], "f": 0.5}
    assert reader.info.calibration == {"deep": [[[[1.5, None, True]]]]}
    assert reader.strings[1].text == "\ufffdx"
    assert reader.processes[1].command == ("\ufffd", "é")
    assert reader.end == SessionEnd("t", 2, "exited", 3)


def test_bytes_per_interval_stay_below_the_goal(tmp_path: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    import bench_trace

    rows = bench_trace.intervals(100_000)
    path = tmp_path / "a.rlscope"
    writer = TraceWriter(path, clock=samples.Clock())
    writer.start(samples.INFO)
    for at in range(0, len(rows), 5000):
        part = rows[at : at + 5000]
        writer.batch(
            Batch(int(part["start_ns"].max()), bench_trace.definitions() if at == 0 else [], {"intervals": part})
        )
    writer.finish(samples.END)
    assert path.stat().st_size / len(rows) < 4.0
    assert samples.same_rows(TraceReader(path).table("intervals"), rows)


KINDS = ("u1", "<u2", "<u4", "<u8", "i1", "<i2", "<i4", "<i8", "<f4", "<f8", "?")


@given(st.data())
@settings(deadline=None, max_examples=150)
def test_any_column_comes_back(data: st.DataObject) -> None:
    kind = np.dtype(data.draw(st.sampled_from(KINDS)))
    length = data.draw(st.one_of(st.integers(1, 60), st.sampled_from([100, 4096, 5000])))
    shape = data.draw(st.sampled_from(["random", "rising", "constant", "noise"]))
    if shape == "random":
        values = data.draw(arrays.arrays(kind, length))
    else:
        random = np.random.default_rng(data.draw(st.integers(0, 1000)))
        base = random.integers(0, 1 << 62, 1)
        steps = {"rising": random.integers(0, 1 << 20, length), "constant": np.zeros(length, int)}
        whole = base + np.cumsum(steps[shape]) if shape in steps else random.integers(0, 1 << 62, length)
        values = whole.astype(kind)
    column = ColumnEncoder().column(values)
    check_column(column, length, kind)
    got = ColumnDecoder().column(column, length)
    assert np.array_equal(got.astype(kind).view("u1"), values.view("u1"))
    assert np.array_equal(minimal_reader.undo(column, length), got, equal_nan=kind.kind == "f")


EDGES = [0, 1, 255, 256, 65535, 65536, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]


@given(arrays.arrays(INTERVAL_DTYPE, st.integers(1, 40)), st.booleans())
@settings(deadline=None, max_examples=80)
def test_any_intervals_come_back(rows: np.ndarray, extreme: bool) -> None:
    if extreme:
        rows["start_ns"] = np.resize(np.array(EDGES, "u8"), len(rows))
        rows["duration_ns"] = np.resize(np.array(EDGES[::-1], "u8"), len(rows))
    chunk = unpack_object(pack_object(ColumnEncoder().chunk("intervals", rows)))
    got = ColumnDecoder().rows("intervals", chunk, INTERVAL_DTYPE, INTERVAL_DTYPE.names or ())
    assert samples.same_rows(got, rows)


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=5), inner, max_size=20),
    max_leaves=60,
)


@given(st.dictionaries(st.text(min_size=1), plain_values | st.binary(max_size=300), max_size=20), st.binary(max_size=9))
def test_any_object_is_measured_and_comes_back(entries: dict[str, Any], behind: bytes) -> None:
    entries.pop("check", None)
    blob = pack_object(entries)
    assert object_end(blob + behind, 0) == len(blob)
    assert object_end(behind + blob, len(behind)) == len(behind) + len(blob)
    assert is_intact(blob)
    got = unpack_object(blob)
    del got["check"]
    assert got == entries


def test_counters_and_losses_come_only_when_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.rlscope"
    clock = samples.Clock()
    writer = TraceWriter(path, clock=clock)
    writer.start(samples.INFO)
    totals = (Losses(events=1), Counters(received=5))
    sizes = []
    for _ in range(3):
        clock.now += 2_000_000_000
        writer.batch(Batch(samples.START_NS + 5, losses=totals[0], counters=totals[1]))
        sizes.append(os.stat(path).st_size)
    assert sizes[0] == sizes[1] == sizes[2]
    writer.finish(samples.END)
    reader = TraceReader(path)
    assert (reader.losses, reader.counters) == totals
