"""What the known-truth program does, one scenario after the other. Each opens its own operations.

The work is planned: the lengths of all stretches come from a seeded generator and a scenario ends when the lengths it
has drawn add up to its share of `--seconds`. So two runs with the same options do the same work, however much a
profiler slows one of them.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from ctypes import c_void_p, cast
from dataclasses import dataclass, field
from math import exp, log
from time import monotonic_ns
from typing import Any

from truth_native import CALLBACK, CALLBACK_HELD, Natives, Spin, address, open_library
from truth_recorder import Operation, Recorder

import rlscope_ebpf.markers as rls

SHORTEST_NS = 20_000
LONGEST_NS = 5_000_000
MEAN_NS = (LONGEST_NS - SHORTEST_NS) / log(LONGEST_NS / SHORTEST_NS)  # of a log-uniform length
PYTHON_SHARE = 0.5  # a stretch of Python is so long, as a share of a native one drawn alike
DEFAULT_RATE = 1e9 / (MEAN_NS * (1 + PYTHON_SHARE))
"""Boundary calls per second of a thread that alternates between Python and native stretches: about 740."""

PYTHON_THREADS = 8
NATIVE_THREADS = 3
NATIVE_CALLS = 16  # of each native thread and library, at the default rate


@dataclass(frozen=True)
class Pace:
    """How long stretches are, and how many of the native threads' calls fit."""

    scale: float = 1.0  # of the lengths
    floor_ns: float = 0.0  # no stretch is shorter, before its share is taken

    @property
    def shortest_ns(self) -> float:
        return max(SHORTEST_NS * self.scale, self.floor_ns)

    @property
    def longest_ns(self) -> float:
        return max(LONGEST_NS * self.scale, self.floor_ns)


