"""Objects that are no chunks, as the model's values and back: definitions, losses and counters, header, footer.

Reading takes what it knows and skips the rest; a value of the wrong type makes the object a `BrokenObject`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from rlscope_ebpf.model.session import SessionEnd, SessionInfo
from rlscope_ebpf.model.tables import (
    Counters,
    Definition,
    DeviceInfo,
    GpuSource,
    Losses,
    Notice,
    PathInfo,
    ProbeInfo,
    ProcessInfo,
    StringInfo,
    ThreadInfo,
)
from rlscope_ebpf.trace.format import FORMAT_NAME, VERSION, BrokenObject

Check = Callable[[Any], Any]
UNKNOWN = "(unknown)"


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise BrokenObject(f"{value!r} is no integer")
    return value


def _count(value: Any) -> int:
    if _integer(value) < 0:
        raise BrokenObject(f"{value!r} is negative")
    return int(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise BrokenObject(f"{value!r} is no text")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise BrokenObject(f"{value!r} is neither true nor false")
    return value


def _map(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BrokenObject(f"{value!r} is no map")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise BrokenObject(f"{value!r} is no list")
    return tuple(_text(item) for item in value)


def _pids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise BrokenObject(f"{value!r} is no list")
    return tuple(_count(item) for item in value)


def _counts(value: Any) -> dict[str, int]:
    return {name: _count(item) for name, item in _map(value).items()}


def _integers(value: Any) -> dict[str, int]:
    return {name: _integer(item) for name, item in _map(value).items()}


def _or_none(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


_PROCESS: dict[str, Check] = {
    "pid": _count,
    "ppid": _or_none(_count),
    "name": _text,
    "command": _texts,
    "start_ns": _count,
    "end_ns": _or_none(_count),
    "exit_status": _or_none(_integer),
    "is_python": _truth,
    "namespace_pids": _pids,
}
_THREAD: dict[str, Check] = {"id": _count, "pid": _count, "tid": _count, "name": _text}
_STRING: dict[str, Check] = {"id": _count, "text": _text}
_PATH: dict[str, Check] = {"id": _count, "parent": _count, "name": _count}
_PROBE: dict[str, Check] = {
    "id": _count,
    "group": _text,
    "category": _count,
    "library": _text,
    "symbol": _text,
    "offset": _count,
    "site_class": _text,
    "method": _text,
    "armed": _truth,
}
_DEVICE: dict[str, Check] = {
    "id": _count,
    "pid": _count,
    "index": _count,
    "name": _text,
    "since_ns": _count,
    "until_ns": _count,
    "samples": _count,
    "reported": _count,
    "uuid": _text,
    "own_samples": _count,
    "own_reported": _count,
}

KINDS: dict[str, tuple[type[Definition], dict[str, Check]]] = {
    "process": (ProcessInfo, _PROCESS),
    "thread": (ThreadInfo, _THREAD),
    "string": (StringInfo, _STRING),
    "path": (PathInfo, _PATH),
    "probe": (ProbeInfo, _PROBE),
    "device": (DeviceInfo, _DEVICE),
}
"""Kinds of definitions by the first key of their objects. The value under that key is the model's first field."""

_KIND_OF: dict[type[Any], str] = {model: kind for kind, (model, _) in KINDS.items()}
_NOTICE: dict[str, Check] = {"text": _text, "time_ns": _count, "important": _truth}
_GPU: dict[str, Check] = {"mode": _text, "reason": _text}
_LOSSES: dict[str, Check] = dict.fromkeys(Losses.__slots__, _count)
_COUNTERS: dict[str, Check] = dict.fromkeys(Counters.__slots__, _count) | {
    "hits_by_class": _counts,
    "in_place": _integers,
}
_HEADER: dict[str, tuple[str, Check]] = {
    "tool_version": ("tool", _text),
    "host": ("host", _text),
    "kernel": ("kernel", _text),
    "started_at": ("started_at", _text),
    "start_ns": ("start_ns", _count),
    "realtime_offset_ns": ("realtime_offset_ns", _integer),
    "gpu": ("gpu", _text),
    "gpu_reason": ("gpu_reason", _text),
    "capture": ("capture", _map),
    "calibration": ("calibration", _map),
}
"""Field of `SessionInfo` → key of the header, type."""


def definition_entries(definition: Definition) -> dict[str, Any]:
    """The entries of a definition's object."""
    kind = _KIND_OF[type(definition)]
    first, *others = KINDS[kind][1]
    return {kind: getattr(definition, first), **{name: getattr(definition, name) for name in others}}


def read_definition(kind: str, entries: Mapping[str, Any]) -> Definition:
    """The definition that an object holds."""
    model, checks = KINDS[kind]
    first = next(iter(checks))
    if kind not in entries:
        raise BrokenObject(f"{kind} is missing")
    definition: Definition = _build(model, {**entries, first: entries[kind]}, checks)
    return definition


