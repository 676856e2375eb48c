"""Whether the host is idle while a calibration is taken."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from rlscope_ebpf.calibration import load, measure, store
from rlscope_ebpf.calibration.load import NOTICEABLE, OtherLoad, busy_s
from rlscope_ebpf.cli.calibrate import command
from rlscope_ebpf.model.calibration import BUILT_IN

TICK = os.sysconf("SC_CLK_TCK")
#                user nice system idle iowait irq softirq steal guest guest_nice
STAT = "intr 5\ncpu  {user} 10 20 9000 700 3 4 5 600 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"


def test_waiting_and_guests_are_not_counted() -> None:
    assert busy_s(STAT.format(user=100)) == (100 + 10 + 20 + 3 + 4 + 5) / TICK
    for text in ("", "cpu0 1 2 3", "cpu a b c"):
        with pytest.raises(ValueError):
            busy_s(text)


def test_our_own_time_is_no_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock, times, stat = [0.0], [(0.0, 0.0, 0.0, 0.0, 0.0)], tmp_path / "stat"
    monkeypatch.setattr(load, "_STAT", stat)
    monkeypatch.setattr(load.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(load.os, "times", lambda: times[0])
    stat.write_text(STAT.format(user=0))
    others = OtherLoad()
    clock[0], times[0] = 2.0, (1.0, 0.25, 0.5, 0.25, 99.0)
    stat.write_text(STAT.format(user=5 * TICK))  # 5 s in 2 s, 2 of them our own
    assert others.processors() == pytest.approx(1.5)
    stat.unlink()
    assert others.processors() == 0.0


@pytest.mark.parametrize("busy", [0.0, NOTICEABLE - 0.01, NOTICEABLE, 1.5])
def test_calibrate_explains_itself_and_warns(busy: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(measure, "measure_method", lambda _method, progress: BUILT_IN)
    monkeypatch.setattr(store, "save", lambda _calibration: tmp_path / "calibration.json")
    monkeypatch.setattr(OtherLoad, "processors", lambda _self: busy)
    done = CliRunner().invoke(command)
    assert done.exit_code == 0, done.output
    assert "what one hit of a probe" in done.stderr
    assert "what one hit" not in done.stdout
    assert ("Other programs kept" in done.stderr) == (busy >= NOTICEABLE)
