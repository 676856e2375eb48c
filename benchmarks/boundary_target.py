"""Training loops whose time in PyTorch is known from within: `boundary_target.py mlp|ppo cpu|cuda`.

Prints `READY pid`. Answers "run N" with what N iterations took, as JSON: `cpu_s` of the training thread, and by
operation its `count` and `wall_ns`, self time. With "run N reference" PyTorch's functions are wrapped meanwhile (see
`torch_reference`), and there are also `functions` by operation and name, with count and ns, and what stamping takes:
`between_ns`, `more_ns`. With "run N others" it is those functions that concern no tensor.

* `mlp`: 16 steps of a cart-pole written in Python, each with a forward pass of a small network for one observation;
  then a training step with Adam on a batch of 64.
* `ppo`: Stable-Baselines3 PPO on CartPole, rollouts of 64 steps.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from benchmarks.processes import load_target_module
from benchmarks.torch_reference import Recorder, Reference

STEPS = 16
BATCH = 64
ROLLOUT = 64

Iterations = Callable[[int], None]
Stopwatch = Any


class CartPole:
    """The usual one, without a library."""

    def __init__(self) -> None:
        self.state = [0.01, 0.0, 0.02, 0.0]

    def step(self, action: int) -> list[float]:
        """The next state; it begins anew when the pole falls."""
        x, x_dot, theta, theta_dot = self.state
        force = 10.0 if action else -10.0
        cosine, sine = math.cos(theta), math.sin(theta)
        temporary = (force + 0.05 * theta_dot**2 * sine) / 1.1
        theta_acceleration = (9.8 * sine - cosine * temporary) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
        x_acceleration = temporary - 0.05 * theta_acceleration * cosine / 1.1
        self.state = [
            x + 0.02 * x_dot,
            x_dot + 0.02 * x_acceleration,
            theta + 0.02 * theta_dot,
            theta_dot + 0.02 * theta_acceleration,
        ]
        if abs(self.state[2]) > 0.21 or abs(self.state[0]) > 2.4:
            self.state = [0.01, 0.0, 0.02, 0.0]
        return self.state


class Mlp:
    """A training loop with PyTorch alone."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(1)
        self.device = device
        self.environment = CartPole()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2)
        ).to(device)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-4)
        self.inputs = torch.randn(BATCH, 4, device=device)
        self.targets = torch.randn(BATCH, 2, device=device)

    def predict(self) -> int:
        """One forward pass for one observation."""
        with torch.no_grad():
            observation = torch.tensor(self.environment.state, device=self.device)
            return int(self.net(observation.unsqueeze(0)).argmax(1).item())

    def train(self) -> None:
        """One step of the optimiser."""
        self.optimizer.zero_grad()
        loss: Any = torch.nn.functional.mse_loss(self.net(self.inputs), self.targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
        self.optimizer.step()


def mlp(device: str, stopwatch: Stopwatch) -> Iterations:
    loop = Mlp(device)
    stopwatch.wrap(loop.environment, "step", "env.step")
    stopwatch.wrap(loop, "predict", "predict")
    stopwatch.wrap(loop, "train", "train")

    def run(count: int) -> None:
        for _ in range(count):
            for _ in range(STEPS):
                loop.environment.step(loop.predict())
            loop.train()

    return run


def ppo(device: str, stopwatch: Stopwatch) -> Iterations:
    import gymnasium
    from stable_baselines3 import PPO

    model = PPO("MlpPolicy", gymnasium.make("CartPole-v1"), device=device, seed=1, n_steps=ROLLOUT, n_epochs=4)
    environment = model.get_env()
    assert environment is not None
    stopwatch.wrap(environment, "step", "env.step")
    stopwatch.wrap(model.policy, "forward", "predict")
    stopwatch.wrap(model, "train", "train")

    def run(count: int) -> None:
        model.learn(count * ROLLOUT, reset_num_timesteps=False)

    return run


def _follow(recorders: Sequence[Recorder], loop: Any) -> type[Any]:
    """A stopwatch that also tells the recorders in which operation it is."""

    class Followed(loop.Stopwatch):  # type: ignore[misc]
        @property
        def _path(self) -> tuple[str, ...]:
            return self._current

        @_path.setter
        def _path(self, path: tuple[str, ...]) -> None:
            self._current = path
            for recorder in recorders:
                recorder.operation = path[-1] if path else ""

    return Followed


def main() -> None:
    workload, device = sys.argv[1:]
    torch.set_num_threads(1)
    references = {"reference": Reference(), "others": Reference(others=True)}
    recorders = [reference.recorder for reference in references.values()]
    stopwatch = _follow(recorders, load_target_module("stopwatch"))()
    run = {"mlp": mlp, "ppo": ppo}[workload](device, stopwatch)
    run(3)
    print(f"READY {os.getpid()}", flush=True)
    for line in sys.stdin:
        count, *wants = line.split()[1:]
        stopwatch.totals.clear()
        with ExitStack() as stack:
            recorder = stack.enter_context(references[wants[0]]) if wants else None
            begun_ns = time.thread_time_ns()
            run(int(count))
            if device == "cuda":
                torch.cuda.synchronize()
            cpu_ns = time.thread_time_ns() - begun_ns
        answer: dict[str, Any] = {
            "cpu_s": cpu_ns / 1e9,
            "operations": {
                "/".join(path): {"count": found, "wall_ns": wall_ns}
                for path, (found, wall_ns) in stopwatch.totals.items()
            },
        }
        if recorder is not None:
            answer |= asdict(references[wants[0]].stamping())
            for (operation, name), calls in recorder.functions.items():
                answer["operations"].setdefault(operation, {"count": 0, "wall_ns": 0}).setdefault("functions", {})[
                    name
                ] = [calls.count, calls.ns]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
