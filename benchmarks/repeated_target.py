"""The same stretch of Stable-Baselines3 training again and again: `repeated_target.py ALGORITHM ENVIRONMENT`.

Prints `READY pid`. Answers each line "N NAME" with JSON: the seconds that N steps took, and its chunks, pieces of
training alike: the CPU time of each, and what a beat of the metronome took meanwhile (`metronome.py`), all in seconds.
Each time a new model of the same seed is made and trains in a new environment of the same seed, so the work is the same
to the last number. It lies in the operation NAME, with `env.step`, `predict` and `train` inside. What is prepared and
not timed lies outside.

A MuJoCo environment given to DQN, which wants discrete actions, gets three: the lowest, none, the highest.
"""

from __future__ import annotations

import json
import os
import sys
from time import perf_counter
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium
import numpy as np
import torch
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback

import rlscope_ebpf.markers as rls
from benchmarks.metronome import Metronome
from benchmarks.processes import load_target_module

SEED = 1
ALGORITHMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ppo": (PPO, {"n_steps": 64, "batch_size": 64, "n_epochs": 4}),
    "a2c": (A2C, {}),
    "dqn": (DQN, {"learning_starts": 100, "train_freq": 4, "buffer_size": 10_000}),
    "sac": (SAC, {"learning_starts": 16, "buffer_size": 10_000}),
}


CHUNK_STEPS = {"ppo": 64, "a2c": 50, "dqn": 200, "sac": 8}
"""Whole rollouts with the training after them, some tens to hundreds of milliseconds."""


class Chunks(BaseCallback):
    """Ends a chunk after so many steps."""

    def __init__(self, metronome: Metronome, steps: int) -> None:
        super().__init__()
        self._metronome, self._steps = metronome, steps

    def _on_step(self) -> bool:
        self._metronome.beat()
        if self.num_timesteps % self._steps == 0:
            self._metronome.chunk()
        return True


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


def beat_in_training(model: Any, metronome: Metronome) -> None:
    """A beat at each step of each optimizer."""
    owners = {"policy": model.policy, "actor": getattr(model, "actor", None), "critic": getattr(model, "critic", None)}
    optimizers = {id(each): each for owner in owners.values() if (each := getattr(owner, "optimizer", None))}
    for optimizer in optimizers.values():
        optimizer.register_step_post_hook(lambda *_: metronome.beat())


def main() -> None:
    algorithm, environment_name = sys.argv[1:]
    torch.set_num_threads(1)
    module: Any = load_target_module("stopwatch")
    metronome = Metronome()
    print(f"READY {os.getpid()}", flush=True)
    for line in sys.stdin:
        steps, name = line.split()
        model = make(algorithm, environment_name)
        beat_in_training(model, metronome)
        stopwatch = module.Stopwatch()
        stopwatch.wrap(model.get_env(), "step", "env.step")
        stopwatch.wrap(*((model.policy, "forward") if algorithm in ("ppo", "a2c") else (model, "predict")), "predict")
        stopwatch.wrap(model, "train", "train")
        chunks = Chunks(metronome, CHUNK_STEPS[algorithm])
        with rls.operation(name):
            metronome.restart()
            begun = perf_counter()
            model.learn(int(steps), callback=chunks)
            seconds = perf_counter() - begun
        print(json.dumps({"seconds": seconds, "chunks": metronome.chunks}), flush=True)


if __name__ == "__main__":
    main()
