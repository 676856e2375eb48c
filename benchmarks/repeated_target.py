"""The same stretch of Stable-Baselines3 training again and again: `repeated_target.py ALGORITHM ENVIRONMENT`.

Prints `READY pid`. Answers each line "N NAME" with the seconds that N steps took. Each time a new model of the same
seed is made and trains in a new environment of the same seed, so the work is the same to the last number. It lies in
the operation NAME, with those of `sb3_loop.py` inside. What is prepared and not timed lies outside.

A MuJoCo environment given to DQN, which wants discrete actions, gets three: the lowest, none, the highest.
"""

from __future__ import annotations

import os
import sys
from time import perf_counter
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium
import numpy as np
import torch
from stable_baselines3 import A2C, DQN, PPO, SAC

import rlscope_ebpf.markers as rls
from benchmarks.processes import load_target_module

SEED = 1
ALGORITHMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ppo": (PPO, {"n_steps": 512, "batch_size": 64, "n_epochs": 4}),
    "a2c": (A2C, {}),
    "dqn": (DQN, {"learning_starts": 100, "train_freq": 4, "buffer_size": 10_000}),
    "sac": (SAC, {"learning_starts": 100, "buffer_size": 10_000}),
}


class ThreeActions(gymnasium.ActionWrapper[Any, Any, Any]):
    """The lowest action, none, the highest."""

    def __init__(self, environment: gymnasium.Env[Any, Any]) -> None:
        super().__init__(environment)
        box: Any = environment.action_space
        self._actions = (box.low, np.zeros_like(box.low), box.high)
        self.action_space = gymnasium.spaces.Discrete(len(self._actions))

    def action(self, action: Any) -> Any:
        return self._actions[int(action)]


def make(algorithm: str, environment_name: str) -> Any:
    """A new model in a new environment."""
    made, options = ALGORITHMS[algorithm]
    environment: gymnasium.Env[Any, Any] = gymnasium.make(environment_name)
    if algorithm == "dqn" and not isinstance(environment.action_space, gymnasium.spaces.Discrete):
        environment = ThreeActions(environment)
    return made("MlpPolicy", environment, device="cpu", seed=SEED, **options)


def main() -> None:
    algorithm, environment_name = sys.argv[1:]
    torch.set_num_threads(1)
    loop: Any = load_target_module("sb3_loop")
    print(f"READY {os.getpid()}", flush=True)
    for line in sys.stdin:
        steps, name = line.split()
        model = make(algorithm, environment_name)
        stopwatch = loop.Stopwatch()
        stopwatch.wrap(model.get_env(), "step", "env.step")
        stopwatch.wrap(*((model.policy, "forward") if algorithm in ("ppo", "a2c") else (model, "predict")), "predict")
        stopwatch.wrap(model, "train", "train")
        with rls.operation(name):
            begun = perf_counter()
            model.learn(int(steps))
            seconds = perf_counter() - begun
        print(f"{seconds:.6f}", flush=True)


if __name__ == "__main__":
    main()
