"""Who waits for a lock waits for whoever holds it, and so for the probes that this one hits.

Without a profiler the wait would have been shorter by what hits took from those who ran meanwhile. Whom exactly a
thread waits for is not known: while one other thread of its process runs it is that one, as with the interpreter lock;
of several, hits slow each down by a part, and the wait is charged the mean of these parts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.categories import ThreadState, Wait
from rlscope_ebpf.session.registry import Ints


def charge_lock_waits(rows: NDArray[np.void], process: Ints) -> None:
    """Add to `overhead_ns` of waits for a lock, in place. `process`: whose each of the INTERVAL_DTYPE rows is.

    The rows hold all of a stretch of time, as a batch does.
    """
    waits = (rows["state"] == ThreadState.BLOCKED) & (rows["wait"] == Wait.LOCK) & (rows["duration_ns"] > 0)
    if not waits.any():
        return
    runs = (rows["state"] == ThreadState.RUNNING) & (rows["duration_ns"] > 0)
    for number in np.unique(process[waits]).tolist():
        mine = process == number
        running, waiting = np.flatnonzero(runs & mine), np.flatnonzero(waits & mine)
        if rows["overhead_ns"][running].any():
            start_ns, end_ns = _bounds(rows, waiting)
            times, taken = _taken_from_runners(rows, running)
            charge = np.interp(end_ns, times, taken) - np.interp(start_ns, times, taken)
            rows["overhead_ns"][waiting] += np.minimum(charge, end_ns - start_ns).astype(np.uint32)


def _bounds(rows: NDArray[np.void], chosen: Ints) -> tuple[Ints, Ints]:
    start_ns = rows["start_ns"][chosen].astype(np.int64)
    return start_ns, start_ns + rows["duration_ns"][chosen].astype(np.int64)


def _taken_from_runners(rows: NDArray[np.void], running: Ints) -> tuple[Ints, NDArray[np.float64]]:
    """Times, and what hits had taken up to each of them from a thread that ran, on average over those that did."""
    start_ns, end_ns = _bounds(rows, running)
    part = np.minimum(rows["overhead_ns"][running] / (end_ns - start_ns), 1.0)
    times = np.concatenate([start_ns, end_ns])
    order = np.argsort(times, kind="stable")
    times = times[order]
    parts = np.cumsum(np.concatenate([part, -part])[order])
    runners = np.cumsum(np.repeat([1, -1], len(running))[order])
    mean = np.divide(parts, runners, out=np.zeros(len(parts)), where=runners > 0)
    return times, np.concatenate([[0.0], np.cumsum(mean[:-1] * np.diff(times))])
