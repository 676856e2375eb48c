"""Costs of probe hits: how they are kept, and how they are charged."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlscope_ebpf.calibration import store
from rlscope_ebpf.capture.cookie import Action, Group, SiteClass
from rlscope_ebpf.capture.counters import COUNTERS, parse_counters
from rlscope_ebpf.capture.engine import ProbeSite
from rlscope_ebpf.errors import ProfilerError
from rlscope_ebpf.model.calibration import BUILT_IN, HitCost, MethodCosts, hit_cost, method_costs
from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.model.events import EVENT_DTYPE, EventFlag, EventKind
from rlscope_ebpf.paths import STATE_VARIABLE
from rlscope_ebpf.session.costs import ProbeCosts
from rlscope_ebpf.session.matching import Matcher

COSTS = MethodCosts((HitCost(10, 30, 5, 1), HitCost(20, 40, 7, 1), HitCost(100, 50, 90, 1)), HitCost(3, 8, 4, 1))
NOW = datetime(2026, 11, 30, tzinfo=timezone.utc)


def calibration(**changes: object) -> store.Calibration:
    return replace(store.this_host({"session": COSTS}, NOW), **changes)  # type: ignore[arg-type]


# -- kept --------------------------------------------------------------------------------------------------------------


def test_a_calibration_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "calibration.json"
    assert store.save(calibration(), path) == path
    assert store.load(path) == calibration()
    assert [each.name for each in path.parent.iterdir()] == ["calibration.json"]


def test_the_folder_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path))
    store.save(calibration())
    assert store.load() == calibration()
    assert store.calibration_path().parent == tmp_path


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProfilerError, match="cannot be written"):
        store.save(calibration(), tmp_path / "file" / "calibration.json")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"host": "elsewhere"}, "another machine"),
        ({"cpu": "Z80"}, "another machine"),
        ({"kernel": "5.0"}, "under kernel 5.0"),
        ({"programs": "older"}, "programs have changed"),
        ({"measured_at": (NOW - timedelta(days=31)).isoformat()}, "31 days old"),
        ({"measured_at": (NOW - timedelta(days=2)).isoformat(), "short": True}, "2 days old"),
        ({"measured_at": "yesterday"}, "when it was made"),
        ({"measured_at": "2026-11-29T00:00:00"}, "when it was made"),
    ],
)
def test_what_makes_it_stale(changes: dict[str, object], words: str) -> None:
    reason = store.why_stale(calibration(**changes), NOW)
    assert reason is not None
    assert words in reason


def test_what_holds() -> None:
    assert store.why_stale(calibration(), NOW + timedelta(days=29)) is None
    assert store.why_stale(calibration(short=True), NOW + timedelta(hours=20)) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=True) | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_any_file_is_a_calibration_or_none(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("state") / "calibration.json"
    store.save(calibration(), path)
    document = json.loads(path.read_text())
    place = document
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from(sorted(place)))
        if not isinstance(place[key], dict):
            break
        place, key = place[key], data.draw(st.sampled_from(sorted(place[key])))
    place[key] = data.draw(json_values)
    path.write_text(json.dumps(document))
    found = store.load(path)
    if found is not None:
        assert all(cost.whole >= 0 for costs in found.methods.values() for cost in (*costs.entries, costs.returned))
    path.write_bytes(data.draw(st.binary(max_size=64)))
    assert store.load(path) is None


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 1e12, "much", None])
def test_impossible_costs_are_refused(value: object) -> None:
    values = COSTS.as_dict()
    values["nop5"]["before"] = value  # type: ignore[assignment]
    with pytest.raises((ValueError, TypeError)):
        method_costs(values)


def test_costs_come_back() -> None:
    assert method_costs(COSTS.as_dict()) == COSTS
    assert hit_cost(COSTS.returned.as_dict()) == COSTS.returned


# -- charged -----------------------------------------------------------------------------------------------------------

SITE = ProbeSite(
    path="/lib", library="/lib", symbol="f", offset=0, address=0, category=Category.BACKEND,
    site_class=SiteClass.EMULATED, group=Group.BOUNDARY, action=Action.CALL, returns=True,
)  # fmt: skip
MARKER = replace(SITE, site_class=SiteClass.NOP5, group=Group.MARKER, action=Action.OP_BEGIN, returns=False)
EXITING = replace(SITE, site_class=SiteClass.NOP5, returns=False)
EXIT = replace(EXITING, site_class=SiteClass.STEPPED, action=Action.EXIT)


def costs() -> ProbeCosts:
    found = ProbeCosts(calibration(), "session")
    found.add_probes(1, [SITE, MARKER, EXITING, EXIT, EXIT])
    return found


def charged(found: ProbeCosts, *events: tuple[EventKind, int, int, int]) -> list[tuple[float, float]]:
    """Each event is kind, site, flags, arg."""
    kind, site, flags, arg = (np.array(part) for part in zip(*events, strict=True))
    before, after = found.charge(
        kind.astype(np.uint8), flags.astype(np.uint8), site.astype(np.uint32), arg.astype(np.uint64)
    )
    return list(zip(before.tolist(), after.tolist(), strict=True))


def test_a_hit_costs_what_its_site_does() -> None:
    assert charged(
        costs(),
        (EventKind.CALL, 1, 0, 0),
        (EventKind.RETURN, 1, 0, 0),
        (EventKind.OP_BEGIN, 2, 0, 0xABC),
        (EventKind.CALL, 3, 0, 0),
        (EventKind.RETURN, 3, 0, 0),
    ) == [(40, 7), (8, 4), (30, 5), (30, 5), (50, 90)]


def test_what_nobody_hit_for_costs_nothing() -> None:
    assert (
        charged(
            costs(),
            (EventKind.RETURN, 1, EventFlag.HEALED, 0),
            (EventKind.OP_END, 1, 0, 1),  # with the end of a call
            (EventKind.OFF_CPU, 0, 0, 1),
            (EventKind.THREAD_EXIT, 0, 0, 0),
            (EventKind.CALL, 99, 0, 0),  # a probe nobody knows
        )
        == [(0, 0)] * 5
    )


def test_silent_hits_cost_what_hits_do_on_average() -> None:
    found = costs()
    found.observe(np.array([event(1, EventKind.CALL, 2, 0, 1)] * 5 + [event(2, EventKind.RETURN, 0, 2, 3)] * 25))
    hits = parse_counters(np.zeros(COUNTERS, np.uint64))
    hits.hits[Group.BOUNDARY] = [0, 80, 50]
    found.watch(hits)  # of those that sent no event 75 % at 20 and 25 % at 100: 40
    assert charged(found, (EventKind.RETURN, 1, 0, 3)) == [(8 + 3 * 40, 4)]


def test_the_sum_of_all_hits() -> None:
    found = costs()
    found.observe(np.array([
        *[event(1, EventKind.OP_BEGIN, 0, 0, 2, 0xABC)] * 10,
        *[event(1, EventKind.CALL, 2, 0, 1)] * 60,
        *[event(2, EventKind.RETURN, 0, 2, 1)] * 60,
        *[event(1, EventKind.CALL, 2, 0, 3)] * 7,
        *[event(2, EventKind.RETURN, 0, 2, 3)] * 7,
        event(3, EventKind.GIL_ACQUIRE, 0, 4, 0),  # found by the clock: no probe
        event(4, EventKind.OFF_CPU, 0, 0, 0),
    ]))  # fmt: skip
    hits = parse_counters(np.zeros(COUNTERS, np.uint64))
    hits.hits[Group.MARKER, SiteClass.NOP5] = 10
    hits.hits[Group.BOUNDARY] = [7, 100, 9]  # two at an exit ended no call
    hits.returns[Group.BOUNDARY] = 61
    by_group = found.spent_by_group_ns(hits)
    assert by_group[Group.MARKER] == 10 * 35
    assert by_group[Group.BOUNDARY] == 60 * 47 + 40 * 20 + 60 * 12 + 3 + 7 * 35 + 7 * 140 + 2 * 100
    assert found.spent_ns(hits) == sum(by_group)
    # By function: the markers, a pair with a return probe, one with an exit site.
    assert found.told_by_probe_ns()[:4].tolist() == [0, 60 * (47 + 12), 10 * 35, 7 * (35 + 140)]


# Two functions end in the same instruction, which is probed once; each has its own number for it.
SHARING = [SITE, MARKER, EXITING, EXIT, replace(EXITING, symbol="g"), EXIT, replace(EXIT, offset=8)]


@given(
    calls=st.lists(st.tuples(st.sampled_from([1, 3, 5]), st.integers(0, 3), st.booleans()), max_size=20),
    silent=st.sampled_from([SiteClass.EMULATED, SiteClass.STEPPED]),
)
def test_what_is_charged_is_what_all_hits_took(calls: list[tuple[int, int, bool]], silent: SiteClass) -> None:
    """Each call has so many hits inside that send no event; `split`: the events come in two batches."""
    found = ProbeCosts(calibration(), "session")
    found.add_probes(1, SHARING[:4])
    found.add_probes(5, SHARING[4:])
    hits = parse_counters(np.zeros(COUNTERS, np.uint64))
    total = 0.0
    for site, within, split in calls:
        hits.hits[Group.BOUNDARY, SHARING[site - 1].site_class] += np.uint64(1)
        hits.hits[Group.BOUNDARY, silent] += np.uint64(within)
        if SHARING[site - 1].returns:
            hits.returns[Group.BOUNDARY] += np.uint64(1)
        else:
            hits.hits[Group.BOUNDARY, EXIT.site_class] += np.uint64(1)
        pair = np.array([event(1, EventKind.CALL, 2, 0, site), event(2, EventKind.RETURN, 0, 2, site, within)])
        for batch in np.array_split(pair, 2 if split else 1):
            found.observe(batch)
            found.watch(hits)
            before, after = found.charge(batch["kind"], batch["flags"], batch["site"], batch["arg"])
            total += float(before.sum() + after.sum())
    assert total == pytest.approx(found.spent_ns(hits), abs=1)


def test_a_ratio_holds_from_now_on() -> None:
    found, hits = costs(), parse_counters(np.zeros(COUNTERS, np.uint64))
    call = np.array([event(1, EventKind.CALL, 2, 0, 1)])
    hits.hits[Group.BOUNDARY, SITE.site_class] += np.uint64(1)
    found.observe(call)
    assert charged(found, (EventKind.CALL, 1, 0, 0)) == [(40, 7)]
    before = found.spent_ns(hits)
    found.set_ratios({Group.BOUNDARY: 2.0}, hits)
    assert found.spent_ns(hits) == before  # what was charged stays
    assert charged(found, (EventKind.CALL, 1, 0, 0), (EventKind.OP_BEGIN, 2, 0, 0)) == [(80, 14), (30, 5)]
    hits.hits[Group.BOUNDARY, SITE.site_class] += np.uint64(1)
    found.observe(call)
    assert found.spent_ns(hits) == before + 2 * 47
    found.set_ratios({Group.BOUNDARY: 1.5}, hits)
    assert charged(found, (EventKind.CALL, 1, 0, 0)) == [(60, 10.5)]
    assert found.spent_ns(hits) == before + 2 * 47
    found.add_probes(6, [SITE])  # what comes later costs as much
    assert charged(found, (EventKind.CALL, 6, 0, 0)) == [(60, 10.5)]
    assert found.ratios()[Group.BOUNDARY] == 1.5
    assert found.ratios()[Group.GIL] == 1.0


def test_without_a_calibration_nothing_is_claimed() -> None:
    assert not ProbeCosts().calibrated
    assert not ProbeCosts(calibration(), "perf").calibrated
    assert ProbeCosts().as_dict() == {"calibrated": False, "ns_per_hit": BUILT_IN.as_dict()}
    assert ProbeCosts(calibration(), "session").as_dict()["measured_at"] == NOW.isoformat()


def event(time_ns: int, kind: EventKind, category: int, origin: int, site: int = 1, arg: int = 0) -> np.void:
    found = np.zeros((), EVENT_DTYPE)
    found["time_ns"], found["pid"], found["tid"], found["site"] = time_ns, 7, 7, site
    found["kind"], found["category"], found["origin"], found["arg"] = kind, category, origin, arg
    return found[()]


@pytest.mark.parametrize("batches", [1, 2, 7])
def test_every_interval_is_charged_what_fell_into_it(batches: int) -> None:
    python, backend = Category.PYTHON, Category.BACKEND
    events = np.array([
        event(1_000, EventKind.OP_BEGIN, python, python, 2),
        event(2_000, EventKind.CALL, backend, python),
        event(3_000, EventKind.RETURN, python, backend, arg=2),  # and two silent hits within the call
        event(4_000, EventKind.CALL, backend, python),
        event(5_000, EventKind.RETURN, python, backend),
        event(6_000, EventKind.OP_END, python, python, 2),
    ])  # fmt: skip
    matcher = Matcher(0, costs=costs())
    parts = np.array_split(events, batches)
    done = [matcher.process(part, int(part["time_ns"].max(initial=0))) for part in parts] + [matcher.finish(7_000)]
    rows = [batch.tables.get("intervals") for batch in done]
    intervals = np.concatenate([part for part in rows if part is not None])
    found = {}
    for row in intervals:
        cell = int(row["start_ns"]) // 1_000, int(row["category"])
        found[cell] = found.get(cell, 0) + int(row["overhead_ns"])
    # In front of the first event nothing was known of the thread.
    assert found == {
        (1, python): 5 + 40,
        (2, backend): 7 + 2 * 20 + 8,
        (3, python): 4 + 40,
        (4, backend): 7 + 8,
        (5, python): 4 + 30,
        (6, python): 5,
    }


def test_the_file_can_be_read_by_every_user(tmp_path: Path) -> None:
    path = store.save(calibration(), tmp_path / "calibration.json")
    assert os.stat(path).st_mode & 0o777 == 0o644
