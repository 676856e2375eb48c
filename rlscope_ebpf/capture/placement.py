"""Which probes are set in which process: one by one they are taken off and put back; a forked process gets the same."""

from __future__ import annotations

import errno
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from rlscope_ebpf.capture.closing import Closer
from rlscope_ebpf.capture.cookie import Group
from rlscope_ebpf.capture.links import Link
from rlscope_ebpf.capture.privileges import confine_thread

_ATTACHERS = 16

RETURN_S = 0.02
"""What is taken off stays for so long, in which most calls return that have begun."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is attached with one call: probes of one file in one process."""

    pid: int
    path: str  # to open the file from here
    group: Group
    returns: bool  # whether returns are probed, too


@dataclass(frozen=True, slots=True)
class Probe:
    """What it takes to set a probe, in any process that has the file mapped."""

    id: int
    file: str  # as in `Job`, but below /proc/PID where it is there
    group: Group
    returns: bool
    offset: int
    cookie: int
    is_exit: bool

    @property
    def end(self) -> _End:
        """Where it is."""
        return self.file, self.group, self.offset

    @property
    def is_spared(self) -> bool:
        """Whether it is not set where calls get no return probes."""
        return self.returns and self.group != Group.CUDA


Attach = Callable[[Job, Sequence[Probe]], "list[Link]"]

_End = tuple[str, Group, int]  # file, group, offset


@dataclass(frozen=True, slots=True)
class _Part:
    """Probes that were attached together."""

    links: list[Link]
    probes: list[Probe]


@dataclass(slots=True)
class _Exit:
    """An instruction by which functions are left. It is probed once, for all of them."""

    probe: int
    functions: set[int] = field(default_factory=set)  # by the ids of their entries


@dataclass(slots=True)
class _Block:
    """Probes that came together, and how many processes have them."""

    numbers: range
    users: int = 1


