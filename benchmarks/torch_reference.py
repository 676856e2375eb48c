"""What a program spends in PyTorch, as seen from within: every C function by which Python enters it, wrapped.

Wrapped are tensors' methods, the functions of `torch`, `torch.nn.functional` and the like, and the backward pass; also
those that do next to nothing (`size`, `dim`). Not wrapped are attributes (`shape`, `grad`) and the end of tensors. What
concerns no tensor (whether gradients are on, whether something is traced) is wrapped in a `Reference` of its own.

A stamp of `perf_counter_ns` is taken right before the call and right after it, so what is between two stamps for
nothing (`empty_ns`) is known and can be taken out.
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
    """Of one operation: outermost calls and their time, empty stamps included."""

    count: int = 0
    ns: int = 0


@dataclass(slots=True)
class Recorder:
    """Adds up by operation; `functions` by name of the function, whatever the operation."""

    operation: str = ""
    inside: bool = False
    operations: dict[str, Calls] = field(default_factory=dict)
    functions: dict[str, Calls] = field(default_factory=dict)

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, stamped. What it calls while it runs belongs to it."""
        recorder, operations, functions, clock = self, self.operations, self.functions, perf_counter_ns

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
                for key, table in ((recorder.operation, operations), (name, functions)):
                    calls = table.get(key)
                    if calls is None:
                        calls = table[key] = Calls()
                    calls.count += 1
                    calls.ns += took

        return wrapped

    def clear(self) -> None:
        """Begin anew."""
        self.operations.clear()
        self.functions.clear()


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
        self.recorder.clear()
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

    def empty_ns(self) -> float:
        """Time between the stamps of a call that does nothing."""
        recorder = Recorder()
        nothing = recorder.wrap("", str.isascii)
        for _ in range(_EMPTY_CALLS):
            nothing("")
        return recorder.functions[""].ns / recorder.functions[""].count


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
