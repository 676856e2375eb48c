"""`demo`: what a person tries first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from harness import report, rlscope

pytestmark = [pytest.mark.system, pytest.mark.slow]


def test_demo_shows_python_simulator_and_backend(tmp_path: Path) -> None:
    done = rlscope("demo", "-o", tmp_path / "demo.rlscope", folder=tmp_path)
    assert done.status == 0, done.stderr
    document = report(tmp_path / "demo.rlscope")
    assert document["session"]["complete"]
    assert document["losses"]["events"] == 0
    (process,) = document["processes"]
    wall_ns = sum(row["raw"]["wall_ns"] for row in process["operations"] if row["path"])
    for category in ("python", "simulator", "backend"):
        category_ns = sum(row["raw"]["cpu_ns"][category] for row in process["operations"] if row["path"])
        assert category_ns > 0.03 * wall_ns, category
    names = {row["path"][-1] for row in process["operations"] if row["path"]}
    assert len(names) >= 3
    assert process["end_ns"] - process["start_ns"] < 60e9
    # The summary on stdout says the same.
    header = next(line for line in done.stdout.splitlines() if re.search(r"\boperation\b", line))
    for word in ("Python", "simulator", "backend"):
        assert word in header
    for name in names:
        assert name in done.stdout
