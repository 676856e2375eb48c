"""The terminal UI: every key, and pictures of the main states at the smallest and at a large size."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

sys.path.insert(0, str(Path(__file__).parent))

import tui_fakes as fakes

from rlscope_ebpf.live.snapshot import Snapshot
from rlscope_ebpf.model.gpu import NO_CUDA
from rlscope_ebpf.model.sampling import Sampled
from rlscope_ebpf.model.tables import Counters, ImportantNotice
from rlscope_ebpf.tui.app import SPEED_LIMITS, THEMES, ProfilerApp, SnapshotReady
from rlscope_ebpf.tui.figures import SortKey
from rlscope_ebpf.tui.help import TextScreen
from rlscope_ebpf.tui.keys import IN_REPLAY
from rlscope_ebpf.tui.screenshot import settled
from rlscope_ebpf.tui.table import Table

SMALL = (80, 24)
LARGE = (160, 48)
QUICK_S = 0.02


@pytest.fixture(autouse=True)
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pictures are coloured, whatever the terminal that runs the tests prefers."""
    monkeypatch.delenv("NO_COLOR", raising=False)


@asynccontextmanager
async def shown(
    source: fakes.FakeSource, size: tuple[int, int] = SMALL, *, exit_when_finished: bool = False
) -> AsyncIterator[tuple[ProfilerApp, Pilot[None]]]:
    """The app with the source's figures on its screen."""
    app = ProfilerApp(source, refresh_s=60, exit_when_finished=exit_when_finished)
    async with app.run_test(size=size) as pilot:
        await settled(app, pilot)
        yield app, pilot


async def show(app: ProfilerApp, pilot: Pilot[None], source: fakes.FakeSource, snapshot: Snapshot) -> None:
    """Let the source have other figures, and wait until the app has them."""
    source.current = snapshot
    asked = source.asked
    app.fetch()
    await until(pilot, lambda: source.asked > asked and app.snapshot in (snapshot, app._frozen))


async def until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    """Wait for something that a worker brings about."""
    for _ in range(200):
        if condition():
            return
        await asyncio.sleep(QUICK_S)
        await pilot.pause()
    raise AssertionError("it never happened")


def text_of(app: ProfilerApp, selector: str = "") -> str:
    """What the whole screen, or one widget, shows as text."""
    if not selector:
        return "\n".join(strip.text for strip in app.screen._compositor.render_strips())
    widget = app.query_one(selector)
    return "\n".join(widget.render_line(y).text for y in range(widget.size.height))


def names(app: ProfilerApp) -> list[str]:
    """The operations from top to bottom."""
    rows = app.query_one("#operations", Table).rows
    return [row.key[-1] if row.key else "(untracked)" for row in rows if isinstance(row.key, tuple)]


async def test_the_key_bar() -> None:
    async with shown(fakes.FakeSource(fakes.running())) as (app, pilot):
        keys = text_of(app, "#keys")
        assert keys.startswith(" q Quit  ? Help  space Pause  tab Panel  s Sort  r Reverse  / Filter  p Phase")
        await pilot.click("#keys", offset=(keys.index("s Sort"), 0))
        assert app.view.sort is SortKey.COUNT
        await pilot.press("slash", "o")
        assert text_of(app, "#keys").strip() == "enter Keep the filter  esc Clear it"
        await pilot.click("#keys", offset=(2, 0))
        assert text_of(app, "#keys").startswith(" esc Clear  q Quit")
        await pilot.press("escape")
        assert "esc" not in text_of(app, "#keys")


async def test_header_tells_all() -> None:
    async with shown(fakes.FakeSource(fakes.running())) as (app, _):
        header = text_of(app, "#header")
        for part in ("python3", "pid 4242", "00:42", "LIVE", "python3 train.py --env HalfCheetah-v5", "68.2 k events/s",
                     "1,024 of 1,024 probes armed", "no losses", "overhead 3.2 % (not calibrated)",
                     "GPU times unavailable: no CUPTI library was found", "step 49,152 of 1,000,000"):  # fmt: skip
            assert part in header
        assert "Losses" not in header


async def test_header_says_nothing_of_a_gpu_that_nothing_uses() -> None:
    running = fakes.running()
    unused = replace(running, info=replace(running.info, gpu_reason=NO_CUDA), cuda_calls=())
    async with shown(fakes.FakeSource(unused)) as (app, _):
        assert "GPU" not in text_of(app, "#header")
    async with shown(fakes.FakeSource(replace(unused, cuda_calls=running.cuda_calls))) as (app, _):
        assert f"GPU times unavailable: {NO_CUDA}" in text_of(app, "#header")


