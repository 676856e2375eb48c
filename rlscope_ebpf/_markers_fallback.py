"""The functions of `rlscope_ebpf._markers` where that extension is missing: through ctypes, else without effect.

Free-threaded builds of Python, for one, cannot load an extension of the stable ABI. A marker costs about a microsecond
here. Where `librlscope_markers.so` cannot be found either, markers check their arguments and do nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, SupportsIndex, TypeVar

LIBRARY = "librlscope_markers.so"
CACHED_OPERATIONS = 4096
_UINT64_MAX = 2**64 - 1

_F = TypeVar("_F", bound=Callable[..., Any])


def _load() -> Any:
    """The library, or None."""
    try:
        import ctypes

        text, number = ctypes.c_char_p, ctypes.c_uint64
        for path in (os.path.join(os.path.dirname(os.path.abspath(__file__)), LIBRARY), LIBRARY):
            try:
                # PyDLL keeps the GIL: these calls are shorter than giving it up would be.
                library = ctypes.PyDLL(path)
                signatures: dict[str, tuple[list[Any], Any]] = {
                    "rlscope_operation_begin_python": ([ctypes.c_void_p], None),
                    "rlscope_operation_end_python": ([], None),
                    "rlscope_phase": ([text], None),
                    "rlscope_process_name": ([text], None),
                    "rlscope_progress": ([number, number], None),
                    "rlscope_metadata": ([text, text], None),
                    "rlscope_intern": ([text], ctypes.c_void_p),
                    "rlscope_operation_depth": ([], ctypes.c_uint32),
                    "rlscope_operation_name": ([ctypes.c_uint32], ctypes.c_void_p),
                }
                for symbol, (arguments, result) in signatures.items():
                    function = getattr(library, symbol)
                    function.argtypes = arguments
                    function.restype = result
            except (OSError, AttributeError):
                continue
            return library
    except Exception:  # no ctypes, or one that does not work here: a training run goes on without markers
        pass
    return None


_library = _load()


def _utf8(text: object, what: str) -> bytes:
    """UTF-8 for a C string: what that cannot hold becomes U+FFFD."""
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a str, not {type(text)!r}")
    clean = "".join("\ufffd" if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in text)
    return clean.encode()


def _uint64(value: SupportsIndex, what: str) -> int:
    number = value.__index__() if hasattr(value, "__index__") else None
    if number is None:
        raise TypeError(f"{type(value).__name__!r} object cannot be interpreted as an integer")
    if not 0 <= number <= _UINT64_MAX:
        raise ValueError(f"{what} must be from 0 to 2**64 - 1")
    return number


class Operation:
    """A named span: a context manager and a decorator. Made by `operation(name)`; may be used again."""

    __slots__ = ("_interned", "name")

    def __init__(self, name: str) -> None:
        text = _utf8(name, "the operation's name")
        self.name = str(name)
        self._interned: Any = _library.rlscope_intern(text) if _library else None

    def __enter__(self) -> Operation:
        if _library:
            _library.rlscope_operation_begin_python(self._interned)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if _library:
            _library.rlscope_operation_end_python()

    def __call__(self, function: _F) -> _F:
        from rlscope_ebpf.markers import _decorate

        return _decorate(self, function)  # type: ignore[arg-type]  # it stands in for the extension's class

    def __repr__(self) -> str:
        return f"operation({self.name!r})"

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        from rlscope_ebpf.markers import _named

        return _named, (self.name,)


_operations: dict[str, Operation] = {}


def operation(name: str, /) -> Operation:
    """See `rlscope_ebpf.markers.operation`."""
    if type(name) is str:
        found = _operations.get(name)
        if found is not None:
            return found
    made = Operation(name)
    if len(_operations) >= CACHED_OPERATIONS:
        _operations.clear()
    _operations[made.name] = made
    return made


def phase(name: str, /) -> None:
    """See `rlscope_ebpf.markers.phase`."""
    text = _utf8(name, "the phase's name")
    if _library:
        _library.rlscope_phase(text)


def process_name(name: str, /) -> None:
    """See `rlscope_ebpf.markers.process_name`."""
    text = _utf8(name, "the process's name")
    if _library:
        _library.rlscope_process_name(text)


def progress(step: SupportsIndex, total: SupportsIndex | None = None) -> None:
    """See `rlscope_ebpf.markers.progress`."""
    step_number = _uint64(step, "step")
    total_number = 0 if total is None else _uint64(total, "total")
    if _library:
        _library.rlscope_progress(step_number, total_number)


def metadata(**values: object) -> None:
    """See `rlscope_ebpf.markers.metadata`."""
    for key, value in values.items():
        texts = _utf8(key, "the key"), _utf8(str(value), "the value")
        if _library:
            _library.rlscope_metadata(*texts)


def depth() -> int:
    """Operations open on this thread."""
    return int(_library.rlscope_operation_depth()) if _library else 0


def stack() -> tuple[str, ...]:
    """Their names, outermost first, at most 64."""
    if not _library:
        return ()
    import ctypes

    names = []
    for level in range(depth()):
        address = _library.rlscope_operation_name(level)
        if address is None:
            break
        names.append(ctypes.string_at(address).decode(errors="replace"))
    return tuple(names)


def suspend(level: int, /) -> tuple[int, ...]:
    """Close the operations above `level`; returns what `resume` takes."""
    if not _library:
        return ()
    top = depth()
    names = tuple(_library.rlscope_operation_name(i) or _library.rlscope_intern(b"") for i in range(level, top))
    for _ in names:
        _library.rlscope_operation_end_python()
    return names


def resume(names: tuple[int, ...], /) -> None:
    """Open again what `suspend` closed."""
    if _library:
        for name in names:
            _library.rlscope_operation_begin_python(name)
