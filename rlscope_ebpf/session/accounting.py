"""Compares what intervals tell of the targets' threads with what the kernel accounts for them, from start to end."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.capture.task_accounts import TaskAccount, TaskAccounts, accounts_for_disks
from rlscope_ebpf.capture.tasks import thread_ids
from rlscope_ebpf.model.categories import ThreadState, Wait
from rlscope_ebpf.model.keys import grown
from rlscope_ebpf.model.tables import Batch, Counters, ThreadInfo

MOST_THREADS = 256
"""Of all targets together: reading one takes a third of a millisecond."""

SHORTEST_NS = 1_000_000_000
"""Threads that can be compared for less are left out: the account of one that runs is brought up to date at ticks."""

UNHEARD = 0.01
"""What is not told of a thread's time at its start, at most, to compare it."""

_FIGURES = 3  # running, runnable, disk


class AccountingCheck:
    """Reads the kernel's accounts at the start and at the end of a session, and adds up intervals between.

    `begin` and `read_end` are called between batches. Not thread-safe.
    """

    def __init__(self) -> None:
        self._accounts: TaskAccounts | None = None
        self._importing: threading.Thread | None = None
        self._begun_ns = 0
        self._before: dict[int, TaskAccount] = {}
        self._after: dict[int, TaskAccount] = {}
        self._threads: dict[int, int] = {}  # id → tid
        self._of_tid: dict[int, int] = {}  # who has it now
        # By thread id: from when on it is compared, when it was first told of, and its sums.
        self._since_ns = np.zeros(1, np.int64)
        self._first_ns = np.zeros(1, np.int64)
        self._sums_ns = np.zeros((1, _FIGURES), np.int64)

    def _open(self) -> None:
        with suppress(OSError, ImportError):
            self._accounts = TaskAccounts()

    def begin(self, pids: Iterable[int], now_ns: int) -> None:
        """Read the accounts of all threads, once. What that needs is loaded in the background before."""
        if self._importing is None:
            self._importing = threading.Thread(target=self._open, name="task-accounts", daemon=True)
            self._importing.start()
        if self._begun_ns or self._accounts is None:
            return
        self._begun_ns = now_ns
        self._sums_ns[:] = 0
        self._before = self._read(tid for pid in pids for tid in thread_ids(pid))
        for number, tid in self._threads.items():
            self._start(number, tid)

    def add(self, batch: Batch) -> None:
        """Take what was handed out into account."""
        for definition in batch.definitions:
            if isinstance(definition, ThreadInfo):
                self._threads[definition.id] = definition.tid
                if definition.tid in self._of_tid:  # another thread has that number now
                    self._before.pop(definition.tid, None)
                self._of_tid[definition.tid] = definition.id
                count = definition.id + 1
                self._since_ns, self._first_ns = grown(self._since_ns, count), grown(self._first_ns, count)
                self._sums_ns = grown(self._sums_ns, count)
                self._start(definition.id, definition.tid)
        rows = batch.tables.get("intervals")
        if rows is not None and len(rows):
            self._add_rows(rows)

    def _start(self, number: int, tid: int) -> None:
        account = self._before.get(tid)
        self._since_ns[number] = account.time_ns if account is not None else self._begun_ns

    def _add_rows(self, rows: NDArray[np.void]) -> None:
        thread = rows["thread"]
        starts = np.flatnonzero(np.diff(thread.astype(np.int64), prepend=-1))
        new = starts[self._first_ns[thread[starts]] == 0]
        self._first_ns[thread[new]] = rows["start_ns"][new]
        start_ns = rows["start_ns"].astype(np.int64)
        end_ns = start_ns + rows["duration_ns"].astype(np.int64)
        duration_ns = np.maximum(end_ns - np.maximum(start_ns, self._since_ns[thread]), 0)
        for figure, of_it in enumerate((
            rows["state"] == ThreadState.RUNNING,
            rows["state"] == ThreadState.RUNNABLE,
            rows["wait"] == Wait.DISK,
        )):  # fmt: skip
            sums = np.bincount(thread[of_it], duration_ns[of_it], len(self._sums_ns))
            self._sums_ns[:, figure] += sums.astype(np.int64)

    def read_end(self) -> None:
        """Read the accounts for the last time."""
        if self._begun_ns and self._accounts is not None:
            self._after = self._read(self._of_tid)

    def _read(self, tids: Iterable[int]) -> dict[int, TaskAccount]:
        found: dict[int, TaskAccount] = {}
        for tid in list(tids)[:MOST_THREADS]:
            account = self._accounts.read(tid) if self._accounts is not None else None
            if account is not None:
                found[tid] = account
        return found

    def compare(self, counters: Counters) -> Counters:
        """`counters` with what both say, once all up to the end has been added."""
        if not self._after:
            return counters
        told, accounted = np.zeros(_FIGURES, np.int64), np.zeros(_FIGURES, np.int64)
        threads = time_ns = 0
        disks = accounts_for_disks()
        for number, tid in self._threads.items():
            after, before = self._after.get(tid), self._before.get(tid)
            if after is None or self._of_tid[tid] != number:
                continue
            since_ns = before.time_ns if before is not None else after.time_ns - after.age_ns
            window_ns, first_ns = after.time_ns - since_ns, int(self._first_ns[number])
            late = not first_ns or first_ns - since_ns > UNHEARD * window_ns
            if window_ns < SHORTEST_NS or since_ns < self._begun_ns or late:
                continue
            threads, time_ns = threads + 1, time_ns + window_ns
            figures = np.array((after.running_ns, after.runnable_ns, after.disk_ns))
            if before is not None:
                figures -= (before.running_ns, before.runnable_ns, before.disk_ns)
            # Kernels from 6.12 on may lose the begin of a wait for a disk, and then count from their own.
            disks = disks and figures[2] <= window_ns
            told += self._sums_ns[number]
            accounted += figures
        running, runnable, disk = zip(told.tolist(), accounted.tolist(), strict=True)
        return replace(
            counters,
            accounted_threads=threads,
            unaccounted_threads=len(self._threads) - threads,
            accounted_time_ns=time_ns,
            told_running_ns=running[0],
            accounted_running_ns=running[1],
            told_runnable_ns=runnable[0],
            accounted_runnable_ns=runnable[1],
            told_disk_ns=disk[0],
            accounted_disk_ns=disk[1],
            accounted_disk=int(disks),
        )

    def close(self) -> None:
        """Let go of what reading needs."""
        if self._importing is not None:
            self._importing.join()
        if self._accounts is not None:
            self._accounts.close()
            self._accounts = None
