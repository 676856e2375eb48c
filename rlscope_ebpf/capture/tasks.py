"""The threads that a process has, as /proc lists them."""

from __future__ import annotations

import os
import re

_NSPID = re.compile(rb"^NSpid:((?:\t\d+)+)$", re.MULTILINE)


def read_thread_ids(pid: int) -> list[int]:
    """Ids of all threads of a process, in order. Raises OSError: it is gone, or not to be seen by this user."""
    return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))


def thread_ids(pid: int) -> list[int]:
    """The same; none if they are not to be had."""
    try:
        return read_thread_ids(pid)
    except OSError:
        return []


def read_of_thread(pid: int, tid: int, name: str) -> bytes:
    """One of a thread's files in /proc. Raises OSError: it is gone, or not to be seen by this user."""
    with open(f"/proc/{pid}/task/{tid}/{name}", "rb", buffering=0) as file:
        return file.read()


def tids_by_namespace_tid(pid: int) -> dict[int, int]:
    """Id in the process's own pid namespace → id in ours, of the threads that live."""
    tids = {}
    for tid in thread_ids(pid):
        try:
            found = _NSPID.search(read_of_thread(pid, tid, "status"))
        except OSError:  # it has ended meanwhile
            continue
        tids[int(found[1].split()[-1]) if found else tid] = tid
    return tids
