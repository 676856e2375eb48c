"""Following processes as they begin, execute another program and end."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from rlscope_ebpf.capture.process_events import Happened, ProcessEvent, ProcessEvents, descendants
from rlscope_ebpf.capture.process_sets import ProcessSet
from rlscope_ebpf.model import format as fmt
from rlscope_ebpf.model.tables import ProcessInfo
from rlscope_ebpf.session.processes import Beginning
from rlscope_ebpf.session.target import monotonic_ns

SETTLE_NS = 10_000_000
"""A new process is left alone for so long: most that are forked to execute another program have done so by then, and
need not get the probes of their parent first."""

LATE_NS = 50_000_000
"""What ran for longer before its probes were set is told at once."""

TURN_NS = 50_000_000
"""For so long at most the rest of the session waits for new processes' probes to be set."""

AT_ONCE = 8
"""Of so many processes probes are being set at a time: more would only have to wait for each other in the kernel, and
in a storm of short-lived ones most are gone by their turn."""

MOST_TOLD = 5

SEARCH_NS = 2_000_000_000
"""Between two looks through /proc for processes of a set."""


class Session(Protocol):
    """What following needs of a session."""

    def prepare_process(self, pid: int, parent: int, *, executed: bool) -> Beginning | None:
        """Begin to set the probes of a process. None if it has ended or cannot be profiled."""

    def begin_process(self, beginning: Beginning) -> int:
        """Profile a process from now on, once its probes are set; when it began to be."""

    def has_process(self, pid: int) -> bool:
        """Whether a process is being profiled."""

    def note_process(self, info: ProcessInfo) -> None:
        """A process of which nothing was seen."""

    def process_executed(self, pid: int) -> None:
        """It runs another program."""

    def process_ended(self, pid: int, time_ns: int, status: int | None) -> None:
        """Its main thread has ended."""


@dataclass(slots=True)
class _Born:
    """A process that is not profiled yet."""

    pid: int
    parent: int
    born_ns: int
    name: str
    executed: bool = False

    @property
    def due_ns(self) -> int:
        return self.born_ns if self.executed else self.born_ns + SETTLE_NS


