"""Samples of the clock: what each tells, and which thread, operation and phase it fell into."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.capture.code_map import CallSites, Code, CodeMap, enter_from_outside, read_code_map, tell
from rlscope_ebpf.capture.cookie import Group
from rlscope_ebpf.capture.counters import ProbeCounters
from rlscope_ebpf.capture.plan import LibraryRule
from rlscope_ebpf.model.categories import Category, ThreadState
from rlscope_ebpf.model.events import SampleKind
from rlscope_ebpf.model.rows import chosen, joined
from rlscope_ebpf.model.tables import SAMPLE_ROW_DTYPE, Batch, Definition, ThreadInfo
from rlscope_ebpf.session.intervals import mark_gpu_waits

_PLACED = np.dtype([("time_ns", "<u8"), ("pid", "<u4"), ("tid", "<u4"), ("kind", "<u4"), ("category", "u1")])
Ints = NDArray[np.int64]

SAMPLED_FOR: dict[Group, tuple[Category, ...]] = {
    Group.BOUNDARY: (Category.PYTHON, Category.OTHER),  # calls that are not probed count as their caller's
    Group.REENTRY: (Category.SIMULATOR, Category.BACKEND),  # and callbacks as part of the call
    Group.CUDA: (Category.PYTHON, Category.OTHER, Category.SIMULATOR, Category.BACKEND),  # mostly in other calls
}
"""Where probes of a group are taken off: the categories in whose time there may now be something else."""


def cost_of_sample_ns(counters: ProbeCounters, interrupt_ns: float) -> float:
    """What a sample takes of its thread's time: the interrupt and the program in it."""
    return interrupt_ns + counters.sampled_ns / max(1, counters.samples)


def spent_on_samples_ns(counters: ProbeCounters, interrupt_ns: float) -> int:
    """What all of them have taken."""
    return int(counters.samples * interrupt_ns) + counters.sampled_ns


