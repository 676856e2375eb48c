"""Several processes as one: their tree, and what all of them did together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rlscope_ebpf.analysis.breakdown import Breakdown, Process
from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.model.figures import OperationTotal


@dataclass(frozen=True, slots=True)
class Placed:
    """A process and its place in the tree of the session."""

    process: Process
    depth: int
    last: bool  # of its parent's children
    above: tuple[bool, ...]  # whether each of its ancestors, from the outermost on, has a sibling below it


def tree(processes: Sequence[Process]) -> Iterator[Placed]:
    """Parents before their children, siblings in the order in which they began; one without its parent is on top."""
    known = {process.total.info.pid for process in processes}
    children: dict[int | None, list[Process]] = {}
    for process in sorted(processes, key=lambda each: (each.total.info.start_ns, each.total.info.pid)):
        info = process.total.info
        parent = info.ppid if info.ppid in known and info.ppid != info.pid else None
        children.setdefault(parent, []).append(process)
    seen: set[int] = set()
    # Pids that were used again may make a circle of parents: whoever is left begins a tree, too.
    for root in (*children.get(None, []), *processes):
        pending = [Placed(root, 0, True, ())]
        while pending:
            placed = pending.pop()
            pid = placed.process.total.info.pid
            if pid in seen:
                continue
            seen.add(pid)
            yield placed
            below = children.get(pid, [])
            above = (*placed.above, not placed.last) if placed.depth else ()
            pending += [
                Placed(child, placed.depth + 1, number == len(below) - 1, above)
                for number, child in reversed(list(enumerate(below)))
            ]


@dataclass(frozen=True, slots=True)
class Sums:
    """What several operations amount to. Times are ns, summed over threads and processes."""

    category_ns: tuple[int, ...]  # [Category]
    corrected_ns: tuple[int, ...]  # [Category]
    gpu_ns: int  # of each operation its own: what ran at once counts more than once
    transitions: dict[str, int]

    @property
    def wall_ns(self) -> int:
        """Of all categories."""
        return sum(self.category_ns)


def summed(operations: Iterable[OperationTotal]) -> Sums:
    """Of these operations."""
    category_ns, corrected_ns = [0] * len(Category), [0] * len(Category)
    gpu_ns, transitions = 0, dict[str, int]()
    for operation in operations:
        category_ns = [a + b for a, b in zip(category_ns, operation.category_ns, strict=True)]
        corrected_ns = [a + b for a, b in zip(corrected_ns, operation.corrected_ns, strict=True)]
        gpu_ns += operation.gpu_ns
        for kind, count in operation.transitions.items():
            transitions[kind] = transitions.get(kind, 0) + count
    return Sums(tuple(category_ns), tuple(corrected_ns), gpu_ns, transitions)


def by_phase(breakdown: Breakdown) -> dict[str, Sums]:
    """Of all processes, by the name of the phase they were in."""
    found: dict[str, list[OperationTotal]] = {}
    for process in breakdown.processes:
        for phase in process.phases:
            found.setdefault(phase.name, []).extend(operation.total for operation in phase.operations)
    return {name: summed(operations) for name, operations in found.items()}
