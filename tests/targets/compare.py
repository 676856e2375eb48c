"""Compares a report with the truth that a target program printed: no I/O, no pytest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

TOLERANCE = 0.02
"""Of an operation's wall time: how far each of its categories, and the wall time itself, may be off."""

TRUTH_SCHEMA = "rlscope-ebpf.truth/1"
REPORT_SCHEMA = "rlscope-ebpf.report/1"
UNTRACKED = "(untracked)"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One figure that is wrong. Times in ns; `allowed` is the largest difference that would have passed."""

    where: str  # operation path, and its phase if the truth names one
    what: str  # "wall_ns", "cpu_ns.python", "count", "transitions.python_to_backend", "losses.events", "missing", …
    expected: float
    actual: float
    allowed: float

    def __str__(self) -> str:
        return f"{self.where}: {self.what} is {self.actual:,.0f}, expected {self.expected:,.0f} ± {self.allowed:,.0f}"


@dataclass(slots=True)
class _Measured:
    """What the report says of one operation, summed over the rows that belong together."""

    count: int = 0
    wall_ns: int = 0
    cpu_ns: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    transitions: dict[str, int] = field(default_factory=lambda: defaultdict(int))


_Key = tuple[tuple[str, ...], str | None]


def compare(
    truth: Mapping[str, Any],
    report: Mapping[str, Any],
    *,
    times: str = "raw",
    tolerance: float = TOLERANCE,
    transitions: bool = True,
    ignore: Iterable[str] = (),
) -> list[Mismatch]:
    """Every figure of `report` (`report --format json`) that contradicts `truth`; empty if they agree.

    * wall time and each category of each operation: within `tolerance` of the operation's true wall time; where the
      truth declares the wall time inexact (`(untracked)`, operations open at attach or detach), its exact categories
      within `tolerance` of their own sum. What the truth itself is unsure of is allowed on top;
    * counts of operations and of transitions: exactly. Transitions: `python_to_X` and `other_to_X` count together,
      because a call that releases the interpreter lock on its way leaves `python` before it enters X; only calls and
      callbacks are compared, not returns and not what the truth has no name for;
    * no event lost; no operation that the truth does not know.

    `times` is "raw" or "corrected". `ignore` names operations (the first element of their path) to leave out.
    """
    _expect_schema(truth, TRUTH_SCHEMA)
    _expect_schema(report, REPORT_SCHEMA)
    ignored = set(ignore)
    mismatches = [
        Mismatch("(report)", f"losses.{name}", 0, report["losses"][name], 0)
        for name in ("events", "gpu_records")
        if report["losses"][name]
    ]
    process = next((each for each in report["processes"] if each["pid"] == truth["pid"]), None)
    if process is None:
        return [*mismatches, Mismatch("(report)", f"process {truth['pid']}", 1, 0, 0)]

    expected = [row for row in truth["operations"] if row["path"][0] not in ignored]
    any_phase = {tuple(row["path"]) for row in expected if row["phase"] is None}
    measured = _measure(process["operations"], any_phase, times)
    for row in expected:
        key: _Key = (tuple(row["path"]), row["phase"])
        mismatches.extend(_compare_operation(row, measured.pop(key, None), tolerance, transitions))
    mismatches.extend(
        Mismatch(_label(key), "unexpected", 0, found.wall_ns, 0)
        for key, found in measured.items()
        if key[0] != (UNTRACKED,) and key[0][0] not in ignored
    )
    return mismatches


def _expect_schema(document: Mapping[str, Any], schema: str) -> None:
    if document.get("schema") != schema:
        raise ValueError(f"expected schema {schema}, not {document.get('schema')}")


def _measure(
    operations: Iterable[Mapping[str, Any]], any_phase: set[tuple[str, ...]], times: str
) -> dict[_Key, _Measured]:
    measured: dict[_Key, _Measured] = defaultdict(_Measured)
    for row in operations:
        path = tuple(row["path"]) or (row["name"],)
        found = measured[path, None if path in any_phase else row["phase"]]
        found.count += row["count"]
        found.wall_ns += row[times]["wall_ns"]
        for name, ns in row[times]["cpu_ns"].items():
            found.cpu_ns[name] += ns
        for name, count in row["transitions"].items():
            found.transitions[_merged_kind(name)] += count
    return dict(measured)


def _merged_kind(transition: str) -> str:
    return "python_to_" + transition.removeprefix("other_to_") if transition.startswith("other_to_") else transition


def _label(key: _Key) -> str:
    path, phase = key
    return " / ".join(path) + (f" [{phase}]" if phase is not None else "")


def _compare_operation(
    row: Mapping[str, Any], found: _Measured | None, tolerance: float, transitions: bool
) -> Iterable[Mismatch]:
    where = _label((tuple(row["path"]), row["phase"]))
    exact = row["exact"]
    true_ns = row["cpu_ns"]
    basis = row["wall_ns"] if exact["wall"] else sum(true_ns[name] for name in exact["categories"])
    if found is None:
        if basis:
            yield Mismatch(where, "missing", basis, 0, 0)
        return
    allowed = tolerance * basis + row.get("unsure_ns", 0)
    if exact["wall"] and abs(found.wall_ns - row["wall_ns"]) > allowed:
        yield Mismatch(where, "wall_ns", row["wall_ns"], found.wall_ns, allowed)
    for name in exact["categories"]:
        if abs(found.cpu_ns.get(name, 0) - true_ns[name]) > allowed:
            yield Mismatch(where, f"cpu_ns.{name}", true_ns[name], found.cpu_ns.get(name, 0), allowed)
    adds_up = sum(found.cpu_ns.values())
    if adds_up != found.wall_ns:
        yield Mismatch(where, "sum of cpu_ns", found.wall_ns, adds_up, 0)
    if exact["count"] and found.count != row["count"]:
        yield Mismatch(where, "count", row["count"], found.count, 0)
    if transitions and exact.get("transitions", True):
        true_transitions: dict[str, int] = defaultdict(int)
        for name, count in row["transitions"].items():
            true_transitions[_merged_kind(name)] += count
        for name in sorted(_COMPARED_TRANSITIONS):
            if found.transitions.get(name, 0) != true_transitions.get(name, 0):
                yield Mismatch(
                    where, f"transitions.{name}", true_transitions.get(name, 0), found.transitions.get(name, 0), 0
                )


_COMPARED_TRANSITIONS = frozenset(
    f"{origin}_to_{target}"
    for origin in ("python", "simulator", "backend")
    for target in ("python", "simulator", "backend", "cuda_api")
    if origin != target
)
