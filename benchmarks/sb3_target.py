"""The PPO loop of tests/targets/sb3_loop.py, an iteration at a time: the target of `training.py` and `attaching.py`.

Prints `READY pid`. Answers each line "N" with the seconds that each of N iterations took, separated by blanks. An
iteration is a rollout and the updates after it: always the same number of steps. The seed is fixed.
"""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks.processes import load_target_module


class Iterations(BaseCallback):
    """Notes when each rollout begins; ends after so many."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[float] = []
        self.wanted = 0

    def _on_rollout_start(self) -> None:
        self.begun.append(perf_counter())

    def _on_step(self) -> bool:
        return len(self.begun) <= self.wanted


def main() -> None:
    torch.set_num_threads(1)
    loop: Any = load_target_module("sb3_loop")
    model = loop.make("ppo")
    stopwatch = loop.Stopwatch()
    stopwatch.wrap(model.get_env(), "step", "env.step")
    stopwatch.wrap(model.policy, "forward", "predict")
    stopwatch.wrap(model, "train", "train")
    iterations = Iterations()
    print(f"READY {os.getpid()} {model.n_steps}", flush=True)
    for line in sys.stdin:
        iterations.begun.clear()
        iterations.wanted = int(line)
        # The last rollout is begun, and given up at its first step.
        model.learn(10**9, callback=iterations, reset_num_timesteps=False)
        begun = iterations.begun
        print(*(f"{after - before:.6f}" for before, after in pairwise(begun)), flush=True)


if __name__ == "__main__":
    main()
