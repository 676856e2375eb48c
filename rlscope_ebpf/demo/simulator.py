"""Many cart-poles, simulated by a native library (userspace/demo/cartpole.c) that is called through ctypes."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.demo.build import simulator_library

STATE_SIZE = 4
ACTIONS = 2


@dataclass(frozen=True, slots=True)
class Step:
    """What a control step led to. Arrays belong to the simulator and are overwritten by the next step."""

    states: NDArray[np.float64]  # (carts, STATE_SIZE): now, of a new episode where the old one ended
    last_states: NDArray[np.float64]  # (carts, STATE_SIZE): where the step ended, before any new episode
    terminated: NDArray[np.bool_]  # (carts,): the pole fell or the cart left the track
    truncated: NDArray[np.bool_]  # (carts,): the episode reached its longest duration


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(str(simulator_library()))
    pointer = ctypes.c_void_p
    library.cartpole_create.restype = pointer
    library.cartpole_create.argtypes = (ctypes.c_int32, ctypes.c_uint64)
    library.cartpole_destroy.restype = None
    library.cartpole_destroy.argtypes = (pointer,)
    library.cartpole_observe.restype = None
    library.cartpole_observe.argtypes = (pointer, pointer)
    library.cartpole_step.restype = None
    library.cartpole_step.argtypes = (pointer,) * 6
    return library


class CartPoles:
    """`count` carts side by side. A finished episode is followed by a new one at once."""

    def __init__(self, count: int, seed: int) -> None:
        self._library = _load()
        self._world = self._library.cartpole_create(count, seed)
        if not self._world:
            raise MemoryError(f"no memory for {count} carts")
        self._actions = np.zeros(count, dtype=np.int32)
        self._step = Step(
            states=np.zeros((count, STATE_SIZE)),
            last_states=np.zeros((count, STATE_SIZE)),
            terminated=np.zeros(count, dtype=np.bool_),
            truncated=np.zeros(count, dtype=np.bool_),
        )
        # Addresses once, not at each step.
        self._arguments = (
            self._world,
            *(
                array.ctypes.data
                for array in (
                    self._actions,
                    self._step.states,
                    self._step.last_states,
                    self._step.terminated,
                    self._step.truncated,
                )
            ),
        )

    def observe(self) -> NDArray[np.float64]:
        """(count, STATE_SIZE): position, velocity, angle, angular velocity of each cart."""
        self._library.cartpole_observe(self._world, self._step.states.ctypes.data)
        return self._step.states

    def step(self, actions: NDArray[Any]) -> Step:
        """Push each cart to the left (0) or to the right (1) for one control step. Each step is worth a reward of 1."""
        self._actions[:] = actions
        self._library.cartpole_step(*self._arguments)
        return self._step

    def close(self) -> None:
        """Gives the memory back. Nothing else may be called afterwards."""
        self._library.cartpole_destroy(self._world)
        self._world = None
