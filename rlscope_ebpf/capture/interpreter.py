"""Which threads run Python, where no probe tells it: looked for by the clock."""

from __future__ import annotations

from collections.abc import Iterable

from rlscope_ebpf.capture.anchors import locate
from rlscope_ebpf.capture.clock import EXCLUDE_IDLE, EXCLUDE_KERNEL, attach_clock
from rlscope_ebpf.capture.elf import ElfFile
from rlscope_ebpf.capture.links import Link
from rlscope_ebpf.capture.maps import MappedObject

TICK_NS = 4_999_000
"""CPU time between two looks at what runs there: in no step with loops and timers of round numbers."""

LOOP = "_PyEval_EvalFrameDefault"
"""The function in which CPython runs Python; who runs in it holds the interpreter lock."""


def attach_ticks(prog_fd: int) -> Link:
    """Run a program every `TICK_NS` on every CPU, where that is in user space. Raises OSError."""
    return attach_clock(prog_fd, TICK_NS, EXCLUDE_KERNEL | EXCLUDE_IDLE)


def interpreter_loop(pid: int, objects: Iterable[MappedObject]) -> tuple[int, int] | None:
    """Begin and end of the interpreter's loop in a process that has `objects` mapped; None if none of them has it."""
    for mapped in objects:
        found = locate(pid, mapped, LOOP, _find_loop)
        if found is not None:
            return found[0], found[0] + found[1]
    return None


def _find_loop(elf: ElfFile) -> tuple[int, int] | None:
    if not elf.exports_any([LOOP]):
        return None
    found = next((function for function in elf.exports if function.name == LOOP), None)
    return None if found is None else (found.vaddr, elf.size_of(found))
