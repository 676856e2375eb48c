"""Launches that wait for their activity: a bounded table, joined by whole arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.gpu import GpuLaunch
from rlscope_ebpf.model.keys import Ints
from rlscope_ebpf.model.rows import joined

LAUNCH_WAIT_NS = 60_000_000_000
"""A launch is given up when no activity came of it for so long: much may stand before it in the queue."""

MATCHED_NS = 10_000_000_000
"""A launch whose activity has come stays for more of it, unless it is that of a kernel: a graph has many."""

MOST_LAUNCHES = 1 << 19

SKEW_NS = 1_000_000
"""The clocks of CPU and GPU, as CUPTI tells them, differ by less than this, as a rule."""

MOST_SKEW_NS = 100_000_000
"""Where many processes share a GPU they may differ by more, about the turns of all of them: an activity that is said to
have begun before the only launch that has its correlation id is that launch's all the same, if by no more than this."""

_STEPS_BACK = 8
"""How many launches with the same correlation id, which wraps, are looked at."""

LAUNCH_DTYPE = np.dtype(
    [
        ("key", "<u8"),  # process, correlation id
        ("start_ns", "<i8"),  # of the launching call
        ("seen_ns", "<i8"),  # when it came, or when the latest of its activity did
        ("thread", "<u4"),
        ("path", "<u4"),
        ("phase", "<u4"),
        ("known", "?"),  # whether its thread's whereabouts are
        ("matched", "?"),
        ("inherited", "?"),  # the operation is that of the thread that waits for the launching one
        ("ambiguous", "?"),  # several threads may be that; the launch is in no operation
        ("detail", "u1"),  # GpuLaunch
    ],
    align=True,
)


class WaitingLaunches:
    """Launches by key; several of the same key in the order in which they came."""

    def __init__(self) -> None:
        self.unmatched = 0
        """Launches given up: nothing came of them."""
        self._rows = np.zeros(0, LAUNCH_DTYPE)
        self._keys: NDArray[np.uint64] = np.zeros(0, np.uint64)

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, launches: NDArray[np.void]) -> None:
        """Add launches (LAUNCH_DTYPE)."""
        if not len(launches):
            return
        keys = np.concatenate([self._keys, launches["key"]])
        order = np.argsort(keys, kind="stable")  # two runs, mostly: linear
        self._keys = keys[order]
        self._rows = np.take(joined([self._rows, launches]), order)

    def match(self, keys: NDArray[np.uint64], start_ns: Ints, now_ns: int) -> tuple[Ints, NDArray[np.void]]:
        """Positions of the activities whose launch is known, and their launches (LAUNCH_DTYPE).

        Of several with the same key it is the latest one before the activity's start.
        """
        if not len(self._rows) or not len(keys):
            return np.zeros(0, np.int64), np.zeros(0, LAUNCH_DTYPE)
        at = np.searchsorted(self._keys, keys, side="right") - 1
        found = (at >= 0) & (self._keys[at] == keys)
        launch_ns = self._rows["start_ns"]
        wrong = np.flatnonzero(found & (launch_ns[at] > start_ns + SKEW_NS))
        for _ in range(_STEPS_BACK):
            if not len(wrong):
                break
            at[wrong] -= 1
            found[wrong] = (at[wrong] >= 0) & (self._keys[at[wrong]] == keys[wrong])
            wrong = wrong[found[wrong] & (launch_ns[at[wrong]] > start_ns[wrong] + SKEW_NS)]
        found[wrong] = False
        strange = np.flatnonzero(~found)
        if len(strange):
            low, high = (self._keys.searchsorted(keys[strange], side=side) for side in ("left", "right"))
            alone = np.flatnonzero(high - low == 1)
            strange, low = strange[alone], low[alone]
            close = launch_ns[low] <= start_ns[strange] + MOST_SKEW_NS
            found[strange[close]] = True
            at[strange[close]] = low[close]
        matched = np.flatnonzero(found)
        rows = at[matched]
        self._rows["matched"][rows] = True
        self._rows["seen_ns"][rows] = now_ns
        return matched, np.take(self._rows, rows)

    def expire(self, now_ns: int) -> None:
        """Give up what has waited long, and the oldest if there are too many."""
        rows = self._rows
        matched = rows["matched"]
        keep = rows["seen_ns"] >= now_ns - np.where(matched, MATCHED_NS, LAUNCH_WAIT_NS)
        keep &= ~(matched & (rows["detail"] == GpuLaunch.KERNEL))
        excess = int(np.count_nonzero(keep)) - MOST_LAUNCHES
        if excess > 0:
            kept = np.flatnonzero(keep)
            keep[kept[np.argpartition(rows["start_ns"][kept], excess - 1)[:excess]]] = False
        self._keep(keep)

    def give_up(self, queued_ns: int | None = None) -> None:
        """Nothing more comes. Launches after `queued_ns` are not counted."""
        if queued_ns is not None:
            self._rows["matched"] |= self._rows["start_ns"] >= queued_ns
        self._keep(np.zeros(len(self._rows), np.bool_))

    def _keep(self, keep: NDArray[np.bool_]) -> None:
        if keep.all():
            return
        self.unmatched += int(np.count_nonzero(~self._rows["matched"][~keep]))
        kept = np.flatnonzero(keep)
        self._rows, self._keys = np.take(self._rows, kept), self._keys[kept]
