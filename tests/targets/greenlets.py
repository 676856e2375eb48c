"""Greenlets that are switched away from inside of native calls, while others make such calls.

    python greenlets.py LIBRARY now|late [SECONDS]

LIBRARY is the one of native/stacks.c. greenlet is imported before READY, or after the line from stdin and used at once.
Prints `READY pid`, waits for a line on stdin, works, prints `ROUNDS n`.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from typing import Any

CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
GREENLETS = 3


def plain_calls(library: Any, number: int) -> None:
    """Calls that are left as calls usually are; each calls Python back."""
    nothing = CALLBACK(lambda _: None)
    for _ in range(number):
        library.run_callback(nothing, None)


def rounds(library: Any, seconds: float) -> int:
    """How many calls returned after others had been made meanwhile."""
    from greenlet import getcurrent, greenlet

    done = 0
    switch = CALLBACK(lambda _: getcurrent().parent.switch())

    def work() -> None:
        nonlocal done
        while True:
            library.run_callback(switch, None)
            done += 1

    workers = [greenlet(work) for _ in range(GREENLETS)]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(20):
            for worker in workers:
                worker.switch()
        plain_calls(library, 5)
        time.sleep(0.001)
    return done


def main() -> None:
    """See the module."""
    path, when = sys.argv[1:3]
    library: Any = ctypes.CDLL(path)
    if when == "now":
        import greenlet  # noqa: F401
    print("READY", os.getpid(), flush=True)
    sys.stdin.readline()
    plain_calls(library, 300)
    done = rounds(library, float(sys.argv[3]) if len(sys.argv) > 3 else 1.5)
    print("ROUNDS", done, flush=True)
    os._exit(0)  # the greenlets are in the middle of calls, where they cannot be ended


main()
