"""Traces from Python: `rlscope_ebpf.open(path)` gives a `Trace` whose tables are pandas DataFrames."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.analysis.breakdown import Breakdown, Progress, TraceSource, break_down
from rlscope_ebpf.model import format as fmt
from rlscope_ebpf.model.rows import joined
from rlscope_ebpf.model.session import SessionInfo
from rlscope_ebpf.model.tables import TABLES, Losses, Notice
from rlscope_ebpf.trace.reader import TraceReader

if TYPE_CHECKING:
    import pandas as pd


def open_trace(path: str | os.PathLike[str], progress: Progress | None = None) -> Trace:
    """Open a trace. `progress` is called with bytes read and bytes in all.

    A damaged trace opens all the same: look at `Trace.complete`.

    Raises:
        UsageError: there is no such file, or it is no trace.
        NotPermittedError: the file may not be read.
        UnsupportedError: a newer major version wrote it.
        DamagedTraceError: nothing of it could be read.
    """
    return Trace(TraceReader(path, progress))


class Trace:
    """One trace. Times are ns of CLOCK_MONOTONIC; operations are texts like "train/backprop"."""

    def __init__(self, source: TraceSource) -> None:
        self._source = source
        self._breakdown: Breakdown | None = None

    def __repr__(self) -> str:
        info = self.info
        processes = fmt.plural_exact(len(self._source.processes), "process", "processes")
        state = "complete" if self.complete else "incomplete"
        return f"<Trace of {info.host}, {info.started_at}, {processes}, {state}>"

    @property
    def info(self) -> SessionInfo:
        """Host, clock, capture settings."""
        return self._source.info

    @property
    def complete(self) -> bool:
        """Whether nothing of the trace is missing or damaged."""
        return self._source.complete

    @property
    def problems(self) -> tuple[str, ...]:
        """What is missing or damaged, in sentences."""
        return tuple(self._source.problems)

    @property
    def losses(self) -> Losses:
        """What the session could not record."""
        return self._source.losses

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What the profiler had to say, oldest first; the `important` ones change how figures are to be read."""
        return tuple(self._source.notices)

    def breakdown(self, progress: Progress | None = None) -> Breakdown:
        """The figures of the report; read once, then kept. `progress` counts intervals."""
        if self._breakdown is None:
            self._breakdown = break_down(self._source, progress)
        return self._breakdown

    def operations(self) -> pd.DataFrame:
        """Times, counts and resources per process, phase and operation."""
        from rlscope_ebpf.analysis.frames import operations_frame

        return operations_frame(self.breakdown())

    def transitions(self) -> pd.DataFrame:
        """Calls from one category into another per process, phase and operation."""
        from rlscope_ebpf.analysis.frames import transitions_frame

        return transitions_frame(self.breakdown())

    def cuda_calls(self) -> pd.DataFrame:
        """Count and time per process and function of the CUDA API."""
        from rlscope_ebpf.analysis.frames import cuda_calls_frame

        return cuda_calls_frame(self.breakdown())

    def gpu_kernels(self) -> pd.DataFrame:
        """Count, time and time in the queue per process and GPU kernel."""
        from rlscope_ebpf.analysis.frames import gpu_kernels_frame

        return gpu_kernels_frame(self.breakdown())

    def gpu_copies(self) -> pd.DataFrame:
        """Count, time and bytes per process and direction."""
        from rlscope_ebpf.analysis.frames import gpu_copies_frame

        return gpu_copies_frame(self.breakdown())

    def gpu_devices(self) -> pd.DataFrame:
        """How long each GPU worked for each process."""
        from rlscope_ebpf.analysis.frames import gpu_devices_frame

        return gpu_devices_frame(self.breakdown())

    def processes(self) -> pd.DataFrame:
        """The processes of the session."""
        from rlscope_ebpf.analysis.frames import processes_frame

        return processes_frame(self.breakdown())

    def intervals(self) -> pd.DataFrame:
        """Every stretch of a thread's time in which operation, phase, category and state stayed the same.

        About 60 bytes a row: see `interval_chunks` for a trace that does not fit into memory.
        """
        from rlscope_ebpf.analysis.frames import intervals_frame

        return intervals_frame(self._source, self._rows("intervals"))

    def interval_chunks(self) -> Iterator[pd.DataFrame]:
        """The same, piece by piece, in the order of the file."""
        from rlscope_ebpf.analysis.frames import intervals_frame

        for rows in self._source.chunks("intervals"):
            yield intervals_frame(self._source, rows)

    def spans(self) -> pd.DataFrame:
        """Every operation instance that ended or was cut at the end."""
        from rlscope_ebpf.analysis.frames import spans_frame

        return spans_frame(self._source, self._rows("spans"))

    def marks(self) -> pd.DataFrame:
        """Every phase change, progress report and piece of metadata."""
        from rlscope_ebpf.analysis.frames import marks_frame

        return marks_frame(self._source, self._rows("marks"))

    def gpu(self) -> pd.DataFrame:
        """Every kernel, copy and other activity of a GPU, with the operation that launched it.

        About 100 bytes a row: see `gpu_chunks` for a trace that does not fit into memory.
        """
        from rlscope_ebpf.analysis.frames import gpu_frame

        return gpu_frame(self._source, self._rows("gpu"))

    def gpu_chunks(self) -> Iterator[pd.DataFrame]:
        """The same, piece by piece, in the order of the file."""
        from rlscope_ebpf.analysis.frames import gpu_frame

        for rows in self._source.chunks("gpu"):
            yield gpu_frame(self._source, rows)

    def _rows(self, table: str) -> NDArray[np.void]:
        return joined([np.zeros(0, TABLES[table]), *self._source.chunks(table)])
