"""The maps and rings of the loaded BPF programs."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.capture.bpf import BpfMap
from rlscope_ebpf.capture.compiler import EVENT_RING_BYTES, SAMPLE_RING_BYTES, TEXT_RING_BYTES, CompiledPrograms
from rlscope_ebpf.capture.counters import COUNTERS, ProbeCounters, parse_counters
from rlscope_ebpf.capture.ring import Ring
from rlscope_ebpf.model.events import EVENT_DTYPE, SAMPLE_DTYPE, TEXT_DTYPE

_SET_NO_GIL, _SET_SAMPLES = 0, 1  # enum rls_setting


class Programs:
    """The loaded programs of one session, their rings and maps. Closes them in the end."""

    def __init__(self, compiled: CompiledPrograms) -> None:
        self._compiled = compiled
        self.session_fd, self.entry_fd, self.return_fd = compiled.session_fd, compiled.entry_fd, compiled.return_fd
        self.tracepoint_fds, self.tick_fd = compiled.tracepoint_fds, compiled.tick_fd
        self.raw_tracepoint_fds, self.sample_fd = compiled.raw_tracepoint_fds, compiled.sample_fd
        maps = compiled.maps
        self.events = Ring(maps["events"], EVENT_RING_BYTES, EVENT_DTYPE)
        self.texts = Ring(maps["texts"], TEXT_RING_BYTES, TEXT_DTYPE)
        self.samples = Ring(maps["samples"], SAMPLE_RING_BYTES, SAMPLE_DTYPE)
        self._targets = BpfMap(maps["targets"])
        self._records = BpfMap(maps["marker_records"])
        self._interpreters = BpfMap(maps["interpreters"])
        self._counters = BpfMap(maps["counters"])
        self._silent = BpfMap(maps["silent_hits"])
        self._settings = BpfMap(maps["settings"])
        self._turns = BpfMap(maps["turns"])
        self._turn: dict[int, int] = {}  # by site, where it is not 0
        self._turning = threading.Lock()
        self._loads = BpfMap(maps["loads"])
        self._looks = BpfMap(maps["looks"])
        self._cpus = possible_cpus()

    def add_target(self, pid: int, *, is_python: bool, assume_held: bool, pointer_guard: int = 0) -> None:
        """Let a process's hits through. For the rest see `struct target`."""
        flags = bytes((is_python, assume_held)).ljust(8, b"\0")
        self._targets.update(_u32(pid), pointer_guard.to_bytes(8, "little") + flags)

    def remove_target(self, pid: int) -> None:
        """Let no more hits of a process through on threads that have made none yet."""
        self._targets.delete(_u32(pid))

    def forget_process(self, pid: int, tids: Iterable[int]) -> None:
        """Forget all that is known of a process that has ended, and the marker records of its threads."""
        for kept in (self._loads, self._looks, self._interpreters):
            kept.delete(_u32(pid))
        for tid in tids:
            self._records.delete(_u32(tid))

    def set_interpreter(self, pid: int, start: int, end: int) -> None:
        """Where the interpreter's loop lies in a process."""
        self._interpreters.update(_u32(pid), start.to_bytes(8, "little") + end.to_bytes(8, "little"))

    def add_marker_record(self, tid: int, address: int) -> None:
        """Where a thread's record of open operations lies in its process."""
        self._records.update(_u32(tid), address.to_bytes(8, "little"))

    def watch_loads(self, pid: int) -> None:
        """Count from now on what a process loads."""
        self._loads.update(_u32(pid), bytes(8))

    def loads(self, pid: int) -> int:
        """What the programs have counted: see `loads` in thread.bpf.c. 0 if they do not."""
        value = np.zeros(1, np.uint64)
        return int(value[0]) if self._loads.lookup_into(_u32(pid), value) else 0

    def allow_returns(self, pid: int, loads: int | None) -> None:
        """Let calls get return probes until more has been loaded than `loads`; None: let them get none."""
        if loads is None:
            self._looks.delete(_u32(pid))
        else:
            self._looks.update(_u32(pid), loads.to_bytes(8, "little"))

    def assume_gil(self, assumed: bool) -> None:
        """Tell the programs whether who has held the interpreter lock counts as holding it."""
        self._settings.update(_u32(_SET_NO_GIL), _u32(assumed))

    def sample(self, *, follow: bool) -> None:
        """Look at threads that go off their CPU; `follow`: follow every thread that is seen at work."""
        self._settings.update(_u32(_SET_SAMPLES), _u32(2 if follow else 1))  # enum rls_sampling

    def counters(self) -> ProbeCounters:
        """The programs' counters, summed over CPUs."""
        totals = np.zeros(COUNTERS, np.uint64)
        per_cpu = np.zeros(self._cpus, np.uint64)
        for index in range(COUNTERS):
            if self._counters.lookup_into(_u32(index), per_cpu):
                totals[index] = per_cpu.sum()
        return parse_counters(totals)

    def silent_hits(self, sites: Iterable[int]) -> NDArray[np.uint64]:
        """Hits so far that sent no event, by site; of ids beyond the map's size none are counted."""
        per_cpu = np.zeros(self._cpus, np.uint64)
        found = [int(per_cpu.sum()) if self._silent.lookup_into(_u32(site), per_cpu) else 0 for site in sites]
        return np.array(found, np.uint64)

    def stop_following(self, sites: Iterable[int]) -> dict[int, int]:
        """Follow no more calls from these sites, which are about to be taken off; for `forget_calls`."""
        with self._turning:
            return {site: self._set_turn(site, self._turn.get(site, 0) | 1) for site in sites}

    def forget_calls(self, turns: Mapping[int, int]) -> None:
        """Sites have been taken off: calls from there that have not returned by now are never seen to."""
        with self._turning:
            for site, turn in turns.items():
                if self._turn.get(site) == turn:
                    self._set_turn(site, turn + 1)

    def follow_again(self, sites: Iterable[int]) -> None:
        """Follow calls from these sites, which are about to be put back."""
        with self._turning:
            for site in sites:
                turn = self._turn.get(site, 0)
                self._set_turn(site, turn + turn % 2)

    def _set_turn(self, site: int, turn: int) -> int:
        self._turn[site] = turn
        with suppress(OSError):  # beyond the map's size
            self._turns.update(_u32(site), _u32(turn))
        return turn

    def reset_counters(self) -> None:
        """Let them all be zero."""
        for index in range(COUNTERS):
            self._counters.update(_u32(index), bytes(8 * self._cpus))

    def close(self) -> None:
        """Unmap the rings and unload the programs."""
        self.events.close()
        self.texts.close()
        self.samples.close()
        self._compiled.close()


def _u32(value: int) -> bytes:
    return value.to_bytes(4, "little")


def possible_cpus() -> int:
    """CPUs that a per-CPU map has room for: `0-3` → 4."""
    with open("/sys/devices/system/cpu/possible") as file:
        return int(file.read().strip().replace(",", "-").split("-")[-1]) + 1
