"""Names of C++ functions as a person writes them, by the C++ runtime of this system."""

from __future__ import annotations

import ctypes
from functools import cache


def demangled(name: str) -> str:
    """The name of a mangled C++ function; any other text as it is, and everything where there is no C++ runtime."""
    library = _runtime()
    if library is None or not name.startswith("_Z"):
        return name
    status = ctypes.c_int()
    text = library.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if not text:
        return name
    try:
        return ctypes.string_at(text).decode("utf-8", "replace")
    finally:
        ctypes.CDLL(None).free(ctypes.c_void_p(text))


@cache
def _runtime() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return None
    library.__cxa_demangle.restype = ctypes.c_void_p
    return library
