"""Networks that say what a position is worth: on the simulated GPU, or with PyTorch on a real one."""

from __future__ import annotations

import ctypes
import os
import sys
import zlib
from pathlib import Path
from typing import Any, Protocol

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import build as native_build
from game import COLUMNS, FEATURES, ROWS

Evaluation = tuple[list[list[float]], list[float]]
"""Of each position how good each column is, and its worth for who is to move, -1 to 1."""

BATCH = 8
"""Positions that are evaluated together, at most."""

FORWARD = {"_Z5conv1PfS_": 12_000, "_Z5conv2PfS_": 12_000, "_Z6policyPfS_": 5_000, "_Z5valuePfS_": 4_000}
BACKWARD = {"_Z8backwardPfS_": 40_000, "_Z4adamPfS_i": 15_000}
"""Kernels of a pass on the simulated GPU: mangled name → duration, ns."""

LAUNCH_NS = 3_000
"""What a launch takes there."""


class Network(Protocol):
    """What self-play needs of a network."""

    inputs: ctypes.Array[ctypes.c_float]
    """BATCH positions' features."""

    def evaluate(self, count: int) -> Evaluation:
        """Evaluate the first `count` of the inputs."""

    def train(self, features: list[bytes], columns: list[int], results: list[float]) -> None:
        """Learn from positions: the column that was chosen, and how the game ended."""

    def truth(self) -> dict[str, Any]:
        """What the GPU was given, as far as it is known."""


class SimulatedNetwork:
    """Gives the simulated GPU the work of a small network; what it says of a position is a number made of its bytes."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL(str(native_build.native() / "libcuda.so.1"))
        self._functions = {name: ctypes.create_string_buffer(1) for name in (*FORWARD, *BACKWARD)}
        for name, function in self._functions.items():
            self._cuda.simcuda_set_kernel(function, name.encode(), ctypes.c_int64((FORWARD | BACKWARD)[name]))
        self._cuda.simcuda_set_ns(b"cuLaunchKernel", ctypes.c_int64(LAUNCH_NS))
        _check(self._cuda.cuInit(0))
        self.inputs = (ctypes.c_float * (BATCH * FEATURES))()
        self._outputs = (ctypes.c_float * (BATCH * (COLUMNS + 1)))()
        self._on_device = [self._allocate(ctypes.sizeof(each)) for each in (self.inputs, self._outputs)]
        self._launched = dict.fromkeys(self._functions, 0)

    def _allocate(self, size: int) -> ctypes.c_uint64:
        pointer = ctypes.c_uint64()
        _check(self._cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)))
        return pointer

    def _launch(self, names: dict[str, int]) -> None:
        for name in names:
            _check(self._cuda.cuLaunchKernel(self._functions[name], 1, 1, 1, 32, 1, 1, 0, None, None, None))
            self._launched[name] += 1

    def _pass(self, *kernels: dict[str, int]) -> None:
        given, found = self._on_device
        _check(self._cuda.cuMemcpyHtoDAsync_v2(given, self.inputs, ctypes.c_size_t(ctypes.sizeof(self.inputs)), None))
        for names in kernels:
            self._launch(names)
        size = ctypes.c_size_t(ctypes.sizeof(self._outputs))
        _check(self._cuda.cuMemcpyDtoHAsync_v2(self._outputs, found, size, None))
        _check(self._cuda.cuStreamSynchronize(None))

    def evaluate(self, count: int) -> Evaluation:
        """See Network."""
        self._pass(FORWARD)
        size = FEATURES * 4
        said = [zlib.crc32(bytes(self.inputs)[at * size : (at + 1) * size]) for at in range(count)]
        policies = [[1.0 + (number >> 4 * column & 15) for column in range(COLUMNS)] for number in said]
        return policies, [(number & 0xFF) / 255 - 0.5 for number in said]

    def train(self, features: list[bytes], columns: list[int], results: list[float]) -> None:
        """See Network."""
        self._pass(FORWARD, BACKWARD)

    def truth(self) -> dict[str, Any]:
        """Kernels by name, how long they are set to run, and what the GPU, if it is shared, did for this process."""
        durations = FORWARD | BACKWARD
        return {
            "launched": self._launched,
            "kernel_ns": sum(count * durations[name] for name, count in self._launched.items()),
            "device": device_work(self._cuda, os.getpid()),
        }


def device_work(cuda: Any, pid: int) -> dict[str, int] | None:
    """What the shared simulated GPU did for a process (0: for all); None if it is not shared."""
    names = ("kernels", "activities", "busy_ns", "first_start", "last_end", "gap_ns")
    found = (ctypes.c_int64 * len(names))()
    return None if cuda.simcuda_device_work(pid, found) else dict(zip(names, found, strict=True))


class TorchNetwork:
    """A small convolutional network of PyTorch's, on the first GPU."""

    def __init__(self, device: str) -> None:
        import torch

        torch.set_num_threads(1)
        self._torch, self._device = torch, torch.device(device)
        self.inputs = (ctypes.c_float * (BATCH * FEATURES))()
        self._host = torch.frombuffer(self.inputs, dtype=torch.float32).view(BATCH, 2, ROWS, COLUMNS)
        body = (torch.nn.Conv2d(2, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3, padding=1))
        head = (torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(32 * ROWS * COLUMNS, COLUMNS + 1))
        self._model = torch.nn.Sequential(*body, *head).to(self._device)
        self._optimizer = torch.optim.Adam(self._model.parameters(), 1e-3)
        self._evaluations = self._trainings = 0
        self.evaluate(BATCH)  # so that everything is loaded

    def evaluate(self, count: int) -> Evaluation:
        """See Network."""
        with self._torch.inference_mode():
            found = self._model(self._host[:count].to(self._device))
            policies = self._torch.softmax(found[:, :COLUMNS], 1)
            said = self._torch.cat([policies, self._torch.tanh(found[:, COLUMNS:])], 1).cpu().tolist()
        self._evaluations += 1
        return [row[:COLUMNS] for row in said], [row[COLUMNS] for row in said]

    def train(self, features: list[bytes], columns: list[int], results: list[float]) -> None:
        """See Network."""
        torch, functional = self._torch, self._torch.nn.functional
        inputs = torch.frombuffer(bytearray(b"".join(features)), dtype=torch.float32).view(-1, 2, ROWS, COLUMNS)
        found = self._model(inputs.to(self._device))
        chosen, ended = torch.tensor(columns, device=self._device), torch.tensor(results, device=self._device)
        loss = functional.cross_entropy(found[:, :COLUMNS], chosen)
        loss = loss + functional.mse_loss(torch.tanh(found[:, COLUMNS]), ended)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        loss.item()
        self._trainings += 1

    def truth(self) -> dict[str, Any]:
        """How often it was asked and trained: PyTorch chooses the kernels."""
        return {"evaluations": self._evaluations, "trainings": self._trainings}


def make_network(kind: str) -> Network:
    """`kind`: simulated, cuda, cpu, or auto: PyTorch on a GPU if there is one."""
    if kind == "auto":
        kind = "cuda" if os.path.exists("/dev/nvidiactl") else "simulated"
    return SimulatedNetwork() if kind == "simulated" else TorchNetwork(kind)


def _check(error: int) -> None:
    if error:
        raise RuntimeError(f"CUDA error {error}")
