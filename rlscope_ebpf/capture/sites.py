"""What is probed, and where a probe is put. How that is chosen: `selection`, `site_choice`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ENDBR64: Final = b"\xf3\x0f\x1e\xfa"
NOP5_BYTES: Final = b"\x0f\x1f\x44\x00\x00"
MAX_PUSHED: Final = 15  # what a cookie can say


@dataclass(frozen=True, slots=True)
class Chosen:
    """A function (or import stub) to probe."""

    name: str
    vaddr: int
    size: int
    from_python: bool = False  # only the interpreter calls it
    noexcept: bool = False  # no C++ exception passes through it
    is_stub: bool = False


@dataclass(frozen=True, slots=True)
class Site:
    """An instruction to probe. [rsp + 8 * pushed] holds the return address there, as [rsp] does at the entry."""

    vaddr: int
    offset: int  # from the function's entry
    site_class: str  # NOP5, EMULATED or STEPPED: what a hit costs
    written_arguments: frozenset[str]  # argument registers (64-bit names) that the skipped instructions overwrite
    pushed: int = 0  # words that the skipped instructions pushed
