"""Stable-Baselines3 on the CPU: the report agrees with what the training script measures of itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import TARGETS, Profiler, Program, compare, report, total, until_it_agrees

from rlscope_ebpf.session.options import DEFAULT_MAX_OVERHEAD

pytestmark = [pytest.mark.system, pytest.mark.slow]

DEFAULT_LIMIT = ("--max-overhead", str(DEFAULT_MAX_OVERHEAD))
OPERATIONS = {"env.step", "predict", "train"}


@pytest.mark.parametrize(
    ("algorithm", "seconds", "options"),
    [
        ("ppo", 20, DEFAULT_LIMIT),
        ("dqn", 20, DEFAULT_LIMIT),
        ("ppo", 8, ()),
        ("dqn", 8, ()),
    ],
    ids=["ppo", "dqn", "ppo-without-limit", "dqn-without-limit"],
)
def test_training(
    algorithm: str,
    seconds: int,
    options: tuple[str, ...],
    start_target: Callable[..., Program],
    attach: Callable[..., tuple[Profiler, Path]],
) -> None:
    def attempt() -> tuple[tuple[Profiler, dict[str, Any], dict[str, Any]], list[Any]]:
        target = start_target(sys.executable, TARGETS / "sb3_loop.py", algorithm, "--seconds", str(seconds))
        profiler, trace = attach(target, *options, libraries=())
        target.go()
        truth = target.truth()
        target.finish()
        assert profiler.wait() == 0, profiler.stderr
        document = report(trace)
        return (profiler, truth, document), compare.compare(truth, document)

    profiler, truth, document = until_it_agrees(attempt)
    assert not any(document["losses"][name] for name in ("events", "texts", "threads", "unmatched", "late"))
    session = document["session"]
    assert session["complete"]
    shed = document["overhead"]["probes_shed"]  # within the default budget
    assert session["probes_armed"] == session["probes_attached"] - shed > 1000  # PyTorch's operators

    (process,) = document["processes"]
    assert {row["path"][0] for row in process["operations"] if row["path"]} == OPERATIONS
    shares = {
        category: total(document, truth["pid"], category) / truth["elapsed_ns"]
        for category in ("python", "backend", "simulator", "cuda_api")
    }
    assert shares["python"] > 0.1
    assert shares["backend"] > 0.05
    assert shares["simulator"] == 0  # CartPole is Python
    assert shares["cuda_api"] == 0
    train = next(row for row in process["operations"] if row["path"] == ["train"])
    assert train["raw"]["cpu_ns"]["backend"] > 0.3 * train["raw"]["wall_ns"]
    assert train["transitions"]["python_to_backend"] > train["count"]

    overhead = document["overhead"]
    assert 0 < overhead["fraction"] < 1
    if not options:
        assert overhead.get("probes_shed", 0) == 0
        assert "were removed" not in profiler.stderr
