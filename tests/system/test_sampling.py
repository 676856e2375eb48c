"""Sampling by the clock: the shares of a program that knows its truth, and what stands in for probes taken off."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
from harness import TRUTH, Profiler, Program, process_of, report

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]

Attach = Callable[..., tuple[Profiler, Path]]
StartTarget = Callable[..., Program]

POINTS = 0.02
"""How far every category of the whole program may be from the truth."""

DEVIATIONS = 5.0
"""Of a share made of so many samples, on top of `POINTS` where only an operation is looked at: one figure in millions
lies farther off by chance."""

SHORTEST = ("--rate", "300", "--shortest", "2000")
"""The truth takes giving up and getting back the interpreter lock for `other`, which no sample can tell from Python."""

CATEGORIES = ("python", "simulator", "backend", "other")
ATTEMPTS = 3  # the machine may be so busy that the truth itself is wrong


def _merged(rows: list[dict[str, Any]]) -> dict[tuple[str, ...], dict[str, float]]:
    """By operation, whatever the phase: wall time, its categories, and its samples."""
    found: dict[tuple[str, ...], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows:
        into = found[tuple(row["path"])]
        into["wall"] += row["raw"]["wall_ns"]
        for name, ns in row["raw"]["cpu_ns"].items():
            into[name] += ns
        into["sampled"] += row["sampled"]["time_ns"] if row["sampled"] else 0
        into["samples"] += sum(row["sampled"]["samples"].values()) if row["sampled"] else 0
    return found


def _mismatches(truth: dict[str, Any], document: dict[str, Any]) -> Iterator[str]:
    measured = _merged(process_of(document, truth["pid"])["operations"])
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    unsure = 0.0
    for row in truth["operations"]:
        if not row["exact"]["wall"]:
            continue
        found = measured[tuple(row["path"])]
        wall, samples = row["wall_ns"], found["samples"]
        unsure += row["unsure_ns"]
        totals["wall"][0] += wall
        totals["wall"][1] += found["wall"]
        if abs(found["wall"] - wall) > POINTS * wall + row["unsure_ns"]:
            yield f"{row['path']}: wall is {found['wall']:,.0f}, expected {wall:,.0f}"
        for name in CATEGORIES:
            totals[name][0] += row["cpu_ns"][name]
            totals[name][1] += found[name]
            # A share of at least one in as many samples, so that a rare category has an error, too.
            share = min(max(row["cpu_ns"][name] / wall, 1 / max(samples, 1)), 0.5)
            chance = DEVIATIONS * sqrt(share * (1 - share) / max(samples, 1)) * found["sampled"]
            allowed = POINTS * wall + chance + row["unsure_ns"]
            if abs(found[name] - row["cpu_ns"][name]) > allowed:
                told = f"{found[name]:,.0f}, expected {row['cpu_ns'][name]:,.0f} ± {allowed:,.0f}"
                yield f"{row['path']}: {name} is {told}"
    wall, found_wall = totals.pop("wall")
    for name, (expected, actual) in totals.items():
        if abs(actual / found_wall - expected / wall) > POINTS + unsure / wall:
            yield f"all together: {name} is {actual / found_wall:.1%}, expected {expected / wall:.1%}"


def _run(
    work: tuple[str, ...], options: tuple[str, ...], start_target: StartTarget, attach: Attach
) -> tuple[dict[str, Any], list[str]]:
    target = start_target(sys.executable, TRUTH, *work, *SHORTEST, realtime=True)
    profiler, trace = attach(target, *options)
    target.go()
    truth = target.truth()
    target.finish()
    assert profiler.wait() == 0, profiler.stderr
    document = report(trace)
    assert document["session"]["complete"]
    assert document["losses"]["samples"] == 0
    # A thousand a second of each running thread: half of that is promised.
    ran_ns = sum(row["state_ns"]["running"] for row in process_of(document, truth["pid"])["operations"])
    if document["session"]["mode"] == "sample":
        assert document["session"]["samples"] > 500 * ran_ns / 1e9
    return document, list(_mismatches(truth, document))


def _until_it_fits(run: Callable[[], tuple[dict[str, Any], list[str]]]) -> dict[str, Any]:
    found = []
    for _ in range(ATTEMPTS):
        document, mismatches = run()
        if not mismatches:
            return document
        found.append("\n".join(mismatches))
    raise AssertionError(f"{len(found)} runs contradict the truth:\n" + "\n--\n".join(found))


def test_shares_are_those_of_the_truth(start_target: StartTarget, attach: Attach) -> None:
    document = _until_it_fits(lambda: _run(("--seconds", "20"), ("--mode", "sample"), start_target, attach))
    (process,) = document["processes"]
    groups = document["session"]["probes_attached"]
    assert groups == document["session"]["probes_armed"] < 30  # operations, and nothing else
    assert document["overhead"]["fraction"] < 0.05
    untracked = [row for row in process["operations"] if not row["path"]]
    # Threads that pass no probe: they run nothing but the libraries, in an operation of none.
    assert sum(row["raw"]["cpu_ns"]["simulator"] + row["raw"]["cpu_ns"]["backend"] for row in untracked) > 0
    for row in process["operations"]:
        assert row["transitions"] == {}
        assert sum(row["raw"]["cpu_ns"].values()) == row["raw"]["wall_ns"]


def test_samples_stand_in_for_probes_that_are_taken_off(start_target: StartTarget, attach: Attach) -> None:
    """Callbacks would otherwise count as the simulator's time."""
    work = ("--seconds", "12", "--scenario", "callbacks", "--scenario", "recursion")
    document = _until_it_fits(lambda: _run(work, ("--mode", "auto", "--max-overhead", "0.01"), start_target, attach))
    assert document["overhead"]["probes_shed"] > 0
    assert any(row["sampled"] for row in document["processes"][0]["operations"])
    assert any(notice["important"] and "Samples" in notice["text"] for notice in document["notices"])
