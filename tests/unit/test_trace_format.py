"""FORMAT.md says what the code does, and the golden trace still reads as it did."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import golden_trace
import minimal_reader
import trace_example
import trace_samples as samples

from rlscope_ebpf.model.categories import CATEGORY_NAMES, Opened, ThreadState, Wait
from rlscope_ebpf.model.gpu import GpuKind
from rlscope_ebpf.model.tables import TABLES, Counters, Losses, MarkKind, Notice, SpanFlag
from rlscope_ebpf.trace import codecs, definitions, format, writer
from rlscope_ebpf.trace.reader import TraceReader

FORMAT = (Path(__file__).parents[2] / "FORMAT.md").read_text()


def section(title: str) -> str:
    """The text under a heading, up to the next."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", FORMAT, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def table_rows(text: str) -> dict[str, list[str]]:
    """Rows of the first table of a section, by each name in backquotes in the first cell."""
    rows: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("| `"):
            first, *cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
            for name in re.findall(r"`(\w+)`", first):
                rows[name] = cells
    return rows


@pytest.mark.parametrize("name", ["string", "chunk"])
def test_the_worked_example_is_what_the_writer_writes(name: str) -> None:
    found = re.search(rf"<!-- example: {name} -->\n```\n(.*?)\n?```", FORMAT, re.DOTALL)
    assert found is not None
    blob = {"string": trace_example.string_object, "chunk": trace_example.chunk_object}[name]()
    assert found[1] == trace_example.dump(blob), "run tests/unit/trace_example.py and copy what it prints"


def test_the_explanation_of_the_example() -> None:
    blob = trace_example.chunk_object()
    column = format.unpack_object(blob)["columns"]["time_ns"]
    assert column["codec"] == ["zigzag", "delta"]
    assert blob.index(b"\xa7time_ns") == 0x5D
    assert blob.index(column["data"]) == 0x8B
    assert [int.from_bytes(column["data"][at : at + 8], "little") for at in (0, 8, 16)] == [10_000_000_000, 2000, 1800]
    assert minimal_reader.undo(column, 3).tolist() == trace_example.ROWS["time_ns"].tolist()
    assert format.unpack_object(blob)["columns"]["b"]["dtype"] == "<u2"


@pytest.mark.parametrize("table", list(TABLES))
def test_every_column_is_described_with_its_type(table: str) -> None:
    described = {name: cells[0] for name, cells in table_rows(section(f"`{table}`")).items()}
    start, _ = codecs.FOLLOWING.get(table, ("", ""))
    dtype = TABLES[table]
    expected = {
        (codecs.GAP if name == start else name): f"{dtype[name].kind}{dtype[name].itemsize}"
        for name in dtype.names or ()
    }
    assert described == expected


def test_every_number_is_described() -> None:
    intervals = table_rows(section("`intervals`"))
    assert intervals["category"][1] == ", ".join(f"{number} {name}" for number, name in enumerate(CATEGORY_NAMES))
    assert [int(number) for number in re.findall(r"\d+", intervals["opened"][1])] == list(Opened)
    assert [int(number) for number in re.findall(r"\d+", intervals["state"][1])] == list(ThreadState)
    kinds = intervals["wait"][1].removesuffix("Since 1.4").partition(":")[2]
    assert [int(number) for number in re.findall(r"\b\d\b", kinds)][:-1] == [0, 1, 2, 3, 4, 5]
    assert sorted(Wait) == [0, 1, 2, 3, 4, 5]
    assert [int(number) for number in re.findall(r"\d+", table_rows(section("`marks`"))["kind"][1])] == list(MarkKind)
    kinds = [int(number) for number in re.findall(r"\d+", table_rows(section("`gpu`"))["kind"][1])]
    assert kinds == [kind for kind in GpuKind if kind != GpuKind.LAUNCH]
    assert [int(number) for number in re.findall(r"(\d+):", table_rows(section("`spans`"))["flags"][1])] == list(
        SpanFlag
    )


