"""The benchmarks' table, document and runner; no figure is measured here."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import boundaries, run
from benchmarks.document import Run, render
from benchmarks.figures import HEADINGS, Benchmark, Effort, Figure, Goal, Results, as_markdown, as_text, rows, widths_of
from benchmarks.machine import CpuTimes, describe, parse_cpu_times, this_machine
from benchmarks.processes import BenchmarkError

FIGURES = (
    Figure("ours", "ours", "ns", 1, Goal("less than", "theirs")),
    Figure("theirs", "theirs | others", "ns"),
    Figure("rate", "events", "M events/s", 2, Goal("at least", 2)),
    Figure("time", "waiting", "s", 2, Goal("at most", 0.5)),
)


def results_of(**samples: list[float]) -> Results:
    results = Results(FIGURES)
    for key, values in samples.items():
        results.add(key, *values)
    return results


def test_rows_show_median_spread_and_verdict() -> None:
    results = results_of(ours=[3.0, 1.0, 2.0], theirs=[1234.4], rate=[1.0, 2.5], time=[0.5])
    assert rows(results) == [
        ("ours", "2.0", "ns", "1.0", "3.0", "3", "less than theirs | others: met"),
        ("theirs | others", "1,234", "ns", "", "", "1", ""),
        ("events", "1.75", "M events/s", "1.00", "2.50", "2", "at least 2: MISSED"),
        ("waiting", "0.50", "s", "", "", "1", "at most 0.5: met"),
    ]
    assert results.missing == 0


def test_a_figure_that_is_missing_keeps_its_row_and_says_why() -> None:
    results = results_of(ours=[1.0])
    results.not_measured("bpftrace is missing (apt install bpftrace)", "rate")
    results.not_measured("not root")  # all others
    assert [row[1] for row in rows(results)] == [
        "1.0",
        "not measured: not root",
        "not measured: bpftrace is missing (apt install bpftrace)",
        "not measured: not root",
    ]
    assert results.verdict(FIGURES[0]) == "less than theirs | others: not known"
    assert results.missing == 3


def test_a_sample_wins_over_a_reason_and_silence_has_a_reason_too() -> None:
    results = results_of(ours=[1.0])
    results.not_measured("broken", "ours")
    assert results.reason("ours") is None
    assert results.reason("rate") == "the benchmark ended without it"


def test_only_promised_figures_with_keys_of_their_own() -> None:
    with pytest.raises(KeyError):
        Results(FIGURES).add("another", 1.0)
    with pytest.raises(ValueError):
        Results([FIGURES[0], FIGURES[0]])


def test_columns_of_the_text_line_up() -> None:
    results = results_of(ours=[3.0, 1.0], theirs=[1_234_567.0], rate=[1.0])
    table = rows(results)
    widths = widths_of([table])
    lines = as_text("Title", [HEADINGS, *table], widths).splitlines()
    assert lines[0] == "Title"
    assert lines[1].index("median") + len("median") == lines[2].index("2.0") + len("2.0")
    assert lines[3].index("1,234,567") + len("1,234,567") == lines[2].index("2.0") + len("2.0")
    assert len({line.index(unit) for line, unit in zip(lines[2:5], ("ns", "ns", "M events/s"), strict=True)}) == 1
    assert lines[5].endswith("not measured: the benchmark ended without it")


def test_markdown_has_as_many_cells_in_every_row() -> None:
    lines = as_markdown(rows(results_of(ours=[1.0], theirs=[2.0]))).splitlines()
    assert {line.replace("\\|", "").count("|") for line in lines} == {len(HEADINGS) + 1}
    assert "theirs \\| others" in lines[3]


def test_every_benchmark_promises_figures_whose_goals_can_be_judged() -> None:
    assert len({benchmark.name for benchmark in run.BENCHMARKS}) == len(run.BENCHMARKS)
    for benchmark in run.BENCHMARKS:
        results = Results(benchmark.figures)
        assert results.figures
        for figure in benchmark.figures:
            results.add(figure.key, 1.0)
        for figure in benchmark.figures:
            assert results.verdict(figure).rpartition(": ")[2] in ("", "met", "MISSED")


def _measured(results: Results, effort: Effort) -> None:
    results.add("ours", *[1.0] * effort.of(9, 2))
    raise BenchmarkError("gcc is missing (apt install gcc)")


def _complete(results: Results, effort: Effort) -> None:
    results.add("only", 5.0)


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    given = (
        Benchmark("half", "Half measured", FIGURES, _measured, ("How it is measured.",)),
        Benchmark("whole", "Whole", (Figure("only", "only", "s"),), _complete),
    )
    monkeypatch.setattr(run, "BENCHMARKS", given)


@pytest.mark.usefixtures("benchmarks")
def test_a_failure_costs_only_its_own_figures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    document = tmp_path / "docs" / "benchmarks.md"
    assert run.main(["--quick", "--write", str(document), "--remark", "The machine was busy."]) == 1
    shown = capsys.readouterr()
    assert shown.out.count("not measured: gcc is missing (apt install gcc)") == 3
    assert "Whole" in shown.out
    assert "half: measuring" in shown.err
    written = document.read_text()
    assert written.count("gcc is missing") == 3
    for part in ("## Half measured", "How it is measured.", "The machine was busy.", "quick run", this_machine()):
        assert part in written


@pytest.mark.usefixtures("benchmarks")
def test_one_benchmark_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--only", "whole"]) == 0
    assert "Half measured" not in capsys.readouterr().out


def test_a_bug_in_a_benchmark_is_a_reason_too() -> None:
    def broken(results: Results, effort: Effort) -> None:
        raise ZeroDivisionError("division by zero")

    results = run.measure(Benchmark("broken", "Broken", FIGURES, broken), Effort(quick=True))
    assert results.reason("ours") == "ZeroDivisionError: division by zero"


def test_the_machine_is_described_by_kind() -> None:
    cpuinfo = "processor\t: 0\nmodel name\t: Some CPU 9000\nflags\t\t: fpu hypervisor sse\n"
    release = 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n'
    text = describe(cpuinfo, "MemTotal:       16384000 kB\n", release, 2, (6, 12, 3))
    assert text == "VM, Some CPU 9000, 2 cores, 16 GiB, kernel 6.12.3, Debian GNU/Linux 12 (bookworm)"
    assert not describe(cpuinfo.replace("hypervisor", ""), "", "", 1, (6,)).startswith("VM")


def test_a_full_document_says_so() -> None:
    found = Run("2026-01-02", "a machine", "some software", False, 90, CpuTimes(100, 60, 2.5, 50))
    text = render(found, [(Benchmark("x", "X", FIGURES, _complete), results_of(ours=[1.0]))])
    assert "one full run of 1.5 minutes" in text
    assert "10% of the CPU time went to other work on the machine and 2.5% to the host" in text


def test_cpu_time_of_others_is_what_is_busy_and_not_ours() -> None:
    before = parse_cpu_times("cpu  100 10 40 800 20 5 5 20 0 0\ncpu0 …", 100, 1.0)
    assert before.total == pytest.approx(10.0)
    assert before.busy == pytest.approx(1.6)
    after = parse_cpu_times("cpu  300 10 40 1580 20 5 5 40 0 0\n", 100, 2.5)
    meanwhile = after - before
    assert meanwhile.others_share == pytest.approx(0.05)
    assert meanwhile.stolen_share == pytest.approx(0.02)


def test_the_interval_of_a_median_holds_it_and_narrows() -> None:
    assert math.isnan(boundaries.interval([1.0, 2.0, 3.0, 4.0, 5.0]))
    # 15 values: the 4th and the 12th, between which the median lies in 96.5 % of all cases
    assert boundaries.interval([float(each) for each in range(15)]) == 4
    # one that is far off changes nothing
    assert boundaries.interval([*map(float, range(14)), 1e9]) == 4
    assert boundaries.interval([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]) == 2.5


def test_functions_of_pytorch_by_what_python_calls_them() -> None:
    probed = ["add", "__add__", "__iadd__", "__getitem__", "linear", "item", "run_backward"]
    assert [name for name in probed if not boundaries.is_probed(name)] == []
    assert [name for name in ("size", "dim", "is_complex", "detach") if boundaries.is_probed(name)] == []


def test_boundary_choices_as_a_table() -> None:
    results = Results(boundaries.BENCHMARK.figures)
    results.add("mlp operators slowdown", *(1.0 + each / 100 for each in range(15)))
    results.add("mlp operators hits", 12.0)
    table = boundaries.compact(results, "mlp").splitlines()
    assert len({line.count("|") for line in table}) == 1
    (row,) = [line for line in table if "entry and return" in line]
    assert row.startswith("| operators, entry and return | 1.070 ± 0.040 | 12.0 |  |")
