"""What probes and clocks are said to take, relative to the time that the targets need for themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlscope_ebpf.capture.cookie import Action, Group, SiteClass
from rlscope_ebpf.capture.engine import ProbeSite
from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.session.spending import SilentHits, Spent, shares
from rlscope_ebpf.session.worth import Worth

S = 1_000_000_000
ONES = np.ones(len(Group))
CALL = ProbeSite(
    path="/lib", library="/lib", symbol="f", offset=0, address=0, category=Category.BACKEND,
    site_class=SiteClass.EMULATED, group=Group.BOUNDARY, action=Action.CALL,
)  # fmt: skip
START = Spent(0, np.zeros(len(Group)), 0, np.zeros(3), np.zeros(3), 0, 0)


def worth() -> Worth:
    found = Worth()
    found.add_probes(1, (CALL, replace(CALL, group=Group.GIL, action=Action.GIL_RELEASE)))
    return found


def after(wall_s: float, boundary_s: float = 0.0, gil_s: float = 0.0, **changes: object) -> Spent:
    by_group = np.zeros(len(Group))
    by_group[Group.BOUNDARY], by_group[Group.GIL] = boundary_s * S, gil_s * S
    told = np.array([0.0, boundary_s * S, 0.0])
    whole = Spent(int(wall_s * S), by_group, 0, told, np.zeros(3), int(wall_s * S), 0)
    return replace(whole, **changes)  # type: ignore[arg-type]


def test_half_of_the_time_in_probes_is_twice_as_slow() -> None:
    found = shares(START, after(2, boundary_s=0.5, gil_s=0.5), worth(), in_place=ONES)
    assert found.turn_s == 2
    assert found.whole == pytest.approx(1.0)
    assert {unit.group: unit.cost for unit in found.units} == {
        Group.GIL: pytest.approx(0.5),
        Group.BOUNDARY: pytest.approx(0.5),
    }


@settings(deadline=None)
@given(useful_s=st.floats(0.5, 10), boundary_s=st.floats(0.01, 1), gil_s=st.floats(0.01, 1))
def test_what_one_probe_takes_does_not_depend_on_the_others(useful_s: float, boundary_s: float, gil_s: float) -> None:
    both = shares(START, after(useful_s + boundary_s + gil_s, boundary_s, gil_s), worth(), in_place=ONES)
    one = shares(START, after(useful_s + boundary_s, boundary_s), worth(), in_place=ONES)
    cost = {unit.group: unit.cost for unit in both.units}
    assert both.whole - cost[Group.GIL] == pytest.approx(one.whole, rel=1e-6)


def test_hits_in_a_real_program_are_dearer_than_in_a_loop() -> None:
    in_place = ONES.copy()
    in_place[Group.BOUNDARY] = 3
    found = shares(START, after(1, boundary_s=0.2), worth(), in_place=in_place)
    assert found.whole == pytest.approx(0.6 / 0.4)
    assert [unit.cost for unit in found.units] == [pytest.approx(0.6 / 0.4)]


def test_samples_and_ticks_count() -> None:
    found = shares(START, after(1, sampled_ns=S // 10), worth(), ticks_share=0.1, in_place=ONES)
    assert found.whole == pytest.approx(0.2 / 0.8)


def test_who_waits_for_a_cpu_is_slowed_down_all_the_same() -> None:
    found = shares(START, after(2, gil_s=0.5, waited_ns=S, cpu_ns=S), worth(), in_place=ONES)
    assert found.whole == pytest.approx(1.0)


def test_records_of_the_gpus_work_count_and_no_probe_takes_them() -> None:
    found = shares(START, after(1, boundary_s=0.1, gpu_ns=0.1 * S), worth(), in_place=ONES)
    assert (found.whole, found.fixed) == (pytest.approx(0.2 / 0.8), pytest.approx(0.1 / 0.8))
    assert sum(unit.cost for unit in found.units) == pytest.approx(0.1 / 0.8)


def test_functions_of_cuda_are_spared_one_by_one_by_all_of_their_hits() -> None:
    found = Worth()
    launch = replace(CALL, group=Group.CUDA, category=Category.CUDA_API)
    found.add_probes(1, (launch, replace(launch, symbol="g")))
    hits = np.array([0, 0])
    silent = SilentHits(lambda probes: hits[[probe - 1 for probe in probes]].astype(np.uint64), found)
    by_group = np.zeros(len(Group))
    by_group[Group.CUDA] = 0.5 * S
    spent = Spent(S, by_group, 0, np.array([0.0, 0.1 * S, 0.0]), np.zeros(3), S, 0)
    hits[:] = 100, 300  # driver calls within runtime calls send no event
    units = {unit.function: unit for unit in shares(START, spent, found, in_place=ONES, silent=silent).units}
    assert {unit.group for unit in units.values()} == {Group.CUDA}
    assert units[1].cost == pytest.approx(0.1 / 0.5 + 0.4 / 0.5 / 4)
    assert units[2].cost == pytest.approx(0.4 / 0.5 * 3 / 4)


def test_an_overrated_cost_leaves_something() -> None:
    found = shares(START, after(1, gil_s=5), worth(), in_place=ONES)
    assert np.isfinite(found.whole)
    assert found.whole > 1


def test_probes_that_came_meanwhile() -> None:
    older = replace(START, told_ns=np.zeros(1), worth_ns=np.zeros(1))
    found = shares(older, after(2, boundary_s=1), worth(), in_place=ONES)
    assert [unit.cost for unit in found.units] == [pytest.approx(1.0)]


def test_hits_that_send_no_event_count_for_their_functions() -> None:
    found = Worth()
    exit_site = replace(CALL, action=Action.EXIT)
    found.add_probes(1, (CALL, replace(CALL, symbol="g"), exit_site))  # the last one ends `g`
    hits = np.array([0, 0, 0])
    silent = SilentHits(lambda probes: hits[[probe - 1 for probe in probes]].astype(np.uint64), found)
    by_group = np.zeros(len(Group))
    by_group[Group.BOUNDARY] = 0.5 * S
    told = np.array([0.0, 0.1 * S, 0.0, 0.0])
    spent = Spent(S, by_group, 0, told, np.zeros(4), S, 0)
    hits[:] = 100, 200, 100
    units = {unit.function: unit.cost for unit in shares(START, spent, found, in_place=ONES, silent=silent).units}
    assert units == {1: pytest.approx(0.1 / 0.5 + 0.4 / 0.5 / 4), 2: pytest.approx(0.4 / 0.5 * 3 / 4)}

    hits[:] = 100, 200, 300  # since then only the end of `g`
    later = replace(spent, time_ns=2 * S, by_group_ns=2 * by_group, told_ns=told, cpu_ns=2 * S)
    units = {unit.function: unit.cost for unit in shares(spent, later, found, in_place=ONES, silent=silent).units}
    assert units == {2: pytest.approx(1.0)}
