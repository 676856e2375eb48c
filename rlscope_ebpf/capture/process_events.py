"""Processes that begin, execute another program and end, among the descendants of some processes.

The kernel's process connector tells it (netlink, through pyroute2), within a millisecond. It needs CAP_NET_ADMIN and
the host's network and pid namespaces; where it is not to be had, /proc is looked at again and again.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

from rlscope_ebpf.capture.pid_namespace import is_own_namespace_initial
from rlscope_ebpf.capture.privileges import confine_thread

POLL_S = 0.02
"""Between two looks at /proc where the connector is missing."""

_ACK_S = 1.0
_STRANGERS = 1 << 14
_CLOSE_S = 0.2
_RECEIVE_BYTES = 8 << 20  # tens of thousands of messages: a compiler farm may start that many while we are busy
_WHAT = struct.Struct("=I")
_WHAT_AT = 36  # behind nlmsghdr and cn_msg


class Happened(Enum):
    """What a process event tells."""

    FORK = "fork"
    EXEC = "exec"
    EXIT = "exit"


@dataclass(frozen=True, slots=True)
class ProcessEvent:
    """One event of a process of the family."""

    what: Happened
    pid: int
    time_ns: int  # CLOCK_MONOTONIC
    parent: int | None = None  # FORK: who forked
    status: int | None = None  # EXIT: exit status, negative: the signal that ended it; None: not known


class ProcessEvents:
    """Listens in a thread of its own. All methods may be called from any thread.

    It takes a while until it hears anything (pyroute2 is large): nothing is missed from the first look at `polls` on.

    The family: processes that were added, and their descendants as they come.
    """

    def __init__(self, *, connector: bool = True) -> None:
        """`connector` False looks at /proc even where the connector is to be had."""
        self.problem = ""
        """Why the connector is not used: empty if it is."""
        self.overruns = 0
        """How often the kernel had to drop messages; what they told is then found in /proc."""
        self._changed = threading.Condition()
        self._family: set[int] = set()
        self._strangers: deque[int] | None = None
        self._events: deque[ProcessEvent] = deque()
        self._woken = False
        self._stop, self._stopper = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._closed = False
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._listen, args=(connector,), name="process-events", daemon=True)
        self._thread.start()

    @property
    def polls(self) -> bool:
        """Whether /proc is looked at, which sees no process that lives for less than `POLL_S`.

        Waits until it listens.
        """
        self._ready.wait()
        return bool(self.problem)

    def add(self, pids: Iterable[int]) -> None:
        """Let these processes belong to the family."""
        with self._changed:
            self._family.update(pids)

    def hear_of_strangers(self) -> None:
        """Also note who executes a program outside the family, for `take_strangers`."""
        with self._changed:
            self._strangers = deque(maxlen=_STRANGERS)

    def take_strangers(self) -> list[int]:
        """Processes outside the family that have executed a program, or have been forked, since the last call."""
        with self._changed:
            strangers = list(dict.fromkeys(self._strangers or ()))
            if self._strangers:
                self._strangers.clear()
        return strangers

    def forget(self, pid: int) -> None:
        """Let a process belong to it no more."""
        with self._changed:
            self._family.discard(pid)

    def take(self) -> list[ProcessEvent]:
        """The events since the last call, in order."""
        with self._changed:
            events = list(self._events)
            self._events.clear()
        return events

    def wait(self, seconds: float) -> bool:
        """Wait for an event, or for `wake`; whether there is an event."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._events or self._strangers or self._woken), seconds)
            self._woken = False
            return bool(self._events or self._strangers)

    def wake(self) -> None:
        """Let whoever waits for an event, or is the next one to do so, wait no longer."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def close(self) -> None:
        """Listen no more."""
        if self._closed:
            return
        self._closed = True
        os.write(self._stopper, b"x")
        self._thread.join()
        os.close(self._stop)
        os.close(self._stopper)

    # The thread

    def _listen(self, connector: bool) -> None:
        try:
            link = _Connector() if connector else None
            self.problem = "" if link else "it is not wanted"
        except Exception as error:  # pyroute2 has errors of its own, and a missing kernel option is only seen here
            link = None
            self.problem = str(error) or type(error).__name__
        confine_thread(("CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"))
        self._ready.set()
        try:
            if link is None:
                self._poll()
            else:
                self._receive(link)
        finally:
            if link is not None:
                link.close()

    def _receive(self, link: _Connector) -> None:
        while not self._closed:
            readable, _, _ = select.select([link.fd, self._stop], [], [])
            if self._stop in readable:
                return
            try:
                events = link.read()
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self.overruns += 1
                self._tell(self._scan(time.clock_gettime_ns(time.CLOCK_MONOTONIC)))
                continue
            self._tell(events)

    def _tell(self, events: Iterable[ProcessEvent]) -> None:
        with self._changed:
            for event in events:
                if event.what == Happened.FORK:
                    if event.parent not in self._family or event.pid in self._family:
                        self._note_stranger(event.pid)
                        continue
                    self._family.add(event.pid)
                elif event.pid not in self._family:
                    if event.what == Happened.EXEC:
                        self._note_stranger(event.pid)
                    continue
                elif event.what == Happened.EXIT:
                    self._family.discard(event.pid)
                self._events.append(event)
            if self._events or self._strangers:
                self._changed.notify_all()

    def _note_stranger(self, pid: int) -> None:
        if self._strangers is not None and pid not in self._family:
            self._strangers.append(pid)

    def _poll(self) -> None:
        programs: dict[int, tuple[int, ...]] = {}
        while not select.select([self._stop], [], [], POLL_S)[0]:
            now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            events = self._scan(now)
            with self._changed:
                family = set(self._family) | {event.pid for event in events if event.what == Happened.FORK}
            for pid in family:
                program = _program(pid)
                if program is not None and programs.get(pid, program) != program:
                    events.append(ProcessEvent(Happened.EXEC, pid, now))
                if program is not None:
                    programs[pid] = program
            for pid in programs.keys() - family:
                del programs[pid]
            self._tell(events)

    def _scan(self, now_ns: int) -> list[ProcessEvent]:
        """What /proc shows: descendants that are new, and members of the family that are gone."""
        parents = read_parents()
        with self._changed:
            family = set(self._family)
        new = descendants_among(parents, family) - family
        forks = [ProcessEvent(Happened.FORK, pid, max(0, _began_ns(pid) or now_ns), parents[pid]) for pid in new]
        forks.sort(key=lambda event: event.time_ns)
        known = family | new  # parents before their children
        ordered: list[ProcessEvent] = []
        while forks:
            told = {event.pid for event in ordered}
            ripe = [event for event in forks if event.parent in family or event.parent in told]
            ordered += ripe or forks
            forks = [event for event in forks if event not in ripe] if ripe else []
        gone = [ProcessEvent(Happened.EXIT, pid, now_ns) for pid in known if pid not in parents]
        return ordered + gone


class _Connector:
    """The socket of the process connector. Raises OSError or an error of pyroute2 if it cannot be had."""

    def __init__(self) -> None:
        if not is_own_namespace_initial():  # it tells the host's numbers, if somebody on the host listens, too
            raise OSError("this is not the host's pid namespace")
        from pyroute2.netlink import NETLINK_CONNECTOR, NLMSG_DONE
        from pyroute2.netlink.connector import cn_proc

        self._cn_proc: Any = cn_proc
        self._marshal: Any = cn_proc.ProcEventMarshal()
        # Only the messages are pyroute2's. Its socket has an event loop of its own, which takes the kernel's answer
        # away, and it decodes all messages, of threads and of everybody's processes: a tenth of a millisecond each.
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, NETLINK_CONNECTOR)
        try:
            self._socket.bind((0, cn_proc.CN_IDX_PROC))
            self._socket.setblocking(False)
            with suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, 33, _RECEIVE_BYTES)  # SO_RCVBUFFORCE
            message = cn_proc.proc_event_control()
            message["action"] = cn_proc.PROC_CN_MCAST_LISTEN
            message["idx"], message["val"], message["len"] = cn_proc.CN_IDX_PROC, cn_proc.CN_VAL_PROC, 4
            message["header"]["type"], message["header"]["flags"] = NLMSG_DONE, 0
            message["header"]["pid"], message["header"]["sequence_number"] = self._socket.getsockname()[0], 0
            message.encode()
            self._socket.send(message.data)
            if not select.select([self._socket], [], [], _ACK_S)[0]:
                raise OSError(errno.ETIMEDOUT, "the kernel does not answer in this pid namespace")
        except BaseException:
            self.close()
            raise
        self.fd = self._socket.fileno()

    def read(self) -> list[ProcessEvent]:
        """What is waiting."""
        cn_proc = self._cn_proc
        wanted = (cn_proc.PROC_EVENT_FORK, cn_proc.PROC_EVENT_EXEC, cn_proc.PROC_EVENT_EXIT)
        events: list[ProcessEvent] = []
        for _ in range(1024):
            try:
                data = self._socket.recv(4096)
            except BlockingIOError:
                break
            if len(data) < _WHAT_AT + _WHAT.size or _WHAT.unpack_from(data, _WHAT_AT)[0] not in wanted:
                continue
            for message in self._marshal.parse(data):
                event = _event_of(message)
                if event is not None:
                    events.append(event)
        return events

    def close(self) -> None:
        """Hear no more."""
        self._socket.close()


def _event_of(message: Any) -> ProcessEvent | None:
    """Of a process; None for an event of a thread."""
    what, now = message["event"], int(message["timestamp_ns"])
    if what == "PROC_EVENT_FORK":
        if message["child_pid"] != message["child_tgid"]:
            return None
        return ProcessEvent(Happened.FORK, message["child_tgid"], now, parent=message["parent_tgid"])
    if message["process_pid"] != message["process_tgid"] and what == "PROC_EVENT_EXIT":
        return None
    if what == "PROC_EVENT_EXEC":
        return ProcessEvent(Happened.EXEC, message["process_tgid"], now)
    status = os.waitstatus_to_exitcode(message["exit_code"] & 0xFFFF & ~0x80)
    return ProcessEvent(Happened.EXIT, message["process_tgid"], now, status=status)


# What /proc shows


def read_parents() -> dict[int, int]:
    """Every process, and its parent. Zombies have ended."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        fields = _stat(int(entry))
        if fields is not None and fields[0] not in (b"Z", b"X"):
            parents[int(entry)] = int(fields[1])
    return parents


def descendants_among(parents: dict[int, int], roots: Iterable[int]) -> set[int]:
    """All processes that descend from the roots, without these."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    left = list(roots)
    while left:
        for child in children.get(left.pop(), ()):
            if child not in found:
                found.add(child)
                left.append(child)
    return found - set(roots)


def descendants(roots: Iterable[int]) -> list[int]:
    """Processes that descend from these now, without these; parents before their children where ids tell."""
    return sorted(descendants_among(read_parents(), set(roots)))


def _stat(pid: int) -> list[bytes] | None:
    """State and the fields behind it of /proc/PID/stat; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return None


def _began_ns(pid: int) -> int | None:
    """When a process was started, to a hundredth of a second, on CLOCK_MONOTONIC if the host has never slept."""
    fields = _stat(pid)
    return int(fields[19]) * (1_000_000_000 // os.sysconf("SC_CLK_TCK")) if fields else None


def _program(pid: int) -> tuple[int, ...] | None:
    """What is another after each execve: the executable, and where the stack begins."""
    fields = _stat(pid)
    try:
        status = os.stat(f"/proc/{pid}/exe")
    except OSError:
        return None
    return (status.st_dev, status.st_ino, int(fields[25])) if fields else None