class Sampler:
    """Tells categories of samples, and marks the intervals whose category is theirs to tell.

    Nothing is marked before `begin`. Not thread-safe.
    """

    def __init__(self, rules: Sequence[LibraryRule], *, follows_all: bool = False) -> None:
        """`follows_all`: threads come that have passed no probe. Those that a library made for itself are left out."""
        self._follows_all = follows_all
        self._of_interest: set[int] = set()  # threads that are not left out
        self._rules = tuple(rules)
        self._interpreters: dict[int, tuple[str, tuple[int, int]]] = {}  # by process: its file, and its loop
        self._maps: dict[int, tuple[CodeMap, CallSites]] = {}
        self._python: set[int] = set()  # threads that were seen in the interpreter
        self._threads: dict[int, int] = {}  # tid → id of who has it now
        self._threads_by_id: dict[int, int] = {}
        self._waiting: NDArray[np.void] = np.empty(0, _PLACED)
        self._left: dict[int, int] = {}  # by thread id, the category in which it left its CPU; -1: it is on one
        self._since_ns = np.iinfo(np.int64).max
        self._sampled = np.zeros(256, np.bool_)  # by category

    def begin(self, since_ns: int, categories: Iterable[Category]) -> None:
        """From a moment on, what probes take for one of these categories is for samples to tell, while it runs."""
        self._since_ns = min(self._since_ns, since_ns)
        self._sampled[list(categories)] = True

    def find_interpreter(self, pid: int, path: str, loop: tuple[int, int]) -> None:
        """Learn in which file a process has its interpreter, and the addresses of the function that runs Python."""
        self._interpreters[pid] = path, loop

    def look(self, pid: int) -> None:
        """See what code a process has by now."""
        path, loop = self._interpreters.get(pid, (None, None))
        self._maps[pid] = read_code_map(pid, self._rules, path, loop), CallSites(pid)

    def define(self, definitions: Iterable[Definition]) -> None:
        """Learn which threads there are."""
        for definition in definitions:
            if isinstance(definition, ThreadInfo):
                self._threads[definition.tid] = definition.id
                self._threads_by_id[definition.id] = definition.tid
                if definition.tid == definition.pid:
                    self._of_interest.add(definition.tid)

    def take(self, samples: NDArray[np.void]) -> None:
        """Take SAMPLE_DTYPE records; `place` puts them where they belong."""
        if not len(samples):
            return
        placed = np.empty(len(samples), _PLACED)
        for name in ("time_ns", "pid", "tid", "kind"):
            placed[name] = samples[name]
        for pid in np.unique(samples["pid"]).tolist():
            mine = np.flatnonzero(samples["pid"] == pid)
            of_process = np.take(samples, mine)
            known = self._maps.get(pid)
            told = tell(of_process, *known) if known else np.full(len(mine), Code.NOTHING, np.uint8)
            if self._follows_all and known:
                self._find_interesting(of_process, told, *known)
            placed["category"][mine] = self._categories(told, samples["tid"][mine])
        self._waiting = joined([self._waiting, placed])

    def _find_interesting(
        self, samples: NDArray[np.void], told: NDArray[np.uint8], code_map: CodeMap, calls: CallSites
    ) -> None:
        """Learn which threads the program itself works with."""
        tid = samples["tid"]
        told_so = (told == Code.PYTHON) | (told == Code.INTERPRETER)
        self._of_interest.update(np.unique(tid[told_so]).tolist())
        open_ones = np.flatnonzero((told < Code.NOTHING) & ~np.isin(tid, list(self._of_interest)))
        if len(open_ones):
            outside = enter_from_outside(np.take(samples, open_ones), code_map, calls)
            self._of_interest.update(np.unique(tid[open_ones[outside]]).tolist())

    def _leave_out(self, rows: NDArray[np.void]) -> NDArray[np.void]:
        """The intervals of threads that the program works with: in operations, in Python, in calls from outside."""
        marked = np.unique(rows["thread"][rows["path"] > 0]).tolist()
        tids = {self._threads_by_id.get(thread, 0) for thread in marked}
        self._of_interest |= tids
        ids = [self._threads[tid] for tid in self._of_interest if tid in self._threads]
        return chosen(rows, np.isin(rows["thread"], ids))

    def _categories(self, told: NDArray[np.uint8], tid: NDArray[np.uint32]) -> NDArray[np.uint8]:
        """Code that nobody knows is Python's on a thread that runs Python: it was called from there."""
        self._python.update(np.unique(tid[(told == Code.PYTHON) | (told == Code.INTERPRETER)]).tolist())
        category: NDArray[np.uint8] = told.copy()
        category[told == Code.INTERPRETER] = Category.PYTHON
        unknown = np.flatnonzero((told == Code.NOTHING) | (told > Code.INTERPRETER))
        if len(unknown):
            runs_python = np.isin(tid[unknown], list(self._python))
            category[unknown] = np.where(runs_python, np.uint8(Category.PYTHON), np.uint8(Category.OTHER))
        return category

    def place(self, batch: Batch, cost_ns: float) -> None:
        """Mark the batch's intervals, and add the samples that fell into marked ones.

        Samples outside of them tell nothing that is not known already. Call with every batch of a matcher, and take
        before each what was sampled up to then. `cost_ns`: what a sample takes of its thread's time.
        """
        self.define(batch.definitions)
        rows = batch.tables.get("intervals")
        if rows is not None and self._follows_all:
            rows = batch.tables["intervals"] = self._leave_out(rows)
        if rows is not None and len(rows):
            told = self._sampled[rows["category"]] & (rows["start_ns"] >= self._since_ns)
            found, row = self._find(rows)
            waiting, self._waiting = chosen(self._waiting, found), chosen(self._waiting, ~found)
            rows["overhead_ns"] += (np.bincount(row, minlength=len(rows)) * cost_ns).astype(np.uint32)
            off = waiting["kind"] == SampleKind.OFF
            rows["sampled"] = told & ~self._settle_off(rows, told, row[off], waiting["category"][off])
            mark_gpu_waits(rows)
            of = np.flatnonzero(~off & (rows["sampled"][row] != 0))
            if len(of):
                table = np.empty(len(of), SAMPLE_ROW_DTYPE)
                for name in ("thread", "path", "phase"):
                    table[name] = rows[name][row[of]]
                for name in ("time_ns", "category"):
                    table[name] = waiting[name][of]
                batch.tables["samples"] = table
        # What was handed out without them they will not fall into any more: threads that are not followed.
        self._waiting = chosen(self._waiting, self._waiting["time_ns"] >= batch.now_ns)

    def _settle_off(
        self, rows: NDArray[np.void], told: NDArray[np.bool_], row: Ints, category: NDArray[np.uint8]
    ) -> NDArray[np.bool_]:
        """Give the time off a CPU the category in which its thread left it; whether a row's category is settled.

        `row` and `category`: samples of threads that left.
        """
        off = rows["state"] != ThreadState.RUNNING
        starts = np.flatnonzero(np.diff(rows["thread"].astype(np.int64), prepend=-1))
        threads = rows["thread"][starts].tolist()
        left = np.full(len(rows), -1, np.int64)
        left[starts] = [self._left.get(thread, -1) for thread in threads]  # goes on from the last batch
        left[row] = category
        left[~off] = -1
        # Until it is back on a CPU it has left in the category of the last row that says so.
        at = np.arange(len(rows))
        begins = ~off
        begins[starts] = True
        last = np.maximum.accumulate(np.where(left >= 0, at, -1))
        known = off & (last >= np.maximum.accumulate(np.where(begins, at, -1)))
        left = np.where(known, left[last], -1)
        # Who sleeps does not run Python, and has not the lock back while it has only been woken.
        asleep = rows["state"] == ThreadState.BLOCKED
        slept = np.maximum.accumulate(np.where(asleep, at, -1)) >= last
        left[known & slept & (left == Category.PYTHON)] = Category.OTHER
        ends = np.append(starts[1:], len(rows)) - 1
        self._left.update(zip(threads, left[ends].tolist(), strict=True))
        settled = told & known
        rows["category"][settled] = left[settled]
        done: NDArray[np.bool_] = settled | asleep
        return done

    def _find(self, rows: NDArray[np.void]) -> tuple[NDArray[np.bool_], Ints]:
        """Which of the waiting samples fall into one of the rows, and into which each of these does."""
        waiting = self._waiting
        tids, which = np.unique(waiting["tid"], return_inverse=True)
        thread = np.array([self._threads.get(tid, 0) for tid in tids.tolist()], np.uint32)[which]
        starts = np.flatnonzero(np.diff(rows["thread"].astype(np.int64), prepend=-1))
        ends = np.append(starts[1:], len(rows))
        at = np.full(len(waiting), -1, np.int64)
        for first, end, number in zip(starts.tolist(), ends.tolist(), rows["thread"][starts].tolist(), strict=True):
            mine = np.flatnonzero(thread == number)
            if not len(mine):
                continue
            part = rows[first:end]
            row = part["start_ns"].searchsorted(waiting["time_ns"][mine], side="right") - 1
            inside = row >= 0
            mine, row = mine[inside], row[inside]
            inside = waiting["time_ns"][mine] < part["start_ns"][row] + part["duration_ns"][row]
            at[mine[inside]] = row[inside] + first
        found = at >= 0
        return found, at[found]