@dataclass(slots=True)
class Setting:
    """Probes that are being set, in the background."""

    pid: int
    accepted: set[int]
    """Ids of those that the kernel has accepted; all of them once `Placement.finish` has returned."""
    work: list[tuple[Job, Future[list[_Part]]]] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether the kernel has done all it was asked for."""
        return all(future.done() for _, future in self.work)

    def when_done(self, call: Callable[[], None]) -> None:
        """Call that, from any thread, each time a part of the work is done."""
        for _, future in self.work:
            future.add_done_callback(lambda _: call())


class Placement:
    """Not thread-safe. `attach` does one job; `closer` closes links in the background."""

    def __init__(self, attach: Attach, closer: Closer) -> None:
        self._attach_links = attach
        self._closer = closer
        self._parts: dict[Job, list[_Part]] = {}
        self._probes: dict[int, Probe] = {}
        self._exits_of: dict[int, list[int]] = {}  # of a function, by the id of its entry
        self._blocks: dict[int, list[_Block]] = defaultdict(list)  # by process: what it has, set or taken off
        self._exits: dict[int, dict[_End, _Exit]] = defaultdict(dict)  # by process
        self._pool: ThreadPoolExecutor | None = None
        self._returnless: set[int] = set()  # processes in which calls get no return probes
        self._settings: list[Setting] = []  # not finished

    def begin(self, pid: int, probes: Sequence[Probe]) -> Setting:
        """Set probes, each function's exits behind its entry, in the background, until `finish`.

        `probes` have ids without gaps.
        """
        if not probes:
            return Setting(pid, set())
        accepted: set[int] = set()
        wanted: list[Probe] = []
        exits = self._exits[pid]
        function = probes[0].id
        for probe in probes:
            self._probes[probe.id] = probe
            if not probe.is_exit:
                function = probe.id
                wanted.append(probe)
                continue
            self._exits_of.setdefault(function, []).append(probe.id)
            if probe.end in exits:
                accepted.add(probe.id)  # a second program there would do the same again
            else:
                exits[probe.end] = _Exit(probe.id)
                wanted.append(probe)
            exits[probe.end].functions.add(function)
        self._blocks[pid].append(_Block(range(probes[0].id, probes[-1].id + 1)))
        return self._begin(pid, _jobs(pid, wanted), accepted)

    def finish(self, setting: Setting) -> set[int]:
        """Wait until probes are set; the ids of those that the kernel accepted."""
        if setting in self._settings:
            self._settings.remove(setting)
            for job, future in setting.work:
                setting.accepted |= self._keep(job, future.result())
        return setting.accepted

    def begin_alike(self, pid: int, parent: int) -> Setting:
        """Set in a process what is set in the one it was forked from, as the same probes: in the background.

        It has the same files mapped, at the same addresses. Left out are sites with return probes, but for CUDA's:
        where two processes have one, the kernel sets it in the one for the sake of the other, whatever that wants.
        """
        self._settle(parent)
        self._returnless.add(pid)
        self._blocks[pid] = list(self._blocks[parent])
        for block in self._blocks[pid]:
            block.users += 1
        self._exits[pid] = {end: _Exit(found.probe, set(found.functions)) for end, found in self._exits[parent].items()}
        probes = [probe for job in self._of(parent) for part in self._parts[job] for probe in part.probes]
        return self._begin(pid, _jobs(pid, [probe for probe in probes if not probe.is_spared]), set())

    def remove(self, pid: int) -> None:
        """Take all of a process's probes away, for good. Returns at once, if none is being set."""
        self._settle(pid)
        self._close(self._of(pid))
        self._returnless.discard(pid)
        self._exits.pop(pid, None)
        for block in self._blocks.pop(pid, ()):
            block.users -= 1
            if not block.users:
                for number in block.numbers:
                    self._probes.pop(number, None)
                    self._exits_of.pop(number, None)

    def remove_returns(self, pid: int) -> None:
        """Take a process's probes with returns away, but for CUDA's, for good. Waits for those that are being set."""
        self._settle(pid)
        self._returnless.add(pid)
        self._close([job for job in self._of(pid) if job.returns and job.group != Group.CUDA])

    def remove_group(self, group: Group) -> None:
        """Take a group's probes in all processes away, for good. Returns at once, if none is being set."""
        self._settle()
        self._close([job for job in self._parts if job.group == group])

    def remove_all(self) -> None:
        """Take everything away. Returns at once, if nothing is being set."""
        self._settle()
        self._close(list(self._parts))
        self._blocks.clear()
        self._exits.clear()
        self._probes.clear()
        self._exits_of.clear()

    def close(self) -> None:
        """Take everything away, and set no more."""
        self.remove_all()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def take_off(self, functions: Iterable[int], busy: Iterable[int], then: Callable[[], None] | None = None) -> None:
        """Take functions' probes away, by the ids of their entries, until `put_back`. Returns at once.

        Others that were attached together with them are attached anew, the `busy` ones apart from the rest. The old
        ones go in `RETURN_S`, so that calls that have begun are seen to return; `then` is called when they are away.
        """
        self._settle()
        links: list[Link] = []
        wanted = set(functions)
        apart = {number for function in busy for number in (function, *self._exits_of.get(function, ()))}
        for pid in list(self._blocks):
            gone = set(self._had_by(pid, wanted))
            exits = self._exits[pid]
            for function in list(gone):
                for number in self._exits_of.get(function, ()):
                    end = self._probes[number].end
                    if end not in exits:
                        continue
                    found = exits[end]
                    found.functions.discard(function)
                    if not found.functions:
                        gone.add(found.probe)
                        del exits[end]
            if gone:
                links += self._take_off(pid, gone, apart)
        self._closer.add(links, RETURN_S if any(self._sees_returns(function) for function in wanted) else 0.0, then)

    def put_back(self, functions: Iterable[int]) -> None:
        """Set again what `take_off` took away."""
        self._settle()
        wanted = set(functions)
        jobs: dict[Job, list[Probe]] = {}
        for pid in list(self._blocks):
            probes = []
            exits = self._exits[pid]
            for function in self._had_by(pid, wanted):
                entry = self._probes[function]
                if entry.is_spared and pid in self._returnless:
                    continue
                probes.append(entry)
                for number in self._exits_of.get(function, ()):
                    end = self._probes[number].end
                    if end not in exits:
                        exits[end] = _Exit(number)
                        probes.append(self._probes[number])
                    exits[end].functions.add(function)
            jobs |= _jobs(pid, probes)
        self._attach_all(jobs)

    def _sees_returns(self, function: int) -> bool:
        return self._probes[function].returns or bool(self._exits_of.get(function))

    def exits_of(self, function: int) -> Sequence[int]:
        """Ids of a function's exits."""
        return self._exits_of.get(function, ())

    def _of(self, pid: int) -> list[Job]:
        return [job for job in self._parts if job.pid == pid]

    def _had_by(self, pid: int, numbers: Iterable[int]) -> list[int]:
        """Which of these probes a process has, set or taken off."""
        ranges = [block.numbers for block in self._blocks[pid]]
        return [number for number in numbers if any(number in each for each in ranges)]

    def _take_off(self, pid: int, gone: set[int], apart: set[int]) -> Iterator[Link]:
        for job in self._of(pid):
            for part in list(self._parts[job]):
                left = [probe for probe in part.probes if probe.id not in gone]
                if len(left) == len(part.probes):
                    continue
                # First those that stay, once more: a hit that both see means the same twice.
                again = [[probe for probe in left if (probe.id in apart) == is_busy] for is_busy in (True, False)]
                if not all(self._keep(job, self._attach(job, each)) for each in again if each):
                    continue  # better too many than none
                self._parts[job].remove(part)
                yield from part.links

    def _settle(self, pid: int | None = None) -> None:
        """Wait until nothing is being set, in a process or anywhere."""
        for setting in [each for each in self._settings if pid in (None, each.pid)]:
            self.finish(setting)

    def _begin(self, pid: int, jobs: dict[Job, list[Probe]], accepted: set[int]) -> Setting:
        """Do all jobs at once: most of each is waiting in the kernel for a quiet point of all CPUs."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_ATTACHERS, "attach", initializer=confine_thread)
        for job in jobs:
            self._parts.setdefault(job, [])
        work = [(job, self._pool.submit(self._attach, job, probes)) for job, probes in jobs.items()]
        setting = Setting(pid, accepted, work)
        self._settings.append(setting)
        return setting

    def _attach_all(self, jobs: dict[Job, list[Probe]]) -> None:
        """Do all jobs at once, and wait."""
        by_pid: dict[int, dict[Job, list[Probe]]] = defaultdict(dict)
        for job, probes in jobs.items():
            by_pid[job.pid][job] = probes
        for setting in [self._begin(pid, each, set()) for pid, each in by_pid.items()]:
            self.finish(setting)

    def _attach(self, job: Job, probes: list[Probe]) -> list[_Part]:
        """Attach; where the kernel refuses one site it refuses all of the call, so halves are tried. In any thread."""
        try:
            return [_Part(self._attach_links(job, probes), probes)]
        except OSError as error:
            if error.errno in (errno.ESRCH, errno.ENOENT) or len(probes) == 1:
                return []
            middle = len(probes) // 2
            return self._attach(job, probes[:middle]) + self._attach(job, probes[middle:])

    def _keep(self, job: Job, parts: list[_Part]) -> set[int]:
        """Remember what has been attached; the ids of the probes."""
        self._parts[job] += parts
        return {probe.id for part in parts for probe in part.probes}

    def _close(self, jobs: Sequence[Job]) -> None:
        """Close links in the background: the kernel's waits then overlap, and nobody else waits."""
        gone = {(job.pid, job.group) for job in jobs if not job.returns}
        for pid in {pid for pid, _ in gone}:
            exits = self._exits[pid]
            self._exits[pid] = {end: found for end, found in exits.items() if (pid, end[1]) not in gone}
        self._closer.add(link for job in jobs for part in self._parts.pop(job) for link in part.links)


def _jobs(pid: int, probes: Iterable[Probe]) -> dict[Job, list[Probe]]:
    jobs: dict[Job, list[Probe]] = defaultdict(list)
    for probe in probes:
        path = probe.file if probe.file.startswith("/") else f"/proc/{pid}/{probe.file}"
        jobs[Job(pid, path, probe.group, probe.returns)].append(probe)
    return dict(jobs)
