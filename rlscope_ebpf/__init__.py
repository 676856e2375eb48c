"""Where the time of a running reinforcement-learning process goes, per operation, across the whole stack."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from rlscope_ebpf.analysis.api import Trace

__version__ = "0.1.0"

__all__ = ["__version__", "open"]


def open(path: str | os.PathLike[str]) -> Trace:
    """Open a trace for analysis: see `rlscope_ebpf.analysis.api.open_trace`.

    Imported when called: `rlscope_ebpf.markers` must load in a target that has none of the profiler's dependencies.
    """
    from rlscope_ebpf.analysis.api import open_trace

    return open_trace(path)
