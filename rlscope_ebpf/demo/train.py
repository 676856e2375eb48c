"""A small actor-critic (PPO: Schulman et al., 2017) learns to balance cart-poles.

    python -m rlscope_ebpf.demo.train

An ordinary training program that happens to be annotated: it knows nothing of the profiler, and without one the
annotations cost next to nothing. Its physics runs in a native simulator, its network in NumPy. Attach from another
terminal, with the program's pid:

    sudo rlscope-ebpf attach --pid PID \\
        --library 'simulator=*librlscope_cartpole*' \\
        --library 'backend=*numpy*_multiarray_umath*' --library 'backend=*openblas*'
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import deque
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy: these matrices are too small to share out

import numpy as np
from numpy.typing import NDArray

import rlscope_ebpf.markers as rls
from rlscope_ebpf.demo.network import Adam, Array, Perceptron
from rlscope_ebpf.demo.simulator import ACTIONS, STATE_SIZE, CartPoles

CARTS = 32
STEPS = 64  # of each cart in one iteration
ITERATIONS = 150
EPOCHS = 4  # times that an iteration's experience is used
MINIBATCH = 256
DISCOUNT = 0.99
TRACE = 0.95  # lambda of generalised advantage estimation
CLIP = 0.2
ENTROPY_BONUS = 0.005
LEARNING_RATE = 2e-3
WARMUP_STEPS = 200
EVALUATION_EPISODES = 100


@dataclass(frozen=True, slots=True)
class Experience:
    """One iteration's steps; arrays of (STEPS, CARTS, …)."""

    inputs: Array
    actions: NDArray[np.int32]
    log_probabilities: Array
    advantages: Array
    returns: Array


class Agent:
    """A policy, a value estimate, and how to improve both."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.actor = Perceptron((STATE_SIZE, 64, 64, ACTIONS), 0.01, self.random)
        self.critic = Perceptron((STATE_SIZE, 64, 64, 1), 1.0, self.random)
        self.mean = np.zeros(STATE_SIZE)
        self.scale = np.ones(STATE_SIZE)
        self.optimizer = Adam(self.actor.parameters + self.critic.parameters, LEARNING_RATE)

    def normalized(self, states: NDArray[np.float64]) -> Array:
        """What the networks see of the states."""
        return ((states - self.mean) * self.scale).astype(np.float32)

    def act(self, inputs: Array) -> tuple[NDArray[np.int32], Array, Array]:
        """A random action of each cart by its policy, that action's log-probability, and the state's value."""
        log_policy = log_softmax(self.actor.forward(inputs)[-1])
        actions = (self.random.random(len(inputs)) < np.exp(log_policy[:, 1])).astype(np.int32)
        return actions, chosen(log_policy, actions), self.values(inputs)

    def values(self, inputs: Array) -> Array:
        """(batch,): the return to be expected from each state."""
        return self.critic.forward(inputs)[-1][:, 0]

    def improve(self, inputs: Array, actions: NDArray[np.int32], old: Array, advantages: Array, returns: Array) -> None:
        """One step of gradient descent on a minibatch."""
        size = np.float32(len(inputs))
        actor, critic = self.actor.forward(inputs), self.critic.forward(inputs)
        log_policy = log_softmax(actor[-1])
        policy = np.exp(log_policy)

        # The clipped objective has no slope where the ratio has left the range in the direction of the advantage.
        ratio = np.exp(chosen(log_policy, actions) - old)
        inside = np.where(advantages > 0, ratio < 1 + CLIP, ratio > 1 - CLIP)
        slope = np.where(inside, -ratio * advantages, 0).astype(np.float32) / size
        actor_gradient = -policy * slope[:, None]
        actor_gradient[np.arange(len(actions)), actions] += slope
        entropy = -(policy * log_policy).sum(axis=1, keepdims=True)
        actor_gradient += np.float32(ENTROPY_BONUS) / size * policy * (log_policy + entropy)

        critic_gradient = (critic[-1] - returns[:, None]) / size
        self.optimizer.step(
            self.actor.gradients(actor, actor_gradient) + self.critic.gradients(critic, critic_gradient)
        )


def log_softmax(logits: Array) -> Array:
    """Logarithm of the softmax of each row."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def chosen(table: Array, columns: NDArray[np.int32]) -> Array:
    """Of each row, the element in that row's column."""
    result: Array = table[np.arange(len(columns)), columns]
    return result


class Returns:
    """Returns of finished episodes; here the return is the number of steps."""

    def __init__(self) -> None:
        self.latest: deque[int] = deque(maxlen=EVALUATION_EPISODES)
        self._running = np.zeros(CARTS, dtype=np.int64)

    def add(self, finished: NDArray[np.bool_]) -> None:
        """All carts made a step, which ended the episode of some."""
        self._running += 1
        if finished.any():
            self.latest.extend(int(steps) for steps in self._running[finished])
            self._running[finished] = 0

    def mean(self) -> float:
        """Of the latest episodes."""
        return float(np.mean(self.latest)) if self.latest else 0.0


