"""Reports: JSON against the contract, text at two widths (syrupy snapshots), CSV, and the `report` command."""

from __future__ import annotations

import csv as stdlib_csv
import fcntl
import io
import json as stdlib_json
import os
import pty
import struct
import subprocess
import sys
import termios
from dataclasses import replace
from pathlib import Path

import jsonschema
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

sys.path.insert(0, str(Path(__file__).parent))

import report_samples as samples

from rlscope_ebpf import cli
from rlscope_ebpf.analysis.api import Trace
from rlscope_ebpf.analysis.breakdown import Breakdown, break_down
from rlscope_ebpf.cli import report as report_verb
from rlscope_ebpf.errors import ExitStatus
from rlscope_ebpf.model.categories import DEFAULT_PHASE
from rlscope_ebpf.model.gpu import NO_CUDA, NO_USE
from rlscope_ebpf.model.tables import Counters, Losses, Notice, PathInfo, ProcessInfo, StringInfo
from rlscope_ebpf.report import csv, json, text
from rlscope_ebpf.trace.writer import TraceWriter

MS = samples.MS
REPOSITORY = Path(__file__).resolve().parents[2]
NOTICES = [
    Notice("A long sentence " + "that goes on " * 10, samples.START_NS),
    Notice("Sleep counts as python.", samples.START_NS + 65_000 * MS, important=True),
]
LOSSY = {"losses": Losses(events=5_000), "counters": replace(samples.COUNTERS, sent=128_456)}


def breakdown(**changes: object) -> Breakdown:
    return break_down(samples.training(**changes))


def write(path: Path, *, finish: bool = True) -> Path:
    writer = TraceWriter(path)
    writer.start(samples.INFO)
    writer.batch(samples.training_batch())
    writer.flush()
    if finish:
        writer.finish(samples.END)
    else:
        writer.close()
    return path


def validated(value: Breakdown) -> dict:
    report = stdlib_json.loads(json.report_text(value))
    jsonschema.Draft202012Validator(json.schema()).validate(report)
    return report


# JSON


def test_what_threads_were_doing_adds_up() -> None:
    report = validated(breakdown())
    found: dict[str, int] = {}
    for operation in report["processes"][0]["operations"]:
        parts, states = operation["activities_ns"], operation["state_ns"]
        assert (parts["running"], parts["runnable"]) == (states["running"], states["runnable"])
        assert sum(parts.values()) == operation["raw"]["wall_ns"]
        by_category = operation["activities_by_category_ns"]
        for category, ns in operation["raw"]["cpu_ns"].items():
            assert sum(by_category[category].values()) == ns
        for activity, ns in parts.items():
            assert sum(category[activity] for category in by_category.values()) == ns
            found[activity] = found.get(activity, 0) + ns
    runs = samples.ITERATIONS + samples.EVALUATIONS
    assert found["gpu"] == found["sleep"] == 4 * MS * runs
    assert found["lock"] == 2_500 * MS  # the thread that has nothing to do
    assert found["io"] == found["disk"] == found["other"] == 0


ACCOUNTED = replace(
    samples.COUNTERS, accounted_threads=2, unaccounted_threads=1, accounted_time_ns=5_000 * MS,
    told_running_ns=2_020 * MS, accounted_running_ns=2_000 * MS, told_runnable_ns=52 * MS,
    accounted_runnable_ns=50 * MS, told_disk_ns=10 * MS,
)  # fmt: skip


