"""The tree of processes and the timeline: what they show, and what every key of theirs does."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

import tui_fakes as fakes
from test_tui import LARGE, SMALL, names, show, shown, text_of, until

from rlscope_ebpf.live.snapshot import CopyRow, DeviceRow, GpuRow, ProcessRow, Snapshot
from rlscope_ebpf.live.timeline import BUCKET_NS, Timeline
from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.model.gpu_words import disagreement, shared_disagreement
from rlscope_ebpf.tui.figures import ProcessSort, View, operation_table
from rlscope_ebpf.tui.lanes import ABSENT, LEAST, PARTLY, WAITS, codes, drawn, gpu_row, grid, lane, scale
from rlscope_ebpf.tui.layout import PANELS, Facts, arrange
from rlscope_ebpf.tui.spans import plain, width_of
from rlscope_ebpf.tui.table import Table
from rlscope_ebpf.tui.tree import ProcessLine, family, process_lines, state, toggled

S, MS = fakes.S, fakes.MS
TREE = ("tab",) * 4


def row(pid: int, ppid: int | None, **changes: object) -> ProcessRow:
    return replace(fakes.WORKER, pid=pid, ppid=ppid, name=f"p{pid}", **changes)  # type: ignore[arg-type]


def tree(*rows: ProcessRow, view: View | None = None, **changes: object) -> list[tuple[str, int]]:
    lines = process_lines(fakes.running(processes=rows, **changes), view or View())
    return [(line.guide, line.row.pid) for line in lines]


# The tree


def test_children_are_under_their_parents() -> None:
    rows = (row(5, 2), row(2, 1), row(3, 2), row(4, 3), row(9, 77))
    assert tree(*rows) == [("", 2), ("├ ", 3), ("│ └ ", 4), ("└ ", 5), ("", 9)]


def test_processes_whose_parents_form_a_circle() -> None:
    assert sorted(pid for _, pid in tree(row(1, 2), row(2, 1), row(3, 3), row(4, 2))) == [1, 2, 3, 4]


def test_a_chain_of_thousands() -> None:
    assert len(tree(*(row(pid, pid - 1) for pid in range(1, 3_000)))) == 2_999


def test_a_folded_process_stands_for_its_descendants() -> None:
    rows = (row(1, None, gpu_ns=1), row(2, 1, gpu_ns=2), row(3, 2, gpu_ns=4), row(4, None, gpu_ns=8))
    operations = tuple(fakes.operation(("a",), (10**n, 0, 0, 0, 0), 1, pid=n) for n in range(1, 5))
    snapshot = fakes.running(processes=rows, operations=operations)
    first, other = process_lines(snapshot, View(folded=frozenset([1, 4])))
    assert first.members == (1, 2, 3)
    assert (first.folded, first.children, first.gpu_ns, first.wall_ns) == (True, 1, 7, 1_110 * MS)
    assert first.cpu_ns == 888 * MS  # the fakes run four fifths of their time
    assert (other.members, other.folded, other.wall_ns) == ((4,), False, 10_000 * MS)
    assert [line.wall_ns for line in process_lines(snapshot, View())] == [10 * MS, 100 * MS, 1_000 * MS, 10_000 * MS]
    assert family(snapshot, 2) == {2, 3}
    assert family(snapshot, 99) == {99}


def test_siblings_in_every_order() -> None:
    rows = (row(1, None), row(2, 1, gpu_ns=5), row(3, 1, gpu_ns=1), row(4, 1, gpu_ns=3), row(5, 3))
    operations = tuple(
        fakes.operation(("a",), (ms, 0, 0, 0, 0), 1, pid=pid) for pid, ms in ((2, 10), (3, 1), (4, 20), (5, 30))
    )

    def order(sort: ProcessSort, reverse: bool = False) -> list[int]:
        view = View(process_sort=sort, process_reverse=reverse)
        return [pid for _, pid in tree(*rows, view=view, operations=operations)]

    assert order(ProcessSort.PID) == order(ProcessSort.NAME) == [1, 2, 3, 5, 4]
    assert order(ProcessSort.TIME) == order(ProcessSort.CPU) == [1, 3, 5, 4, 2]  # with what descends from 3
    assert order(ProcessSort.GPU) == [1, 2, 4, 3, 5]
    assert order(ProcessSort.GPU, reverse=True) == [1, 3, 5, 4, 2]
    assert order(ProcessSort.PID, reverse=True) == [1, 4, 3, 5, 2]


def test_the_filter_keeps_ancestors() -> None:
    rows = (row(1, None, command=("a",)), row(2, 1, command=("train",)), row(3, 1, command=("b",)))
    lines = process_lines(fakes.running(processes=rows), View(process_filter="TRAIN"))
    assert [(line.row.pid, line.matches) for line in lines] == [(1, False), (2, True)]
    assert [pid for _, pid in tree(*rows, view=View(process_filter="p3"))] == [1, 3]
    assert [pid for _, pid in tree(*rows, view=View(process_filter="nobody"))] == []


def test_ended_ones_can_be_hidden_unless_others_descend_from_them() -> None:
    rows = (row(1, None), row(2, 1, alive=False), row(3, 2), row(4, 1, alive=False))
    assert [pid for _, pid in tree(*rows, view=View(hide_ended=True))] == [1, 2, 3]


@pytest.mark.parametrize(
    ("status", "text"), [(None, "ended"), (0, "exit 0"), (137, "exit 137"), (-9, "SIGKILL"), (-99, "signal 99")]
)
def test_how_it_ended(status: int | None, text: str) -> None:
    assert state(row(1, None, alive=False, exit_status=status)) == text
    assert state(row(1, None)) == "running"


def test_marks() -> None:
    assert toggled(None, [1]) == {1}
    assert toggled(frozenset([1]), [2, 3]) == {1, 2, 3}
    assert toggled(frozenset([1, 2]), [2, 3]) == {1, 2, 3}
    assert toggled(frozenset([1, 2, 3]), [2, 3]) == {1}
    assert toggled(frozenset([1]), [1]) is None


def test_figures_of_a_choice_are_those_of_its_processes_together() -> None:
    snapshot = fakes.family()
    every = operation_table(snapshot, View())
    chosen = [frozenset([4300, 4301]), frozenset(process.pid for process in snapshot.processes) - {4300, 4301}]
    parts = [operation_table(snapshot, View(pids=pids)) for pids in chosen]
    assert all(part.total_ns for part in parts)
    assert sum(part.total_ns for part in parts) == every.total_ns
    two = next(line for line in parts[0].lines if line.path == ("play", "simulation"))
    rows = [row for row in snapshot.operations if row.path == two.path and row.pid in chosen[0]]
    assert (two.count, two.wall_ns) == (sum(row.count for row in rows), sum(row.wall_ns for row in rows))


# The timeline


def lanes(
    *cells: dict[Category, float], start_ns: int = 0, end_ns: int | None = None, gpu: bool = False
) -> tuple[Timeline, ProcessLine]:
    """Buckets in which a process was busy for parts of the time; it starts and ends at these buckets."""
    busy_ns = np.zeros((1, len(cells), len(Category)), np.int64)
    for number, cell in enumerate(cells):
        for category, part in cell.items():
            busy_ns[0, number, category] = part * BUCKET_NS
    gpu_ns = busy_ns.sum(2) if gpu else np.zeros((1, len(cells)), np.int64)
    timeline = Timeline(BUCKET_NS, len(cells) * BUCKET_NS, (7,), busy_ns, gpu_ns)
    end = len(cells) * BUCKET_NS if end_ns is None else end_ns
    process = row(7, None, start_ns=start_ns, end_ns=end, alive=end_ns is None)
    return timeline, ProcessLine(process, "", (7,), 0, False, 0, 0, 0)


P, SIM, B = Category.PYTHON, Category.SIMULATOR, Category.BACKEND


def test_one_row_shows_what_most_of_the_time_was() -> None:
    timeline, line = lanes({P: 0.6, B: 0.3}, {B: 0.3, P: 0.1}, {P: LEAST / 2}, {B: 3.0, P: 1.0}, start_ns=-S)
    found = lane(timeline, grid(timeline, 4, 1), line)
    assert codes(found, 1).tolist() == [[P, B + PARTLY, WAITS, B]]
    assert found.busy[3].tolist() == [0.25, 0, 0.75, 0, 0]  # four threads share the cell
    assert plain(drawn(found, 1)[0]) == "█▄╌▒"


def test_several_rows_are_a_stack() -> None:
    timeline, line = lanes({P: 0.5, B: 0.25}, {}, {SIM: 0.1}, start_ns=-S)
    found = lane(timeline, grid(timeline, 3, 1), line)
    assert codes(found, 4).tolist() == [
        [WAITS, WAITS, WAITS],
        [B, WAITS, WAITS],
        [P, WAITS, WAITS],
        [P, WAITS, SIM + PARTLY],
    ]


def test_begin_and_end_are_marked_and_nothing_is_beside_them() -> None:
    cells = [{P: 1.0}] * 6
    timeline, line = lanes(*cells, start_ns=BUCKET_NS, end_ns=4 * BUCKET_NS + 1)
    found = lane(timeline, grid(timeline, 6, 1), line)
    assert codes(found, 1)[0].tolist() == [ABSENT, P, P, P, P, ABSENT]
    (drawing,) = drawn(found, 1)
    assert plain(drawing) == " [██] "
    assert [span.role for span in drawing if span.text == "]"] == ["strong"]
    bad = replace(line, row=replace(line.row, exit_status=1))
    assert [span.role for span in drawn(lane(timeline, grid(timeline, 6, 1), bad), 1)[0] if span.text == "]"] == [
        "error"
    ]


def test_the_cell_that_is_not_over_counts_what_it_has() -> None:
    timeline, line = lanes(*[{P: 1.0}] * 5, start_ns=-S)
    place = grid(timeline, 3, 2)
    assert (place.start_ns, place.column(0), place.column(4 * BUCKET_NS)) == (0, 0, 2)
    assert lane(timeline, place, line).busy[:, P].tolist() == [1, 1, 1]
    # More columns than there is anything to remember, and fewer.
    assert lane(timeline, grid(timeline, 5, 2), line).busy[:, P].tolist() == [0, 0, 1, 1, 1]
    assert lane(timeline, grid(timeline, 1, 2), line).busy[:, P].tolist() == [1]
    assert lane(timeline, grid(timeline, 0, 2), line).busy.shape == (0, len(Category))


def test_gpu_row() -> None:
    timeline, line = lanes({P: 1.0}, {P: 0.5}, {}, gpu=True)
    assert plain(gpu_row(lane(timeline, grid(timeline, 3, 1), line))) == "█▄ "
    timeline, line = lanes({P: 1.0})
    assert gpu_row(lane(timeline, grid(timeline, 1, 1), line)) == []


def test_those_folded_in_are_added() -> None:
    snapshot = fakes.several()
    folded = process_lines(snapshot, View(folded=frozenset([fakes.TRAINER.pid])))[0]
    place = grid(snapshot.timeline, 240, 1)
    alone = lane(snapshot.timeline, place, process_lines(snapshot, View())[0])
    assert lane(snapshot.timeline, place, folded).busy.sum() >= alone.busy.sum()
    assert len(folded.members) == 3


@settings(deadline=None)
@given(st.integers(0, 250), st.sampled_from([1, 2, 4]))
def test_scale_fits(width: int, buckets: int) -> None:
    text = scale(width, buckets * BUCKET_NS)
    assert len(text) == width
    if width >= 3:
        assert text.endswith("now")


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 200), st.sampled_from([1, 2, 4]), st.integers(1, 6))
def test_a_lane_is_as_wide_as_its_column(width: int, buckets: int, height: int) -> None:
    snapshot = fakes.family(5)
    for line in process_lines(snapshot, View()):
        found = lane(snapshot.timeline, grid(snapshot.timeline, width, buckets), line)
        lines = drawn(found, height)
        assert [width_of(each) for each in lines] == [width] * height


# Where panels are


@given(st.integers(20, 300), st.integers(5, 120), st.sampled_from(sorted(PANELS)), st.booleans(),
       st.builds(Facts, st.integers(0, 64), st.booleans(), st.booleans(), st.booleans()))  # fmt: skip
def test_arrangements(width: int, height: int, active: str, zoomed: bool, facts: Facts) -> None:
    found = arrange(width, height, active, zoomed, facts)
    assert found.shown <= set(PANELS)
    assert list(found.reachable) == [name for name in PANELS if name in found.reachable]
    if found.dashboard:
        assert found.shown == set(found.reachable)
        assert "operations" in found.shown
        assert width - found.side >= 60
        assert found.timeline <= height // 3
    else:
        assert active in found.shown
    assert bool(found.side) == (facts.several and len(found.shown) > 1)


def test_the_tree_stands_beside_the_operations_where_there_is_room() -> None:
    several = Facts(processes=3)
    assert arrange(110, 24, "operations", False, several).shown == {"operations", "processes"}
    assert arrange(109, 24, "operations", False, several).shown == {"operations"}
    assert arrange(110, 24, "operations", False, Facts()).shown == {"operations"}
    assert arrange(110, 24, "processes", False, several).shown == {"operations", "processes"}
    assert arrange(110, 24, "waits", False, several).shown == {"waits"}


# Keys


def pids(app: object) -> list[int]:
    table = app.query_one("#processes", Table)  # type: ignore[attr-defined]
    return [row.key for row in table.rows if row.key is not None]


async def test_one_several_or_all() -> None:
    async with shown(fakes.FakeSource(fakes.several())) as (app, pilot):
        await pilot.press(*TREE, "x")
        assert app.view.pids == {4242}
        await pilot.press("down", "x")
        assert app.view.pids == {4242, 4250}
        assert text_of(app, "#processes").count("● ") == 2
        assert "processes 2 of 3" in text_of(app, "#choices")
        assert "and 1 more process " in text_of(app, "#header")
        await pilot.press("up", "x")
        assert app.view.pids == {4250}
        await pilot.press("X")
        assert app.view.pids == {4242, 4250, 4251}
        await pilot.press("a")
        assert app.view.pids is None
        await pilot.press("down", "enter")
        assert app.view.pids == {4250}
        await pilot.press(*["shift+tab"] * 4)
        assert names(app) == ["rollout", "simulation"]


def in_containers() -> Snapshot:
    """A trainer that is process 1 of its container, a worker that is process 23 of it, and one of the host."""
    trainer, worker = replace(fakes.TRAINER, namespace_pids=(77, 1)), replace(fakes.WORKER, namespace_pids=(99, 23))
    copies = tuple(CopyRow(pid, "device_to_host", 4, MS, 1 << 20) for pid in (trainer.pid, worker.pid))
    devices = tuple(DeviceRow(pid, 0, 2 * S) for pid in (trainer.pid, worker.pid))
    rows = tuple(replace(row, steps=5, step=5) for row in (trainer, worker, fakes.GONE))
    return replace(fakes.several(), processes=rows, gpu_copies=copies, gpu_devices=devices)


async def test_pids_are_shown_as_the_host_and_as_the_container_has_them() -> None:
    pairs = ("4242 (1)", "4250 (23)")
    async with shown(fakes.FakeSource(in_containers()), (100, 40)) as (app, pilot):
        assert "pid 4242 (1 in its container)" in text_of(app, "#header")
        await pilot.press("z", "tab", "tab")
        for panel in ("calls", "gpu", "processes", "timeline", "iterations"):
            await until(pilot, lambda panel=panel: app.active_panel == panel)
            lines = text_of(app, f"#{panel}").splitlines()
            assert panel == "iterations" or "PID (INSIDE)" in lines[0]
            wanted = pairs if panel == "calls" else (*pairs, *pairs) if panel == "gpu" else (*pairs, "4251")
            told = [pid for line in lines for pid in (*pairs, "4251") if pid in line]
            assert Counter(told) >= Counter(wanted), panel
            assert not any("4251 (" in line for line in lines)
            await pilot.press("tab")


async def test_both_numbers_fit_the_smallest_screen() -> None:
    async with shown(fakes.FakeSource(in_containers()), SMALL) as (app, pilot):
        await pilot.press("z", "tab", "tab")
        for panel in ("calls", "gpu", "processes", "timeline"):
            await until(pilot, lambda panel=panel: app.active_panel == panel)
            assert all(pair in text_of(app, f"#{panel}") for pair in ("4242 (1)", "4250 (23)")), panel
            await pilot.press("tab")


async def test_one_process_of_a_container() -> None:
    async with shown(fakes.FakeSource(in_containers()), LARGE) as (app, pilot):
        await pilot.press("P", "P")
        assert app.view.pids == {4250}
        assert "pid 4250 (23 in its container)" in text_of(app, "#header")
        assert "process 4250 (23) worker-0" in text_of(app, "#choices")


async def test_a_gpu_that_several_use_is_told_of_as_a_whole_and_as_each_uses_it() -> None:
    snapshot = fakes.several()
    devices = tuple(
        DeviceRow(row.pid, 0, 2 * S, 0.97, own, 20 * S) for row, own in ((fakes.TRAINER, 0.51), (fakes.WORKER, 0.42))
    )
    gpu = GpuRow(0, "H200", 3 * S, 40, MS, 0.97, 20 * S, devices)
    source = fakes.FakeSource(replace(snapshot, gpu_devices=devices, gpus=(gpu,)))
    async with shown(source, (120, 40)) as (app, pilot):
        await pilot.press("z", *["tab"] * 3)
        await until(pilot, lambda: app.active_panel == "gpu")
        lines = text_of(app, "#gpu").splitlines()
        place = next(n for n, line in enumerate(lines) if "GPU BUSY" in line)
        whole, trainer, worker = lines[place + 1 : place + 4]
        assert all(what in whole for what in ("device 0 NVML 97.0 %", "H200", "15.0 %", "3.00 s"))
        assert all(what in trainer for what in ("python3 NVML 51.0 %", "4242", "10.0 %", "2.00 s"))
        assert all(what in worker for what in ("worker-0 NVML 42.0 %", "4250", "10.0 %", "2.00 s"))
        said = " ".join(" ".join(lines[place + 4 :]).split())
        assert said.startswith(shared_disagreement(gpu))
        assert "work of 2 processes ran there for 15.0 % of it, of each one for 10.0 % at most" in said
        app._choose(frozenset([4250]))
        await pilot.pause()
        chosen = text_of(app, "#gpu")
        assert "worker-0 NVML 42.0 %" in chosen
        assert "device 0 NVML 97.0 %" in chosen
        assert "python3" not in chosen


async def test_a_gpu_that_one_process_uses_has_one_row_and_the_same_sentence_as_in_the_report() -> None:
    device = DeviceRow(4242, 0, 2 * S, 0.97, 0.51, 20 * S)
    alike = replace(device, busy_ns=19 * S)
    snapshot = fakes.on_gpu()
    for each in (device, alike):
        gpu = GpuRow(0, "H200", each.busy_ns, 40, MS, 0.97, 20 * S, (each,))
        source = fakes.FakeSource(replace(snapshot, gpu_devices=(each,), gpus=(gpu,)))
        async with shown(source, (120, 40)) as (app, pilot):
            await pilot.press("z", *["tab"] * 3)
            await until(pilot, lambda app=app: app.active_panel == "gpu")
            said = " ".join(text_of(app, "#gpu").split())
            assert said.count("device 0 NVML 97.0 %, own work 51.0 %") == 1
            assert ("this process's work ran there for 10.0 % of it" in said) == (each is device)
            assert disagreement(each) in said


def test_the_filter_finds_both_numbers() -> None:
    assert [line.row.pid for line in process_lines(in_containers(), View(process_filter="(23)")) if line.matches] == [
        4250
    ]


async def test_the_last_mark_taken_away_shows_all() -> None:
    async with shown(fakes.FakeSource(fakes.several())) as (app, pilot):
        await pilot.press(*TREE, "down", "x", "x")
        assert app.view.pids is None
        await pilot.press("x", "up", "x", "P")  # from several of them to all
        assert app.view.pids is None


async def test_folding() -> None:
    async with shown(fakes.FakeSource(fakes.several())) as (app, pilot):
        await pilot.press(*TREE)
        assert "▾ python3" in text_of(app, "#processes")
        await pilot.press("down", "f")  # of a leaf: what it is in
        assert pids(app) == [4242]
        assert "▸ python3 +2" in text_of(app, "#processes")
        await pilot.press("x")
        assert app.view.pids == {4242, 4250, 4251}
        await pilot.press("enter")  # chosen already: all
        assert app.view.pids is None
        await pilot.press("f")
        assert pids(app) == [4242, 4250, 4251]
        await pilot.press("F")
        assert pids(app) == [4242]
        await pilot.press("F")
        assert pids(app) == [4242, 4250, 4251]


async def test_the_mouse_in_the_tree() -> None:
    async with shown(fakes.FakeSource(fakes.several())) as (app, pilot):
        await pilot.press(*TREE)
        await pilot.click("#processes", offset=(1, 1))  # the sign of a parent
        assert pids(app) == [4242]
        await pilot.click("#processes", offset=(1, 1))
        assert pids(app) == [4242, 4250, 4251]
        await pilot.click("#processes", offset=(8, 2), control=True)
        await pilot.click("#processes", offset=(8, 3), control=True)
        assert app.view.pids == {4250, 4251}
        await pilot.click("#processes", offset=(8, 2))
        assert app.view.pids == {4250, 4251}
        await pilot.click("#processes", offset=(8, 2))
        assert app.view.pids == {4250}
        keys = text_of(app, "#keys")
        await pilot.click("#keys", offset=(keys.index("a All"), 0))
        assert app.view.pids is None


async def test_searching_processes() -> None:
    async with shown(fakes.FakeSource(fakes.family())) as (app, pilot):
        await pilot.press(*TREE, "slash", *"play-1")
        assert pids(app)[2:] == list(range(4310, 4320))
        assert "only processes “play-1”" in text_of(app, "#choices")
        await pilot.press("enter", "s")
        assert app.view.process_sort is ProcessSort.TIME
        assert pids(app)[2:] == list(range(4319, 4309, -1))
        await pilot.press(*["shift+tab"] * 4)
        assert app.view.filter == ""
        assert len(names(app)) > 5  # operations are not filtered by it
        await pilot.press("escape")
        assert app.view.process_filter == ""
        await pilot.press(*TREE, "slash", *"zzz")
        assert "No process is called like “zzz”." in text_of(app, "#processes")
        await pilot.press("escape")
        assert len(pids(app)) == 66


async def test_ended_ones() -> None:
    async with shown(fakes.FakeSource(fakes.family())) as (app, pilot):
        await pilot.press(*TREE, *["down"] * 13)
        text = text_of(app, "#processes")
        assert "exit 0" in text
        assert "exit 1" in text
        assert "SIGKILL" in text
        assert "+34.0 s" in text  # came late
        await pilot.press("d")
        assert len(pids(app)) == 63
        assert "ended ones hidden" in text_of(app, "#choices")
        await pilot.press("d")
        assert len(pids(app)) == 66


async def test_the_timeline_shows_those_that_are_there() -> None:
    source = fakes.FakeSource(fakes.several())
    async with shown(source) as (app, pilot):
        await pilot.press(*TREE, "tab")
        assert app.active_panel == "timeline"
        first = text_of(app, "#timeline")
        assert "now" in first.splitlines()[0]
        assert "worker-1" in first
        assert "]" in first
        await pilot.press("w")
        assert app.view.cell_buckets == 4
        assert text_of(app, "#timeline") != first
        await pilot.press("w", "w")
        assert text_of(app, "#timeline") == first
        # What ended longer ago than anything is remembered has gone.
        late = 230 * S
        processes = (replace(fakes.TRAINER, end_ns=late), replace(fakes.WORKER, end_ns=late), fakes.GONE)
        later = fakes.running(now_ns=late, processes=processes, timeline=fakes.timeline(processes, late))
        await show(app, pilot, source, later)
        assert "worker-0" in text_of(app, "#timeline")
        assert "worker-1" not in text_of(app, "#timeline")
        await pilot.press("enter")
        assert app.view.pids == {4242}
        assert "worker-0" not in text_of(app, "#timeline")


async def test_processes_come_while_the_screen_is_shown() -> None:
    source = fakes.FakeSource(fakes.running())
    async with shown(source, LARGE) as (app, pilot):
        assert not app.query_one("#processes").display
        source.current = fakes.several()
        app.fetch()
        await until(pilot, lambda: app.query_one("#processes").display)
        await pilot.pause()
        assert app.query_one("#processes").size.width < app.size.width // 2
        assert "worker-0" in text_of(app, "#processes")
        assert "worker-0" in text_of(app, "#timeline")


async def test_figures_that_change_move_nothing() -> None:
    """Columns of the tree keep their places while figures grow."""
    source = fakes.FakeSource(fakes.several())
    async with shown(source, LARGE) as (app, pilot):
        table = app.query_one("#processes", Table)
        before = [(column.key, cells) for column, cells in table.columns_shown()]
        sizes = {widget.id: widget.region for widget in app.query(Table) if widget.display}
        grown = tuple(replace(row, category_ns=tuple(ns * 1_000 for ns in row.category_ns))
                      for row in fakes.several().operations)  # fmt: skip
        await show(app, pilot, source, replace(fakes.several(), operations=grown))
        assert [(column.key, cells) for column, cells in table.columns_shown()] == before
        assert {widget.id: widget.region for widget in app.query(Table) if widget.display} == sizes


@pytest.mark.parametrize("size", [SMALL, (110, 30), (120, 36), (200, 60), (60, 16), (20, 5)])
async def test_sizes(size: tuple[int, int]) -> None:
    async with shown(fakes.FakeSource(fakes.family()), size) as (app, pilot):
        for _ in range(8):
            lines = text_of(app).splitlines()
            assert all(len(line) == size[0] for line in lines)
            await pilot.press("tab")
        assert app.is_running
