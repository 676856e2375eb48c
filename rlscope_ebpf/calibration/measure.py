"""Measures what a probe hit costs, by what the kernel must do for it.

A process of our own calls functions whose first instruction is of a known kind, stamps the clock before and after every
call, and walks through other code and data between the calls. The probes run the session's own programs. So for each
call there are up to four times: before it, at the probe on its entry, at the one on its return, and after it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.calibration import child as child_program
from rlscope_ebpf.capture.cookie import Action, Group, SiteClass
from rlscope_ebpf.capture.elf import ElfFile
from rlscope_ebpf.capture.engine import Engine, ProbeSite
from rlscope_ebpf.capture.maps import MappedObject, MapsWatcher
from rlscope_ebpf.errors import ProfilerError
from rlscope_ebpf.model.calibration import SITE_CLASSES, HitCost, MethodCosts
from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.model.events import EventKind
from rlscope_ebpf.paths import calibration_library

CALLS = 2_000
"""Of each function: their median is good to about a percent, and they take a few hundredths of a second."""

SHORT_CALLS = 500
"""For the short form: good to a few percent, in a third of a second."""

CACHE_LINES = 512
"""Of code and of data, that are used between two calls: as much as the first level of caches holds."""

_ROUNDS = 5
_WARM_CALLS = 100
"""The first hit of a 5-byte nop patches it."""

_OUTSIDE, _WITHIN = "rlscope_calibrate", "rlscope_calibrate_within"
_KINDS = (EventKind.CALL, EventKind.RETURN, EventKind.OP_END)
_ENTRY, _EVENT = "_entry", "_event"


class CalibrationError(ProfilerError):
    """The figures could not be taken."""


@dataclass(frozen=True, slots=True)
class _Times:
    """Medians of the calls of one function, in ns. Where the probes sent no events, only `whole` is there."""

    whole: float  # from the stamp before the call to the one after it
    spread: float
    before: float = 0.0  # from the stamp before the call to the probe on its entry
    inside: float = 0.0
    after: float = 0.0


def measure_method(
    method: str, calls: int = CALLS, lines: int = CACHE_LINES, progress: Callable[[], None] = lambda: None
) -> MethodCosts:
    """Costs of the hits of one attach method. `progress` is called after each of `STEPS` steps.

    Raises:
        UnsupportedError, NotPermittedError: BPF cannot be used.
        CalibrationError: the probes did not do what they should.
    """
    engine = Engine(method)
    try:
        progress()
        return measure(engine, calls, lines, progress)
    finally:
        engine.close()
        progress()


def measure(
    engine: Engine, calls: int = CALLS, lines: int = CACHE_LINES, progress: Callable[[], None] = lambda: None
) -> MethodCosts:
    """The same with an engine that has no targets yet; afterwards it has none again. Raises CalibrationError."""
    calls_a_round = max(calls // _ROUNDS, 1)
    try:
        with _child(max(calls_a_round, _WARM_CALLS)) as child:
            plain = child.measure(_OUTSIDE, SITE_CLASSES, calls_a_round, lines)
            progress()
            engine.add_target(child.pid, is_python=False, assume_held=False)
            sites = list(_sites(child.pid))
            armed = sum(probe.armed for probe in engine.attach(child.pid, sites))
            if armed != len(sites):
                raise CalibrationError(
                    f"Only {armed} of the {len(sites)} probes that calibration needs were armed.",
                    "Run `rlscope-ebpf doctor` to see what is missing.",
                )
            told = child.measure(_OUTSIDE, _with(_EVENT, ""), calls_a_round, lines, engine)
            silent = child.measure(_WITHIN, _with(_ENTRY, ""), calls_a_round, lines)
            progress()
    finally:
        engine.forget_targets()
    return _costs(plain, told, silent)


STEPS = 4


def _with(*endings: str) -> tuple[str, ...]:
    return tuple(name + ending for name in SITE_CLASSES for ending in endings)


def _costs(plain: dict[str, _Times], told: dict[str, _Times], silent: dict[str, _Times]) -> MethodCosts:
    entries, returns = [], []
    for name in SITE_CLASSES:
        clock = plain[name].whole  # what reading the clock and the call itself take; half before, half after
        event, pair = told[name + _EVENT], told[name]
        entry_silent = max(0.0, silent[name + _ENTRY].whole - clock)
        entry_before, entry_after = (max(0.0, part - clock / 2) for part in (event.before, event.after))
        entries.append(HitCost(entry_silent, entry_before, entry_after, event.spread))
        returns.append(
            HitCost(
                silent=max(0.0, silent[name].whole - clock - entry_silent),
                before=max(0.0, pair.inside - entry_after),
                after=max(0.0, pair.after - clock / 2),
                spread=pair.spread,
            )
        )
    # What a return adds does not depend on the instruction at the entry; a single-stepped one hides it in its noise.
    return MethodCosts((entries[0], entries[1], entries[2]), returns[SiteClass.EMULATED])


def _sites(pid: int) -> Iterator[ProbeSite]:
    path = str(calibration_library())
    mapped = next(each for each in MapsWatcher(pid).poll() or [] if each.path == path)
    with ElfFile(path) as elf:
        offsets = {function.name: elf.offset_of(function.vaddr) or 0 for function in elf.exports}
    for site_class, name in zip(SiteClass, SITE_CLASSES, strict=True):
        pair = ProbeSite(
            path=path,
            library=path,
            symbol=_symbol(name),
            offset=offsets[_symbol(name)],
            address=mapped.address(offsets[_symbol(name)]) or 0,
            category=Category.BACKEND,
            site_class=site_class,
            group=Group.BOUNDARY,
            action=Action.CALL,
            returns=True,
        )
        yield pair
        yield _moved(replace(pair, returns=False), _symbol(name + _ENTRY), offsets, mapped)
        event = replace(pair, returns=False, group=Group.MARKER, action=Action.OP_END)
        yield _moved(event, _symbol(name + _EVENT), offsets, mapped)
        if site_class == SiteClass.STEPPED:
            yield _moved(pair, _WITHIN, offsets, mapped)


def _moved(site: ProbeSite, symbol: str, offsets: dict[str, int], mapped: MappedObject) -> ProbeSite:
    offset = offsets[symbol]
    return replace(site, symbol=symbol, offset=offset, address=mapped.address(offset) or 0)


def _symbol(name: str) -> str:
    return f"rlscope_calibrate_{name}"


class _Child:
    """The process that makes the calls."""

    def __init__(self, process: subprocess.Popen[str], stamps: NDArray[np.uint64]) -> None:
        self._process, self._stamps = process, stamps
        self.pid = process.pid

    def measure(
        self, loop: str, names: tuple[str, ...], calls: int, lines: int, engine: Engine | None = None
    ) -> dict[str, _Times]:
        """Have every function called in each of several rounds, since a machine is not always equally fast.

        With an engine, take the events that the probes sent.
        """
        found: dict[str, list[NDArray[np.int64]]] = {name: [] for name in names}
        for _ in range(_ROUNDS):
            for name in names:
                self._ask(loop, name, _WARM_CALLS, lines)
                if engine is not None:
                    self._events(engine)
                self._ask(loop, name, calls, lines)
                found[name].append(self._parts(calls, engine))
        return {name: _times(np.concatenate(parts)) for name, parts in found.items()}

    def _parts(self, calls: int, engine: Engine | None) -> NDArray[np.int64]:
        """ns per call, shape (calls, 4): whole, before the first event, between the events, after the last."""
        begin, end = self._stamps[: 2 * calls].reshape(-1, 2).astype(np.int64).T
        first = last = begin
        if engine is not None:
            times = self._events(engine)
            each = len(times) // calls
            if len(times) != each * calls or each not in (1, 2):
                raise CalibrationError(
                    f"The probes sent {len(times):,} events of {calls:,} calls.",
                    "Run `rlscope-ebpf doctor`, and report this if nothing is missing.",
                )
            first, last = times[::each], times[each - 1 :: each]
        return np.column_stack((end - begin, first - begin, last - first, end - last))

    def _events(self, engine: Engine) -> NDArray[np.int64]:
        found = []
        while engine.pending_events():
            events = engine.read_events()
            ours = (events["pid"] == self.pid) & np.isin(events["kind"], _KINDS)
            found.append(events["time_ns"][ours].astype(np.int64))
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def _ask(self, loop: str, name: str, calls: int, lines: int) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{loop} {_symbol(name)} {calls} {lines}\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # told by the missing answer
        if not process.stdout.readline():
            raise CalibrationError(
                "The process that calibration measures has ended.", "Try again; report this if it happens again."
            )


def _times(parts: NDArray[np.int64]) -> _Times:
    whole, before, inside, after = np.median(parts, axis=0).tolist()
    low, high = np.percentile(parts[:, 0], (25, 75)).tolist()
    return _Times(whole, (high - low) / 2, before, inside, after)


@contextmanager
def _child(calls: int) -> Iterator[_Child]:
    with tempfile.TemporaryDirectory(prefix="rlscope-") as folder:
        path = Path(folder) / "stamps"
        path.write_bytes(bytes(calls * 16))
        stamps = np.memmap(path, np.uint64, "r")
        program = [sys.executable, "-I", "-S", child_program.__file__, str(calibration_library()), str(path)]
        with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield _Child(process, stamps)
            finally:
                assert process.stdin is not None
                process.stdin.close()