async def test_losses_and_unarmed_probes_are_named() -> None:
    async with shown(fakes.FakeSource(fakes.lossy())) as (app, _):
        header = text_of(app, "#header")
        assert "Losses: 123 k events lost, 78 late events dropped" in header
        assert "no losses" not in header
        assert "1,024 of 1,030 probes armed" in header
        assert "(1 more: e)" in text_of(app, "#notice")


async def test_what_changes_the_figures_is_said_before_the_rest() -> None:
    texts = ("First.", ImportantNotice("Sleep counts as python."), "Third.", "Fourth.")
    async with shown(fakes.FakeSource(fakes.running(notices=texts))) as (app, _):
        first, second = text_of(app, "#notice").splitlines()
        assert "! Sleep counts as python." in first
        assert "! Fourth." in second
        assert second.rstrip().endswith("(2 more: e)")


async def test_probes_taken_off_are_no_contradiction() -> None:
    counters = Counters(probes_attached=1678, probes_armed=1663, probes_shed=15)
    async with shown(fakes.FakeSource(fakes.running(counters=counters)), LARGE) as (app, _):
        assert "1,663 of 1,678 probes armed, 15 taken off" in text_of(app, "#header")


async def test_an_operation_shows_its_figures() -> None:
    async with shown(fakes.FakeSource(fakes.running()), LARGE) as (app, _):
        line = next(line for line in text_of(app, "#operations").splitlines() if "inference" in line)
        for part in ("61.1 %", "28.1 %", "8.4 %", "2.5 %", "512 ms", "80.0 %", "10.5 s", "49.2 k", "214 µs"):
            assert part in line


async def test_sampled_figures_are_marked() -> None:
    snapshot = fakes.running()
    rows = [
        replace(row, sampled=Sampled(row.wall_ns, (281, 0, 611, 84, 24))) if row.name == "inference" else row
        for row in snapshot.operations
    ]
    source = fakes.FakeSource(replace(snapshot, operations=tuple(rows)))
    async with shown(source, LARGE) as (app, pilot):
        lines = text_of(app, "#operations").splitlines()
        assert "≈61.1 %" in next(line for line in lines if "inference" in line)
        assert not any("≈" in line for line in lines if "inference" not in line)
        assert "±" not in text_of(app, "#details")
        for _ in range(10):
            if "inference" in text_of(app, "#details"):
                break
            await pilot.press("j")
        assert "61.1 % ±3.1" in text_of(app, "#details")


async def test_sort_and_reverse() -> None:
    async with shown(fakes.FakeSource(fakes.running())) as (app, pilot):
        assert names(app) == ["rollout", "inference", "simulation", "train", "backpropagation",
                              "optimizer_step", "evaluate", "(untracked)"]  # fmt: skip
        await pilot.press("r")
        assert names(app)[0] == "(untracked)"
        assert names(app)[-3:] == ["rollout", "simulation", "inference"]
        await pilot.press("r", "s")
        assert app.view.sort is SortKey.COUNT
        assert "COUNT▼" in text_of(app, "#operations")
        await pilot.press("s")
        assert app.view.sort is SortKey.MEAN
        assert names(app)[:2] == ["evaluate", "rollout"]  # 197 ms, 107 ms
        await pilot.press("s")
        assert app.view.sort is SortKey.NAME
        assert names(app)[:3] == ["(untracked)", "evaluate", "rollout"]
        await pilot.press("r")
        assert names(app)[0] == "train"
        await pilot.press("s")
        assert app.view.sort is SortKey.WALL


async def test_filter_narrows_while_typing_and_escape_clears() -> None:
    async with shown(fakes.FakeSource(fakes.running())) as (app, pilot):
        await pilot.press("slash", *"opt")
        assert names(app) == ["train", "backpropagation", "optimizer_step"]
        assert "filter “opt”" in text_of(app, "#choices")
        await pilot.press("enter")
        assert app.query_one("#operations").has_focus
        assert names(app) == ["train", "backpropagation", "optimizer_step"]
        await pilot.press("s")  # a key again, not a letter of the filter
        assert app.view.sort is SortKey.COUNT
        await pilot.press("escape")
        assert len(names(app)) == 8
        assert not app.query_one("#filter").display
        await pilot.press("slash", *"xyz")
        assert "No operation is called like “xyz”." in text_of(app)
        await pilot.press("escape")
        assert app.view.filter == ""
        assert app.query_one("#operations").has_focus


async def test_keys_are_letters_while_the_filter_is_typed() -> None:
    async with shown(fakes.FakeSource(fakes.running())) as (app, pilot):
        await pilot.press("slash", *"quit? sp")
        assert app.is_running
        assert app.query_one("#filter", Input).value == "quit? sp"
        assert len(app.screen_stack) == 1


