"""How long PyTorch's functions take at least, whatever they are given: which of them never tell more than they cost.

    python -m benchmarks.torch_floors [--device cpu|cuda]

Each function that could be probed is called with a small tensor and with a large one, whose elements are not in order
and of another type, and with the first of some usual lists of further arguments that it takes. One that takes the same
time for both looks at its tensors, or makes another view of them, and computes nothing: its time is the same in any
program. Prints one line per function: median ns with the small tensor, with the large one, whether that grows, whether
PyTorch declares its result a view of its argument, and the arguments.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import torch

SMALL, LARGE = (2, 2), (256, 256)
CALLS, ROUNDS = 30, 7
LONG_NS = 100_000
"""Functions that take longer are not timed any better."""

ARGUMENTS: tuple[tuple[Any, ...], ...] = (
    (), (0,), (0, 1), ((1, 0),), (-1,), (0, 0), (0, 0, 1), (1, 0, 1), ((4,),), (torch.float32,), ("cpu",),
)  # fmt: skip
"""Further arguments, besides as many more tensors of the same shape."""


@dataclass(frozen=True, slots=True)
class Floor:
    """Times in ns."""

    name: str
    small_ns: float
    large_ns: float
    arguments: str

    @property
    def grows(self) -> bool:
        """Whether more elements take more time."""
        return self.large_ns > 1.5 * self.small_ns + 300


def views() -> frozenset[str]:
    """Operators whose result PyTorch declares to share its argument's memory, always or where it can."""
    core: Any = torch._C
    return frozenset(
        schema.name.removeprefix("aten::")
        for schema in core._jit_get_all_schemas()
        if schema.name.startswith("aten::")
        and schema.returns
        and schema.returns[0].alias_info is not None
        and not schema.returns[0].alias_info.is_write
    )


def functions() -> dict[str, list[Callable[..., Any]]]:
    """What Python calls by each name."""
    core: Any = torch._C
    found: dict[str, list[Callable[..., Any]]] = {}
    for owner in (core.TensorBase, core._VariableFunctions, core._nn):
        for name in dir(owner):
            function = getattr(owner, name, None)
            if callable(function) and not name.startswith("__"):
                found.setdefault(name, []).append(function)
    return found


def _ways(tensor: torch.Tensor) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for more in ARGUMENTS:
        yield f"x, {', '.join(map(str, more))}", (tensor, *more)
    for count in (2, 3):
        yield ", ".join("xyz"[:count]), (tensor,) * count
    yield "x, int y", (tensor, tensor.long() % 2)


def time_ns(function: Callable[..., Any], arguments: tuple[Any, ...]) -> float:
    """Median over rounds of the mean of some calls, an empty loop taken out."""
    times: list[float] = []
    for _ in range(3):
        begun = perf_counter_ns()
        function(*arguments)
        times.append(perf_counter_ns() - begun)
    if min(times) > LONG_NS:
        return min(times)
    times.clear()
    for _ in range(ROUNDS):
        begun = perf_counter_ns()
        for _ in range(CALLS):
            function(*arguments)
        called = perf_counter_ns()
        for _ in range(CALLS):
            _nothing(*arguments)
        times.append((2 * called - begun - perf_counter_ns()) / CALLS)
    return statistics.median(times)


def _nothing(*_: Any) -> None:
    return None


def measure(device: str) -> Iterator[Floor]:
    """Of each function that could be called at all."""
    for name, candidates in sorted(functions().items()):
        floor = _floor(name, candidates, device)
        if floor is not None:
            yield floor


def _floor(name: str, candidates: list[Callable[..., Any]], device: str) -> Floor | None:
    for function in candidates:
        small = torch.rand(SMALL, device=device)
        large = torch.rand(LARGE, device=device, dtype=torch.float64).t()
        for (text, few), (_, many) in zip(_ways(small), _ways(large), strict=True):
            with suppress(Exception):  # other arguments may do
                return Floor(name, time_ns(function, few), time_ns(function, many), text)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torch_floors", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    declared = views()
    with torch.no_grad():
        for floor in measure(options.device):
            kind = ("grows" if floor.grows else "same") + (" view" if floor.name in declared else "")
            print(
                f"{floor.small_ns:10.0f} {floor.large_ns:12.0f} {kind:10s} {floor.name}({floor.arguments})", flush=True
            )


if __name__ == "__main__":
    main()