def test_the_kernels_accounts_beside_it() -> None:
    assert validated(breakdown())["quality"] == {"scheduler": None}
    report = validated(breakdown(counters=ACCOUNTED))
    assert report["quality"]["scheduler"] == {
        "source": "TaskStats",
        "threads": 2,
        "threads_left_out": 1,
        "time_ns": 5_000 * MS,
        "running": {"told_ns": 2_020 * MS, "accounted_ns": 2_000 * MS, "off": 0.01},
        "runnable": {"told_ns": 52 * MS, "accounted_ns": 50 * MS, "off": 0.04},  # of what would be a hundredth
        "agrees": True,
    }
    shown = text.report_text(breakdown(counters=ACCOUNTED), 200)
    assert "ran 2.00 s, waited for a CPU 50.0 ms; what is told here is off by 1.0 %, 4.0 %" in shown
    assert "1 thread could not be compared" in shown
    with_disk = replace(ACCOUNTED, accounted_disk=1, accounted_disk_ns=100 * MS)
    report = validated(breakdown(counters=with_disk))
    assert report["quality"]["scheduler"]["disk"]["off"] == 0.9
    assert report["quality"]["scheduler"]["agrees"] is True  # that may be the kernel's fault
    off = replace(ACCOUNTED, told_running_ns=2_110 * MS)
    report = validated(breakdown(counters=off))
    assert report["quality"]["scheduler"]["running"]["off"] == 0.055
    assert report["quality"]["scheduler"]["agrees"] is False
    assert "do not rely on" in text.report_text(breakdown(counters=off), 200)
    assert "do not rely on" not in text.report_text(breakdown(counters=with_disk), 200)


def test_the_schema_itself_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(json.schema())


def test_json_of_a_training_run() -> None:
    report = validated(breakdown())
    assert report["session"]["duration_ns"] == 2_500 * MS
    assert report["session"]["complete"] is True
    assert report["session"]["gpu"] == "unavailable"
    assert (report["session"]["probes_attached"], report["session"]["probes_armed"]) == (1_234, 1_230)
    assert report["overhead"] == {
        "probe_hits": 234_567, "estimated_ns": 90 * MS, "fraction": 0.036, "plausible": True, "calibrated": False,
        "probes_shed": 0, "overcorrected_ns": 0, "in_place": [],
    }  # fmt: skip
    (process,) = report["processes"]
    assert process["command"] == ["python", "train.py", "--lr", "3e-4"]
    assert (process["start_ns"], process["end_ns"]) == (samples.START_NS, samples.END_NS)
    operations = {(each["phase"], tuple(each["path"])): each for each in process["operations"]}
    step = operations[DEFAULT_PHASE, ("rollout", "env.step")]
    assert step["name"] == "env.step"
    assert step["count"] == 20
    assert step["raw"] == {
        "wall_ns": 640 * MS,
        "cpu_ns": {"python": 180 * MS, "simulator": 460 * MS, "backend": 0, "cuda_api": 0, "other": 0},
        "gpu_ns": 0,
        "resources_ns": {"cpu_only": 640 * MS, "cpu_gpu": 0, "gpu_only": 0, "idle": 0},
    }
    assert step["corrected"] == step["raw"]
    assert step["transitions"] == {"python_to_simulator": 20, "simulator_to_python": 20}
    assert operations["evaluation", ()]["name"] == "(untracked)"
    (call,) = process["cuda_api"]
    assert (call["name"], call["count"], call["total_ns"]) == ("cuStreamSynchronize", 25, 150 * MS)
    for each in process["operations"]:
        for times in (each["raw"], each["corrected"]):
            assert sum(times["cpu_ns"].values()) == times["wall_ns"]
            assert sum(times["resources_ns"].values()) == times["wall_ns"]
    assert sum(each["raw"]["wall_ns"] for each in process["operations"]) == 5_000 * MS == process["wall_ns"]


def test_the_schema_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    from rlscope_ebpf.cli import main

    assert main(["report", "--schema"]) == 0
    assert stdlib_json.loads(capsys.readouterr().out) == json.schema()


def test_json_has_the_notices() -> None:
    assert validated(breakdown())["notices"] == []
    report = validated(breakdown(notices=NOTICES))
    assert report["notices"][1] == {
        "text": "Sleep counts as python.", "time_ns": samples.START_NS + 65_000 * MS, "important": True
    }  # fmt: skip