async def test_pause_freezes_the_figures_only() -> None:
    source = fakes.FakeSource(fakes.running())
    async with shown(source) as (app, pilot):
        await pilot.press("space")
        assert app.paused
        await show(app, pilot, source, fakes.running(now_ns=150 * fakes.S))  # it goes on asking
        assert "PAUSED" in text_of(app, "#header")
        assert "00:42" in text_of(app, "#header")
        await pilot.press("s")
        assert "COUNT▼" in text_of(app, "#operations")  # other views of the frozen figures
        await pilot.press("space")
        assert "00:50" in text_of(app, "#header")
        assert "LIVE" in text_of(app, "#header")


async def test_phases() -> None:
    async with shown(fakes.FakeSource(fakes.running())) as (app, pilot):
        await pilot.press("p")
        assert names(app) == ["(untracked)"]
        assert "phase (default)" in text_of(app, "#choices")
        await pilot.press("p")
        assert names(app)[0] == "rollout"
        assert "evaluate" not in names(app)
        await pilot.press("p")
        assert names(app) == ["evaluate"]
        assert "100 %" in text_of(app, "#operations")
        await pilot.press("p")
        assert app.view.phase is None
        assert len(names(app)) == 8


async def test_processes() -> None:
    async with shown(fakes.FakeSource(fakes.several())) as (app, pilot):
        assert "and 2 more processes" in text_of(app, "#header")
        await pilot.press("P", "P")
        assert app.view.pids == {4250}
        assert names(app) == ["rollout", "simulation"]
        assert "worker-0  pid 4250" in text_of(app, "#header")
        assert "process 4250 worker-0" in text_of(app, "#choices")
        await pilot.press("P", "P")
        assert app.view.pids is None
        await pilot.press(*["tab"] * 4, "down", "enter")
        assert app.active_panel == "processes"
        assert app.view.pids == {4250}
        assert "● worker-0" in text_of(app, "#processes")
        await pilot.press("enter")
        assert app.view.pids is None


async def test_unit() -> None:
    async with shown(fakes.FakeSource(fakes.running())) as (app, pilot):
        assert " 61% " in text_of(app, "#operations")
        await pilot.press("u")
        assert " 6.42s " in text_of(app, "#operations")
        assert "backend 14.1 s" in text_of(app, "#legend")
        await pilot.press("u")
        assert "backend 38 %" in text_of(app, "#legend")


async def test_corrected() -> None:
    source = fakes.FakeSource(fakes.running())
    async with shown(source) as (app, pilot):
        assert "raw" in text_of(app, "#choices")
        assert "10.5 s" in text_of(app, "#operations")
        await pilot.press("c")
        assert "9.46 s" in text_of(app, "#operations")
        await pilot.press("c")
        assert "10.5 s" in text_of(app, "#operations")


async def test_corrected_figures_come_first_once_calibrated() -> None:
    info = replace(fakes.INFO, calibration={"calibrated": True})
    async with shown(fakes.FakeSource(fakes.running(info=info))) as (app, pilot):
        assert "overhead 3.2 % (calibrated)" in text_of(app, "#header")
        assert "9.46 s" in text_of(app, "#operations")
        await pilot.press("c")
        assert "10.5 s" in text_of(app, "#operations")


async def test_nested_times() -> None:
    async with shown(fakes.FakeSource(fakes.running())) as (app, pilot):
        await pilot.press("i")
        assert "TOTAL▼" in text_of(app, "#operations")
        assert names(app)[:1] + names(app)[3:4] == ["rollout", "train"]
        train = next(line for line in text_of(app, "#operations").splitlines() if " train " in line)
        assert "12.1 s" in train  # 1.02 + 8.34 + 2.77
        await pilot.press("i")
        # The order has stayed, and own times in that order would look unsorted: the mark does not claim they are.
        assert names(app)[:1] + names(app)[3:4] == ["rollout", "train"]
        assert "SELF " in text_of(app, "#operations")
        assert "SELF▼" not in text_of(app, "#operations")
        assert "sort total time ▼" in text_of(app)
        await pilot.press("s")
        assert "COUNT▼" in text_of(app, "#operations")


async def test_bars() -> None:
    def length(line: str) -> int:
        return len(line) - len(line.replace("█", "").replace("▒", "").replace("·", ""))

    async with shown(fakes.FakeSource(fakes.running())) as (app, pilot):

        def train() -> str:
            return next(line for line in text_of(app, "#operations").splitlines() if " train " in line)

        short = length(train())
        await pilot.press("b")
        assert length(train()) > 3 * short
        await pilot.press("b")
        assert length(train()) == short


