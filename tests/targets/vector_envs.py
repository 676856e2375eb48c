"""Vectorised simulators, each in a process of its own, which measure their own simulation time.

    vector_envs.py subproc|ppo|async WORKERS STEPS

SB3's SubprocVecEnv (forkserver), alone or with PPO that learns, or Gymnasium's AsyncVectorEnv (fork). Each step is an
operation "simulate" that takes about a millisecond. TRUTH: of each worker its pid, its simulation time in ns without
and with the markers, and the number of steps.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import gymnasium
import numpy as np

from rlscope_ebpf import markers as rls


class Simulator(gymnasium.Env[Any, Any]):
    """Computes for a millisecond per step, and adds up how long that took on its own clock."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.spent_ns = self.around_ns = 0  # inside the operation, and with its markers
        self.steps = 0

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        """Nothing to set."""
        return np.zeros(2, np.float32), {}

    def step(self, _action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Simulate."""
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        with rls.operation("simulate"):
            begin = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            until = begin + 1_000_000
            while time.clock_gettime_ns(time.CLOCK_MONOTONIC) < until:
                pass
            self.spent_ns += time.clock_gettime_ns(time.CLOCK_MONOTONIC) - begin
        self.around_ns += time.clock_gettime_ns(time.CLOCK_MONOTONIC) - before
        self.steps += 1
        return np.zeros(2, np.float32), 0.0, False, False, {}

    def truth(self) -> tuple[int, int, int, int]:
        """Own pid, times, steps."""
        return os.getpid(), self.spent_ns, self.around_ns, self.steps


def make() -> Simulator:
    """One of them."""
    return Simulator()


def learn(vector: Any, steps: int) -> None:
    """PPO, as many steps of all workers together."""
    import torch
    from stable_baselines3 import PPO

    torch.set_num_threads(1)
    PPO("MlpPolicy", vector, n_steps=50, batch_size=100, device="cpu").learn(steps)


def main() -> None:
    """Make the workers once the profiler is there, let them work, and ask them."""
    kind, workers, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    print("READY", os.getpid(), flush=True)
    sys.stdin.readline()
    if kind != "async":
        from stable_baselines3.common.vec_env import SubprocVecEnv

        vector: Any = SubprocVecEnv([make] * workers)
    else:
        vector = gymnasium.vector.AsyncVectorEnv([make] * workers)
    vector.reset()
    print("WORKERS", flush=True)
    time.sleep(float(os.environ.get("SETTLE_S", "1")))
    if kind == "ppo":
        learn(vector, workers * steps)
    else:
        actions = np.zeros(workers, np.int64)
        for _ in range(steps):
            vector.step(actions)
    told = vector.call("truth") if kind == "async" else vector.env_method("truth")
    vector.close()
    print("TRUTH", json.dumps({"workers": [list(each) for each in told]}), flush=True)


if __name__ == "__main__":
    main()
