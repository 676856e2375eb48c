"""The bundled training loop: physics, learning, determinism, and finding the simulator's library."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rlscope_ebpf.demo import build
from rlscope_ebpf.demo.network import Adam, Perceptron
from rlscope_ebpf.demo.simulator import CartPoles
from rlscope_ebpf.errors import UnsupportedError


def run(*options: str) -> tuple[float, str]:
    """The mean return and the talk of the program run on its own, as its users run it."""
    command = [sys.executable, "-m", "rlscope_ebpf.demo.train", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=build.PACKAGE.parent)
    (line,) = done.stdout.splitlines()
    found = re.fullmatch(r"mean return (\d+\.\d) over 100 episodes", line)
    assert found, line
    return float(found[1]), done.stderr


def test_learns() -> None:
    result, talk = run("--iterations", "20")
    assert result >= 195
    assert "iteration   20 of 20: mean return" in talk


def test_cannot_balance_untrained() -> None:
    assert run("--iterations", "0")[0] < 100


def test_does_the_same_again() -> None:
    first, talk = run("--iterations", "2")
    again, talk_again = run("--iterations", "2")
    assert first == again
    assert talk.splitlines()[1:] == talk_again.splitlines()[1:]  # all but the pid
    assert run("--iterations", "2", "--seed", "2") != (first, talk)


def test_carts_start_near_upright_and_fall_when_pushed_one_way() -> None:
    carts = CartPoles(16, seed=3)
    start = carts.observe().copy()
    assert np.all(np.abs(start) <= 0.05)
    assert len(np.unique(start)) == start.size  # no two carts alike
    for steps in range(1, 30):
        step = carts.step(np.ones(16))
        if step.terminated.all() or steps > 20:
            break
        if step.terminated.any():
            ended = step.terminated
            assert np.all(np.abs(step.last_states[ended, 2]) > 0.2094)
            assert np.all(step.last_states[ended, 2] < 0)  # pushed to the right, it falls to the left
            assert np.all(np.abs(step.states[ended]) <= 0.05)  # and a new episode has begun
            assert not step.truncated.any()
            carts.close()
            return
    pytest.fail("no pole fell")


def test_one_step_agrees_with_a_fine_integration_of_the_same_equations() -> None:
    carts = CartPoles(4, seed=5)
    state = carts.observe().copy()
    actions = np.array([0, 1, 0, 1])
    reached = carts.step(actions).last_states.copy()
    carts.close()
    force, parts = np.where(actions, 10.0, -10.0), 20_000
    for _ in range(parts):
        _, velocity, angle, turning = state.T
        push = (force + 0.05 * turning**2 * np.sin(angle)) / 1.1
        bend = (9.8 * np.sin(angle) - np.cos(angle) * push) / (0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1))
        slope = np.stack([velocity, push - 0.05 * bend * np.cos(angle) / 1.1, turning, bend], axis=1)
        state = state + slope * 0.02 / parts
    np.testing.assert_allclose(reached, state, atol=1e-6)


def test_gradients_agree_with_finite_differences() -> None:
    random = np.random.default_rng(0)
    network = Perceptron((3, 5, 4, 2), 1.0, random)
    network.use(network.parameters.astype(np.float64))  # type: ignore[arg-type]
    inputs, weights = random.normal(size=(7, 3)), random.normal(size=(7, 2))
    gradients = network.gradients(network.forward(inputs), weights)  # type: ignore[arg-type]
    assert gradients.shape == network.parameters.shape
    for index in range(len(gradients)):
        numbers = []
        for change in (1e-6, -2e-6):
            network.parameters[index] += change
            numbers.append(float((network.forward(inputs)[-1] * weights).sum()))  # type: ignore[arg-type]
        network.parameters[index] += 1e-6
        assert gradients[index] == pytest.approx((numbers[0] - numbers[1]) / 2e-6, rel=1e-5, abs=1e-8)


def test_adam_descends() -> None:
    point = np.array([3.0, -2.0], dtype=np.float32)
    adam = Adam(point, 0.1)
    for _ in range(200):
        adam.step(2 * point)
    assert np.all(np.abs(point) < 0.05)


@pytest.fixture
def nothing_packaged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(build, "PACKAGE", tmp_path / "package")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_compiles_the_simulator_once(nothing_packaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = build.simulator_library()
    assert library.is_relative_to(nothing_packaged / "cache")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("compiled again"))
    assert build.simulator_library() == library


def test_packaged_library_comes_first(nothing_packaged: Path) -> None:
    packaged = nothing_packaged / "package" / build.LIBRARY
    packaged.parent.mkdir()
    packaged.touch()
    assert build.simulator_library() == packaged


def test_says_what_to_do_without_source_or_compiler(nothing_packaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(UnsupportedError, match="apt-get install gcc"):
        build.simulator_library()
    monkeypatch.setattr(build, "SOURCE", nothing_packaged / "absent.c")
    with pytest.raises(UnsupportedError, match="checkout"):
        build.simulator_library()


def test_says_what_the_compiler_said(nothing_packaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = nothing_packaged / "broken.c"
    broken.write_text("this is not C\n")
    monkeypatch.setattr(build, "SOURCE", broken)
    with pytest.raises(UnsupportedError, match=r"broken\.c"):
        build.simulator_library()
    assert not list((nothing_packaged / "cache").rglob("*.so"))