async def test_panels() -> None:
    async with shown(fakes.FakeSource(fakes.several())) as (app, pilot):
        seen = []
        for _ in range(8):
            table = app.query_one(f"#{app.active_panel}", Table)
            assert table.has_focus
            assert [other.id for other in app.query(Table) if other.display] == [table.id]
            seen.append(app.active_panel)
            await pilot.press("tab")
        assert seen == ["operations", "transitions", "calls", "gpu", "processes", "timeline", "iterations", "waits"]
        assert app.active_panel == "operations"
        await pilot.press("shift+tab")
        assert app.active_panel == "waits"
        await pilot.click("#tabs", offset=(16, 0))
        assert app.active_panel == "transitions"


async def test_waits() -> None:
    """What threads were doing, per operation and category: in a panel, and in the selected operation's details."""
    async with shown(fakes.FakeSource(fakes.running())) as (app, pilot):
        assert "waits for CPU 10.0 %" in text_of(app, "#details")
        assert "lock 6.7 %" in text_of(app, "#details")
        await pilot.press("shift+tab")
        lines = text_of(app, "#waits").splitlines()
        assert lines[0].split()[-5:] == ["ON", "CPU", "NO", "CPU", "LOCK", "SLEEP"][-5:]
        at = next(index for index, line in enumerate(lines) if "inference" in line)
        assert lines[at].split()[-8:] == ["80.0", "%", "10.0", "%", "6.7", "%", "3.3", "%"]
        assert "Python" in lines[at + 1]
        assert lines[at + 1].split()[-10:] == ["2.95", "s", "80.0", "%", "10.0", "%", "6.7", "%", "3.3", "%"]
        await pilot.press("u")
        assert "2.36 s" in text_of(app, "#waits").splitlines()[at + 1]


async def test_a_larger_screen_has_the_waits_in_the_details() -> None:
    async with shown(fakes.FakeSource(fakes.running())) as (app, pilot):
        await pilot.press("shift+tab")
        await pilot.resize_terminal(*LARGE)
        await until(pilot, lambda: app.dashboard and app.active_panel == "operations")
        assert not app.query_one("#waits").display


async def test_transitions() -> None:
    async with shown(fakes.FakeSource(fakes.running())) as (app, pilot):
        await pilot.press("tab")
        shown_text = text_of(app, "#transitions")
        assert "PER STEP" in shown_text
        lines = [line.split() for line in shown_text.splitlines()]
        assert ["Python", "→", "backend", "1.13", "M", "23", "23"] in [line[:7] for line in lines]
        assert ["backend", "→", "CUDA", "API", "393", "k", "8", "8"] in [line[:8] for line in lines]
        assert "simulator → Python" not in shown_text  # never happened
        await pilot.press("p", "p")
        assert "PER STEP" not in text_of(app, "#transitions")  # steps are not counted by phase


async def test_lower_bounds_are_marked() -> None:
    source = fakes.FakeSource(fakes.running())
    async with shown(source) as (app, pilot):
        await pilot.press("tab")
        assert "≥" not in text_of(app, "#transitions")
        await show(app, pilot, source, fakes.lossy())  # probes were taken off
        lines = [line.split() for line in text_of(app, "#transitions").splitlines()]
        assert ["Python", "→", "backend", "≥1.13", "M", "≥23", "≥23"] in [line[:7] for line in lines]
        await pilot.press("pagedown", "pagedown")
        assert app.query_one("#transitions", Table).rows[-1].text is not None


async def test_calls() -> None:
    async with shown(fakes.FakeSource(fakes.running())) as (app, pilot):
        await pilot.press("tab", "tab")
        first = text_of(app, "#calls").splitlines()[1].strip("▌ ").split()
        assert first == ["cudaLaunchKernel", "64.6", "%", "2.34", "s", "588", "k", "3.98", "µs", "3.40", "µs",
                             "11.8", "µs"]  # fmt: skip
        await pilot.press("s", "s")
        assert "cudaMalloc" in text_of(app, "#calls").splitlines()[1]  # the longest mean


async def test_no_call_yet() -> None:
    async with shown(fakes.FakeSource(fakes.unmarked())) as (app, pilot):
        await pilot.press("tab", "tab")
        assert "No CUDA call so far." in text_of(app, "#calls")