@pytest.mark.parametrize("width", [80, 160])
def test_text_has_the_notices_with_their_time(width: int) -> None:
    shown = text.report_text(breakdown(notices=NOTICES), width)
    lines = [line.split() for line in shown.splitlines()]
    at = lines.index(["NOTICES"])
    assert lines[at + 1][:4] == ["00:00", "A", "long", "sentence"]
    assert ["01:05", "Sleep", "counts", "as", "python."] in lines
    assert "NOTICES" not in text.report_text(breakdown(), width)


@pytest.mark.parametrize(("estimated_ms", "plausible"), [(90, True), (2_249, True), (2_500, False), (15_000, False)])
def test_an_overhead_that_cannot_be_right_is_said(estimated_ms: int, plausible: bool) -> None:
    """The samples' threads ran for 2.25 of their 5 s; the process lived for 2.5 s."""
    value = breakdown(counters=replace(samples.COUNTERS, estimated_overhead_ns=estimated_ms * MS))
    overhead = validated(value)["overhead"]
    assert overhead["plausible"] is plausible
    assert overhead["fraction"] <= 1 or not plausible
    assert ("cannot be right" in " ".join(text.report_text(value, 160).split())) is not plausible


def test_json_of_an_incomplete_and_lossy_trace() -> None:
    report = validated(breakdown(complete=False, end=None, problems=["The trace has no footer."], **LOSSY))
    assert report["session"]["complete"] is False
    assert report["session"]["problems"] == ["The trace has no footer."]
    assert report["session"]["duration_ns"] == 2_500 * MS
    assert report["losses"]["events"] == 5_000
    assert report["session"]["shares_refused"] is True
    assert report["session"]["loss_fraction"] == pytest.approx(5_000 / 128_456)


def test_json_of_nothing() -> None:
    report = validated(break_down(samples.FakeTrace(info=replace(samples.INFO, gpu="(unknown)"), end=None, now_ns=0)))
    assert report["processes"] == []
    assert report["session"]["duration_ns"] == 0
    assert report["session"]["gpu"] == "unavailable"


@settings(deadline=None, max_examples=15)
@given(
    names=st.lists(st.text(max_size=8), min_size=8, max_size=8),
    process=st.text(max_size=8),
    keep=st.integers(0, 60),
)
def test_any_name_and_any_cut_makes_valid_reports(names: list[str], process: str, keep: int) -> None:
    source = samples.training()
    source.tables["intervals"] = source.tables["intervals"][:keep]
    source.tables["spans"] = source.tables["spans"][: keep // 4]
    for number, name in enumerate(names, 1):
        source.define(StringInfo(number, name))
    source.define(ProcessInfo(100, None, process, (process,), samples.START_NS))
    value = break_down(source)
    report = validated(value)
    assert [each["name"] for each in report["processes"]] == [process]
    rows = list(stdlib_csv.DictReader(io.StringIO(csv.report_text(value))))
    operations = report["processes"][0]["operations"]
    assert [csv.unescaped(row["process"]) for row in rows] == [process] * len(operations)
    assert [csv.unescaped(row["name"]) for row in rows] == [each["name"] for each in operations]
    assert [stdlib_json.loads(row["path"]) for row in rows] == [each["path"] for each in operations]
    for width in (60, 160):
        shown = text.report_text(value, width)
        assert all(character.isprintable() or character == "\n" for character in shown)


# CSV


def test_csv_reads_back_as_the_operations_table() -> None:
    source = samples.training()
    frame = pd.read_csv(io.StringIO(csv.report_text(break_down(source))))
    assert tuple(frame.columns) == csv.COLUMNS
    frame["path"] = [tuple(stdlib_json.loads(path)) for path in frame["path"]]
    expected = Trace(source).operations()
    pd.testing.assert_frame_equal(frame[list(expected.columns)], expected, check_dtype=False)
    step = frame.set_index(["phase", "operation"]).loc[(DEFAULT_PHASE, "rollout/env.step")]
    assert (step["python_to_simulator"], step["simulator_to_python"], step["python_to_backend"]) == (20, 20, 0)


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("rollout", "rollout"),
        ("env/step", "env/step"),
        ("=cmd|'/c calc'!A0", "\\u003dcmd|'/c calc'!A0"),
        ("@x", "\\u0040x"),
        ("\x1b[31mred", "\\u001b[31mred"),
        ("a\tb\\c", "a\\tb\\\\c"),
        ('say "yes"', 'say "yes"'),
        ("\u202eabc", "\\u202eabc"),
        ("\U000e0001", "\\udb40\\udc01"),
        ("日本", "日本"),
        ("", ""),
    ],
)
def test_csv_names_are_escaped_without_loss(name: str, cell: str) -> None:
    assert csv.escaped(name) == cell
    assert csv.unescaped(cell) == name