class Work:
    """One thread's supply of stretches of time, and its log."""

    def __init__(self, recorder: Recorder, natives: Natives, seed: str, pace: Pace, budget_ns: float) -> None:
        self.recorder = recorder
        self.natives = natives
        self.pace = pace
        self.planned_ns = 0
        self._budget_ns = budget_ns
        self._random = random.Random(seed)

    def rounds(self) -> Iterator[int]:
        """Counts rounds until the planned work fills the budget; at least one."""
        number = 0
        while not number or self.planned_ns < self._budget_ns:
            number += 1
            yield number

    def stretch(self, share: float = 1.0) -> int:
        """The next length in ns, log-uniform between 20 us and 5 ms at the default pace."""
        length = int(exp(self._random.uniform(log(self.pace.shortest_ns), log(self.pace.longest_ns))) * share)
        self.planned_ns += length
        return length

    def python(self) -> None:
        """Spends the next stretch in the interpreter."""
        end = monotonic_ns() + self.stretch(PYTHON_SHARE)
        while monotonic_ns() < end:
            pass

    def sleep(self) -> None:
        """Spends the next stretch asleep."""
        seconds = self.stretch() / 1e9
        start = monotonic_ns()
        time.sleep(seconds)
        self.recorder.elsewhere(start, monotonic_ns())

    def released(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, which runs without the interpreter lock; giving it up and getting it back is noted as well."""
        releasing, waited = self.recorder.releasing, self.recorder.waited

        def call(*arguments: Any) -> Any:
            releasing()
            result = function(*arguments)
            waited()
            return result

        return call

    def ctypes_spins(self) -> tuple[Spin, Spin]:
        """Simulator and backend through ctypes, interpreter lock released."""
        libraries = self.natives.released
        simulate, infer = libraries["truth_simulator"].sim_spin, libraries["truth_backend"].be_spin
        return self.released(simulate), self.released(infer)

    def held_spins(self) -> tuple[Spin, Spin]:
        """Simulator and backend through a binding module, interpreter lock held."""
        binding = self.natives.modules["truth_binding"]
        return binding.spin, binding.backend_spin


Scenario = Callable[[Work], None]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    """Adds a scenario under its function's name."""
    SCENARIOS[function.__name__] = function
    return function


def alternate(work: Work, title: str, simulate: Spin, infer: Spin) -> None:
    """Rounds of an operation with Python and simulator time of its own around one with Python and backend time."""
    operation = work.recorder.operation
    for _ in work.rounds():
        with operation(title):
            work.python()
            simulate(work.stretch())
            with operation("inference"):
                work.python()
                infer(work.stretch())
                work.python()
            simulate(work.stretch())


# -- ways into a library ---------------------------------------------------------------------------------------------


@scenario
def ctypes_released(work: Work) -> None:
    """ctypes.CDLL."""
    alternate(work, "ctypes_released", *work.ctypes_spins())


@scenario
def ctypes_held(work: Work) -> None:
    """ctypes.PyDLL."""
    libraries = work.natives.held
    alternate(work, "ctypes_held", libraries["truth_simulator"].sim_spin, libraries["truth_backend"].be_spin)


@scenario
def cffi(work: Work) -> None:
    """cffi in ABI mode, which releases the interpreter lock."""
    libraries = work.natives.cffi
    simulate, infer = libraries["truth_simulator"].sim_spin, libraries["truth_backend"].be_spin
    alternate(work, "cffi", work.released(simulate), work.released(infer))


@scenario
def extension(work: Work) -> None:
    """A C extension that is the simulator: functions of the module, a method, a type slot, lock held and released."""
    module = work.natives.modules["truth_simulator_ext"]
    world = module.World()
    _, infer = work.held_spins()
    operation = work.recorder.operation
    for _ in work.rounds():
        with operation("extension"):
            work.python()
            module.spin(work.stretch())
            work.python()
            module.spin_released(work.stretch())
            with operation("inference"):
                work.python()
                infer(work.stretch())
            with operation("world"):
                work.python()
                world.step(work.stretch())
                work.python()
                world(work.stretch())


@scenario
def binding(work: Work) -> None:
    """A C extension that belongs to no category and calls the libraries; lock held and released; a C++ method."""
    module = work.natives.modules["truth_binding"]
    released = work.released(module.spin_released)
    operation = work.recorder.operation
    for _ in work.rounds():
        with operation("binding"):
            work.python()
            module.spin(work.stretch())
            work.python()
            module.backend_spin(work.stretch())
            with operation("binding_released"):
                work.python()
                released(work.stretch())
            with operation("binding_cpp"):
                work.python()
                module.cpp_steps(work.stretch())


def _bound(work: Work, title: str, module: Any) -> None:
    world = module.World()
    _, infer = work.held_spins()
    operation = work.recorder.operation
    for _ in work.rounds():
        with operation(title):
            work.python()
            module.spin(work.stretch())
            work.python()
            module.spin_released(work.stretch())
            with operation("inference"):
                work.python()
                infer(work.stretch())
            with operation("world"):
                work.python()
                world.step(work.stretch())


@scenario
def pybind11(work: Work) -> None:
    """A pybind11 module that is the simulator."""
    _bound(work, "pybind11", work.natives.modules["truth_simulator_pybind"])


@scenario
def nanobind(work: Work) -> None:
    """A nanobind module that is the simulator."""
    _bound(work, "nanobind", work.natives.modules["truth_simulator_nanobind"])


# -- native code that calls Python, itself, each other -----------------------------------------------------------------


def _callback_ways(work: Work) -> dict[str, Callable[[Callable[[], None], int], object]]:
    """Name → function(callable, ns): ns in a library, the callable, ns in the library."""
    natives = work.natives

    def through_ctypes(kind: Any, function: Any) -> Callable[[Callable[[], None], int], object]:
        def call(callable_: Callable[[], None], ns: int) -> None:
            pointer = kind(lambda _context: callable_())
            function(cast(pointer, c_void_p), None, ns)

        return call

    released, held = natives.released["truth_simulator"], natives.held["truth_simulator"]
    ways: dict[str, Any] = {
        "callback_ctypes": through_ctypes(CALLBACK, work.released(released.sim_callback)),
        "callback_ctypes_held": through_ctypes(CALLBACK_HELD, held.sim_callback),
        "callback_extension": natives.modules["truth_simulator_ext"].call,
        "callback_binding": natives.modules["truth_binding"].callback,
        "callback_backend": natives.modules["truth_binding"].backend_callback,
    }
    for short in ("pybind", "nanobind"):
        module = natives.modules.get(f"truth_simulator_{short}")
        if module is not None:
            ways[f"callback_{short}"] = module.call
            ways[f"callback_{short}_function"] = module.call_std
    return ways


@scenario
def callbacks(work: Work) -> None:
    """Python called from native code: plain, with an operation inside, and calling the library again."""
    operation = work.recorder.operation
    simulate, infer = work.ctypes_spins()
    held_simulate, _ = work.held_spins()

    def plain() -> None:
        work.python()

    def marked() -> None:
        work.python()
        with operation("reward"):
            work.python()
            infer(work.stretch())
        work.python()

    def again() -> None:
        work.python()
        simulate(work.stretch())
        work.python()
        held_simulate(work.stretch())

    ways = _callback_ways(work)
    for _ in work.rounds():
        for name, call in ways.items():
            with operation(name):
                work.python()
                call(plain, work.stretch(0.5))
                with operation("marked"):
                    call(marked, work.stretch(0.5))
                with operation("again"):
                    call(again, work.stretch(0.5))


@scenario
def recursion(work: Work) -> None:
    """A boundary function that calls itself, directly and through Python."""
    operation = work.recorder.operation
    recurse = work.released(work.natives.released["truth_simulator"].sim_recurse)
    call = work.natives.modules["truth_binding"].callback

    def descend(depth: int) -> None:
        work.python()
        if depth:
            call(lambda: descend(depth - 1), work.stretch(0.5))

    for _ in work.rounds():
        with operation("recursion_native"):
            work.python()
            recurse(work.stretch(0.2), 4)
        with operation("recursion_python"):
            descend(4)


@scenario
def cross(work: Work) -> None:
    """A library that calls the other one."""
    operation = work.recorder.operation
    released, held = work.natives.released, work.natives.held
    simulator, backend = released["truth_simulator"], held["truth_backend"]
    sim_spin, be_spin = address(simulator.sim_spin), address(backend.be_spin)
    simulate = work.released(simulator.sim_call_native)
    for _ in work.rounds():
        with operation("simulator_uses_backend"):
            work.python()
            simulate(be_spin, work.stretch(), work.stretch(0.5))
        with operation("backend_uses_simulator"):
            work.python()
            backend.be_call_native(sim_spin, work.stretch(), work.stretch(0.5))


# -- unusual ends ----------------------------------------------------------------------------------------------------


@scenario
def exceptions(work: Work) -> None:
    """C++ exceptions that cross boundary functions."""
    operation = work.recorder.operation
    natives = work.natives
    glue = natives.released["truth_glue"]
    binding_module = natives.modules["truth_binding"]
    once, twice = work.released(glue.glue_throwing), work.released(glue.glue_throwing_through)
    diverging = [natives.modules.get(f"truth_simulator_{short}") for short in ("pybind", "nanobind")]
    for _ in work.rounds():
        with operation("thrown_released"):
            work.python()
            assert once(work.stretch()) == 1
            work.python()
            assert twice(work.stretch(0.5)) == 1
            work.python()
        with operation("thrown_held"):
            work.python()
            with suppress(ArithmeticError):
                binding_module.throwing(work.stretch())
            work.python()
            assert binding_module.throwing_through(work.stretch(0.5))
            work.python()
        for module in filter(None, diverging):
            with operation("thrown_to_binding"):
                work.python()
                with suppress(ValueError):
                    module.diverge(work.stretch())
                work.python()


@scenario
def longjmps(work: Work) -> None:
    """Boundary functions left by longjmp. With the lock held, no call of the interpreter's shows where it landed."""
    operation = work.recorder.operation
    released = work.released(work.natives.released["truth_glue"].glue_longjmp)
    held = work.natives.modules["truth_binding"].jumping
    for _ in work.rounds():
        with operation("longjmp_released"):
            work.python()
            assert released(work.stretch()) == 1
            work.python()
        with operation("longjmp_held"):
            work.python()
            assert held(work.stretch())
            work.python()


# -- threads, sleep --------------------------------------------------------------------------------------------------


@scenario
def native_threads(work: Work) -> None:
    """Threads that Python knows nothing of, outside any operation; the last call of each ends its thread."""
    run = work.natives.released["truth_glue"].glue_native_threads
    calls = int(NATIVE_CALLS / work.pace.scale) + 1
    for _ in work.rounds():
        with work.recorder.operation("native_threads"):
            work.python()
            ns = work.stretch()
            start = monotonic_ns()
            assert run(NATIVE_THREADS, calls, ns, 1) == 0
            work.recorder.elsewhere(start, monotonic_ns())
            work.planned_ns += 2 * calls * ns


@scenario
def sleep(work: Work) -> None:
    """time.sleep: neither Python nor a library."""
    for _ in work.rounds():
        with work.recorder.operation("sleep"):
            work.python()
            work.sleep()
            work.python()


@dataclass
class Crew:
    """Threads with operations of their own; `recorders` are their logs once all have ended."""

    recorders: list[Recorder] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    def run(self, natives: Natives, pace: Pace, budget_ns: float) -> None:
        """Runs them all. They take turns at the interpreter lock, but sleep and run native code at the same time."""
        members = [
            threading.Thread(target=self._member, args=(number, natives, pace, budget_ns / 3), name=f"worker-{number}")
            for number in range(PYTHON_THREADS)
        ]
        for member in members:
            member.start()
        for member in members:
            member.join()
        if self.failures:
            raise self.failures[0]

    def _member(self, number: int, natives: Natives, pace: Pace, budget_ns: float) -> None:
        try:
            recorder = Recorder(f"worker-{number}")
            self.recorders.append(recorder)
            work = Work(recorder, natives, f"worker-{number}", pace, budget_ns)
            simulate, infer = work.ctypes_spins()
            held_simulate, held_infer = work.held_spins()
            operation = recorder.operation
            for _ in work.rounds():
                with operation(f"worker-{number}"):
                    work.python()
                    simulate(work.stretch())
                    with operation("act"):
                        work.python()
                        infer(work.stretch())
                        work.python()
                        held_infer(work.stretch(0.5))
                    held_simulate(work.stretch(0.5))
                    work.sleep()
        except BaseException as error:  # handed to the thread that waits
            self.failures.append(error)


# -- shapes of operations ----------------------------------------------------------------------------------------------


class _Failure(Exception):
    """Raised to close operations."""


@scenario
def nesting(work: Work) -> None:
    """Operations in operations, a name in itself, one closed by an exception."""
    operation = work.recorder.operation
    simulate, infer = work.ctypes_spins()
    for number in work.rounds():
        with operation("outer"):
            work.python()
            with operation("middle"):
                simulate(work.stretch())
                with operation("inner"):
                    work.python()
                    infer(work.stretch())
                work.python()
            infer(work.stretch())
        with operation("self"):
            work.python()
            with operation("self"):
                simulate(work.stretch())
                with operation("self"):
                    work.python()
        with suppress(_Failure), operation("failing"):
            work.python()
            with operation("deeper"):
                simulate(work.stretch())
                raise _Failure
        rls.progress(number)


class _Turns:
    """The stamps around the turns of a decorated function.

    Its markers are called by the decorator, between which and the stamps of whoever takes the turn lies the decorator's
    own work. So the stamps next to the markers are those inside the function; half of what a marker takes lies
    between, which the operation around it has just found out. What is sure is that the markers are called after the
    turn was given and before it was over: that may be long, for code that has not run for a while is slow.
    """

    def __init__(self, around: Operation, recorder: Recorder, name: str) -> None:
        self._around = around
        self._recorder = recorder
        self._name = name
        self._given_ns = self._finished_ns = 0

    def give(self) -> None:
        """The last act of whoever gives the function its turn."""
        self._given_ns = monotonic_ns()

    def begun(self) -> None:
        """The function's first act in this turn."""
        now = monotonic_ns()
        time = max(self._given_ns, now - (self._around.begin_ns >> 1))
        self._recorder.begun(self._name, time, unsure_ns=now - self._given_ns)

    def finish(self) -> None:
        """Its last act in this turn."""
        self._finished_ns = monotonic_ns()

    def over(self) -> None:
        """The first act of whoever gave the turn, afterwards."""
        now = monotonic_ns()
        time = min(now, self._finished_ns + (self._around.begin_ns >> 1))
        self._recorder.ended(time, unsure_ns=now - self._finished_ns)


@scenario
def decorated(work: Work) -> None:
    """Decorated functions, coroutines and generators, and a plain `with` around a yield.

    A decorated coroutine's (generator's) operation is open while it runs and closed while it is suspended: each turn is
    an instance. A plain `with` stays open, and the consumer's time is its time.
    """
    recorder = work.recorder
    simulate, infer = work.ctypes_spins()
    around = recorder.operation("decorated")
    call, awaited, yielded = (_Turns(around, recorder, name) for name in ("function", "coroutine", "generator"))

    @rls.operation("function")
    def function() -> None:
        call.begun()
        work.python()
        simulate(work.stretch())
        call.finish()

    class Suspension:
        def __await__(self) -> Generator[None, None, None]:
            yield

    @rls.operation("coroutine")
    async def coroutine() -> None:
        awaited.begun()
        work.python()
        awaited.finish()
        await Suspension()
        awaited.begun()
        infer(work.stretch())
        work.python()
        awaited.finish()

    @rls.operation("generator")
    def generator() -> Generator[None, None, None]:
        yielded.begun()
        work.python()
        yielded.finish()
        yield
        yielded.begun()
        simulate(work.stretch())
        yielded.finish()

    def plain() -> Generator[None, None, None]:
        with recorder.operation("plain_generator"):
            for _ in range(2):
                work.python()
                yield

    for _ in work.rounds():
        with around:
            call.give()
            function()
            call.over()
            running, turns = coroutine(), generator()
            awaited.give()
            running.send(None)
            awaited.over()
            work.sleep()
            with suppress(StopIteration):
                awaited.give()
                running.send(None)
            awaited.over()
            yielded.give()
            next(turns)
            yielded.over()
            simulate(work.stretch())
            with suppress(StopIteration):
                yielded.give()
                next(turns)
            yielded.over()
        for _ in plain():
            simulate(work.stretch())


@scenario
def untracked(work: Work) -> None:
    """Library calls outside any operation."""
    simulate, infer = work.ctypes_spins()
    for _ in work.rounds():
        work.python()
        simulate(work.stretch())
        infer(work.stretch())


def late(work: Work, wait_s: float) -> None:
    """A library loaded while the program runs; used only after the profiler has had time to find it."""
    library = open_library(work.natives.folder, "truth_simulator_late")
    time.sleep(wait_s)
    simulate = work.released(library.late_spin)
    for _ in work.rounds():
        with work.recorder.operation("late"):
            work.python()
            simulate(work.stretch())