async def test_zoom_on_a_large_screen() -> None:
    async with shown(fakes.FakeSource(fakes.several()), LARGE) as (app, pilot):
        assert app.dashboard
        hidden = ["waits", "gpu"]  # the calls' panel shows kernels as well
        assert [table.id for table in app.query(Table) if not table.display] == hidden
        await pilot.press("tab", "z")
        assert [table.id for table in app.query(Table) if table.display] == ["transitions"]
        await pilot.press("z")
        assert [table.id for table in app.query(Table) if not table.display] == hidden
        assert app.query_one("#transitions").has_focus


async def test_themes_in_a_circle() -> None:
    async with shown(fakes.FakeSource(fakes.running())) as (app, pilot):
        first = app.theme
        seen = {first}
        for _ in range(len(THEMES) - 1):
            await pilot.press("t")
            assert "rollout" in text_of(app, "#operations")
            seen.add(app.theme)
        assert seen == set(THEMES)
        await pilot.press("t")
        assert app.theme == first
        await pilot.press("T")
        assert app.theme == THEMES[-1]


@pytest.mark.parametrize("key", ["escape", "q", "enter", "question_mark"])
async def test_help_opens_and_closes(key: str) -> None:
    async with shown(fakes.FakeSource(fakes.running())) as (app, pilot):
        await pilot.press("question_mark")
        assert isinstance(app.screen, TextScreen)
        assert "Freeze the figures; profiling goes on." in text_of(app)
        await pilot.press(key)
        assert len(app.screen_stack) == 1
        assert app.is_running


@pytest.mark.parametrize("down", ["pagedown", "space", "down", "j"])
async def test_help_that_does_not_fit_scrolls(down: str) -> None:
    async with shown(fakes.FakeSource(fakes.running())) as (app, pilot):
        await pilot.press("question_mark")
        assert "PER CALL, PER STEP" not in text_of(app)
        assert "pgdn scroll" in text_of(app)
        for _ in range(120):
            await pilot.press(down)
        await settled(app, pilot)
        assert "PER CALL, PER STEP" in text_of(app)
    async with shown(fakes.FakeSource(fakes.running()), (160, 96)) as (app, pilot):
        await pilot.press("question_mark")
        assert "PER CALL, PER STEP" in text_of(app)
        assert "scroll" not in text_of(app)


async def test_an_overhead_that_cannot_be_right_is_said() -> None:
    bad = replace(fakes.running(), overhead_fraction=2.99, overhead_plausible=False)
    async with shown(fakes.FakeSource(bad)) as (app, _):
        assert "overhead 299 % (estimate cannot be right)" in text_of(app, "#header")


async def test_correction_is_not_claimed_without_calibration() -> None:
    snapshot = fakes.running()
    assert not snapshot.info.calibration.get("calibrated")
    async with shown(fakes.FakeSource(snapshot), LARGE) as (app, pilot):
        assert "raw" in text_of(app, "#choices")
        await pilot.press("c")
        assert "not calibrated" in text_of(app, "#choices")
        assert "corrected" not in text_of(app, "#choices")
    measured = replace(snapshot, info=replace(snapshot.info, calibration={"calibrated": True}))
    async with shown(fakes.FakeSource(measured), LARGE) as (app, pilot):
        assert "· corrected" in text_of(app, "#choices")
        await pilot.press("c")
        assert "raw" in text_of(app, "#choices")


async def test_help_knows_every_key() -> None:
    async with shown(fakes.FakeReplay(fakes.running())) as (app, _):
        keys = app._keys()
        described = {text for group in keys.values() for _, text in group}
        for binding in app.BINDINGS:
            assert binding.id, binding  # type: ignore[union-attr]
            assert binding.tooltip, binding  # type: ignore[union-attr]
            if not binding.id.startswith("replay.speed_"):  # type: ignore[union-attr]
                expected = IN_REPLAY.get(binding.id, binding.tooltip)  # type: ignore[union-attr, arg-type]
                assert expected in described
        assert "Replay" in keys


async def test_help_in_a_replay_speaks_of_the_replay() -> None:
    async with shown(fakes.FakeReplay(fakes.running()), LARGE) as (app, pilot):
        await pilot.press("question_mark")
        text = text_of(app)
        assert "Play, or stop." in text
        assert "detaches" not in text
        assert "profiling goes on" not in text


@pytest.mark.parametrize("source", [fakes.FakeSource(fakes.running()), fakes.FakeReplay(fakes.lossy())])
async def test_a_very_small_screen_still_shows_rows(source: fakes.FakeSource) -> None:
    async with shown(source, (50, 12)) as (app, _):
        lines = text_of(app, "#operations").splitlines()
        assert len(lines) >= 5
        assert "OPERATION" in lines[0]
        assert names(app)[0] in lines[1]
        lowest = app.query_one("#keys").region
        assert lowest.bottom <= 12
        if source.current.losses.events:
            assert "Losses" in text_of(app, "#header")


