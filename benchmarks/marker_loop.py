"""Times empty `with` blocks: the target of `markers.py`.

    python marker_loop.py NAME …

Prints `READY pid`; answers each line "NAME LOOPS" with the ns that a block takes beyond the loop around it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from time import perf_counter_ns
from typing import Any

import rlscope_ebpf.markers as rls


def loop_ns(loops: int) -> int:
    """Of the loop alone."""
    begun = perf_counter_ns()
    for _ in range(loops):
        pass
    return perf_counter_ns() - begun


def made_anew(make: Callable[..., Any], *arguments: Any) -> Callable[[int], int]:
    """`with make("step"): pass`, as people write it."""
    if not arguments:

        def run(loops: int) -> int:
            begun = perf_counter_ns()
            for _ in range(loops):
                with make():
                    pass
            return perf_counter_ns() - begun

    else:
        (name,) = arguments

        def run(loops: int) -> int:
            begun = perf_counter_ns()
            for _ in range(loops):
                with make(name):
                    pass
            return perf_counter_ns() - begun

    return run


def kept(manager: Any) -> Callable[[int], int]:
    """`with manager: pass`, the same object every time."""

    def run(loops: int) -> int:
        begun = perf_counter_ns()
        for _ in range(loops):
            with manager:
                pass
        return perf_counter_ns() - begun

    return run


def candidate(name: str) -> Callable[[int], int]:
    """What a name stands for. Raises ImportError."""
    if name == "marker":
        return made_anew(rls.operation, "step")
    if name == "marker_kept":
        return kept(rls.operation("step"))
    if name == "nullcontext":
        return made_anew(nullcontext)
    if name == "nullcontext_kept":
        return kept(nullcontext())
    if name == "nvtx":
        import nvtx

        return made_anew(nvtx.annotate, "step")
    if name == "record_function":
        from torch.profiler import record_function

        return made_anew(record_function, "step")
    raise ValueError(name)


def main() -> None:
    candidates = {}
    for name in sys.argv[1:]:
        candidates[name] = candidate(name)
        candidates[name](1000)
    print(f"READY {os.getpid()} {rls.BACKEND}", flush=True)
    for line in sys.stdin:
        name, loops = line.split()[0], int(line.split()[1])
        print((candidates[name](loops) - loop_ns(loops)) / loops, flush=True)


if __name__ == "__main__":
    main()
