"""Costs of probe hits on this host: measured, kept, used."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import TARGETS, Profiler, Program, report, rlscope

import rlscope_ebpf
from rlscope_ebpf.calibration.measure import CalibrationError, measure, measure_method
from rlscope_ebpf.capture.engine import Engine
from rlscope_ebpf.capture.kernel import attach_methods, kernel_version
from rlscope_ebpf.paths import STATE_VARIABLE

pytestmark = pytest.mark.system

StartTarget = Callable[..., Program]
Attach = Callable[..., tuple[Profiler, Path]]

LOOP = TARGETS / "loop.py"


def test_calibrate_measures_every_method_and_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state"))
    done = rlscope("calibrate")
    assert done.status == 0, done.stderr
    kept = json.loads((tmp_path / "state" / "calibration.json").read_text())
    assert not kept["short"]
    assert list(kept["ns_per_hit"]) == list(attach_methods(kernel_version()))
    for method, costs in kept["ns_per_hit"].items():
        assert method in done.stdout
        whole = {name: cost["before"] + cost["after"] for name, cost in costs.items()}
        # Single-stepping is what makes the difference; how large it is, is the machine's affair.
        assert 100 < whole["nop5"] < whole["stepped"]
        assert 100 < whole["emulated"] < whole["stepped"]
        assert whole["return"] > 50
        assert all(cost["before"] > 0 and cost["after"] > 0 for cost in costs.values())
        assert 0.5 < costs["nop5"]["silent"] / whole["nop5"] < 2


def test_calibrate_without_a_place_to_keep_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "file"))
    rlscope("calibrate").refused(1, "cannot be written", STATE_VARIABLE)


def test_an_engine_is_as_new_after_it() -> None:
    engine = Engine(attach_methods(kernel_version())[0])
    try:
        first = measure(engine, 200)
        assert engine.counters().total_hits == engine.counters().sent == 0
        assert engine.pending_events() == 0
        again = measure(engine, 200)
        assert again.entries[2].whole > 100 < first.entries[2].whole
    finally:
        engine.close()


def test_an_attach_measures_in_passing_and_the_next_one_uses_it(
    start_target: StartTarget, attach: Attach, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state"))
    target = start_target(sys.executable, LOOP)
    target.go()
    kept = tmp_path / "state" / "calibration-short.json"
    found = []
    for _ in range(2):
        profiler, trace = attach(target)
        time.sleep(1)
        profiler.signal(signal.SIGINT)
        assert profiler.wait() == 0
        document = report(trace)
        assert document["overhead"]["calibrated"]
        assert document["overhead"]["overcorrected_ns"] == 0
        header = rlscope_ebpf.open(trace).info.calibration
        found.append((header["measured_at"], header["ns_per_hit"], kept.read_bytes()))
        assert json.loads(kept.read_text())["short"]
        (process,) = document["processes"]
        raw = sum(row["raw"]["wall_ns"] for row in process["operations"])
        corrected = sum(row["corrected"]["wall_ns"] for row in process["operations"])
        # What was taken out of the intervals is what all hits took, but for the rounds in which the session began and
        # ended; all are alike. A round spins for 2 ms, so that there are many, also where others are at work.
        rounds = sum(row["count"] for row in process["operations"])
        assert rounds >= 20  # so that those two are a tenth at most
        assert raw - corrected == pytest.approx(document["overhead"]["estimated_ns"], rel=0.15)
        assert document["overhead"]["estimated_ns"] > 0
    assert found[0] == found[1]


def test_probes_that_do_nothing_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "add_target", lambda *_args, **_options: None)
    with pytest.raises(CalibrationError, match="sent 0 events"):
        measure_method(attach_methods(kernel_version())[0], 200)