async def test_a_replay_that_is_still_being_read_says_how_far() -> None:
    source = fakes.FakeReplay(fakes.empty())
    source.now = replace(source.now, loading=True, read=0.34)
    app = ProfilerApp(source, refresh_s=60)
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, lambda: app.snapshot is not None)
        assert "READING 34 %" in text_of(app, "#header")
        assert "Reading the trace: 34 %" in text_of(app, "#operations")


async def test_messages() -> None:
    async with shown(fakes.FakeSource(fakes.lossy())) as (app, pilot):
        await pilot.press("e")
        shown_text = text_of(app)
        assert "4 probes were given up" in shown_text
        assert "123,456 events lost" in shown_text
        assert "2 returns healed" in shown_text
        await pilot.press("e")
        assert len(app.screen_stack) == 1


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_quit(key: str) -> None:
    async with shown(fakes.FakeSource(fakes.running())) as (app, pilot):
        await pilot.press(key)
        await until(pilot, lambda: not app.is_running)
    assert app.failure is None


async def test_stop_from_another_thread() -> None:
    async with shown(fakes.FakeSource(fakes.running())) as (app, pilot):
        thread = threading.Thread(target=app.stop)
        thread.start()
        await until(pilot, lambda: not app.is_running)
        thread.join()
    app.stop()  # again, and too late: harmless


async def test_rows_and_details() -> None:
    async with shown(fakes.FakeSource(fakes.many())) as (app, pilot):
        table = app.query_one("#operations", Table)
        assert "rollout  Python 2.31 s 90.1 %" in text_of(app, "#details")
        await pilot.press("down", "j")
        assert table.selected == ("rollout", "simulation")
        assert "rollout > simulation  simulator 7.86 s 85.8 %" in text_of(app, "#details")
        await pilot.press("k", "up", "up")
        assert table.selected == ("rollout",)
        await pilot.press(*["pagedown"] * 12)
        assert table.selected == table.rows[-1].key
        assert table.scroll_offset.y > 0
        last = text_of(app, "#operations").splitlines()[-1]
        assert str(table.selected[-1])[:8] in last if table.selected else "(untracked)" in last
        await pilot.press(*["pageup"] * 12)
        assert table.selected == ("rollout",)
        assert table.scroll_offset.y == 0
        await pilot.click("#operations", offset=(5, 3))
        assert table.selected == ("rollout", "simulation")


async def test_the_selection_stays_on_its_operation() -> None:
    source = fakes.FakeSource(fakes.running())
    async with shown(source) as (app, pilot):
        await pilot.press("down")
        assert app.query_one("#operations", Table).selected == ("rollout", "inference")
        grown = fakes.operation(("evaluate",), (90_000, 0, 0, 0, 0), 12, phase="evaluation")
        await show(app, pilot, source, fakes.running(operations=(*fakes.OPERATIONS[:-1], grown)))
        assert names(app)[0] == "evaluate"
        assert app.query_one("#operations", Table).selected == ("rollout", "inference")


async def test_hints() -> None:
    source = fakes.FakeSource(fakes.empty())
    async with shown(source) as (app, pilot):
        assert "Waiting for the first events…" in text_of(app)
        await show(app, pilot, source, fakes.unmarked())
        assert "No operation marker seen yet" in text_of(app)
        assert "import rlscope_ebpf.markers as rls" in text_of(app)
        await show(app, pilot, source, fakes.running())
        assert "No operation marker seen yet" not in text_of(app)
        gone = replace(fakes.TRAINER, alive=False)
        await show(app, pilot, source, replace(fakes.empty(), finished=True, processes=(gone,)))
        assert "The process exited before it made an event." in text_of(app)


async def test_the_final_figures_stay() -> None:
    async with shown(fakes.FakeSource(fakes.finished())) as (app, pilot):
        assert "FINISHED" in text_of(app, "#header")
        assert "these are the final figures. Press q to leave." in text_of(app, "#notice")
        await pilot.pause(0.2)
        assert app.is_running


async def test_closes_by_itself_if_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlscope_ebpf.tui.app.CLOSE_AFTER_S", 0.1)
    async with shown(fakes.FakeSource(fakes.finished()), exit_when_finished=True) as (app, pilot):
        assert "closing…" in text_of(app, "#notice")
        await until(pilot, lambda: not app.is_running)


async def test_a_failing_source_ends_the_screen() -> None:
    source = fakes.FakeSource(fakes.running())
    async with shown(source) as (app, pilot):
        source.error = RuntimeError("the reader died")
        app.fetch()
        await until(pilot, lambda: not app.is_running)
    assert app.failure is source.error


