"""Stable-Baselines3 PPO or DQN on CartPole, CPU only: a real training loop that measures itself.

    python sb3_loop.py ppo|dqn [--seconds 20]

The methods of interest are wrapped at run time, as a user's wrapper script would do it, in an operation and in
readings of `perf_counter_ns`: `env.step`, the policy's forward pass in the rollout ("predict"), and `train`. Self time:
a call inside another counts for the innermost only, as in the report.

Protocol of truth.py: prints `READY pid`, waits for a line on stdin, trains for the given seconds, prints `TRUTH json`.
The truth names wall time and counts only: what of it is Python or PyTorch, the program cannot know.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from time import perf_counter_ns

os.environ.setdefault("OMP_NUM_THREADS", "1")

try:
    import rlscope_ebpf.markers as rls
except ModuleNotFoundError:  # not installed: the checkout that this file lies in
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    import rlscope_ebpf.markers as rls

import gymnasium
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stopwatch import Stopwatch

ENVIRONMENT = "CartPole-v1"
SEED = 1


class Until(BaseCallback):
    """Ends training after so many seconds, and reports progress."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._end_ns = perf_counter_ns() + int(seconds * 1e9)

    def _on_step(self) -> bool:
        rls.progress(self.num_timesteps)
        return perf_counter_ns() < self._end_ns


def make(algorithm: str) -> BaseAlgorithm:
    """A model with settings small enough that a few seconds show every part of the loop."""
    environment = gymnasium.make(ENVIRONMENT)
    if algorithm == "ppo":
        return PPO("MlpPolicy", environment, device="cpu", seed=SEED, n_steps=512, batch_size=64, n_epochs=4)
    return DQN("MlpPolicy", environment, device="cpu", seed=SEED, learning_starts=100, train_freq=4, buffer_size=10_000)


def main() -> int:
    parser = argparse.ArgumentParser(description="Trains with Stable-Baselines3 and measures itself.")
    parser.add_argument("algorithm", choices=("ppo", "dqn"))
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()

    torch.set_num_threads(1)
    model = make(options.algorithm)
    stopwatch = Stopwatch()
    environment = model.get_env()
    assert environment is not None
    stopwatch.wrap(environment, "step", "env.step")
    # PPO asks its policy directly while it collects; DQN by way of `predict`.
    stopwatch.wrap(*((model.policy, "forward") if options.algorithm == "ppo" else (model, "predict")), "predict")
    stopwatch.wrap(model, "train", "train")

    print(f"READY {os.getpid()}", flush=True)
    if not sys.stdin.readline():
        return 1
    rls.metadata(algorithm=options.algorithm.upper(), environment=ENVIRONMENT)
    start = perf_counter_ns()
    model.learn(10**9, callback=Until(options.seconds))
    truth = {
        "schema": "rlscope-ebpf.truth/1",
        "pid": os.getpid(),
        "algorithm": options.algorithm,
        "timesteps": model.num_timesteps,
        "elapsed_ns": perf_counter_ns() - start,
        "operations": stopwatch.operations(),
    }
    print("TRUTH", json.dumps(truth), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
