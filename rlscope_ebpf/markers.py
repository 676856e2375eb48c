"""Annotations for a training program: say which part of the loop runs.

    import rlscope_ebpf.markers as rls

    with rls.operation("inference"): ...      # nests; any thread; exceptions close it
    @rls.operation("train_step")              # functions, generators, coroutines
    rls.phase("evaluation")
    rls.progress(step, total=1_000_000)
    rls.metadata(algorithm="PPO", environment="CartPole-v1")
    rls.process_name("selfplay-03")

Needs nothing but Python >= 3.10 and costs less than `contextlib.nullcontext` while no profiler listens. Importing it
never fails: `BACKEND` says whether the compiled extension is at work ("extension"), its slower stand-in ("ctypes"), or
nothing ("none").

A name that is not a str raises TypeError. In a name, whatever a C string cannot hold (NUL, lone surrogates) becomes
U+FFFD; names of more than 127 bytes of UTF-8 are cut at a character boundary, and the profiler shows how many were.

**Coroutines and generators.** A thread runs many of them in turns, so an operation that stayed open while one of them
is suspended would be charged for the others' work. A decorated coroutine function or generator therefore has its
operation, and those opened inside it, open while it runs and closed while it is suspended; each resumption counts as
an instance. A plain `with` does not know about suspension: in code that shares its thread with other tasks, do not
let it span an `await` or a `yield`, unless the function is decorated.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rlscope_ebpf._markers import (
        Operation,
        depth,
        metadata,
        operation,
        phase,
        process_name,
        progress,
        resume,
        stack,
        suspend,
    )

    BACKEND: str
else:
    try:
        from rlscope_ebpf import _markers as _implementation

        BACKEND = "extension"
    except ImportError:
        from rlscope_ebpf import _markers_fallback as _implementation

        BACKEND = "ctypes" if _implementation._library else "none"
    Operation = _implementation.Operation
    operation = _implementation.operation
    phase = _implementation.phase
    process_name = _implementation.process_name
    progress = _implementation.progress
    metadata = _implementation.metadata
    depth = _implementation.depth
    stack = _implementation.stack
    suspend = _implementation.suspend
    resume = _implementation.resume

__all__ = ["BACKEND", "Operation", "metadata", "operation", "phase", "process_name", "progress", "stack"]

_F = TypeVar("_F", bound=Callable[..., Any])

# Flags of a code object (`inspect.CO_*`, whose module takes longer to import than everything here).
_GENERATOR = 0x20
_COROUTINE = 0x80
_ITERABLE_COROUTINE = 0x100  # `types.coroutine`
_ASYNC_GENERATOR = 0x200


class _Turns:
    """Drives a coroutine, generator or `asend()` awaitable; the operation is open while it runs.

    Itself an awaitable and an iterator that speaks send, throw and close.
    """

    __slots__ = ("_driven", "_open", "_operation")

    def __init__(self, operation: Operation, driven: Any) -> None:
        self._operation = operation
        self._driven = driven
        self._open: tuple[int, ...] = ()  # operations opened inside, to be opened again at the next turn

    def _turn(self, step: Callable[..., Any], *arguments: Any) -> Any:
        level = depth()
        with self._operation:
            resume(self._open)
            try:
                return step(*arguments)
            finally:
                self._open = suspend(level + 1)

    def __await__(self) -> _Turns:
        return self

    def __iter__(self) -> _Turns:
        return self

    def __next__(self) -> Any:
        return self._turn(self._driven.send, None)

    def send(self, value: Any) -> Any:
        return self._turn(self._driven.send, value)

    def throw(self, error: Any, value: Any = None, traceback: Any = None) -> Any:
        if value is None and traceback is None:  # the form with three arguments is deprecated
            return self._turn(self._driven.throw, error)
        return self._turn(self._driven.throw, error, value, traceback)

    def close(self) -> None:
        self._turn(self._driven.close)


def _decorate(operation: Operation, function: _F) -> _F:
    """The function with each of its calls inside the operation. What `Operation.__call__` does."""
    if not callable(function):
        raise TypeError(f"an operation decorates functions, not {type(function)!r}")
    if isinstance(function, type):
        raise TypeError("an operation decorates functions, not classes: decorate the methods")
    code = getattr(_innermost(function), "__code__", None)
    flags = getattr(code, "co_flags", 0)
    wrapper: Callable[..., Any]

    if flags & (_COROUTINE | _ITERABLE_COROUTINE):

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            return await _Turns(operation, _iterator(function(*args, **kwargs)))

    elif flags & _ASYNC_GENERATOR:

        async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            driven = function(*args, **kwargs)
            turn = _Turns(operation, driven.__anext__())
            while True:
                try:
                    item = await turn
                except StopAsyncIteration:
                    return
                opened = turn._open
                try:
                    sent = yield item
                except GeneratorExit:
                    turn = _Turns(operation, driven.aclose())
                    turn._open = opened
                    await turn
                    raise
                except BaseException as error:
                    turn = _Turns(operation, driven.athrow(error))
                else:
                    turn = _Turns(operation, driven.asend(sent))
                turn._open = opened

    elif flags & _GENERATOR:

        def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            return (yield from _Turns(operation, function(*args, **kwargs)))

    else:

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with operation:
                return function(*args, **kwargs)

    return functools.wraps(function)(wrapper)  # type: ignore[return-value]


def _named(name: str) -> Operation:
    """What a pickled operation becomes again, whichever implementation is there."""
    return operation(name)


def _innermost(function: Any) -> Any:
    """The function behind partials, bound methods and objects that can be called."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__func__"):
            function = function.__func__
        elif hasattr(function, "__code__"):
            return function
        else:
            return type(function).__call__


def _iterator(awaitable: Any) -> Any:
    """What `send` drives: a coroutine itself, or what its `__await__` gives."""
    if hasattr(awaitable, "send"):
        return awaitable
    return awaitable.__await__()
