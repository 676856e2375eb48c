"""What a program spends in PyTorch, as seen from within: every C function by which Python enters it, wrapped.

Wrapped are tensors' methods, the functions of `torch`, `torch.nn.functional` and the like, and the backward pass; also
those that do next to nothing (`size`, `dim`). Not wrapped are attributes (`shape`, `grad`) and the end of tensors. What
concerns no tensor (whether gradients are on, whether something is traced) is wrapped in a `Reference` of its own.

A stamp of `perf_counter_ns` is taken right before the call and right after it, so what is between two stamps for
nothing (`Stamping`) is known and can be taken out.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import torch

_MODULES = ("_nn", "_linalg", "_special", "_fft", "_sparse", "_nested")
_EMPTY_CALLS = 20_000


@dataclass(slots=True)
class Calls:
    """Outermost calls of one function and their time, what is between the stamps for nothing included."""

    count: int = 0
    ns: int = 0


@dataclass(slots=True)
class Recorder:
    """Adds up by operation and name of the function."""

    operation: str = ""
    inside: bool = False
    functions: dict[tuple[str, str], Calls] = field(default_factory=dict)

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, stamped. What it calls while it runs belongs to it."""
        recorder, functions, clock = self, self.functions, perf_counter_ns

        def wrapped(*arguments: Any, **keywords: Any) -> Any:
            if recorder.inside:
                return function(*arguments, **keywords)
            recorder.inside = True
            begun = clock()
            try:
                return function(*arguments, **keywords)
            finally:
                took = clock() - begun
                recorder.inside = False
                calls = functions.get((recorder.operation, name))
                if calls is None:
                    calls = functions[recorder.operation, name] = Calls()
                calls.count += 1
                calls.ns += took

        return wrapped


@dataclass(frozen=True, slots=True)
class Stamping:
    """What a stamped call of a function that does nothing takes, in ns."""

    between_ns: float  # the stamps, the call itself included
    more_ns: float  # than the same call without stamps


class Reference:
    """Puts the wrappers in and takes them out again; both take some milliseconds."""

    def __init__(self, *, others: bool = False) -> None:
        """With `others`, these are wrapped instead: the functions that concern no tensor."""
        self.recorder = Recorder()
        self._put: list[tuple[Any, str, Any, Any]] = []  # owner, name, what to put there, what was there (or None)
        if others:
            self._prepare_others()
        else:
            self._prepare()

    def __enter__(self) -> Recorder:
        self.recorder.functions.clear()
        for owner, name, wrapper, _ in self._put:
            setattr(owner, name, wrapper)
        return self.recorder

    def __exit__(self, *_: object) -> None:
        for owner, name, _, before in self._put:
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    def _prepare(self) -> None:
        core: Any = torch._C
        wrap = self.recorder.wrap
        base = core.TensorBase
        for name in dir(torch.Tensor):
            found = inspect.getattr_static(torch.Tensor, name)
            if _is_method(found, base):
                self._put.append((torch.Tensor, name, wrap(found.__name__, found), torch.Tensor.__dict__.get(name)))
        functions = core._VariableFunctions
        by_id: dict[int, Callable[..., Any]] = {}
        together = types.SimpleNamespace()
        for name, function in _builtins(functions):
            wrapper = wrap(name, function)
            setattr(together, name, wrapper)
            self._put.append((torch._VF, name, wrapper, None))
            by_id[id(getattr(torch, name, None))] = wrapper
        self._put.append((core, "_VariableFunctions", together, functions))
        for module_name in _MODULES:
            module = getattr(core, module_name, None)
            for name, function in _builtins(module):
                by_id[id(function)] = wrap(name, function)
        self._everywhere(by_id)
        variable: Any = torch.autograd.Variable
        engine = variable._execution_engine
        stand_in = types.SimpleNamespace(
            **{name: getattr(engine, name) for name in dir(engine) if not name.startswith("__")}
        )
        stand_in.run_backward = wrap("run_backward", engine.run_backward)
        self._put.append((variable, "_execution_engine", stand_in, engine))

    def _prepare_others(self) -> None:
        self._everywhere({id(value): self.recorder.wrap(name, value) for name, value in _builtins(torch._C)})

    def _everywhere(self, wrappers: Mapping[int, Callable[..., Any]]) -> None:
        """Modules keep functions under names of their own."""
        for module_name, module in list(sys.modules.items()):
            if module_name.partition(".")[0] != "torch" or not isinstance(module, types.ModuleType):
                continue
            for name, value in list(vars(module).items()):
                wrapper = wrappers.get(id(value)) if isinstance(value, types.BuiltinFunctionType) else None
                if wrapper is not None:
                    self._put.append((module, name, wrapper, value))

    def stamping(self) -> Stamping:
        """Measured now, since the machine's speed changes."""
        recorder = Recorder()
        plain, stamped = str.isascii, recorder.wrap("", str.isascii)
        begun = perf_counter_ns()
        for _ in range(_EMPTY_CALLS):
            plain("")
        middle = perf_counter_ns()
        for _ in range(_EMPTY_CALLS):
            stamped("")
        more = perf_counter_ns() - middle - (middle - begun)
        return Stamping(recorder.functions["", ""].ns / _EMPTY_CALLS, more / _EMPTY_CALLS)


def _is_method(found: object, owner: type) -> bool:
    if isinstance(found, types.MethodDescriptorType):
        return found.__objclass__ is owner and found.__name__ not in ("__reduce_ex__", "__dir__")
    if isinstance(found, types.WrapperDescriptorType):
        return found.__objclass__ is owner and found.__name__ in ("__getitem__", "__setitem__")
    return False


def _builtins(owner: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in dir(owner):
        value = getattr(owner, name, None)
        if isinstance(value, types.BuiltinFunctionType) and not name.startswith("__"):
            yield name, value