def test_every_object_key_is_described() -> None:
    objects = table_rows(section("Objects"))
    for kind, (_, checks) in definitions.KINDS.items():
        for name in list(checks)[1:]:
            assert f"`{name}`" in objects[kind][1], (kind, name)
    for name in list(definitions.notice_entries(Notice("", 0)))[1:]:
        assert f"`{name}`" in objects["notice"][1]
    header = table_rows(section("Header"))
    assert set(definitions.header_entries(samples.INFO)) == set(header)
    batch = samples.batches(1)[0]
    footer = definitions.footer_entries(samples.INFO, samples.END, {}, 1, batch.losses, batch.counters)
    assert set(footer) == set(table_rows(section("Footer")))
    assert set(table_rows(section("Chunks"))) == {"dtype", "codec", "data", *codecs.STEPS}


def test_the_limits_are_those_of_the_code() -> None:
    for number in (
        format.MAX_ITEMS,
        format.MAX_TOTAL_ITEMS,
        format.CHUNK_ROWS,
        format.MAX_CHUNK_ROWS,
        writer.FLUSH_ROWS,
    ):
        assert f"{number:,}" in FORMAT
    assert f"{format.MAX_OBJECT_BYTES >> 20} MiB per object, {format.MAX_DEPTH} levels" in FORMAT
    assert FORMAT.startswith(f"# Trace files (`{format.SUFFIX}`), format {format.VERSION[0]}.{format.VERSION[1]}\n")
    assert format.CHECK_MARK.hex(" ") in FORMAT


@pytest.mark.parametrize("version", golden_trace.VERSIONS)
def test_the_golden_trace_reads_as_it_did(version: str) -> None:
    reader = TraceReader(golden_trace.PATHS[version])
    assert reader.problems == []
    assert ".".join(map(str, reader.version)) == version
    expected = {
        "notices": [],
        "devices": [],
        **golden_trace.expected(version),
    }  # what a version did not know it had not
    expected["devices"] = [
        {"uuid": "", "own_samples": 0, "own_reported": 0, **device} for device in expected["devices"]
    ]
    expected["processes"] = [{"namespace_pids": [], **process} for process in expected["processes"]]
    intervals = expected["tables"]["intervals"]
    for column in ("overhead_ns", "sampled", "wait"):
        intervals.setdefault(column, [0] * len(intervals["thread"]))
    for table in ("gpu", "samples"):
        expected["tables"].setdefault(table, {name: [] for name in TABLES[table].names or ()})
    expected["losses"] = {**Losses().as_dict(), **expected["losses"]}
    expected["counters"] = {**dataclasses.asdict(Counters()), **expected["counters"]}
    assert golden_trace.decoded(reader) == expected


def test_the_minimal_reader_reads_the_golden_trace() -> None:
    expected = golden_trace.expected(golden_trace.VERSIONS[-1])
    objects, columns = minimal_reader.read(str(golden_trace.PATH))
    notices = [
        {"text": item["notice"], "time_ns": item["time_ns"], "important": item["important"]}
        for item in objects
        if "notice" in item
    ]
    assert notices == expected["notices"] != []
    for table, parts in expected["tables"].items():
        assert {name: values.tolist() for name, values in columns[table].items()} == parts


def test_the_writer_still_writes_what_the_golden_trace_holds(tmp_path: Path) -> None:
    path = tmp_path / "a.rlscope"
    golden = TraceReader(golden_trace.PATH)
    samples.write(path, golden.batches())
    new = TraceReader(path)
    assert samples.content(new) == samples.content(golden)
    assert new.version == golden.version


def test_the_golden_trace_has_every_codec_step() -> None:
    used: set[str] = set()
    blob = golden_trace.PATH.read_bytes()
    offset = 0
    while offset < len(blob):
        end = format.object_end(blob, offset)
        for column in format.unpack_object(blob[offset:end]).get("columns", {}).values():
            used.update(column["codec"])
        offset = end
    assert used == codecs.STEPS