def test_csv_paths_are_not_ambiguous() -> None:
    found = {}
    for first, second in (("a/b", "c"), ("a", "b/c"), ("", ""), ("(untracked)", "=1+1")):
        source = samples.training()
        for number in source.strings:
            source.define(StringInfo(number, first))
        inner = max(source.paths)
        source.define(StringInfo(source.paths[inner].name, second))
        rows = list(stdlib_csv.DictReader(io.StringIO(csv.report_text(break_down(source)))))
        assert not any(cell.startswith(("=", "+", "-", "@")) for row in rows for cell in row.values())
        found[first, second] = {row["path"] for row in rows}
        assert "[]" in found[first, second]
        assert stdlib_json.dumps([first, second]) in found[first, second]
    assert len(set(map(frozenset, found.values()))) == len(found)


def test_csv_has_no_shares_if_too_much_was_lost() -> None:
    frame = pd.read_csv(io.StringIO(csv.report_text(breakdown(**LOSSY))))
    assert frame["share"].isna().all()
    assert frame["wall_ns"].sum() == 5_000 * MS


# Text


@pytest.mark.parametrize("width", [80, 160])
def test_text(width: int, snapshot: SnapshotAssertion) -> None:
    shown = text.report_text(breakdown(), width, source="train.rlscope")
    assert max(map(len, shown.splitlines())) <= width
    assert shown == snapshot


@pytest.mark.parametrize("width", [80, 160])
def test_text_of_an_incomplete_and_lossy_trace(width: int, snapshot: SnapshotAssertion) -> None:
    shown = text.report_text(
        breakdown(complete=False, end=None, problems=["The trace has no footer: the profiler was killed."], **LOSSY),
        width,
    )
    assert max(map(len, shown.splitlines())) <= width
    assert "%" not in shown.partition("train.py pid")[2].replace("99 %", "")
    assert shown == snapshot


def test_text_without_phases_or_cuda() -> None:
    source = samples.training()
    rows = source.tables["intervals"]
    source.tables["intervals"] = rows[(rows["phase"] == 0) & (rows["category"] != 3)]
    source.tables["spans"] = source.tables["spans"][:0]
    shown = text.report_text(break_down(source), 80)
    assert "Phase" not in shown
    assert "CUDA" not in shown
    assert "CUDA API" in text.report_text(break_down(source), 160)


def test_text_of_a_process_without_operations() -> None:
    source = samples.training()
    rows = source.tables["intervals"]
    source.tables["intervals"] = rows[rows["path"] == 0]
    source.tables["spans"] = source.tables["spans"][:0]
    source.define(ProcessInfo(200, 100, "idle", (), samples.START_NS))
    shown = text.report_text(break_down(source), 80)
    assert "No operation is marked" in shown
    assert "Of 1 process nothing was recorded: idle 200." in shown


@pytest.mark.parametrize(
    ("gpu", "reason", "sentence"),
    [
        ("unavailable", "libcuda is missing.", "GPU time is unavailable: libcuda is missing."),
        ("unavailable", "", "GPU time is unavailable."),
        ("off", "", "GPU time was not recorded (--gpu off)."),
    ],
)
def test_text_says_why_there_is_no_gpu_time(gpu: str, reason: str, sentence: str) -> None:
    info = replace(samples.INFO, gpu=gpu, gpu_reason=reason)
    assert sentence in text.report_text(breakdown(info=info)).splitlines()


