"""A small actor-critic (PPO: Schulman et al., 2017) learns to balance cart-poles.

    python -m rlscope_ebpf.demo.train

An ordinary training program that happens to be annotated: it knows nothing of the profiler, and without one the
annotations cost next to nothing. Its physics runs in a native simulator, its network in NumPy. Attach from another
terminal, with the program's pid:

    sudo rlscope-ebpf attach --pid PID \\
        --library 'simulator=*librlscope_cartpole*' \\
        --library 'backend=*numpy*_multiarray_umath*'
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy: these matrices are too small to share out

import numpy as np
from numpy.typing import NDArray

import rlscope_ebpf.markers as rls
from rlscope_ebpf.demo.network import Adam, Array, Perceptron
from rlscope_ebpf.demo.simulator import ACTIONS, STATE_SIZE, CartPoles

CARTS = 1024
STEPS = 32  # of each cart in one iteration
ITERATIONS = 40
EPOCHS = 2  # times that an iteration's experience is used
MINIBATCH = 4096
HIDDEN = 48
DISCOUNT = 0.99
REWARD = 1 - DISCOUNT  # of each step, so that no state's value exceeds 1
TRACE = 0.95  # lambda of generalised advantage estimation
CLIP = 0.2
VALUE_WEIGHT = 0.5
ENTROPY_BONUS = 0.005
LEARNING_RATE = 4e-3
WARMUP_STEPS = 20
EVALUATION_EPISODES = 100


@dataclass(frozen=True, slots=True)
class Experience:
    """One iteration's steps: arrays of (STEPS, CARTS, …), time first."""

    inputs: Array
    actions: NDArray[np.intp]
    log_probabilities: Array
    values: Array
    rewards: Array
    ended: NDArray[np.bool_]
    last_values: Array  # (CARTS,): of the states after the last step


class Agent:
    """A policy and a value estimate, both by one network, and how to improve them."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.shuffle = random.Random(seed).shuffle
        self.network = Perceptron((STATE_SIZE, HIDDEN, HIDDEN, ACTIONS + 1), 0.01, self.random)
        self.mean = np.zeros(STATE_SIZE)
        self.scale = np.ones(STATE_SIZE)
        self.optimizer = Adam(self.network.parameters, LEARNING_RATE)

    def normalized(self, states: NDArray[np.float64]) -> Array:
        """What the network sees of the states."""
        return ((states - self.mean) * self.scale).astype(np.float32)

    def act(self, inputs: Array) -> tuple[NDArray[np.intp], Array, Array]:
        """A random action of each cart by its policy, that action's log-probability, and the state's value."""
        outputs = self.network.forward(inputs)[-1]
        log_policy = log_softmax(outputs[:, :ACTIONS])
        actions = (self.random.random(len(inputs)) < np.exp(log_policy[:, 1])).astype(np.intp)
        return actions, chosen(log_policy, actions), outputs[:, ACTIONS]

    def best(self, inputs: Array) -> NDArray[np.intp]:
        """The likeliest action of each cart."""
        actions: NDArray[np.intp] = self.network.forward(inputs)[-1][:, :ACTIONS].argmax(axis=1)
        return actions

    def values(self, inputs: Array) -> Array:
        """(batch,): the return to be expected from each state."""
        return self.network.forward(inputs)[-1][:, ACTIONS]

    def improve(self, inputs: Array, actions: NDArray[np.intp], old: Array, advantages: Array, returns: Array) -> None:
        """One step of gradient descent on a minibatch."""
        activations = self.network.forward(inputs)
        outputs = activations[-1]
        log_policy = log_softmax(outputs[:, :ACTIONS])
        policy = np.exp(log_policy)

        # The clipped objective has no slope where the ratio has left the range in the direction of the advantage.
        ratio = np.exp(chosen(log_policy, actions) - old)
        inside = np.where(advantages > 0, ratio < 1 + CLIP, ratio > 1 - CLIP)
        slope = ratio * advantages * inside
        entropy = -(policy * log_policy).sum(axis=1, keepdims=True)

        gradient = np.empty_like(outputs)
        gradient[:, :ACTIONS] = policy * (slope[:, None] + ENTROPY_BONUS * (log_policy + entropy))
        gradient[np.arange(len(actions)), actions] -= slope
        gradient[:, ACTIONS] = VALUE_WEIGHT * (outputs[:, ACTIONS] - returns)
        gradient /= len(inputs)
        self.optimizer.step(self.network.gradients(activations, gradient))


def log_softmax(logits: Array) -> Array:
    """Logarithm of the softmax of each row."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def chosen(table: Array, columns: NDArray[np.intp]) -> Array:
    """Of each row, the element in that row's column."""
    result: Array = table[np.arange(len(columns)), columns]
    return result


