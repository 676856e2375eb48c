"""What a capture says while it runs and at its end."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import tui_fakes as fakes

from rlscope_ebpf.cli import progress, summary
from rlscope_ebpf.model.tables import Counters


def test_steps_are_exact_beside_their_total() -> None:
    snapshot = fakes.running()
    process = replace(snapshot.processes[0], steps=3, step=12_288, total_steps=12_000)
    text = summary.render(replace(snapshot, processes=(process,)))
    assert text.splitlines()[0].endswith(", step 12,288 of 12,000")


def test_one_event_is_one_event() -> None:
    snapshot = fakes.running(counters=Counters(received=1, probes_attached=1, probes_armed=1))
    assert "1 of 1 probe armed, 1 event, nothing lost" in summary.render(snapshot)


def test_the_rate_counts_events() -> None:
    assert " events/s " in progress.describe(fakes.running())


def test_an_overhead_that_cannot_be_right_is_said() -> None:
    good = fakes.running()
    bad = replace(good, overhead_fraction=2.99, overhead_plausible=False)
    for say in (summary.render, progress.describe):
        assert "overhead about 3.2 % of the target's wall time" in say(good)
        assert "overhead estimated at 299 % of the target's wall time, which cannot be right" in say(bad)


def test_transitions_without_all_probes_are_at_least_so_many() -> None:
    running = fakes.running()
    assert "transitions: at least " not in summary.render(running)
    shed = replace(running, counters=replace(running.counters, probes_shed=3))
    assert "transitions: at least " in summary.render(shed)