def warm_up(agent: Agent, carts: CartPoles) -> None:
    """Push at random, to learn what the states' usual range is."""
    seen = []
    for _ in range(WARMUP_STEPS):
        with rls.operation("simulation"):
            step = carts.step(agent.random.integers(0, ACTIONS, CARTS))
        seen.append(step.states.copy())
    states = np.concatenate(seen)
    agent.mean, agent.scale = states.mean(axis=0), 1.0 / states.std(axis=0)


@rls.operation("rollout")
def rollout(agent: Agent, carts: CartPoles, returns: Returns) -> Experience:
    """Let the agent act for STEPS steps."""
    inputs = np.zeros((STEPS + 1, CARTS, STATE_SIZE), dtype=np.float32)
    actions = np.zeros((STEPS, CARTS), dtype=np.int32)
    log_probabilities, rewards, values = (np.zeros((STEPS, CARTS), dtype=np.float32) for _ in range(3))
    ended = np.zeros((STEPS, CARTS), dtype=np.bool_)

    inputs[0] = agent.normalized(carts.observe())
    for t in range(STEPS):
        with rls.operation("inference"):
            actions[t], log_probabilities[t], values[t] = agent.act(inputs[t])
        with rls.operation("simulation"):
            step = carts.step(actions[t])
        inputs[t + 1] = agent.normalized(step.states)
        ended[t] = step.terminated | step.truncated
        rewards[t] = 1.0
        if step.truncated.any():  # cut short, not failed: what would have come is worth its estimate
            cut = step.truncated
            rewards[t, cut] += DISCOUNT * agent.values(agent.normalized(step.last_states[cut]))
        returns.add(ended[t])

    advantages = np.zeros_like(rewards)
    following, advantage = agent.values(inputs[STEPS]), np.zeros(CARTS, dtype=np.float32)
    for t in reversed(range(STEPS)):
        goes_on = np.where(ended[t], np.float32(0), np.float32(DISCOUNT))
        advantage = rewards[t] + goes_on * following - values[t] + np.float32(TRACE) * goes_on * advantage
        advantages[t], following = advantage, values[t]
    return Experience(inputs[:STEPS], actions, log_probabilities, advantages, advantages + values)


@rls.operation("train_step")
def train_step(agent: Agent, experience: Experience) -> None:
    """Improve the agent by what it has experienced."""
    size = STEPS * CARTS
    inputs = experience.inputs.reshape(size, STATE_SIZE)
    actions, old = experience.actions.reshape(size), experience.log_probabilities.reshape(size)
    advantages, returns = experience.advantages.reshape(size), experience.returns.reshape(size)
    advantages = (advantages - advantages.mean()) / (advantages.std() + np.float32(1e-8))
    for _ in range(EPOCHS):
        order = agent.random.permutation(size)
        for start in range(0, size, MINIBATCH):
            rows = order[start : start + MINIBATCH]
            agent.improve(inputs[rows], actions[rows], old[rows], advantages[rows], returns[rows])


def evaluate(agent: Agent, seed: int) -> float:
    """Mean return of the likeliest actions over the first episodes that end."""
    carts, returns = CartPoles(CARTS, seed), Returns()
    states = carts.observe()
    while len(returns.latest) < EVALUATION_EPISODES:
        with rls.operation("inference"):
            actions = agent.actor.forward(agent.normalized(states))[-1].argmax(axis=1)
        with rls.operation("simulation"):
            step = carts.step(actions)
        states = step.states
        returns.add(step.terminated | step.truncated)
    carts.close()
    return returns.mean()


def train(iterations: int, seed: int, talk: Any = sys.stderr) -> float:
    """Learns, and returns the mean return that the learned policy reaches; tells its progress to `talk`."""
    rls.metadata(algorithm="PPO", environment="CartPole", carts=CARTS, seed=seed)
    agent, carts, returns = Agent(seed), CartPoles(CARTS, seed), Returns()

    rls.phase("warmup")
    warm_up(agent, carts)

    rls.phase("training")
    for iteration in range(1, iterations + 1):
        experience = rollout(agent, carts, returns)
        train_step(agent, experience)
        rls.progress(iteration, total=iterations)
        if iteration % 10 == 0 or iteration == iterations:
            talk.write(f"iteration {iteration:4d} of {iterations}: mean return {returns.mean():6.1f}\n")
            talk.flush()
    carts.close()

    rls.phase("evaluation")
    return evaluate(agent, seed + 1)


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m rlscope_ebpf.demo.train", description="Balance cart-poles.")
    parser.add_argument("--iterations", type=int, default=ITERATIONS, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    sys.stderr.write(f"pid {os.getpid()}\n")
    result = train(options.iterations, options.seed)
    sys.stdout.write(f"mean return {result:.1f} over {EVALUATION_EPISODES} episodes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
