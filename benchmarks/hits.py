"""What one hit of a probe costs the target, by the instruction under it; bpftrace on the same function beside it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.engines import loaded_engine
from benchmarks.figures import Benchmark, Effort, Figure, Results
from benchmarks.processes import BenchmarkError, Child, Target, compile_program, need_root, wait_for
from rlscope_ebpf.capture.code_source import code_source
from rlscope_ebpf.capture.cookie import Action, Group, SiteClass
from rlscope_ebpf.capture.elf import ElfFile, Function
from rlscope_ebpf.capture.engine import Engine, ProbeSite
from rlscope_ebpf.capture.exits import Code, ExitFinder
from rlscope_ebpf.capture.maps import MappedObject, MapsWatcher
from rlscope_ebpf.capture.plan import Planner
from rlscope_ebpf.capture.probe_sites import probe_sites
from rlscope_ebpf.capture.site_choice import entry_site
from rlscope_ebpf.model.calibration import EMULATED
from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.paths import marker_library

SOURCE = Path(__file__).parent / "native" / "hits.c"
CALLS = 40_000
WARM_CALLS = 1_000
"""The first hit of a 5-byte nop patches it; and caches."""

_ENDBR, _NOP5, _MARKER = "hit_endbr", "hit_nop5", "marker"
_BREAKPOINT = 0xCC

FIGURES = (
    Figure("marker", "a marker (begin or end of an operation), per hit", "ns"),
    Figure("nop5_entry", "function with a 5-byte nop, entry only", "ns"),
    Figure("nop5_return", "function with a 5-byte nop, entry and return", "ns"),
    Figure("chosen_entry", "endbr64; push: at the chosen site (+4), entry only", "ns"),
    Figure("chosen_return", "endbr64; push: at the chosen site (+4), entry and return", "ns"),
    Figure("chosen_exit", "endbr64; push: at the chosen site (+4), entry and the `ret` at its end", "ns"),
    Figure("start_entry", "endbr64; push: at the start (+0), entry only", "ns"),
    Figure("start_return", "endbr64; push: at the start (+0), entry and return", "ns"),
    Figure("bpftrace_entry", "endbr64; push: bpftrace, uprobe count()", "ns"),
    Figure("bpftrace_return", "endbr64; push: bpftrace, uprobe and uretprobe count()", "ns"),
    Figure("plain", "endbr64; push: the call itself, unprobed", "ns", digits=1),
)

REMARKS = (
    "Each sample is the difference between calls in a tight loop with the probe and, right before, without it. Real "
    "code pays about twice as much, since its caches are colder.",
    "Our probes run the real programs of a session. An entry alone changes no category here, so it is counted but "
    "sends no event; entry and return send one event each.",
    "bpftrace as Debian packages it: it cannot be told to probe at +4 (built without offset support).",
)


@dataclass(frozen=True, slots=True)
class Case:
    """What is probed for a figure, and what one call then makes."""

    key: str
    function: str
    sites: tuple[ProbeSite, ...]
    hits: int  # to divide by
    events: int


def measure(results: Results, effort: Effort) -> None:
    """Alternate plain and probed."""
    need_root()
    pairs = effort.of(9, 3)
    with tempfile.TemporaryDirectory() as folder:
        program = compile_program(SOURCE, Path(folder))
        with Target([program, marker_library()]) as target:
            with loaded_engine() as engine:
                engine.add_target(target.pid, is_python=False, assume_held=False)
                for case in _cases(target.pid, program):
                    attached = _Attached(engine, target, case)
                    _pairs(results, case.key, target, case.function, case.hits, attached, pairs)
            _bpftrace(results, target, program, pairs)


class _Attached:
    """Probes of a case, again and again; the events must be those that the case names."""

    def __init__(self, engine: Engine, target: Target, case: Case) -> None:
        self._engine, self._target, self._case = engine, target, case
        self._sent = 0

    def __enter__(self) -> None:
        infos = self._engine.attach(self._target.pid, self._case.sites)
        armed = sum(info.armed for info in infos)
        if armed != len(infos):
            raise BenchmarkError(f"{armed} of {len(infos)} probes are armed")
        self._sent = self._engine.counters().sent

    def __exit__(self, kind: object, *_: object) -> None:
        self._engine.detach()
        sent = self._engine.counters().sent - self._sent
        while self._engine.pending_events():
            self._engine.read_events()
        calls = CALLS + WARM_CALLS
        # The first entry alone changes the category; then there is nothing left to change.
        if kind is None and not self._case.events * calls <= sent <= self._case.events * calls + 1:
            raise BenchmarkError(f"{sent:,} events of {calls:,} calls, not {self._case.events} each")


def _cases(pid: int, program: Path) -> Iterator[Case]:
    """Entries alone come last: they leave the thread inside a call whose end nobody sees."""
    objects = MapsWatcher(pid).poll() or []
    markers = [
        site
        for planned in Planner(pid, groups={Group.MARKER}).plan(objects).targets
        for site in probe_sites(planned, allow_returns=True)
        if site.symbol in ("rlscope_operation_begin", "rlscope_operation_end")
    ]
    if len(markers) != 2:
        raise BenchmarkError(f"{len(markers)} of 2 markers found")
    yield Case("marker", _MARKER, tuple(markers), 2, 2)
    places = list(_places(program, next(each for each in objects if each.path == str(program))))
    for name, place in places:
        yield Case(f"{name}_return", place.symbol, (replace(place, returns=True),), 1, 2)
    chosen = next(place for name, place in places if name == "chosen")
    end = _end(program, objects, chosen)
    yield Case("chosen_exit", chosen.symbol, (chosen, end), 1, 2)
    for name, place in places:
        yield Case(f"{name}_entry", place.symbol, (place,), 1, 0)


def _places(program: Path, mapped: MappedObject) -> Iterator[tuple[str, ProbeSite]]:
    """The sites that the profiler chooses, and the start of the function where that is another one."""
    with ElfFile(str(program)) as elf:
        for symbol in (_NOP5, _ENDBR):
            function = _function(elf, symbol)
            site = entry_site(elf.read_vaddr(function.vaddr, elf.size_of(function)), function.vaddr)
            if site is None or site.site_class != EMULATED:
                raise BenchmarkError(f"the site chosen for {symbol} is {site}")
            offset = elf.offset_of(site.vaddr) or 0
            chosen = ProbeSite(
                path=str(program),
                library=str(program),
                symbol=symbol,
                offset=offset,
                address=mapped.address(offset) or 0,
                category=Category.BACKEND,
                site_class=SiteClass.EMULATED,
                group=Group.BOUNDARY,
                action=Action.CALL,
            )
            if symbol == _NOP5:
                yield "nop5", chosen
                continue
            yield "chosen", chosen
            yield (
                "start",
                replace(
                    chosen,
                    offset=chosen.offset - site.offset,
                    address=chosen.address - site.offset,
                    site_class=SiteClass.STEPPED,
                ),
            )


def _end(program: Path, objects: Sequence[MappedObject], place: ProbeSite) -> ProbeSite:
    """The instruction by which a function with a single one is left."""
    with ElfFile(str(program)) as elf:
        function = _function(elf, place.symbol)
        code = Code(function.vaddr, elf.read_vaddr(function.vaddr, elf.size_of(function)))
        ways = ExitFinder(code_source(elf, frozenset())).ways_out(code)
        if ways is None or len(ways.sites) != 1:
            raise BenchmarkError(f"the ends found of {place.symbol} are {ways}")
        offset = elf.offset_of(ways.sites[0]) or 0
    mapped = next(each for each in objects if each.path == str(program))
    return replace(
        place,
        offset=offset,
        address=mapped.address(offset) or 0,
        site_class=SiteClass.STEPPED,
        action=Action.EXIT,
    )


def _function(elf: ElfFile, symbol: str) -> Function:
    return next(function for function in elf.exports if function.name == symbol)


def _pairs(
    results: Results,
    key: str,
    target: Target,
    function: str,
    hits: int,
    probe: AbstractContextManager[None],
    pairs: int,
) -> None:
    samples = []
    try:
        _per_call(target, function, WARM_CALLS)
        for _ in range(pairs):
            plain = _per_call(target, function, CALLS)
            with probe:
                _per_call(target, function, WARM_CALLS)
                probed = _per_call(target, function, CALLS)
            samples.append((probed - plain) / hits)
            if function == _ENDBR:
                results.add("plain", plain)
    except BenchmarkError as error:
        results.not_measured(str(error), key)
    else:
        results.add(key, *samples)


def _per_call(target: Target, function: str, calls: int) -> float:
    return int(target.ask(f"{function} {calls}")) / calls


def _bpftrace(results: Results, target: Target, program: Path, pairs: int) -> None:
    keys = ("bpftrace_entry", "bpftrace_return")
    if shutil.which("bpftrace") is None:
        results.not_measured("bpftrace is missing (apt install bpftrace)", *keys)
        return
    (mapped,) = (each for each in MapsWatcher(target.pid).poll() or [] if each.path == str(program))
    with ElfFile(str(program)) as elf:
        address = mapped.address(elf.offset_of(_function(elf, _ENDBR).vaddr) or 0) or 0
    entries = f"uprobe:{program}:{_ENDBR} {{ @entries = count(); }}"
    returns = f"uretprobe:{program}:{_ENDBR} {{ @returns = count(); }}"
    for key, script in zip(keys, (entries, f"{entries} {returns}"), strict=True):
        _pairs(results, key, target, _ENDBR, 1, _Traced(target.pid, address, script), pairs)


class _Traced:
    """bpftrace with a script, again and again. Whether it has begun and ended is seen in the target's text."""

    def __init__(self, pid: int, address: int, script: str) -> None:
        self._pid, self._address, self._script = pid, address, script
        self._child: Child | None = None

    def __enter__(self) -> None:
        self._child = Child(["bpftrace", "-e", self._script], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            wait_for(self._is_armed, 30, "bpftrace's probe")
        except BenchmarkError:
            self._child.close()
            raise

    def __exit__(self, *_: object) -> None:
        assert self._child is not None
        self._child.stop(signal.SIGINT)
        self._child.close()
        wait_for(lambda: _first_byte(self._pid, self._address) != _BREAKPOINT, 30, "the end of bpftrace's probe")

    def _is_armed(self) -> bool:
        assert self._child is not None
        if self._child.process.poll() is not None:
            raise self._child.failure("bpftrace ended")
        return _first_byte(self._pid, self._address) == _BREAKPOINT


def _first_byte(pid: int, address: int) -> int:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(1)[0]


BENCHMARK = Benchmark("hits", "Cost of a probe hit to the target", FIGURES, measure, REMARKS)
