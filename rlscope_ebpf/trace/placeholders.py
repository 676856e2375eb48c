"""Definitions for what a damaged trace uses but no longer defines, so that readers find every id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.model.tables import (
    Definition,
    MarkKind,
    PathInfo,
    ProbeInfo,
    ProcessInfo,
    StringInfo,
    ThreadInfo,
)
from rlscope_ebpf.trace.definitions import UNKNOWN

REFERENCES = {
    "pid": "process", "thread": "thread", "path": "path", "phase": "string", "name": "string", "site": "probe",
}  # fmt: skip
"""Column of any table → kind of definition that its values are ids of. 0 means none, except for processes, and for
threads where no process is told beside them."""


MARK_COLUMNS = ("kind", "a", "b")
SMALL_ID = 1 << 20  # up to here, counting finds the distinct ids faster than sorting


def refers(column: str) -> bool:
    """Whether `collect_ids` looks at a column of this name."""
    return column in REFERENCES or column in MARK_COLUMNS


def collect_ids(rows: NDArray[np.void], used: dict[str, set[int]]) -> None:
    """Add to `used`, by kind, the ids that rows of any table refer to."""
    names = rows.dtype.names or ()
    for column, kind in REFERENCES.items():
        if column in names:
            ids = _distinct(rows[column])
            if column == "thread" and "pid" in names:
                ids = [number for number in ids if number]
            used[kind].update(ids)
    if all(column in names for column in MARK_COLUMNS):
        named = rows[(rows["kind"] == MarkKind.PHASE) | (rows["kind"] == MarkKind.METADATA)]
        used["string"].update(_distinct(named["a"]))
        used["string"].update(_distinct(named["b"][named["kind"] == MarkKind.METADATA]))


def _distinct(values: NDArray[Any]) -> list[int]:
    if len(values) and values.dtype.kind == "u" and int(values.max()) < SMALL_ID:
        found: list[int] = np.flatnonzero(np.bincount(values.astype(np.int64))).tolist()
        return found
    distinct: list[int] = np.unique(values).tolist()
    return distinct


def lost_definitions(
    used: dict[str, set[int]],
    processes: Mapping[int, ProcessInfo],
    threads: Mapping[int, ThreadInfo],
    strings: Mapping[int, StringInfo],
    paths: Mapping[int, PathInfo],
    probes: Mapping[int, ProbeInfo],
    start_ns: int,
) -> list[Definition]:
    """What is missing, named "(unknown)", in an order that defines everything before its use."""
    parents = {path.parent for path in paths.values()}
    lost_paths = (used["path"] | parents) - paths.keys() - {0}
    lost_strings = (used["string"] | {path.name for path in paths.values()}) - strings.keys() - {0}
    unnamed = 0
    if lost_paths:
        unnamed = max((*strings, *lost_strings), default=0) + 1
        lost_strings.add(unnamed)
    lost_threads = used["thread"] - threads.keys()
    pids = {thread.pid for thread in threads.values()} | used["process"] | ({0} if lost_threads else set())
    lost: list[Definition] = [
        ProcessInfo(pid=pid, ppid=None, name=UNKNOWN, command=(), start_ns=start_ns)
        for pid in sorted(pids - processes.keys())
    ]
    lost += [ThreadInfo(id=number, pid=0, tid=0, name=UNKNOWN) for number in sorted(lost_threads)]
    lost += [StringInfo(id=number, text=UNKNOWN) for number in sorted(lost_strings)]
    lost += [PathInfo(id=number, parent=0, name=unnamed) for number in sorted(lost_paths)]
    lost += [
        ProbeInfo(
            id=number,
            group=UNKNOWN,
            category=Category.OTHER,
            library=UNKNOWN,
            symbol=UNKNOWN,
            offset=0,
            site_class=UNKNOWN,
            method=UNKNOWN,
            armed=False,
        )
        for number in sorted(used["probe"] - probes.keys() - {0})
    ]
    return lost


def circular_paths(paths: Mapping[int, PathInfo]) -> set[int]:
    """Paths that are their own ancestors: no session makes them, but a reader would never come out of them."""
    sound: set[int] = {0}
    circular: set[int] = set()
    for start in paths:
        chain: list[int] = []
        seen: set[int] = set()
        current = start
        while current not in sound and current not in seen and current in paths:
            chain.append(current)
            seen.add(current)
            current = paths[current].parent
        if current in seen:
            circular.add(current)
        sound.update(chain)
    return circular
