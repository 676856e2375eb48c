"""What the screens compute before they draw: rows, columns, bars, lines."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.theme import BUILTIN_THEMES

sys.path.insert(0, str(Path(__file__).parent))

import tui_fakes as fakes

from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.tui.bars import FILLS, apportion, stacked_bar
from rlscope_ebpf.tui.columns import GAP, OPTIONAL, Column, fit
from rlscope_ebpf.tui.figures import (
    SortKey,
    View,
    call_lines,
    cycle,
    operation_table,
    transition_lines,
)
from rlscope_ebpf.tui.palette import Palette, _contrast
from rlscope_ebpf.tui.spans import Span, cut, fitted, flow, plain, width_of
from rlscope_ebpf.tui.texts import hint

MS = fakes.MS


def test_all_time_is_in_the_table_once() -> None:
    snapshot = fakes.several()
    table = operation_table(snapshot, View())
    assert table.total_ns == sum(row.wall_ns for row in snapshot.operations)
    assert sum(line.wall_ns for line in table.lines) == table.total_ns
    tops = [line for line in operation_table(snapshot, View(inclusive=True)).lines if len(line.path) <= 1]
    assert sum(line.wall_ns for line in tops) == table.total_ns


def test_rows_of_phases_and_processes_add_up() -> None:
    rows = (
        fakes.operation(("a",), (5, 0, 0, 0, 0), 2, phase="one"),
        fakes.operation(("a",), (7, 1, 0, 0, 0), 3, phase="two", pid=1, open_now=1, gpu_ms=4),
    )
    (line,) = operation_table(fakes.running(operations=rows), View()).lines
    assert (line.count, line.open_now, line.wall_ns, line.gpu_ns) == (5, 1, 13 * MS, 4 * MS)
    assert line.mean_ns == 13 * MS / 5
    (line,) = operation_table(fakes.running(operations=rows), View(pids=frozenset([1]))).lines
    assert line.wall_ns == 8 * MS
    assert operation_table(fakes.running(operations=rows), View(pids=frozenset([1]), phase="one")).lines == ()


def test_a_parent_that_has_no_row_is_there_all_the_same() -> None:
    rows = (fakes.operation(("a", "b", "c"), (5, 0, 0, 0, 0), 2), fakes.operation(("x",), (4, 0, 0, 0, 0), 1))
    lines = operation_table(fakes.running(operations=rows), View()).lines
    assert [(line.guide, line.name, line.wall_ns) for line in lines] == [
        ("", "a", 0), ("└ ", "b", 0), ("  └ ", "c", 5 * MS), ("", "x", 4 * MS),
    ]  # fmt: skip


def test_an_operation_inside_itself_thousands_of_times() -> None:
    path = ("recurse",) * 3_000
    table = operation_table(fakes.running(operations=(fakes.operation(path, (5, 0, 0, 0, 0), 1),)), View())
    assert len(table.lines) == 3_000


def test_corrected_figures() -> None:
    (line,) = operation_table(fakes.running(operations=fakes.OPERATIONS[-1:]), View(corrected=True)).lines
    assert line.category_ns == fakes.OPERATIONS[-1].corrected_ns


def test_the_filter_keeps_ancestors_and_what_is_inside() -> None:
    lines = operation_table(fakes.running(), View(filter="BACKprop")).lines
    assert [(line.name, line.matches) for line in lines] == [
        ("train", False), ("backpropagation", True), ("optimizer_step", True),
    ]  # fmt: skip
    assert operation_table(fakes.running(), View(filter="untracked")).lines[0].path == ()
    assert [line.path for line in transition_lines(fakes.running(), View(filter="optimizer")) if not line.kind] == [
        ("train", "backpropagation", "optimizer_step")
    ]


def test_transitions_per_instance_and_step() -> None:
    lines = {(line.path, line.kind): line for line in transition_lines(fakes.running(), View())}
    line = lines[("rollout", "inference"), "python_to_backend"]
    assert line.per_instance == 23
    assert line.per_step == 23
    assert lines[("rollout", "inference"), ""].count == 1_130_496 + 393_216 + 49_152
    no_steps = replace(fakes.TRAINER, steps=0)
    assert transition_lines(fakes.running(processes=(no_steps,)), View())[0].per_step is None
    untracked = fakes.operation((), (1, 0, 0, 0, 0), 0, transitions={"python_to_backend": 3})
    assert transition_lines(fakes.running(operations=(untracked,)), View())[0].per_instance is None


@pytest.mark.parametrize("sort", list(SortKey))
@pytest.mark.parametrize("reverse", [False, True])
def test_calls_in_every_order(sort: SortKey, reverse: bool) -> None:
    view = View(sort=sort, reverse=reverse)
    rows = call_lines(fakes.CALLS, view)
    keys = [
        {SortKey.WALL: row.total_ns, SortKey.COUNT: row.count, SortKey.MEAN: row.total_ns / row.count,
         SortKey.NAME: row.name.casefold()}[sort]
        for row in rows
    ]  # fmt: skip
    assert keys == sorted(keys, reverse=view.descending)  # type: ignore[type-var]
    assert len(rows) == len(fakes.CALLS)


def test_cycle() -> None:
    assert [cycle(["a", "b"], now) for now in (None, "a", "b", "gone")] == ["a", "b", None, None]
    assert cycle([], None) is None


@given(st.lists(st.integers(0, 10**18), min_size=5, max_size=5), st.integers(0, 300))
def test_apportion_is_exact_and_fair(values: list[int], cells: int) -> None:
    shares = apportion(values, cells)
    total = sum(values)
    assert sum(shares) == (cells if total else 0)
    for value, share in zip(values, shares, strict=True):
        assert abs(share * total - value * cells) < max(1, total)


@given(st.lists(st.integers(0, 10**12), min_size=5, max_size=5), st.integers(0, 120))
def test_a_bar_has_the_length_it_was_given(values: list[int], cells: int) -> None:
    labels = [f"{value}%" for value in values]
    assert width_of(stacked_bar(values, cells, labels)) == (cells if sum(values) else 0)


def test_categories_differ_without_colour() -> None:
    assert len(set(FILLS.values())) == len(Category)
    assert plain(stacked_bar((2, 2, 2, 2, 2), 10)) == "██" + FILLS[Category.SIMULATOR] * 2 + "▒▒━━··"


columns_of = st.lists(
    st.builds(
        lambda width, drop, grow, extra: (width, drop, grow, width + extra),
        st.integers(1, 20), st.sampled_from([0, 1, 2, OPTIONAL, OPTIONAL + 1]), st.integers(0, 4), st.integers(0, 30),
    ),
    min_size=1, max_size=10,
)  # fmt: skip


@given(columns_of, st.integers(1, 250))
def test_columns_fit(shapes: list[tuple[int, int, int, int]], width: int) -> None:
    columns = [
        Column(str(n), "T", least, drop=drop, grow=grow, comfortable=wide if grow else 0, limit=wide + 20)
        for n, (least, drop, grow, wide) in enumerate(shapes)
    ]
    found = fit(columns, width)
    needed = sum(column.width for column, _ in found) + GAP * (len(found) - 1)
    taken = sum(cells for _, cells in found) + GAP * (len(found) - 1)
    if needed <= width:
        assert taken <= width
    else:
        assert all(column.drop == 0 for column, _ in found)  # nothing left to leave out
    kept = {column.key for column, _ in found}
    assert all(column.key in kept for column in columns if not column.drop)
    # A column never goes before one that should have gone earlier.
    left_out = [column.drop for column in columns if column.key not in kept]
    assert not left_out or all(column.drop < min(left_out) for column, _ in found)


@given(st.lists(st.text(max_size=12), max_size=5), st.integers(0, 40), st.booleans())
def test_fitted_lines_have_their_width(texts: list[str], width: int, right: bool) -> None:
    texts = ["".join(char for char in text if char.isprintable()) for text in texts]
    line = fitted([Span(text) for text in texts], width, right=right)
    assert width_of(line) == width
    assert cell_len(cut("".join(texts), width)) <= width


def test_flow() -> None:
    items = [[Span("aaa")], [Span("bb")], [Span("cccc")]]
    assert [plain(line) for line in flow(items, 8, Span("-"), indent=1)] == ["aaa-bb", " cccc"]
    assert [plain(line) for line in flow(items, 8, Span("-"), lines=1)] == ["aaa-bb"]


def test_figures_can_be_read_in_every_theme() -> None:
    """Text roles keep their contrast to the background, whatever colours a theme has."""
    from textual.color import Color

    for theme in BUILTIN_THEMES.values():
        variables = theme.to_color_system().generate()
        palette = Palette(variables, theme.dark)
        background = Color.parse(variables["background"])
        if background.ansi is not None:
            continue
        for role in ("text", "strong", "error", "warning", "good", "key", "sorted", "ink-PYTHON", "ink-SIMULATOR",
                     "ink-BACKEND", "ink-CUDA_API", "ink-OTHER"):  # fmt: skip
            ink = palette.style(role).color
            assert ink is not None
            assert ink.triplet is not None
            assert _contrast(Color(*ink.triplet), background) >= 3, (theme.name, role)


def test_hint_only_where_something_is_missing() -> None:
    snapshot = fakes.running()
    assert hint(snapshot, operation_table(snapshot, View()), View()) == []
    view = View(phase="nothing")
    assert "Nothing happened" in plain(hint(snapshot, operation_table(snapshot, view), view)[0])