@pytest.mark.parametrize("reason", [NO_CUDA, NO_USE])
def test_text_says_nothing_of_a_gpu_that_nothing_uses(reason: str) -> None:
    whole = breakdown(info=replace(samples.INFO, gpu="unavailable", gpu_reason=reason))
    assert f"GPU time is unavailable: {reason}." in text.report_text(whole)  # there were CUDA calls all the same
    without = replace(whole, processes=tuple(replace(process, cuda_calls=()) for process in whole.processes))
    assert "GPU" not in text.report_text(without)


def test_text_of_losses() -> None:
    def line(**changes: object) -> str:
        lines = text.report_text(breakdown(**changes)).splitlines()
        return next(line for line in lines if line.startswith("events"))

    assert line() == "events    123 k received, nothing lost"
    assert line(losses=Losses(healed=3)) == "events    123 k received, nothing lost, 3 returns healed"
    losses = {"losses": Losses(events=200, late=4), "counters": Counters(received=99_800, sent=100_000)}
    assert line(**losses) == "events    99.8 k received, 200 events lost, 4 late events dropped (0.2 % of the events)"


def deep_trace(depth: int) -> samples.FakeTrace:
    """One operation nested in itself `depth` times, each level with the first row's time."""
    source = samples.training()
    row = source.tables["intervals"][:1]
    for number in range(1, depth + 1):
        source.define(PathInfo(number, number - 1, 1))
    rows = row.repeat(depth)
    rows["path"] = range(1, depth + 1)
    source.tables = {"intervals": rows}
    return source


def test_text_of_deep_and_many_operations_stays_within_its_width() -> None:
    shown = text.report_text(break_down(deep_trace(1_000)), 80)
    assert max(map(len, shown.splitlines())) <= 80
    assert "… and 900 more operations" in shown
    assert "(20) " in shown


def test_tree_lines() -> None:
    paths = [("a",), ("a", "x"), ("a", "x", "q"), ("a", "y"), ("b", "z"), ()]
    (operation, *_) = next(iter(breakdown().processes)).operations
    operations = [replace(operation, total=replace(operation.total, path=path)) for path in paths]
    assert text._guides(operations) == ["", "├ ", "│ └ ", "└ ", "└ ", ""]


# The command


