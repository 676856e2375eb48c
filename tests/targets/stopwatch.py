"""What a training loop measures of itself: operations around methods, each with the wall time that it took."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

try:
    import rlscope_ebpf.markers as rls
except ModuleNotFoundError:  # not installed: the checkout that this file lies in
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    import rlscope_ebpf.markers as rls


class Stopwatch:
    """Wall time and count of each operation path, self time, on the one thread that trains."""

    def __init__(self) -> None:
        self.totals: dict[tuple[str, ...], list[int]] = {}  # path → count, ns
        self._path: tuple[str, ...] = ()
        self._children_ns = 0

    def wrap(self, owner: Any, method: str, name: str) -> None:
        """Replaces `owner.method` by itself within an operation."""
        original: Callable[..., Any] = getattr(owner, method)
        operation = rls.operation(name)

        @functools.wraps(original)
        def wrapped(*arguments: Any, **keywords: Any) -> Any:
            outside, children_ns = self._path, self._children_ns
            self._path, self._children_ns = (*outside, name), 0
            # Stamps outside the marker and inside it: the middle of both is where it counts (see truth_recorder.py).
            before = perf_counter_ns()
            operation.__enter__()
            begin = (before + perf_counter_ns()) >> 1
            try:
                return original(*arguments, **keywords)
            finally:
                before = perf_counter_ns()
                operation.__exit__(None, None, None)
                duration_ns = ((before + perf_counter_ns()) >> 1) - begin
                total = self.totals.setdefault(self._path, [0, 0])
                total[0] += 1
                total[1] += duration_ns - self._children_ns
                self._path, self._children_ns = outside, children_ns + duration_ns

        setattr(owner, method, wrapped)

    def operations(self) -> list[dict[str, Any]]:
        """In the form that compare.py reads."""
        return [
            {
                "path": list(path),
                "phase": None,
                "count": count,
                "wall_ns": wall_ns,
                "cpu_ns": {},
                "transitions": {},
                "exact": {"wall": True, "count": True, "transitions": False, "categories": []},
            }
            for path, (count, wall_ns) in self.totals.items()
        ]
