"""Costs of hits in the program itself: from windows with and without probes, and when such windows come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlscope_ebpf.capture.cookie import Group
from rlscope_ebpf.model.categories import ThreadState
from rlscope_ebpf.model.in_place import InPlaceCost, as_counts, in_place_costs
from rlscope_ebpf.model.tables import INTERVAL_DTYPE, SPAN_DTYPE, Batch
from rlscope_ebpf.session.governor import Decision
from rlscope_ebpf.session.in_place import PRIOR, Comparison, Pair, Stretch, add_up, compare, cost_of, expected, total
from rlscope_ebpf.session.trials import (
    AT_ONCE_S,
    GUARD_S,
    LONGEST_FALL_S,
    LONGEST_WINDOW_S,
    PART_OF_LIMIT,
    WINDOW_S,
    Trials,
)
from rlscope_ebpf.session.worth import Unit

MS = 1_000_000


def stretch(*paths: tuple[float, float, int]) -> Stretch:
    """ms on a CPU, ms charged, instances; of paths 1, 2, …"""
    columns = np.array([(0.0, 0.0, 0), *paths], np.float64).T
    return Stretch(columns[0] * MS, columns[1] * MS, columns[2])


def batch(*operations: tuple[int, float, float, int]) -> Batch:
    """(path, ms on a CPU, ms charged, instances), and as much time off a CPU."""
    intervals = np.zeros(2 * len(operations), INTERVAL_DTYPE)
    spans = np.zeros(sum(each[3] for each in operations), SPAN_DTYPE)
    at = 0
    for index, (path, running, charged, ended) in enumerate(operations):
        for row, state in ((2 * index, ThreadState.RUNNING), (2 * index + 1, ThreadState.BLOCKED)):
            intervals["path"][row], intervals["state"][row] = path, state
            intervals["duration_ns"][row], intervals["overhead_ns"][row] = running * MS, charged * MS
        spans["path"][at : at + ended] = path
        at += ended
    return Batch(0, tables={"intervals": intervals, "spans": spans})


def test_a_batch_is_added_up_by_operation() -> None:
    found = total([add_up(batch((1, 5, 1, 3), (2, 7, 2, 0))), add_up(batch((1, 1, 0, 1))), add_up(Batch(0))])
    assert found.running_ns.tolist() == [0, 6 * MS, 7 * MS]
    assert found.charged_ns.tolist() == [0, MS, 2 * MS]
    assert found.ended.tolist() == [0, 4, 0]
    assert found.instances == 4


def test_operations_are_held_against_as_many_without_the_probes() -> None:
    # 10 of the first took 30 ms of which 5 were charged, without the probes 2 ms each; the second is not in both.
    found = compare(stretch((30, 5, 10), (9, 1, 1)), stretch((80, 0.4, 40), (100, 0, 0)))
    assert found.longer_ns == pytest.approx((30 - 20) * MS)
    assert found.charged_ns == pytest.approx((5 - 0.1) * MS)


def test_few_instances_without_the_probes_tell_nothing_of_many_with_them() -> None:
    assert compare(stretch((30, 5, 10)), stretch((8, 0, 4))) == Pair(0.0, 0.0)


def test_time_outside_of_operations_is_left_out() -> None:
    assert compare(add_up(batch((0, 9, 5, 3))), add_up(batch((0, 9, 0, 9)))) == Pair(0.0, 0.0)


@settings(deadline=None, max_examples=30)
@given(
    ratio=st.floats(0.8, 4), count=st.integers(8, 40), share=st.floats(0.1, 1), seed=st.integers(0, 2**32 - 1),
    noise=st.floats(0, 0.1),
)  # fmt: skip
def test_the_ratio_is_found_as_well_as_it_says(ratio: float, count: int, share: float, seed: int, noise: float) -> None:
    chance = np.random.default_rng(seed)
    pairs = [
        Pair(80 * MS * (share * ratio + chance.normal(0, noise)), 80 * MS * share * chance.uniform(0.7, 1.3))
        for _ in range(count)
    ]
    # What is longer goes with what is charged, but for the noise.
    pairs = [Pair(pair.longer_ns * pair.charged_ns / (80 * MS * share), pair.charged_ns) for pair in pairs]
    found = cost_of("boundary", pairs)
    assert found is not None
    assert found.windows == count
    # Six standard errors, of the data's own spread: a bootstrap of eight may be off by half.
    assert abs(found.measured - ratio) <= 6 * (noise / share) * 1.4 / np.sqrt(count) + 1e-6
    assert found.error <= 4 * noise / share + 1e-6


def test_one_window_in_which_something_else_went_on_does_not_matter() -> None:
    pairs = [Pair(2.0 * MS, 1.0 * MS)] * 9
    found = cost_of("gil", [*pairs, Pair(-400 * MS, 1.2 * MS)])
    assert found is not None
    assert found.measured == pytest.approx(2.0)


def test_a_few_windows_tell_nothing() -> None:
    assert cost_of("gil", [Pair(2.0, 1.0)] * 3) is None


def test_what_is_charged_lies_between_what_is_measured_and_what_is_usual() -> None:
    assert expected(2.5, 0.01) == pytest.approx(2.5, abs=0.01)
    assert expected(2.5, 0.5) == pytest.approx(2.0)
    assert expected(2.5, 100) == pytest.approx(PRIOR, abs=0.01)


@pytest.mark.parametrize("longer", [-1.0, 20.0])
def test_an_absurd_cost_is_told_and_not_used(longer: float) -> None:
    found = cost_of("gil", [Pair(longer * MS, 1.0 * MS)] * 9)
    assert found is not None
    assert found.is_absurd
    assert (found.in_force, found.measured) == (PRIOR, longer)


def test_costs_come_back_from_a_trace() -> None:
    costs = (InPlaceCost("boundary", 1.8, 2.1, 0.4, 12), InPlaceCost("gil", 1.5, -0.3, 0.2, 5))
    counts = as_counts(costs)
    assert in_place_costs(counts) == costs
    del counts["gil/error"]
    assert in_place_costs(counts) == costs[:1]
    assert in_place_costs({}) == ()


def test_windows_are_held_against_what_is_on_both_sides() -> None:
    found = Comparison("boundary")
    found.add_off(stretch((20, 0, 20)))  # 1 ms each
    found.add_on(stretch((24, 5, 10)), in_force=2.0)
    found.add_off(stretch((40, 0, 20)))  # 2 ms each
    found.close()
    assert list(found.pairs) == [Pair(pytest.approx(9 * MS), pytest.approx(2.5 * MS))]
    found.add_on(stretch((12, 5, 10)))  # the stretch before this one is the one after the other
    found.close()
    assert found.pairs[-1].longer_ns == pytest.approx(-8 * MS)


# -- when --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Target:
    """A program of which each operation takes 1 ms, and `slower` times that while its probes are set."""

    slower: float = 1.0
    charged: float = 0.5  # of the slowdown, what a loop says
    on: set[Group] = field(default_factory=set)
    settled: bool = True
    now_s: float = 100.0
    on_s: float = 0.0
    switched: list[Decision] = field(default_factory=list)

    def carry_out(self, decision: Decision) -> None:
        self.switched.append(decision)
        self.on |= {unit.group for unit in decision.back}
        self.on -= {unit.group for unit in decision.off}

    def run(self, seconds: float) -> Batch:
        self.now_s += seconds
        if self.on:
            self.on_s += seconds
        each = 1 + self.slower * len(self.on)
        count = int(seconds * 1000 / each)
        return batch((1, count * each, count * (each - 1) * self.charged, count))


OFF = (Unit(Group.BOUNDARY, 7, 0.6, 0.1), Unit(Group.BOUNDARY, 8, 0.4, 0.1), Unit(Group.GIL, 0, 1.0, 0.0))
LIMIT = 0.05


def go_on(trials: Trials, target: Target, seconds: float, off: Sequence[Unit] = OFF) -> None:
    end_s = target.now_s + seconds
    while target.now_s < end_s:
        trials.add(target.run(min(0.05, max(0.001, trials.due_s() - target.now_s))), np.ones(len(Group)))
        if trials.is_open:
            trials.turn(target.now_s)
        elif trials.wants(target.now_s, off):
            trials.begin(target.now_s, off)


def trials_of(target: Target, limit: float = LIMIT) -> Trials:
    return Trials(limit, target.carry_out, lambda: target.settled, target.now_s)


def test_both_kinds_of_probes_are_measured() -> None:
    target = Target()
    trials = trials_of(target)
    go_on(trials, target, 120)
    costs = trials.costs()
    assert set(costs) == {Group.BOUNDARY, Group.GIL}
    for group, name in ((Group.BOUNDARY, "boundary"), (Group.GIL, "gil")):
        assert costs[group].probes == name
        assert costs[group].measured == pytest.approx(2.0, rel=0.1)
    assert not target.on or trials.is_open


def test_windows_take_no_more_than_their_part() -> None:
    for seconds in (5, 60, 600):
        target = Target()
        trials = trials_of(target)
        go_on(trials, target, seconds)
        # Each kind takes all of the time while it is set, as OFF says.
        allowed_s = LIMIT * (AT_ONCE_S + PART_OF_LIMIT * seconds)
        assert 0 < target.on_s / 2 <= allowed_s + WINDOW_S


def test_only_one_kind_is_set_at_a_time_and_for_a_moment() -> None:
    target = Target()
    trials = trials_of(target)
    go_on(trials, target, 20)
    assert {len({unit.group for unit in (*each.off, *each.back)}) for each in target.switched} == {1}
    assert all(back.back == off.off for back, off in zip(target.switched[::2], target.switched[1::2], strict=False))
    assert target.on_s <= (WINDOW_S + 2 * GUARD_S + 0.1) * len(target.switched) / 2


def test_nothing_is_tried_where_nothing_can_be_compared() -> None:
    target = Target()
    trials = trials_of(target)
    for _ in range(100):
        trials.add(Batch(0), np.ones(len(Group)))
        target.now_s += 0.1
        assert not trials.wants(target.now_s, OFF)


def test_nothing_is_tried_while_something_is_being_taken_off() -> None:
    target = Target(settled=False)
    trials = trials_of(target)
    go_on(trials, target, 5)
    assert not target.switched


def test_nothing_is_tried_while_no_probe_is_off() -> None:
    target = Target()
    trials = trials_of(target)
    go_on(trials, target, 5, off=())
    assert not target.switched


def test_a_window_ends_even_if_the_kernel_never_says_so() -> None:
    target = Target()
    trials = trials_of(target)
    while not target.on:
        go_on(trials, target, 0.01)
    while target.on:
        go_on(trials, target, 0.01)
    target.settled = False
    go_on(trials, target, 2 * LONGEST_FALL_S)
    assert not trials.is_open


def test_a_window_in_which_little_happens_is_longer() -> None:
    target = Target()
    trials = trials_of(target)
    while not target.on:
        go_on(trials, target, 0.01)
    begun_s = target.now_s
    target.slower = 50.0  # an operation takes 51 ms
    while target.on:
        go_on(trials, target, 0.01)
    assert 0.7 * LONGEST_WINDOW_S <= target.now_s - begun_s <= LONGEST_WINDOW_S + 2 * GUARD_S + WINDOW_S


def test_a_cost_that_is_known_is_looked_at_rarely() -> None:
    target = Target()
    trials = trials_of(target, limit=10.0)  # as many as it likes
    go_on(trials, target, 60)
    assert len(target.switched) / 2 < 20