def run(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    code = "import sys; from rlscope_ebpf.cli import main; sys.exit(main())"
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    return subprocess.run(
        [sys.executable, "-c", code, "report", *words],
        env={**environment, "PYTHONPATH": str(REPOSITORY), **options.pop("env", {})},  # type: ignore[dict-item]
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
        **options,  # type: ignore[call-overload]
    )


def test_command_in_a_pipe_has_neither_colours_nor_progress(tmp_path: Path) -> None:
    path = write(tmp_path / "run.rlscope")
    done = run(str(path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert done.stdout == text.report_text(break_down(samples.training()), 160, source=str(path))
    narrow = run(str(path), env={"COLUMNS": "80"}).stdout
    assert narrow == text.report_text(break_down(samples.training()), 80, source=str(path))


def test_command_formats(tmp_path: Path) -> None:
    path = write(tmp_path / "run.rlscope")
    report = stdlib_json.loads(run(str(path), "--format", "json").stdout)
    jsonschema.validate(report, json.schema())
    table = run(str(path), "--format", "csv").stdout
    assert table == csv.report_text(break_down(samples.training()))
    # In this process, for coverage of the same.
    output = tmp_path / "report.csv"
    assert cli.main(["report", str(path), "--format", "csv", "-o", str(output)]) == 0
    assert output.read_text() == table
    assert cli.main(["report", str(path), "--format", "json", "-o", str(output)]) == 0  # replaces it
    assert stdlib_json.loads(output.read_text()) == report


def test_command_in_an_encoding_without_our_characters(tmp_path: Path) -> None:
    path = write(tmp_path / "run.rlscope")
    done = run(str(path), env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "? env.step" in done.stdout


def test_command_on_an_incomplete_trace_reports_and_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "killed.rlscope", finish=False)
    done = run(str(path))
    assert done.returncode == ExitStatus.DAMAGED
    assert "This trace is not complete" in done.stdout
    assert "env.step" in done.stdout
    assert len(done.stderr.splitlines()) == 2
    assert "Traceback" not in done.stderr
    report = run(str(path), "--format", "json")
    assert report.returncode == ExitStatus.DAMAGED
    assert stdlib_json.loads(report.stdout)["session"]["complete"] is False


def test_command_on_a_damaged_trace(tmp_path: Path) -> None:
    path = write(tmp_path / "run.rlscope")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    done = run(str(path), "--format", "json")
    assert done.returncode == ExitStatus.DAMAGED
    report = stdlib_json.loads(done.stdout)
    jsonschema.validate(report, json.schema())
    assert report["session"]["complete"] is False


@pytest.mark.parametrize("content", [None, b"", b"not a trace"])
def test_command_on_what_is_no_trace(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    done = run(str(path))
    assert done.returncode == (ExitStatus.DAMAGED if content == b"" else ExitStatus.USAGE)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 2


def test_command_does_not_replace_the_trace(tmp_path: Path) -> None:
    path = write(tmp_path / "run.rlscope")
    before = path.read_bytes()
    (tmp_path / "link").symlink_to(path)
    for output in (path, tmp_path / "link"):
        assert cli.main(["report", str(path), "-o", str(output)]) == ExitStatus.USAGE
    assert path.read_bytes() == before


def test_command_output_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "run.rlscope")
    assert cli.main(["report", str(path), "-o", str(tmp_path / "no" / "folder")]) == ExitStatus.USAGE
    assert cli.main(["report", str(path), "-o", str(tmp_path)]) == ExitStatus.USAGE
    assert cli.main(["report", str(path), "-o", "/dev/full"]) == ExitStatus.FAILED
    assert "No space left" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_command_output_belongs_to_whoever_called_sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "run.rlscope")
    monkeypatch.setenv("SUDO_UID", "12345")
    monkeypatch.setenv("SUDO_GID", "23456")
    assert cli.main(["report", str(path), "-o", str(tmp_path / "new")]) == 0
    assert ((tmp_path / "new").stat().st_uid, (tmp_path / "new").stat().st_gid) == (12345, 23456)
    (tmp_path / "old").touch()
    assert cli.main(["report", str(path), "-o", str(tmp_path / "old")]) == 0
    assert (tmp_path / "old").stat().st_uid == 0


def test_command_into_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    path = write(tmp_path / "run.rlscope")
    code = "import sys; from rlscope_ebpf.cli import main; sys.exit(main())"
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-c", code, "report", str(path)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=write_end,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, b"")


def test_command_on_a_terminal_has_colours_a_width_and_a_progress_bar(tmp_path: Path) -> None:
    path = write(tmp_path / "run.rlscope")
    code = (
        "import sys; from rlscope_ebpf.cli import main, report; report.LARGE_BYTES = 0;"
        f"sys.exit(main(['report', {str(path)!r}]))"
    )
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR")}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**environment, "PYTHONPATH": str(REPOSITORY), "TERM": "xterm-256color"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
    ) as child:
        os.close(slave)
        seen = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # the child closed its end
                break
            if not part:
                break
            seen += part
    os.close(master)
    assert child.returncode == 0
    shown = seen.decode()
    assert "\x1b[1m" in shown
    assert "Adding up" in shown
    assert "env.step" in shown
    assert report_verb.LARGE_BYTES > 1_000_000


def test_transitions_without_all_probes_are_at_least_so_many() -> None:
    whole = break_down(samples.training())
    assert "Transitions are at least so many" not in text.report_text(whole, 120)
    shed = replace(whole, counters=replace(whole.counters, probes_shed=3))
    assert "Transitions are at least so many" in text.report_text(shed, 120)
