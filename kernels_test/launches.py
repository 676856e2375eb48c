"""A Python program that makes CUDA calls of exactly known number and time on the simulated CUDA, and prints its truth.

    python launches.py [--scenario NAME …] [--rounds N] [--load before|late]

Protocol and truth are those of tests/targets/truth.py: `READY pid`, a line on stdin, `TRUTH json` (schema
"rlscope-ebpf.truth/1"). In addition the truth holds

* `cuda_api`: per function, as a profiler can see it from outside: count, total_ns, p50_ns, p99_ns. A runtime call is
  counted, the driver call that it makes is not; of a runtime linked into the program only the driver calls are seen;
* `not_counted`: how often each function ran that must not be in a profile: driver calls made by the runtime, getters.

A call's time is taken by itself, from its first action to its last: a profiler that stamps before and after sees up to
a microsecond or two more per call.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import struct
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from pathlib import Path
from time import monotonic_ns
from typing import Any

HERE = Path(__file__).resolve().parent
# The checkout's modules; `build` of both folders has the same name, so this folder's is imported first and renamed.
import build as simcuda_build

del sys.modules["build"]
sys.path.remove(str(HERE))
sys.path[:0] = [str(HERE.parent / "tests" / "targets")]
try:
    import rlscope_ebpf.markers as rls
except ModuleNotFoundError:
    sys.path.append(str(HERE.parent))
    import rlscope_ebpf.markers as rls

import build as target_build
from truth_recorder import CATEGORIES, CUDA_API, OTHER, Entry, Note, Recorder, Replay, Sums

UNTRACKED = "(untracked)"
PHASE = "launching"
KINDS = ("runtime", "static", "driver")
PYTHON_THREADS = 8
NATIVE_THREADS = 8
BURST = 10  # launches at a time: next to them, what ctypes needs before it releases the interpreter lock is little
PAUSE_S = 0.125  # after each round of a thread: all together then need fewer than two CPUs
LATE_WAIT_S = 1.5
CALL_NS = 1_000_000  # of the functions' own time, unless a scenario says otherwise: a hundred times what probes take
STORM_NS = 2_000  # what a launch takes on real hardware, half of it in the runtime
SLOW_EVERY = 20
SLOW_FACTOR = 10

_STAMP = struct.Struct("<qII")
_ENTER = 1  # enum simcuda_kind

# Every function that has a time of its own and is called in a scenario.
_TIMED = (
    "cuCtxSynchronize",
    "cuLaunchKernel",
    "cuLaunchKernel_ptsz",
    "cuLaunchKernelEx",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemsetD8Async",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuStreamSynchronize",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuGraphLaunch",
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cudaMemcpyAsync",
    "cudaMalloc",
    "cudaFree",
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventRecord",
)
_GETTERS = ("cuCtxGetDevice", "cuDevicePrimaryCtxGetState", "cudaGetDevice", "cudaGetLastError")


class Simulated:
    """The simulated CUDA's own interface: settings and logs."""

    def __init__(self, folder: Path) -> None:
        self._library = library = ctypes.PyDLL(str(folder / "libcuda.so.1"))
        library.simcuda_set_ns.argtypes = (ctypes.c_char_p, ctypes.c_int64)
        library.simcuda_calls.argtypes = (ctypes.c_char_p,)
        library.simcuda_calls.restype = ctypes.c_int64
        library.simcuda_name.argtypes = (ctypes.c_uint32,)
        library.simcuda_name.restype = ctypes.c_char_p
        library.simcuda_thread_size.restype = ctypes.c_uint64
        library.simcuda_thread_copy.restype = ctypes.c_uint64
        library.simcuda_thread_copy.argtypes = (ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint64)

    def set_ns(self, name: str, ns: int) -> None:
        """How long a call of a function takes, what it calls itself not included."""
        if self._library.simcuda_set_ns(name.encode(), ns):
            raise ValueError(f"the simulated CUDA has no function {name} that takes time")

    def set_all(self, ns: int) -> None:
        """The same for every function."""
        for name in _TIMED:
            self.set_ns(name, ns)

    def calls(self, name: str) -> int:
        """How often a function was called since the start."""
        return int(self._library.simcuda_calls(name.encode()))

    def name(self, function: int) -> str:
        """Of the function with this number."""
        return str(self._library.simcuda_name(function).decode())

    def stamps(self) -> dict[int, list[tuple[int, int, int]]]:
        """Thread id → its log: time, whether it is an entry (1) or an exit (2), function."""
        logs: dict[int, list[tuple[int, int, int]]] = {}
        for thread in range(self._library.simcuda_threads()):
            size = self._library.simcuda_thread_size(thread)
            buffer = ctypes.create_string_buffer(max(1, size) * _STAMP.size)
            copied = self._library.simcuda_thread_copy(thread, buffer, size)
            rows = list(_STAMP.iter_unpack(buffer.raw[: copied * _STAMP.size]))
            logs.setdefault(self._library.simcuda_thread_tid(thread), []).extend(rows)  # an id may be used again
        return logs