def read_list(value: Any) -> list[dict[str, Any]]:
    """`value` if it is a list of maps."""
    if not isinstance(value, list):
        raise BrokenObject(f"{value!r} is no list")
    return [_map(item) for item in value]


def totals_entries(losses: Losses, counters: Counters, now_ns: int) -> dict[str, Any]:
    """The entries of a losses object."""
    return {"losses": losses.as_dict(), "counters": counters, "now_ns": now_ns}


def read_totals(entries: Mapping[str, Any]) -> tuple[Losses, Counters, int]:
    """Losses, counters and the time up to which everything has been written."""
    losses: Losses = _build(Losses, _map(entries.get("losses")), _LOSSES)
    counters: Counters = _build(Counters, _map(entries.get("counters", {})), _COUNTERS)
    return losses, counters, _count(entries.get("now_ns", 0))


def notice_entries(notice: Notice) -> dict[str, Any]:
    """The entries of a notice's object."""
    return {"notice": notice.text, "time_ns": notice.time_ns, "important": notice.important}


def read_notice(entries: Mapping[str, Any]) -> Notice:
    """A sentence for the user."""
    notice: Notice = _build(Notice, {**entries, "text": entries.get("notice")}, _NOTICE)
    return notice


def gpu_entries(source: GpuSource, now_ns: int) -> dict[str, Any]:
    """The entries of the object that says where GPU times come from."""
    return {"gpu": source.mode, "reason": source.reason, "time_ns": now_ns}


def read_gpu(entries: Mapping[str, Any]) -> GpuSource:
    """Where GPU times come from."""
    source: GpuSource = _build(GpuSource, {**entries, "mode": entries.get("gpu")}, _GPU)
    return source


def header_entries(info: SessionInfo) -> dict[str, Any]:
    """The entries of the header."""
    return {
        "format": FORMAT_NAME,
        "version": list(VERSION),
        "tool": info.tool_version,
        "host": info.host,
        "kernel": info.kernel,
        "clock": "CLOCK_MONOTONIC",
        "realtime_offset_ns": info.realtime_offset_ns,
        "started_at": info.started_at,
        "start_ns": info.start_ns,
        "gpu": info.gpu,
        "gpu_reason": info.gpu_reason,
        "capture": info.capture,
        "calibration": info.calibration,
        "processes": [],
    }


def read_header(entries: Mapping[str, Any]) -> tuple[SessionInfo, list[str]]:
    """The session's facts, and the keys whose values are missing or of the wrong type (they read as unknown)."""
    values: dict[str, Any] = {
        "tool_version": UNKNOWN,
        "host": UNKNOWN,
        "kernel": UNKNOWN,
        "started_at": UNKNOWN,
        "start_ns": 0,
        "realtime_offset_ns": 0,
    }
    wrong: list[str] = []
    for name, (key, check) in _HEADER.items():
        with suppress(BrokenObject):
            if key in entries:
                values[name] = check(entries[key])
                continue
        wrong.append(key)
    return SessionInfo(**values), wrong


def footer_entries(
    info: SessionInfo, end: SessionEnd, rows: Mapping[str, int], objects: int, losses: Losses, counters: Counters
) -> dict[str, Any]:
    """The entries of the footer. `objects` counts all objects before it."""
    return {
        "end": True,
        "ended_at": end.ended_at,
        "end_ns": end.end_ns,
        "duration_ns": max(0, end.end_ns - info.start_ns),
        "reason": end.reason,
        "exit_status": end.exit_status,
        "rows": dict(rows),
        "objects": objects,
        "losses": losses.as_dict(),
        "counters": counters,
    }


def read_footer(entries: Mapping[str, Any]) -> tuple[SessionEnd, dict[str, int], int]:
    """How the session ended, rows by table, number of objects before the footer."""
    try:
        end = SessionEnd(
            ended_at=_text(entries["ended_at"]),
            end_ns=_count(entries["end_ns"]),
            reason=_text(entries["reason"]),
            exit_status=None if entries["exit_status"] is None else _integer(entries["exit_status"]),
        )
        return end, _counts(entries["rows"]), _count(entries["objects"])
    except KeyError as error:
        raise BrokenObject(f"{error} is missing") from error


def _build(model: type[Any], entries: Mapping[str, Any], checks: Mapping[str, Check]) -> Any:
    """`model` from the entries it knows; what a field's default covers may be missing."""
    values = {name: check(entries[name]) for name, check in checks.items() if name in entries}
    for field in dataclasses.fields(model):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and field.name not in values:
            raise BrokenObject(f"{field.name} is missing")
    return model(**values)
