"""The panel of iterations, and the latest progress reports that it needs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

import tui_fakes as fakes
from test_tui import LARGE, SMALL, show, shown, text_of

from rlscope_ebpf.live.latest import KEPT, Latest, LatestReports
from rlscope_ebpf.model.tables import MARK_DTYPE, Batch, MarkKind, ThreadInfo
from rlscope_ebpf.model.trend import NO_TREND, Trend
from rlscope_ebpf.tui.layout import Facts, arrange
from rlscope_ebpf.tui.loop import SPARKS, progress_line, reasons, remaining_ns, sparkline, trend_line
from rlscope_ebpf.tui.spans import plain

S, MS = fakes.S, fakes.MS


def marks(*rows: tuple[int, int, int], kind: MarkKind = MarkKind.PROGRESS) -> np.ndarray:
    """Of (thread, time, step)."""
    table = np.zeros(len(rows), MARK_DTYPE)
    for row, (thread, time_ns, step) in zip(table, rows, strict=True):
        row["thread"], row["time_ns"], row["a"], row["kind"] = thread, time_ns, step, kind
    return table


def test_the_latest_reports_of_each_process() -> None:
    reports = LatestReports()
    threads = [ThreadInfo(1, 7, 7, ""), ThreadInfo(2, 8, 8, ""), ThreadInfo(3, 7, 9, "")]
    reports.add(Batch(S, threads, {"marks": marks((1, 10, 1), (2, 15, 1), (1, 30, 2))}))
    reports.add(Batch(S, [], {"marks": marks((3, 60, 3), kind=MarkKind.PROGRESS)}))  # another thread of the first
    reports.add(Batch(S, [], {"marks": marks((1, 70, 9), kind=MarkKind.PHASE)}))
    assert reports.latest() == {7: Latest((10, 30, 60), (1, 2, 3)), 8: Latest((15,), (1,))}
    assert reports.latest()[7].durations_ns == (20, 30)
    reports.add(Batch(S, [], {"marks": marks(*((1, 100 + n, n) for n in range(3 * KEPT)))}))
    assert len(reports.latest()[7].time_ns) == KEPT
    assert reports.latest()[7].step[-1] == 3 * KEPT - 1


def test_the_rate_is_that_of_the_last_seconds() -> None:
    slow_then_fast = Latest((0, 60 * S, 61 * S, 62 * S), (0, 100, 110, 120))
    assert slow_then_fast.steps_per_s() == 10
    assert Latest((0, 60 * S), (0, 120)).steps_per_s() == 2  # longer than that: the latest one
    assert Latest((0,), (5,)).steps_per_s() == 0
    assert Latest((), ()).steps_per_s() == 0
    assert Latest((5, 5), (1, 2)).steps_per_s() == 0
    assert Latest((0, S), (9, 1)).steps_per_s() == 0  # counted anew


def test_how_long_still() -> None:
    latest = Latest((0, S), (0, 100))
    process = replace(fakes.TRAINER, step=400, total_steps=1_000)
    assert remaining_ns(process, latest) == 6 * S
    assert remaining_ns(replace(process, total_steps=0), latest) is None
    assert remaining_ns(replace(process, step=1_001), latest) is None
    assert remaining_ns(replace(process, alive=False), latest) is None
    assert remaining_ns(process, None) is None
    text = plain(progress_line(process, latest, several=True))
    for part in ("python3 4242", "step 400 of 1,000", "40.0 %", "100 steps/s", "6.00 s left"):
        assert part in text
    assert plain(progress_line(replace(process, total_steps=0), None, several=False)) == "step 400"


def test_why_an_iteration_was_slow() -> None:
    total = fakes.iterations()
    found = [(reason.name, reason.extra_ns) for reason in reasons(total.slowest[0], total)]
    assert found == [("simulator", 186 * MS), ("rollout > simulation", 187 * MS)]
    unknown = replace(total, operations=(replace(total.operations[0], p50_ns=None),))
    assert [reason.name for reason in reasons(total.slowest[0], unknown)] == ["simulator"]
    seen_never = replace(total, operations=())  # in most iterations it takes no time at all
    assert [reason.extra_ns for reason in reasons(total.slowest[0], seen_never)][1:] == [196 * MS]


@given(st.lists(st.floats(0, 1e15), max_size=80), st.integers(0, 100))
def test_sparkline(values: list[float], width: int) -> None:
    text = sparkline(values, width)
    assert len(text) == min(len(values), width)
    assert set(text) <= set(SPARKS)
    if text and max(values[-width:]) > 0:
        assert SPARKS[-1] in text


def test_sparkline_starts_at_zero() -> None:
    assert sparkline([1, 2, 4], 10) == "▃▅█"
    assert sparkline([4, 1, 2], 2) == "▅█"
    assert sparkline([0, 0], 5) == "▁▁"


def test_trend_in_words() -> None:
    assert trend_line(NO_TREND) == []
    slower = plain(trend_line(Trend(first_ns=20e6, last_ns=25e6, direction=1)))
    assert slower == "becomes slower by 25.0 %  20.0 ms → 25.0 ms, first and last quarter of the run"
    assert plain(trend_line(Trend(first_ns=20e6, last_ns=15e6, direction=-1))).startswith("becomes faster by 25.0 %")


async def test_the_panel() -> None:
    source = fakes.FakeSource(fakes.looping())
    async with shown(source, LARGE) as (app, pilot):
        assert app.query_one("#iterations").display
        await pilot.press("z", "shift+tab", "shift+tab")
        text = text_of(app, "#iterations")
        for part in ("step 49,152 of 1,000,000", "steps/s", "left", "latest", "training", "1.97 k", "20.0 ms",
                     "31.0 ms", "+21 %", "becomes slower", "Python → backend 23", "step 30,850", "10.5x",
                     "simulator +186 ms, rollout > simulation +187 ms", "evaluation"):  # fmt: skip
            assert part in text, part
        assert "≥" not in text
        await pilot.press("p", "p", "p")
        assert app.view.phase == "evaluation"
        assert "training" not in text_of(app, "#iterations")
        await pilot.press("p")
        counters = replace(fakes.running().counters, probes_shed=3)
        await show(app, pilot, source, replace(fakes.looping(), counters=counters))
        assert "Python → backend ≥23" in text_of(app, "#iterations")


async def test_who_reports_nothing_is_told_how() -> None:
    async with shown(fakes.FakeSource(fakes.unmarked())) as (app, pilot):
        await pilot.press("shift+tab", "shift+tab")
        assert app.active_panel == "iterations"
        assert "rls.progress(step, total)" in text_of(app, "#iterations")


async def test_several_that_report_have_their_names() -> None:
    worker = replace(fakes.WORKER, steps=5, step=5)
    snapshot = replace(fakes.looping(), processes=(fakes.TRAINER, worker))
    async with shown(fakes.FakeSource(snapshot)) as (app, pilot):
        await pilot.press("shift+tab", "shift+tab")
        assert "python3 4242  step 49,152" in text_of(app, "#iterations")
        rows = app.query_one("#iterations").rows  # type: ignore[attr-defined]
        assert ("process", 4250) in [row.key for row in rows]
        await pilot.press("P")
        assert ("process", 4250) not in [row.key for row in app.query_one("#iterations").rows]  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [SMALL, (120, 36), (60, 16), (20, 5)])
async def test_sizes(size: tuple[int, int]) -> None:
    async with shown(fakes.FakeSource(fakes.looping()), size) as (app, pilot):
        for _ in range(8):
            assert all(len(line) == size[0] for line in text_of(app).splitlines())
            await pilot.press("tab")
        assert app.is_running


def test_where_it_is() -> None:
    assert "iterations" in arrange(120, 36, "operations", False, Facts(steps=True)).shown
    assert "calls" in arrange(120, 36, "operations", False, Facts(steps=True, cuda=True)).shown
    assert {"calls", "iterations"} <= arrange(120, 48, "operations", False, Facts(steps=True, cuda=True)).shown
    assert "iterations" in arrange(120, 48, "operations", False, Facts(processes=9, steps=True)).shown
    assert "transitions" in arrange(120, 48, "operations", False, Facts(processes=9)).shown
