"""Figures as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlscope_ebpf.model import format as fmt
from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.model.tables import Losses


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 s"),
        (1, "1 ns"),
        (999, "999 ns"),
        (999.4, "999 ns"),
        (999.6, "1.00 µs"),
        (1_000, "1.00 µs"),
        (12_345, "12.3 µs"),
        (456_000, "456 µs"),
        (999_499, "999 µs"),
        (999_500, "1.00 ms"),
        (9_994_000, "9.99 ms"),
        (9_996_000, "10.0 ms"),
        (99_960_000, "100 ms"),
        (1_230_000_000, "1.23 s"),
        (599_000_000_000, "599 s"),
        (600_000_000_000, "10m 00s"),
        (725_000_000_000, "12m 05s"),
        (3_599_600_000_000, "1h 00m"),
        (11_220_000_000_000, "3h 07m"),
        (86_399_000_000_000, "1d 00h"),
        (187_200_000_000_000, "2d 04h"),
        (-1_230_000_000, "-1.23 s"),
    ],
)
def test_duration(ns: float, text: str) -> None:
    assert fmt.duration(ns) == text


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0"),
        (7, "7"),
        (999, "999"),
        (1_000, "1.00 k"),
        (12_345, "12.3 k"),
        (999_499, "999 k"),
        (999_501, "1.00 M"),
        (4_560_000, "4.56 M"),
        (7_200_000_000, "7.20 G"),
        (2.5, "2.50"),
        (-12_345, "-12.3 k"),
    ],
)
def test_count(n: float, text: str) -> None:
    assert fmt.count(n) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0, "0 %"), (1e-6, "<0.1 %"), (0.0005, "0.1 %"), (0.1234, "12.3 %"), (0.9994, "99.9 %"), (0.9996, "100 %"),
     (1, "100 %"), (-0.25, "-25.0 %"), (1.5, "150 %")],
)  # fmt: skip
def test_percent(fraction: float, text: str) -> None:
    assert fmt.percent(fraction) == text


@pytest.mark.parametrize(("ns", "text"), [(0, "00:00"), (7e9, "00:07"), (725.9e9, "12:05"), (3723e9, "1:02:03")])
def test_clock(ns: float, text: str) -> None:
    assert fmt.clock(ns) == text


@given(st.integers(min_value=0, max_value=999 * 86_400 * 10**9))
def test_figures_keep_their_width(n: int) -> None:
    assert len(fmt.duration(n)) <= fmt.WIDTH
    assert len(fmt.count(min(n, 999 * 10**12))) <= fmt.WIDTH


@given(st.integers(min_value=1, max_value=599 * 10**9))
def test_duration_is_the_value_to_three_digits(ns: int) -> None:
    number, unit = fmt.duration(ns).split()
    scale = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}[unit]
    assert float(number) * scale == pytest.approx(ns, rel=0.0051)


def test_small_ones() -> None:
    assert fmt.rate(68_234.5) == "68.2 k/s"
    assert fmt.rate(3.25) == "3.25/s"
    assert fmt.size(512) == "512 B"
    assert fmt.size(1_200_000) == "1.20 MB"
    assert fmt.plural(1, "probe") == "1 probe"
    assert fmt.plural(2, "process", "processes") == "2 processes"
    assert fmt.shorten("backpropagation", 8) == "backpro…"
    assert fmt.shorten("step", 4) == "step"
    assert fmt.path(("train", "backprop")) == "train > backprop"
    assert fmt.path(()) == "(untracked)"
    assert fmt.path(("a\x1b[2J", "b\n")) == "a\N{REPLACEMENT CHARACTER}[2J > b\N{REPLACEMENT CHARACTER}"
    assert fmt.printable("模拟 ok") == "模拟 ok"


def test_transition() -> None:
    assert fmt.transition("python_to_cuda_api") == "Python → CUDA API"
    assert fmt.transition("teleport") == "teleport"
    assert fmt.transition("python_to_moon") == "python_to_moon"


def test_every_category_and_loss_has_a_label() -> None:
    assert set(fmt.CATEGORY_LABELS) == set(Category)
    assert set(fmt.LOSS_LABELS) == set(Losses().as_dict())
    assert set(Losses().as_dict()) >= fmt.HARMLESS_LOSSES


def test_losses() -> None:
    assert fmt.losses(Losses()) == ""
    assert fmt.losses(Losses(events=12, late=3, healed=4)) == "12 events lost, 3 late events dropped"
    assert fmt.losses(Losses(healed=4), harmless=True) == "4 returns healed"


def test_one_of_a_thing_is_singular() -> None:
    assert fmt.losses(Losses(events=1, late=2)) == "1 event lost, 2 late events dropped"
    for name in Losses().as_dict():
        one, two = (fmt.losses(Losses(**{name: number}), harmless=True) for number in (1, 2))
        assert (one[:2], two[:2]) == ("1 ", "2 ")
        assert one[2:] != two[2:]


def test_processes_are_enumerated() -> None:
    assert fmt.processes([7]) == "process 7"
    assert fmt.processes([7, 8]) == "processes 7 and 8"
    assert fmt.processes((7, 8, 9)) == "processes 7, 8 and 9"


def test_rates_name_what_they_count() -> None:
    assert fmt.rate(68_234, "events") == "68.2 k events/s"


def test_an_empty_name_is_seen() -> None:
    assert fmt.path(("train", "")) == 'train > ""'
    assert fmt.path(("",)) != fmt.path(())
