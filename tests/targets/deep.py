"""A native call at the bottom of deeper nesting than the kernel keeps return probes of a thread: 64.

    python deep.py LIBRARY DEPTH CALLS NANOSECONDS

LIBRARY is the one of native/stacks.c. A Python function calls itself by way of native code, so that each level is a
native frame of the interpreter in every version; at the bottom it spins in the library, then twice as long in Python.
Imports _decimal, which the profiler may be told to be a library, too: then it must watch those frames. Prints
`READY pid`, waits for a line, makes the calls, prints `ROUNDS n`.
"""

from __future__ import annotations

import _decimal  # noqa: F401
import ctypes
import os
import sys
import time
from typing import Any


def main() -> None:
    """See the module."""
    library: Any = ctypes.PyDLL(sys.argv[1])
    library.spin.argtypes = (ctypes.c_long,)
    depth, calls, spin_ns = map(int, sys.argv[2:5])

    def deeper(level: int) -> None:
        if level:
            list(map(deeper, (level - 1,)))
            return
        library.spin(spin_ns)
        end = time.perf_counter_ns() + 2 * spin_ns
        while time.perf_counter_ns() < end:
            pass

    print("READY", os.getpid(), flush=True)
    sys.stdin.readline()
    for _ in range(calls):
        deeper(depth)
    print("ROUNDS", calls)


main()