async def test_keys_work_while_the_source_is_slow() -> None:
    source = fakes.FakeSource(fakes.running())
    async with shown(source) as (app, pilot):
        source.gate.clear()
        asked = source.asked
        app.fetch()
        await until(pilot, lambda: source.asked == asked + 1)
        for _ in range(5):
            app.fetch()  # as the timer does
            await asyncio.sleep(QUICK_S)
        await pilot.press("s")
        assert app.view.sort is SortKey.COUNT
        assert source.asked == asked + 1  # one question at a time
        source.gate.set()
        await until(pilot, lambda: not app._in_flight)
        await show(app, pilot, source, fakes.finished())


async def test_the_figures_are_asked_for_again_and_again() -> None:
    source = fakes.FakeSource(fakes.running())
    app = ProfilerApp(source, refresh_s=QUICK_S)
    async with app.run_test(size=SMALL):
        for _ in range(200):
            await asyncio.sleep(QUICK_S)
            if source.asked > 3:
                return
    raise AssertionError("it asked only once")


def test_a_newer_snapshot_replaces_an_unseen_one() -> None:
    older, newer = SnapshotReady(fakes.running()), SnapshotReady(fakes.finished())
    assert older.can_replace(newer)
    assert not older.can_replace(Table.Selected(Table("", id="x")))


async def test_replay_keys() -> None:
    source = fakes.FakeReplay(fakes.running())
    async with shown(source) as (app, pilot):
        assert "TRACE" in text_of(app, "#header")
        assert "00:42 / 00:42" in text_of(app, "#replay")
        await pilot.press("space")
        assert "REPLAY" in text_of(app, "#header")
        await pilot.press("space", "left", "shift+left", "right", "shift+right", "home", "end")
        assert source.told == [
            ("play", 0), ("pause", 0), ("seek", 0.98), ("seek", 0.88), ("seek", 0.9), ("seek", 1.0), ("seek", 0.0),
            ("play", 0), ("seek", 1.0),
        ]  # fmt: skip
        source.told.clear()
        await pilot.press("2", "4", "plus", "minus", "minus", *["plus"] * 9, *["minus"] * 12)
        factors = [factor for _, factor in source.told]
        assert factors[:5] == [2, 4, 8, 4, 2]
        assert max(factors) == SPEED_LIMITS[1]
        assert factors[-1] == SPEED_LIMITS[0]
        assert "0.25x" in text_of(app, "#replay")


async def test_replay_keys_do_nothing_live() -> None:
    async with shown(fakes.FakeSource(fakes.running())) as (app, pilot):
        await pilot.press("left", "right", "home", "end", "5", "plus", "minus")
        assert app.is_running
        assert "Replay" not in app._keys()
        assert text_of(app, "#replay") == ""


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (120, 36), (160, 48), (240, 70), (60, 16), (40, 12), (20, 5)])
async def test_sizes(size: tuple[int, int]) -> None:
    """At every size of use the essential figures are there; below 80x24 nothing breaks."""
    async with shown(fakes.FakeSource(fakes.running()), size) as (app, pilot):
        lines = text_of(app).splitlines()
        assert all(len(line) == size[0] for line in lines)
        if size >= (80, 24):
            whole = "\n".join(lines)
            for part in ("4242", "LIVE", "no losses", "inference", "10.5 s", "28.1 %", "49.2 k", "214 µs", "█", "Quit"):
                assert part in whole
        await pilot.press("tab", "tab", "tab", "question_mark", "escape")
        assert app.is_running


async def test_resizing() -> None:
    async with shown(fakes.FakeSource(fakes.several()), LARGE) as (app, pilot):
        assert app.dashboard
        await pilot.resize_terminal(*SMALL)
        await until(pilot, lambda: not app.dashboard and not app.query_one("#lower").display)
        assert "TOTAL" not in text_of(app, "#operations")
        await pilot.resize_terminal(*LARGE)
        await until(pilot, lambda: app.query_one("#processes").display)


async def test_the_gpu_has_a_panel_where_it_is_used() -> None:
    source = fakes.FakeSource(fakes.running())
    async with shown(source) as (app, pilot):
        assert "gpu" not in app.panels
        assert "GPU  " not in text_of(app).splitlines()[4]
        for name in ("transitions", "calls", "processes", "timeline", "iterations", "waits", "operations"):
            await pilot.press("tab")
            assert app.active_panel == name
        source.current = fakes.on_gpu()
        app.fetch()
        await until(pilot, lambda: "gpu" in app.panels)
        for _ in range(3):
            await pilot.press("tab")
        assert app.active_panel == "gpu"
        await until(pilot, lambda: app.query_one("#gpu").display)
        whole = text_of(app)
        for what in (
            "ampere_sgemm_128x64_tn",
            "multi_tensor_apply_kernel",
            "host → device",
            "device 1",
        ):
            assert what in whole
        source.current = fakes.running()  # as in a replay that goes back
        app.fetch()
        await until(pilot, lambda: app.active_panel == "calls")
        assert not app.query_one("#gpu").display