@dataclass
class Calls:
    """Calls of one function as seen from outside."""

    durations_ns: list[int] = field(default_factory=list)

    def row(self, name: str) -> dict[str, Any]:
        durations = sorted(self.durations_ns)

        def percentile(percent: int) -> int:  # nearest rank
            return durations[max(0, -(-len(durations) * percent // 100) - 1)]

        return {
            "name": name,
            "count": len(durations),
            "total_ns": sum(durations),
            "p50_ns": percentile(50),
            "p99_ns": percentile(99),
        }


class Launcher:
    """The functions of one of the liblaunches libraries, with the interpreter lock held or released."""

    def __init__(self, folder: Path, kind: str) -> None:
        path = str(folder / f"liblaunches_{kind}.so")
        self.held = _Functions(ctypes.PyDLL(path))
        self.released = _Functions(ctypes.CDLL(path))
        self.held.library.launches_prepare()


class _Functions:
    """Each of launches.c, set up."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.launch, self.step, self.allocate, self.copy, self.ask = (
            self._set_up(name) for name in ("launch", "step", "allocate", "copy", "ask")
        )
        self.step_in_threads = library.launches_step_in_threads
        self.step_in_threads.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64)

    def _set_up(self, name: str) -> Any:
        function = getattr(self.library, f"launches_{name}")
        function.argtypes = (ctypes.c_int64,)
        function.restype = None
        return function


def address(function: Any) -> int:
    """Where a ctypes function starts, to hand it to another native function."""
    found = ctypes.cast(function, ctypes.c_void_p).value
    assert found is not None
    return found


class Program:
    """Runs the scenarios and adds up what they did."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder = simcuda_build.native()
        self.main = Recorder("main")
        self.recorders = [self.main]
        self.phases: list[tuple[int, str]] = []
        targets = target_build.native()
        self.clock = ctypes.PyDLL(str(targets / "libtruth_clock.so"))
        self.clock.truth_thread_size.restype = ctypes.c_uint64
        self.clock.truth_thread_copy.restype = ctypes.c_uint64
        self.clock.truth_thread_copy.argtypes = (ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint64)
        self.backend = ctypes.PyDLL(str(targets / "libtruth_backend.so"))
        self.backend.be_call_native.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self.backend.be_call_native.restype = None

    def load(self) -> None:
        """Loads the CUDA libraries that the scenarios need, and makes everybody's first calls."""
        # The launchers first, so that the runtime finds the driver by itself.
        self.launchers = {kind: Launcher(self.folder, kind) for kind in self.options.through}
        self.cuda = Simulated(self.folder)
        self.cuda.set_all(self.options.call_ns)

    # -- scenarios ------------------------------------------------------------------------------------------------

    def each(self) -> Iterator[tuple[str, Launcher]]:
        yield from self.launchers.items()

    def python(self, ns: int = 200_000) -> None:
        """Spends time in the interpreter."""
        end = monotonic_ns() + ns
        while monotonic_ns() < end:
            pass

    def released(self, recorder: Recorder, function: Callable[..., Any], *arguments: Any) -> None:
        """Calls a function that runs without the interpreter lock: what it does not spend in CUDA calls is `other`."""
        start = monotonic_ns()
        function(*arguments)
        recorder.elsewhere(start, monotonic_ns())

    def held(self) -> None:
        """Calls with the interpreter lock held, operations nested, time in Python around."""
        operation = self.main.operation
        for kind, launcher in self.each():
            for _ in range(self.options.rounds):
                with operation(f"held_{kind}"):
                    self.python()
                    launcher.held.step(2)
                    with operation("allocation"):
                        self.python()
                        launcher.held.allocate(3)
                    self.python()
                    launcher.held.launch(5)

    def lock_released(self) -> None:
        """Calls with the interpreter lock released, as PyTorch makes them."""
        for kind, launcher in self.each():
            for _ in range(self.options.rounds):
                with self.main.operation(f"released_{kind}"):
                    self.python()
                    self.released(self.main, launcher.released.step, 2)
                    self.python()

    def in_backend(self) -> None:
        """Calls that a backend library makes."""
        for kind, launcher in self.each():
            launch, step = address(launcher.held.launch), address(launcher.held.step)
            for _ in range(self.options.rounds):
                with self.main.operation(f"backend_{kind}"):
                    self.python()
                    self.backend.be_call_native(launch, 4, 300_000)
                    with self.main.operation("inner"):
                        self.python()
                        self.backend.be_call_native(step, 1, 300_000)

    def slow_copies(self) -> None:
        """One copy in twenty takes ten times as long: percentiles."""
        for kind, launcher in self.each():
            name = "cudaMemcpyAsync" if kind == "runtime" else "cuMemcpyHtoDAsync_v2"  # the one that is seen
            with self.main.operation(f"copies_{kind}"):
                for _ in range(2 * self.options.rounds):
                    launcher.held.copy(SLOW_EVERY - 1)
                    self.cuda.set_ns(name, SLOW_FACTOR * self.options.call_ns)
                    launcher.held.copy(1)
                    self.cuda.set_ns(name, self.options.call_ns)

    def getters(self) -> None:
        """Nothing but getters, very many."""
        for kind, launcher in self.each():
            with self.main.operation(f"getters_{kind}"):
                for _ in range(self.options.rounds):
                    self.python()
                    launcher.held.ask(1000)

    def threads(self) -> None:
        """Python threads with operations of their own."""
        failures: list[BaseException] = []

        def member(number: int) -> None:
            try:
                recorder = Recorder(f"launcher-{number}")
                self.recorders.append(recorder)
                launcher = self.launchers[self.options.through[number % len(self.options.through)]]
                for _ in range(self.options.rounds):
                    with recorder.operation(f"launcher-{number}"):
                        self.python()
                        self.released(recorder, launcher.released.step, 1)
                        with recorder.operation("burst"):
                            self.released(recorder, launcher.released.launch, BURST)
                        start = monotonic_ns()
                        time.sleep(PAUSE_S)
                        recorder.elsewhere(start, monotonic_ns())
            except BaseException as error:  # handed to the thread that waits
                failures.append(error)

        members = [threading.Thread(target=member, args=(number,)) for number in range(PYTHON_THREADS)]
        for thread in members:
            thread.start()
        for thread in members:
            thread.join()
        if failures:
            raise failures[0]

    def native_threads(self) -> None:
        """Threads without Python and without operations."""
        for _, launcher in self.each():
            start = monotonic_ns()
            error = launcher.released.step_in_threads(NATIVE_THREADS, self.options.rounds, int(PAUSE_S * 1e9))
            self.main.elsewhere(start, monotonic_ns())
            if error:
                raise OSError(error, os.strerror(error))

    def storm(self) -> None:
        """Launches as fast as real ones: their number must be right; their time cannot be, at this length."""
        self.cuda.set_all(STORM_NS)
        for kind, launcher in self.each():
            with self.main.operation(f"storm_{kind}"):
                launcher.held.launch(self.options.storm)
        self.cuda.set_all(self.options.call_ns)

    # -- truth ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Everything that was asked for."""
        self.since_ns = monotonic_ns()
        rls.phase(PHASE)
        self.phases.append(((self.since_ns + monotonic_ns()) >> 1, PHASE))
        if self.options.load == "late":
            self.load()
            time.sleep(LATE_WAIT_S)  # until the profiler has found them
            self.since_ns = monotonic_ns()
        self._before = {name: self.cuda.calls(name) for name in (*_TIMED, *_GETTERS)}
        for name in self.options.scenario:
            SCENARIOS[name](self)

    def _outer(self, stamps: Iterable[tuple[int, int, int]], calls: dict[str, Calls]) -> list[Entry]:
        """The thread's CUDA calls as entries of its log: the outermost only, each also added to `calls`."""
        entries: list[Entry] = []
        depth = 0
        entered = 0
        for time_ns, kind, function in stamps:
            if kind == _ENTER:
                if not depth:
                    entered = time_ns
                    entries.append((time_ns, Note.ENTER, CUDA_API))
                depth += 1
                continue
            depth -= 1
            if not depth:
                entries.append((time_ns, Note.LEAVE, None))
                if entered >= self.since_ns:
                    calls[self.cuda.name(function)].durations_ns.append(time_ns - entered)
        return entries

    def _backend_stamps(self) -> dict[int, list[tuple[int, int, int]]]:
        logs: dict[int, list[tuple[int, int, int]]] = {}
        for thread in range(self.clock.truth_threads()):
            size = self.clock.truth_thread_size(thread)
            buffer = ctypes.create_string_buffer(max(1, size) * _STAMP.size)
            copied = self.clock.truth_thread_copy(thread, buffer, size)
            rows = list(_STAMP.iter_unpack(buffer.raw[: copied * _STAMP.size]))
            logs.setdefault(self.clock.truth_thread_tid(thread), []).extend(rows)
        return logs

    def truth(self) -> dict[str, Any]:
        """The sums, once all threads have ended."""
        until = monotonic_ns()
        calls: dict[str, Calls] = defaultdict(Calls)
        cuda = {tid: self._outer(stamps, calls) for tid, stamps in self.cuda.stamps().items()}
        backend = self._backend_stamps()
        parts = []
        own = {recorder.tid: recorder.entries for recorder in self.recorders}
        for tid in {*own, *cuda, *backend}:
            native = tid not in own
            logs = [own.get(tid, []), backend.get(tid, []), cuda.get(tid, [])]
            entries = list(merge(*logs, key=lambda entry: entry[0]))
            end = entries[-1][0] if native and entries else until
            replay = Replay(OTHER if native else 0, self.phases, since_ns=self.since_ns, until_ns=end)
            parts.append(replay.run(entries))
        ran = {name: self.cuda.calls(name) - before for name, before in self._before.items()}
        return {
            "schema": "rlscope-ebpf.truth/1",
            "pid": os.getpid(),
            "python": platform.python_version(),
            "elapsed_ns": until - self.since_ns,
            "operations": self._rows(parts),
            "cuda_api": [calls[name].row(name) for name in sorted(calls)],
            "not_counted": {
                name: count - len(calls[name].durations_ns if name in calls else ())
                for name, count in ran.items()
                if count > (len(calls[name].durations_ns) if name in calls else 0)
            },
        }

    def _rows(self, parts: Iterable[dict[tuple[tuple[str, ...], str], Sums]]) -> list[dict[str, Any]]:
        total: dict[tuple[str, ...], Sums] = defaultdict(Sums)
        for part in parts:
            for (path, _), sums in part.items():
                into = total[path]
                into.count += sums.count
                into.spans_ns += sums.spans_ns
                for category, ns in sums.cpu_ns.items():
                    into.cpu_ns[category] += ns
                for name, count in sums.transitions.items():
                    into.transitions[name] += count
        return [self._row(path, sums) for path, sums in total.items()]

    def _row(self, path: tuple[str, ...], sums: Sums) -> dict[str, Any]:
        categories = list(CATEGORIES.values())
        if path and path[0].startswith("storm_"):
            categories = []  # a probe takes as long as the call
        if not path:
            categories = [CATEGORIES[CUDA_API]]
        return {
            "path": list(path) or [UNTRACKED],
            "phase": PHASE if path else None,
            "count": sums.count,
            "wall_ns": sums.wall_ns,
            "spans_ns": sums.spans_ns,
            "cpu_ns": {name: sums.cpu_ns.get(number, 0) for number, name in CATEGORIES.items()},
            "transitions": dict(sums.transitions),
            "exact": {"wall": bool(path), "count": bool(path), "categories": categories},
        }


SCENARIOS: dict[str, Callable[[Program], None]] = {
    "held": Program.held,
    "released": Program.lock_released,
    "backend": Program.in_backend,
    "slow_copies": Program.slow_copies,
    "getters": Program.getters,
    "threads": Program.threads,
    "native_threads": Program.native_threads,
    "storm": Program.storm,
}
DEFAULT = [name for name in SCENARIOS if name != "storm"]


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Makes a known number of simulated CUDA calls and prints its truth.")
    parser.add_argument(
        "--scenario", action="append", choices=list(SCENARIOS), help="repeatable; default: all but storm"
    )
    parser.add_argument(
        "--through",
        action="append",
        choices=KINDS,
        help="repeatable; default: all. runtime: libcudart.so; static: the runtime linked in; driver: libcuda only",
    )
    parser.add_argument("--rounds", type=int, default=15, help="of each scenario")
    parser.add_argument("--storm", type=int, default=50_000, help="launches of the storm")
    parser.add_argument("--call-ns", type=int, default=CALL_NS, help="own time of each CUDA function")
    parser.add_argument(
        "--load", choices=("before", "late"), default="before", help="the CUDA libraries, or the attach"
    )
    parsed = parser.parse_args(arguments)
    parsed.scenario = parsed.scenario or DEFAULT
    parsed.through = parsed.through or list(KINDS)
    return parsed


def main() -> int:
    program = Program(options())
    sys.setswitchinterval(1.0)  # the interpreter lock changes hands only where a thread releases it
    if program.options.load == "before":
        program.load()
    print(f"READY {os.getpid()}", flush=True)
    if not sys.stdin.readline():
        return 1
    program.run()
    print("TRUTH", json.dumps(program.truth()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
