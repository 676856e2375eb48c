"""The capture engine: programs on the probe sites of target processes, and what comes out of their rings."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.capture.clock import EXCLUDE_IDLE, INTERRUPT_NS, attach_clock, interrupt_ns
from rlscope_ebpf.capture.closing import Closer
from rlscope_ebpf.capture.compiler import CompiledPrograms, compile_programs
from rlscope_ebpf.capture.cookie import NO_FLAGS, Action, CookieFlag, Group, SiteClass, make_cookie
from rlscope_ebpf.capture.counters import ProbeCounters
from rlscope_ebpf.capture.interpreter import TICK_NS, attach_ticks
from rlscope_ebpf.capture.links import Link, attach
from rlscope_ebpf.capture.placement import Job, Placement, Probe, Setting
from rlscope_ebpf.capture.pointer_guard import read_pointer_guard
from rlscope_ebpf.capture.privileges import keep_for_perf_events
from rlscope_ebpf.capture.programs import Programs
from rlscope_ebpf.capture.tracepoints import attach_tracepoints
from rlscope_ebpf.model.tables import ProbeInfo

MAX_READ = 1 << 16
"""Events taken from the ring at a time: what matching so many needs stays in the caches."""

MAX_TEXTS = 1 << 18

SAMPLE_NS = 997_000
"""CPU time between two samples, a thousand a second: in no step with loops and timers of round numbers."""

SPARING_SAMPLE_NS = 1_997_000
"""The same where they must not cost much: five hundred a second."""

MAX_SAMPLES = 1 << 14


@dataclass(frozen=True, slots=True)
class ProbeSite:
    """One instruction of a file to probe, and what a hit there means."""

    path: str  # to open the file from here
    library: str  # path as the target sees it
    symbol: str
    offset: int  # in the file
    address: int  # in the target; 0: not known, so not checked
    category: int
    site_class: SiteClass
    group: Group
    action: Action
    flags: CookieFlag = NO_FLAGS
    returns: bool = False  # also probe the function's return
    pushed: int = 0  # words that the function has pushed there


@dataclass(frozen=True, slots=True)
class Attaching:
    """Probes that are being set, in the background; ask `Engine.finish_attach` for the result."""

    setting: Setting
    sites: Sequence[ProbeSite]
    infos: list[ProbeInfo]
    """One for each site, none of them `armed` yet."""


class Engine:
    """Not thread-safe, but for `loads` and `allow_returns`. `method` is an attach method of `links`.

    Raises UnsupportedError if BPF cannot be used.
    """

    def __init__(self, method: str, compiled: CompiledPrograms | None = None) -> None:
        self.method = method
        if method == "perf":
            keep_for_perf_events()
        self._programs = Programs(compile_programs(method) if compiled is None else compiled)
        self._closer = Closer()
        self._placed = Placement(self._attach_links, self._closer)
        self._pids: set[int] = set()
        self._watched: set[int] = set()
        self._allowed: dict[int, int] = {}  # by process: what `allow_returns` was told last
        self._returns_lock = threading.Lock()
        self._records: dict[int, set[int]] = defaultdict(set)  # by process: threads with a marker record
        self._tracepoints: Link | None = None
        self._ticks: Link | None = None
        self._samples: Link | None = None
        self.interrupt_ns = INTERRUPT_NS
        """What an interrupt of the clock takes; measured once samples are taken."""
        self.next_probe = 1
        """Id that the next attached site gets."""

    def follow_scheduler(self) -> None:
        """Also see threads run, wait and end. Raises OSError."""
        programs = self._programs
        self._tracepoints = attach_tracepoints("sched", programs.tracepoint_fds, programs.raw_tracepoint_fds)

    def follow_interpreter(self, pid: int, start: int, end: int) -> None:
        """Also find threads that run Python without passing a probe: between these addresses. Raises OSError."""
        self._programs.set_interpreter(pid, start, end)
        if self._ticks is None and self._samples is None:
            self._ticks = attach_ticks(self._programs.tick_fd)

    def sample(self, *, follow: bool, most: float = 1.0) -> None:
        """Look every `SAMPLE_NS` of a CPU's working time where the targets are, and when they leave it.

        Every `SPARING_SAMPLE_NS` if the interrupts took more than `most` of that time. `follow` every thread that is
        seen at work, also those that pass no probe. Who runs Python is seen at these looks, too, so that no others are
        needed. Raises OSError.
        """
        if self._samples is None:
            self.interrupt_ns = interrupt_ns(self._programs.tick_fd)
            self._programs.sample(follow=follow)
            every_ns = SAMPLE_NS if self.interrupt_ns <= most * SAMPLE_NS else SPARING_SAMPLE_NS
            self._samples = attach_clock(self._programs.sample_fd, every_ns, EXCLUDE_IDLE)
            if self._ticks is not None:
                self._closer.add([self._ticks])
                self._ticks = None

    @property
    def ticks_share(self) -> float:
        """Share of the time of whoever works that looks for Python take, other than those of samples."""
        return self.interrupt_ns / TICK_NS if self._ticks is not None else 0.0

    def watch_loads(self, pid: int) -> None:
        """Count what a process loads, and set no return probe (of a session) until `allow_returns`."""
        self._watched.add(pid)
        self._allowed.pop(pid, None)
        self._programs.watch_loads(pid)

    def loads(self, pid: int) -> int:
        """What a watched process has loaded: changes with it, and is 2³² or more once it has made a stack to switch to.

        It grows before any of the loaded code can run.
        """
        return self._programs.loads(pid)

    def allow_returns(self, pid: int, loads: int | None) -> None:
        """Let calls in a process get return probes as long as it has loaded no more than `loads`; None: never.

        CUDA's get them always. Only a session keeps to it; with the other methods there are return probes while they
        are attached. Once it is never it stays so, and an older look takes nothing back.
        """
        with self._returns_lock:
            if loads is None:
                self._allowed[pid] = _NEVER
                self._programs.allow_returns(pid, None)
            elif loads >= self._allowed.get(pid, 0):
                self._allowed[pid] = loads
                self._programs.allow_returns(pid, loads)

    def add_target(self, pid: int, *, is_python: bool, assume_held: bool) -> None:
        """Let a process's hits through. One whose loads are not watched may get return probes at once."""
        self._pids.add(pid)
        if pid not in self._watched:
            self.watch_loads(pid)
            self.allow_returns(pid, 0)
        self._programs.add_target(
            pid, is_python=is_python, assume_held=assume_held, pointer_guard=read_pointer_guard(pid)
        )

    def remove_target(self, pid: int) -> None:
        """Detach from a process."""
        self._programs.remove_target(pid)
        self._programs.forget_process(pid, self._records.pop(pid, ()))
        self._pids.discard(pid)
        self._watched.discard(pid)
        with self._returns_lock:
            self._allowed.pop(pid, None)
        self._placed.remove(pid)

    def add_marker_record(self, pid: int, tid: int, address: int) -> None:
        """Where a thread's record of open operations lies in its process."""
        self._records[pid].add(tid)
        self._programs.add_marker_record(tid, address)

    def attach(self, pid: int, sites: Sequence[ProbeSite]) -> list[ProbeInfo]:
        """Probe the sites in process `pid`; one ProbeInfo each, in the same order, `armed` where the text shows it."""
        return self.finish_attach(self.begin_attach(pid, sites))

    def begin_attach(self, pid: int, sites: Sequence[ProbeSite]) -> Attaching:
        """The same in the background, until `finish_attach`."""
        infos: list[ProbeInfo] = []
        probes: list[Probe] = []
        own, first = f"/proc/{pid}/", self.next_probe
        for number, site in enumerate(sites, first):
            flags = site.flags | CookieFlag.RETURNS if site.returns else site.flags
            cookie = make_cookie(number, site.category, site.site_class, site.group, site.action, flags, site.pushed)
            file = site.path.removeprefix(own)
            is_exit = site.action == Action.EXIT
            probes.append(Probe(number, file, site.group, site.returns, site.offset, cookie, is_exit))
            infos.append(
                ProbeInfo(
                    id=number,
                    group=site.group.name.lower(),
                    category=site.category,
                    library=site.library,
                    symbol=site.symbol,
                    offset=site.offset,
                    site_class=site.site_class.name.lower(),
                    method=self.method,
                    armed=False,
                )
            )
        self.next_probe = first + len(probes)
        return Attaching(self._placed.begin(pid, probes), sites, infos)

    def finish_attach(self, attaching: Attaching) -> list[ProbeInfo]:
        """Wait until probes are set: one ProbeInfo for each site, `armed` where the text shows it."""
        accepted = self._placed.finish(attaching.setting)
        armed = armed_sites(attaching.setting.pid, attaching.sites)
        return [
            replace(probe, armed=probe.id in accepted and bool(up))
            for probe, up in zip(attaching.infos, armed, strict=True)
        ]

    def attach_alike(self, pid: int, parent: int) -> Setting:
        """Probe in a process what is probed in the one it was forked from, as the same probes: in the background.

        `finish_alike` waits until that is done.

        It has the same files mapped, at the same addresses. Left out are sites with return probes, but for CUDA's:
        where two processes have one, the kernel sets it in the one for the sake of the other, whatever that wants.
        """
        return self._placed.begin_alike(pid, parent)

    def finish_alike(self, setting: Setting) -> None:
        """Wait until probes are set as in the parent."""
        self._placed.finish(setting)

    def take_off(self, functions: Iterable[int], busy: Iterable[int] = ()) -> None:
        """Detach functions, by the ids of their entries; `put_back` attaches them again. Returns at once.

        From now on no call of theirs is followed, but those that have begun still are for `RETURN_S`.

        Others that were attached together with them are attached anew, so they are hit twice until the old ones are
        gone. Of these the `busy` functions are kept apart from the rest: next time it can stay as it is.
        """
        functions = tuple(functions)
        turns = self._programs.stop_following(functions)
        self._placed.take_off(functions, busy, lambda: self._programs.forget_calls(turns))

    def put_back(self, functions: Iterable[int]) -> None:
        """Attach again what `take_off` detached."""
        functions = tuple(functions)
        self._programs.follow_again(functions)
        self._placed.put_back(functions)

    def exits_of(self, function: int) -> Sequence[int]:
        """Ids of a function's exits."""
        return self._placed.exits_of(function)

    def _attach_links(self, job: Job, probes: Sequence[Probe]) -> list[Link]:
        programs, pid, path, returns = self._programs, job.pid, job.path, job.returns
        offsets, cookies = [probe.offset for probe in probes], [probe.cookie for probe in probes]
        if self.method == "session":
            if returns:
                return [attach("session", programs.session_fd, path, offsets, cookies, pid, returns=True)]
            # Never a session where C++ exceptions may pass: on a hit in another process that somebody else profiles,
            # the kernel takes our program as one that wants to see the return.
            return [attach("multi", programs.entry_fd, path, offsets, cookies, pid, returns=False)]
        links = []
        try:
            if returns:
                # Returns first: an entry seen without its return would leave the thread inside the call.
                links.append(attach(self.method, programs.return_fd, path, offsets, cookies, pid, returns=True))
            links.append(attach(self.method, programs.entry_fd, path, offsets, cookies, pid, returns=False))
        except OSError:
            for link in links:
                link.close()
            raise
        return links

    def shed(self, group: Group) -> None:
        """Detach a group's sites of every process. Returns at once; the sites are gone soon after.

        Closing a link waits until no call of the targets needs it any more, which may take many seconds.
        """
        self._placed.remove_group(group)

    def assume_gil(self, assumed: bool) -> None:
        """Whether who has held the interpreter lock counts as holding it: while no probe says who does."""
        self._programs.assume_gil(assumed)

    def detach_returns(self, pid: int) -> None:
        """Detach a process's sites with return probes, but for CUDA's, for good. Returns at once."""
        self._placed.remove_returns(pid)

    def read_events(self, limit: int = MAX_READ) -> NDArray[np.void]:
        """Up to `limit` events, EVENT_DTYPE."""
        return self._programs.events.read(limit)

    def read_texts(self) -> NDArray[np.void]:
        """All texts, TEXT_DTYPE. Read after the events: a text is always written before the event that names it."""
        return self._programs.texts.read(MAX_TEXTS)

    def read_samples(self) -> NDArray[np.void]:
        """Samples, SAMPLE_DTYPE, at most `MAX_SAMPLES`."""
        return self._programs.samples.read(MAX_SAMPLES)

    def pending_events(self) -> int:
        """Events in the ring."""
        return self._programs.events.pending()

    def counters(self) -> ProbeCounters:
        """Running totals."""
        return self._programs.counters()

    def silent_hits(self, sites: Iterable[int]) -> NDArray[np.uint64]:
        """Hits so far that sent no event, by the id of the probe, in the order of `sites`. Takes 3 µs for each."""
        return self._programs.silent_hits(sites)

    def detach(self) -> None:
        """Take every probe away; what is in the rings can still be read."""
        self.begin_detach()
        self.wait_until_detached()

    def begin_detach(self) -> None:
        """Begin to take every probe away. Returns at once."""
        self._placed.remove_all()
        others = [link for link in (self._tracepoints, self._ticks, self._samples) if link is not None]
        self._tracepoints = self._ticks = self._samples = None
        self._closer.add(others)

    def wait_until_detached(self, seconds: float | None = None) -> bool:
        """Wait until what was to be taken away is; whether it is."""
        return self._closer.wait(seconds)

    @property
    def probes_to_detach(self) -> int:
        """Probes that are being taken away."""
        return self._closer.left

    def forget_targets(self) -> None:
        """Be as if nothing had been attached yet."""
        self.detach()
        for pid in self._pids:
            self._programs.remove_target(pid)
        self._pids.clear()
        self._watched.clear()
        self._records.clear()
        while self.pending_events():
            self.read_events()
        self._programs.reset_counters()

    def close(self) -> None:
        """Detach and unload."""
        self.detach()
        self._placed.close()
        self._programs.close()


_NEVER = 1 << 64  # more than can be loaded
_BREAKPOINT = 0xCC
_CALL = 0xE8  # a 5-byte nop becomes a call once it has been hit


def armed_sites(pid: int, sites: Sequence[ProbeSite]) -> NDArray[np.bool_]:
    """Whether the target's text shows a breakpoint (or the call that replaced one) at each site."""
    armed = np.zeros(len(sites), np.bool_)
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            for index, site in enumerate(sites):
                if not site.address:
                    continue
                try:
                    memory.seek(site.address)
                    byte = memory.read(1)
                except OSError:
                    continue
                armed[index] = len(byte) == 1 and (
                    byte[0] == _BREAKPOINT or (byte[0] == _CALL and site.site_class == SiteClass.NOP5)
                )
    except OSError:
        pass
    return armed