class Following:
    """Tells a session which processes come and go. Not thread-safe. `notices` gets sentences for the user."""

    def __init__(
        self,
        session: Session,
        notices: list[str],
        events: ProcessEvents | None = None,
        wanted: ProcessSet | None = None,
    ) -> None:
        """`wanted`: who comes and belongs to it is profiled, whoever its parent is."""
        self._session = session
        self._notices = notices
        self._events = ProcessEvents() if events is None else events
        self._born: dict[int, _Born] = {}
        self._begun: dict[int, tuple[_Born, Beginning]] = {}  # their probes are being set
        self._refused: dict[int, _Born] = {}  # ended, or not to be profiled as long as they are what they are
        self._names: dict[int, str] = {}
        self._count = self._unseen = self._told = 0
        self._unseen_ns = self._most_ns = self._sum_ns = 0
        self._wanted = wanted if wanted else None
        self._next_search_ns = 0
        if self._wanted:
            self._events.hear_of_strangers()

    def begin(self, roots: Iterable[int]) -> None:
        """Follow what these processes start from now on."""
        self._events.add(roots)

    def adopt(self, roots: Iterable[int]) -> None:
        """Profile what they have started before, also since `begin`. From now on nothing is missed."""
        if self._events.polls:
            self._notices.append(
                f"The kernel's process events are not to be had ({self._events.problem}): new processes are looked for "
                "in /proc, and those that live for a few hundredths of a second only may be missed."
            )
        begun: dict[int, Beginning] = {}
        for pid in descendants(set(roots)):
            if pid in self._born:
                continue
            parent = parent_of(pid)
            if parent is None:
                continue
            self._events.add([pid])
            self._names[pid] = _name(pid)
            if parent in begun:  # it gets what that one has
                self._session.begin_process(begun.pop(parent))
            if len(begun) >= AT_ONCE:
                self._session.begin_process(begun.pop(next(iter(begun))))
            beginning = self._session.prepare_process(pid, parent, executed=False)
            if beginning is not None:
                begun[pid] = beginning
        for beginning in begun.values():
            self._session.begin_process(beginning)

    @property
    def waits(self) -> bool:
        """Whether a process has begun that is not profiled yet."""
        return bool(self._born or self._begun)

    def wait(self, seconds: float) -> None:
        """Wait until there is something to do."""
        if self._born and len(self._begun) < AT_ONCE:
            due = min(born.due_ns for born in self._born.values())
            seconds = min(seconds, max(0.0, (due - monotonic_ns()) / 1e9))
        self._events.wait(max(0.0, seconds))

    def turn(self) -> None:
        """Do what there is to do."""
        until_ns = monotonic_ns() + TURN_NS
        if self._wanted:
            self._search(self._wanted)
        while True:
            for event in self._events.take():
                self._take(event)
            now = monotonic_ns()
            ripe = [born for born in self._born.values() if born.due_ns <= now]
            for born in ripe[: AT_ONCE - len(self._begun)]:
                del self._born[born.pid]
                self._prepare(born)
            done = next((pid for pid, (_, beginning) in self._begun.items() if beginning.done), None)
            if done is not None:
                self._admit(done)
            elif not self._begun or monotonic_ns() >= until_ns:
                return
            else:
                self.wait((until_ns - now) / 1e9)

    def finish(self) -> None:
        """Say what was missed. What has begun just now is profiled no more."""
        for event in self._events.take():
            self._take(event)
        for pid in list(self._begun):
            self._admit(pid)
        for born in list(self._born.values()):
            self._miss(born, monotonic_ns(), None)
        self._born.clear()
        if not self._count and not self._unseen:
            return
        were = "was" if self._count == 1 else "were"
        said = [f"{fmt.plural_exact(self._count, 'process', 'processes')} came and {were} profiled"]
        if self._count:
            mean, most = (fmt.duration(ns) for ns in (self._sum_ns // self._count, self._most_ns))
            said.append(f"having run unseen for {mean} on average, {most} at most")
        if self._unseen:
            said.append(
                f"{self._unseen} ended before that could be, having run for {fmt.duration(self._unseen_ns)} altogether"
            )
        self._notices.append("; ".join(said) + ".")

    def close(self) -> None:
        """Follow no more."""
        self._events.close()

    def _search(self, wanted: ProcessSet) -> None:
        """Find processes of the set that have come: at once if the kernel told of them, otherwise now and then."""
        now = monotonic_ns()
        found = [pid for pid in self._events.take_strangers() if wanted.has(pid)]
        if now >= self._next_search_ns:  # some change their name or their group later, and no message tells
            self._next_search_ns = now + SEARCH_NS
            found += wanted.members()
        for pid in dict.fromkeys(found):
            if pid in self._born or pid in self._begun or pid in self._refused or self._session.has_process(pid):
                continue
            parent = parent_of(pid)
            if parent is not None:
                self._events.add([pid])
                self._names[pid] = _name(pid)
                self._born[pid] = _Born(pid, parent, now, self._names[pid], executed=True)

    def _take(self, event: ProcessEvent) -> None:
        self._admit(event.pid)  # whatever happens to it, its probes are as before
        born = self._born.get(event.pid)
        if event.what == Happened.FORK and event.parent is not None:
            name = _name(event.pid) or self._names.get(event.parent, "") or _name(event.parent)
            self._names[event.pid] = name
            self._born[event.pid] = _Born(event.pid, event.parent, event.time_ns, name)
        elif event.what == Happened.EXEC:
            refused = self._refused.pop(event.pid, None)
            if refused is not None:
                born = self._born[event.pid] = refused
            if born is None:
                self._session.process_executed(event.pid)
            else:
                born.executed = True
                born.name = _name(event.pid) or born.name
            self._names[event.pid] = _name(event.pid) or self._names.get(event.pid, "")
        elif event.what == Happened.EXIT:
            self._names.pop(event.pid, None)
            unseen = self._born.pop(event.pid, None) or self._refused.pop(event.pid, None)
            if unseen is not None:
                self._miss(unseen, event.time_ns, event.status)
            else:
                self._session.process_ended(event.pid, event.time_ns, event.status)

    def _prepare(self, born: _Born) -> None:
        self._admit(born.parent)  # it gets what that one has
        beginning = self._session.prepare_process(born.pid, born.parent, executed=born.executed)
        if beginning is None:
            self._refused[born.pid] = born  # its end, if that is why, is on its way
            self._session.note_process(_unseen(born, None, None))
            return
        self._begun[born.pid] = born, beginning
        beginning.when_done(self._events.wake)

    def _admit(self, pid: int) -> None:
        """Profile a process from now on, if its probes are being set; waits until they are."""
        if pid not in self._begun:
            return
        born, beginning = self._begun.pop(pid)
        missed = max(0, self._session.begin_process(beginning) - born.born_ns)
        self._count += 1
        self._sum_ns += missed
        self._most_ns = max(self._most_ns, missed)
        if missed > LATE_NS and self._told < MOST_TOLD:
            self._told += 1
            self._notices.append(
                f"Process {born.pid} ({_name(born.pid) or born.name}) ran for {fmt.duration(missed)} before its probes "
                "were set: what it did then is not in the figures."
            )

    def _miss(self, born: _Born, end_ns: int, status: int | None) -> None:
        self._unseen += 1
        self._unseen_ns += max(0, end_ns - born.born_ns)
        self._session.note_process(_unseen(born, max(end_ns, born.born_ns), status))


def _unseen(born: _Born, end_ns: int | None, status: int | None) -> ProcessInfo:
    name = born.name or str(born.pid)
    return ProcessInfo(born.pid, born.parent, name, (name,), born.born_ns, end_ns, status, is_python=False)


def _name(pid: int) -> str:
    with suppress(OSError), open(f"/proc/{pid}/comm", errors="replace") as file:
        return file.read().strip()
    return ""


def parent_of(pid: int) -> int | None:
    """Who /proc says is the parent of a process; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None
