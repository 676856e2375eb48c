"""The native libraries and extension modules of the known-truth program, as Python sees them."""

from __future__ import annotations

import ctypes
import importlib
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import build

Spin = Callable[[int], object]

_STAMP = struct.Struct("<qII")


@dataclass
class Natives:
    """Everything that was built and could be loaded; `skipped` says why something could not."""

    folder: Path
    clock: ctypes.CDLL
    released: dict[str, ctypes.CDLL]  # the GIL is released around each call
    held: dict[str, ctypes.PyDLL]
    modules: dict[str, ModuleType] = field(default_factory=dict)
    cffi: Any = None  # libraries by name
    skipped: dict[str, str] = field(default_factory=dict)

    def stamps(self) -> dict[int, list[tuple[int, int, int]]]:
        """Thread id → its native log. Only while no other thread is in a boundary function."""
        clock = self.clock
        logs: dict[int, list[tuple[int, int, int]]] = {}
        for thread in range(clock.truth_threads()):
            size = clock.truth_thread_size(thread)
            buffer = ctypes.create_string_buffer(max(1, size) * _STAMP.size)
            copied = clock.truth_thread_copy(thread, buffer, size)
            rows = list(_STAMP.iter_unpack(buffer.raw[: copied * _STAMP.size]))
            logs.setdefault(clock.truth_thread_tid(thread), []).extend(rows)  # an id may be used again
        return logs


CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
CALLBACK_HELD = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)

_SIGNATURES: dict[str, dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "truth_clock": {
        "truth_now": (ctypes.c_int64, ()),
        "truth_threads": (ctypes.c_uint32, ()),
        "truth_thread_tid": (ctypes.c_int32, (ctypes.c_uint32,)),
        "truth_thread_size": (ctypes.c_uint64, (ctypes.c_uint32,)),
        "truth_thread_copy": (ctypes.c_uint64, (ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint64)),
        "truth_requested_ns": (ctypes.c_int64, (ctypes.c_uint32,)),
    },
    "truth_simulator": {
        "sim_spin": (None, (ctypes.c_int64,)),
        "sim_recurse": (None, (ctypes.c_int64, ctypes.c_int)),
        "sim_call_native": (None, (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)),
        "sim_callback": (None, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    },
    "truth_backend": {
        "be_spin": (None, (ctypes.c_int64,)),
        "be_call_native": (None, (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)),
        "be_callback": (None, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    },
    "truth_glue": {
        "glue_throwing": (ctypes.c_int, (ctypes.c_int64,)),
        "glue_throwing_through": (ctypes.c_int, (ctypes.c_int64,)),
        "glue_longjmp": (ctypes.c_int, (ctypes.c_int64,)),
        "glue_cpp_steps": (ctypes.c_int64, (ctypes.c_int64, ctypes.c_int64)),
        "glue_native_threads": (ctypes.c_int, (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int)),
    },
    "truth_simulator_late": {"late_spin": (None, (ctypes.c_int64,))},
}


def open_library(folder: Path, name: str, kind: type[ctypes.CDLL] = ctypes.CDLL) -> Any:
    """A library of the program with its functions' signatures set."""
    library = kind(str(folder / f"lib{name}.so"))
    for function, (result, arguments) in _SIGNATURES[name].items():
        handle = getattr(library, function)
        handle.restype = result
        handle.argtypes = arguments
    return library


def address(function: Any) -> int:
    """Where a ctypes function starts, to hand it to another native function."""
    found = ctypes.cast(function, ctypes.c_void_p).value
    assert found is not None
    return found


def _cffi_libraries(folder: Path) -> Any:
    from cffi import FFI

    ffi = FFI()
    ffi.cdef("void sim_spin(int64_t); void be_spin(int64_t); void sim_recurse(int64_t, int);")
    return {name: ffi.dlopen(str(folder / f"lib{name}.so")) for name in ("truth_simulator", "truth_backend")}


def load() -> Natives:
    """Builds what is not built yet and loads everything but the library that is to come late."""
    folder = build.native()
    names = ("truth_clock", "truth_simulator", "truth_backend", "truth_glue")
    released = {name: open_library(folder, name) for name in names}
    held = {name: open_library(folder, name, ctypes.PyDLL) for name in names}
    natives = Natives(folder, held["truth_clock"], released, held)
    extensions = build.extensions()
    sys.path.insert(0, str(extensions))
    for name in ("truth_simulator_ext", "truth_binding", "truth_simulator_pybind", "truth_simulator_nanobind"):
        if any(extensions.glob(f"{name}.*")):
            natives.modules[name] = importlib.import_module(name)
        else:
            natives.skipped[name.removeprefix("truth_simulator_")] = (
                "the interpreter cannot import its headers' package"
            )
    del sys.path[0]
    try:
        natives.cffi = _cffi_libraries(folder)
    except ImportError as error:
        natives.skipped["cffi"] = str(error)
    return natives