async def test_names_cannot_steer_the_terminal() -> None:
    evil = "\x1b[2J[bold]\x07"
    rows = (fakes.operation((evil,), (5, 0, 0, 0, 0), 1, phase=evil),)
    process = replace(fakes.TRAINER, name=evil, command=(evil,), phase=evil)
    snapshot = fakes.running(operations=rows, processes=(process,), phases=(evil,), notices=(evil,))
    async with shown(fakes.FakeSource(snapshot), LARGE) as (app, pilot):
        await pilot.press("p")
        whole = text_of(app)
        assert "\x1b" not in whole
        assert "\x07" not in whole
        assert "[2J[bold]" in whole  # shown as text, not as markup
        await pilot.press("e")
        assert "\x1b" not in text_of(app)


# Pictures. `pytest --snapshot-update` makes them anew; look at them before committing.

PICTURES: dict[str, tuple[Callable[[], Snapshot], tuple[str, ...], tuple[tuple[int, int], ...]]] = {
    "running": (fakes.running, (), (SMALL, LARGE)),
    "many": (fakes.many, ("pagedown",), (SMALL, LARGE)),
    "losses": (fakes.lossy, (), (SMALL, LARGE)),
    "paused": (fakes.running, ("space",), (SMALL,)),
    "help": (fakes.running, ("question_mark",), (SMALL, LARGE)),
    "messages": (fakes.lossy, ("e",), (SMALL,)),
    "filter": (fakes.running, ("slash", "o", "p", "t"), (SMALL, LARGE)),
    "transitions": (fakes.running, ("z", "tab"), (SMALL, LARGE)),
    "calls": (fakes.several, ("z", "tab", "tab"), (SMALL, LARGE)),
    "gpu": (fakes.on_gpu, ("z", "tab", "tab", "tab"), (SMALL, LARGE)),
    "gpu-operations": (fakes.on_gpu, ("down",), (SMALL, LARGE)),
    "processes": (fakes.family, ("z", *["tab"] * 4, "down", "x", "down", "x"), (SMALL, LARGE)),
    "timeline": (fakes.family, ("z", *["tab"] * 5), (SMALL, LARGE)),
    "timeline-of-two": (fakes.several, ("z", *["tab"] * 5), (SMALL,)),
    "iterations": (fakes.looping, ("z", *["shift+tab"] * 2), (SMALL, LARGE)),
    "lower-bounds": (fakes.lossy, ("tab",), (SMALL,)),
    "family": (fakes.family, (), ((120, 36), (200, 60))),
    "waits": (fakes.running, ("z", "shift+tab"), (SMALL, LARGE)),
    "several": (fakes.several, (), (LARGE,)),
    "nested": (fakes.running, ("i", "u", "b"), (SMALL, LARGE)),
    "empty": (fakes.empty, (), (SMALL, LARGE)),
    "unmarked": (fakes.unmarked, (), (SMALL,)),
    "finished": (fakes.finished, (), (SMALL, LARGE)),
    "light": (fakes.running, ("t",), (SMALL,)),
}


@pytest.mark.parametrize(
    ("state", "size"),
    [
        pytest.param(state, size, id=f"{state}-{size[0]}x{size[1]}")
        for state, (_, _, sizes) in PICTURES.items()
        for size in sizes
    ],
)
def test_pictures(state: str, size: tuple[int, int], snap_compare: Callable[..., bool]) -> None:
    make, keys, _ = PICTURES[state]
    app = ProfilerApp(fakes.FakeSource(make()), refresh_s=60)
    assert snap_compare(app, terminal_size=size, run_before=_pressed(app, keys))


def test_picture_of_a_replay(snap_compare: Callable[..., bool]) -> None:
    app = ProfilerApp(fakes.FakeReplay(fakes.running()))
    assert snap_compare(app, terminal_size=SMALL, run_before=_pressed(app, ("left",) * 9))


def _pressed(app: ProfilerApp, keys: tuple[str, ...]) -> Callable[[Pilot[None]], Awaitable[None]]:
    async def run_before(pilot: Pilot[None]) -> None:
        await settled(app, pilot)
        app.query_one("#filter", Input).cursor_blink = False
        await pilot.press(*keys)
        await pilot.pause()

    return run_before