def listed(values: NDArray[Any]) -> list[Any]:
    """The array as lists of Python numbers. NumPy's own `tolist` would be a call into its library for each number."""
    return np.ascontiguousarray(values).data.tolist()


class Returns:
    """Returns of finished episodes; here the return is the number of steps."""

    def __init__(self, carts: int) -> None:
        self.latest: deque[int] = deque(maxlen=EVALUATION_EPISODES)
        self._running = [0] * carts

    def add(self, ended: Iterable[bool]) -> None:
        """All carts made a step, which ended the episode of some."""
        for cart, done in enumerate(ended):
            self._running[cart] += 1
            if done:
                self.latest.append(self._running[cart])
                self._running[cart] = 0

    def mean(self) -> float:
        """Of the latest episodes."""
        return sum(self.latest) / max(1, len(self.latest))


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
    actions = np.zeros((STEPS, CARTS), dtype=np.intp)
    log_probabilities, values = (np.zeros((STEPS, CARTS), dtype=np.float32) for _ in range(2))
    rewards = np.full((STEPS, CARTS), REWARD, dtype=np.float32)
    ended = np.zeros((STEPS, CARTS), dtype=np.bool_)

    inputs[0] = agent.normalized(carts.observe())
    for t in range(STEPS):
        with rls.operation("inference"):
            actions[t], log_probabilities[t], values[t] = agent.act(inputs[t])
        with rls.operation("simulation"):
            step = carts.step(actions[t])
        inputs[t + 1] = agent.normalized(step.states)
        ended[t] = step.terminated | step.truncated
        if step.truncated.any():  # cut short, not failed: what would have come is worth its estimate
            cut = step.truncated
            rewards[t, cut] += DISCOUNT * agent.values(agent.normalized(step.last_states[cut]))
        returns.add(listed(ended[t]))
    return Experience(inputs[:STEPS], actions, log_probabilities, values, rewards, ended, agent.values(inputs[STEPS]))


@rls.operation("advantages")
def advantages_of(experience: Experience) -> Array:
    """(STEPS, CARTS): how much better each action was than expected (generalised advantage estimation).

    Cart by cart in plain Python, the way papers write it down; a profile shows what that costs.
    """
    by_cart = (listed(each.T) for each in (experience.values, experience.rewards, experience.ended))
    backwards = array("f")
    for values, rewards, ended, following in zip(*by_cart, listed(experience.last_values), strict=True):
        advantage = 0.0
        for value, reward, end in zip(reversed(values), reversed(rewards), reversed(ended), strict=True):
            goes_on = 0.0 if end else DISCOUNT
            advantage = reward + goes_on * following - value + TRACE * goes_on * advantage
            backwards.append(advantage)
            following = value
    result: Array = np.frombuffer(backwards, dtype=np.float32).reshape(CARTS, STEPS).T[::-1]
    return result


@rls.operation("train_step")
def train_step(agent: Agent, experience: Experience, advantages: Array) -> None:
    """Improve the agent by what it has experienced."""
    size = STEPS * CARTS
    inputs = experience.inputs.reshape(size, STATE_SIZE)
    actions, old = experience.actions.reshape(size), experience.log_probabilities.reshape(size)
    returns = (advantages + experience.values).reshape(size)
    advantages = ((advantages - advantages.mean()) / (advantages.std() + 1e-8)).reshape(size)
    order = array("q", range(size))
    shuffled = np.frombuffer(order, dtype=np.int64)
    for _ in range(EPOCHS):
        agent.shuffle(order)
        for start in range(0, size, MINIBATCH):
            rows = shuffled[start : start + MINIBATCH]
            agent.improve(inputs[rows], actions[rows], old[rows], advantages[rows], returns[rows])


def evaluate(agent: Agent, seed: int) -> float:
    """Mean return of the likeliest actions over the first episodes that end."""
    carts, returns = CartPoles(EVALUATION_EPISODES, seed), Returns(EVALUATION_EPISODES)
    states = carts.observe()
    while len(returns.latest) < EVALUATION_EPISODES:
        with rls.operation("inference"):
            actions = agent.best(agent.normalized(states))
        with rls.operation("simulation"):
            step = carts.step(actions)
        states = step.states
        returns.add(listed(step.terminated | step.truncated))
    carts.close()
    return returns.mean()


def train(iterations: int, seed: int, talk: Any = sys.stderr) -> float:
    """Learns, and returns the mean return that the learned policy reaches; tells its progress to `talk`."""
    rls.metadata(algorithm="PPO", environment="CartPole", carts=CARTS, seed=seed)
    agent, carts, returns = Agent(seed), CartPoles(CARTS, seed), Returns(CARTS)

    rls.phase("warmup")
    warm_up(agent, carts)

    rls.phase("training")
    for iteration in range(1, iterations + 1):
        experience = rollout(agent, carts, returns)
        train_step(agent, experience, advantages_of(experience))
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
