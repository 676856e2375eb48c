"""What planning found out about files, remembered by file and kept between sessions.

Reading symbol tables and disassembling functions takes most of the time in which probes are planned, and comes to the
same for as long as a file stays the same. That it does is told by its inode and the times in it. A wrong site would
damage the target, so what is kept is believed only where nobody else could have written it, and is kept only of files
that had not just been changed when they were read. Whatever goes wrong here only costs time.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sized
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgpack

from rlscope_ebpf.capture.sites import Chosen, Site
from rlscope_ebpf.capture.state_files import digested, forget_oldest, read_own, replace_file, undigested
from rlscope_ebpf.paths import state_dir

MOST: Final = 4096
"""Of so many files something is kept: the ones looked into last."""

_REMEMBERED: Final = 512  # files in memory
_SETTLED_NS: Final = 2_000_000_000  # what changes later than this after a change gets another time in its inode
_FOLDER: Final = "files"
_SUFFIX: Final = ".facts"

Identity = tuple[int, int, int, int, int]
"""Device, inode, size, and when the content and the inode were changed last (ns)."""


def identity_of(status: os.stat_result) -> Identity:
    """Two files of one identity have the same content."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@dataclass(frozen=True, slots=True)
class Exits:
    """How the end of a function of a file is seen."""

    kind: str  # RETURN, RET_SITES or NONE
    offsets: tuple[int, ...] = ()  # in the file, of the instructions that leave it
    tail_calls: frozenset[str] = frozenset()  # imported functions whose ends are its own


@dataclass(slots=True)
class Facts:
    """What is remembered of a file, whichever process maps it. Holds no open file."""

    identity: Identity
    needed: tuple[str, ...]
    soname: str | None
    imports: frozenset[str]
    python_api: bool
    uses_cxx: bool
    switches: bool | None = None  # not looked for yet
    defines: dict[str, bool] = field(default_factory=dict)
    chosen: dict[str, list[Chosen]] = field(default_factory=dict)
    """By key of the catalogue's entry."""
    sites: dict[tuple[int, bool], tuple[Site, int] | None] = field(default_factory=dict)
    """By address, and whether returns are avoided: the site and its offset in the file."""
    exits: dict[tuple[int, bool, str], Exits] = field(default_factory=dict)
    """By address, whether returns are avoided, and the objects whose functions were taken to be harmless."""

    @property
    def amount(self) -> int:
        """Grows with what is known."""
        tables: tuple[Sized, ...] = (self.defines, self.chosen, self.sites, self.exits)
        return 1 + (self.switches is not None) + sum(map(len, tables))

    def packed(self) -> bytes:
        """As bytes, for `unpacked`."""
        document = {
            "identity": self.identity,
            "needed": self.needed,
            "soname": self.soname,
            "imports": sorted(self.imports),
            "python_api": self.python_api,
            "uses_cxx": self.uses_cxx,
            "switches": self.switches,
            "defines": self.defines,
            "chosen": {key: [astuple(each) for each in chosen] for key, chosen in self.chosen.items()},
            "sites": [[*key, found and _packed_site(*found)] for key, found in self.sites.items()],
            "exits": [[*key, each.kind, each.offsets, sorted(each.tail_calls)] for key, each in self.exits.items()],
        }
        return digested(bytes(msgpack.packb(document, unicode_errors="surrogateescape")))

    @classmethod
    def unpacked(cls, data: bytes) -> Facts:
        """The reverse. Raises ValueError if the bytes are not facts', or are damaged."""
        try:
            document = msgpack.unpackb(undigested(data), strict_map_key=False, unicode_errors="surrogateescape")
            return cls(
                identity=tuple(document["identity"]),
                needed=tuple(document["needed"]),
                soname=document["soname"],
                imports=frozenset(document["imports"]),
                python_api=document["python_api"],
                uses_cxx=document["uses_cxx"],
                switches=document["switches"],
                defines=document["defines"],
                chosen={key: [Chosen(*each) for each in chosen] for key, chosen in document["chosen"].items()},
                sites={(vaddr, apart): found and _unpacked_site(found) for vaddr, apart, found in document["sites"]},
                exits={
                    (vaddr, apart, among): Exits(kind, tuple(offsets), frozenset(tail_calls))
                    for vaddr, apart, among, kind, offsets, tail_calls in document["exits"]
                },
            )
        except ValueError:
            raise
        except Exception as error:  # msgpack's own, and those of a document of another shape
            raise ValueError(f"no facts: {error}") from error


def _packed_site(site: Site, offset: int) -> list[Any]:
    return [site.vaddr, site.offset, site.site_class, sorted(site.written_arguments), site.pushed, offset]


def _unpacked_site(fields: list[Any]) -> tuple[Site, int]:
    vaddr, distance, site_class, written, pushed, offset = fields
    return Site(vaddr, distance, site_class, frozenset(written), pushed), offset


@dataclass(slots=True)
class _Known:
    facts: Facts
    kept: int  # amount on disk
    settled: bool


_files: dict[tuple[Identity, str], _Known] = {}


def known_facts(identity: Identity, name: str) -> Facts | None:
    """What is known of a file that is mapped by this name, in this session or from an earlier one."""
    known = _files.get((identity, name))
    if known is None:
        with suppress(OSError, ValueError):
            facts = Facts.unpacked(read_own(_place(identity, name)))
            if facts.identity == identity:
                _remember(name, _Known(facts, facts.amount, settled=True))
                return facts
        return None
    return known.facts


def remember(name: str, facts: Facts) -> None:
    """From now on they are known of the file that is mapped by this name. They may grow."""
    _remember(name, _Known(facts, 0, _is_settled(facts.identity)))


def keep_facts() -> None:
    """Keep for later sessions what has become known, if that can be done."""
    with suppress(OSError):
        new = [key for key, known in _files.items() if known.settled and known.facts.amount > known.kept]
        for key in new:
            known = _files[key]
            amount = known.facts.amount
            replace_file(_place(*key), known.facts.packed(), 0o600)
            known.kept = amount
        if new:
            forget_oldest(state_dir() / _FOLDER, _SUFFIX, MOST)


def known_text(identity: Identity, about: str) -> str | None:
    """What was noted of a file in an earlier session."""
    try:
        return undigested(read_own(_place(identity, about))).decode()
    except (OSError, ValueError):
        return None


def keep_text(identity: Identity, about: str, text: str) -> None:
    """Note something of a file, if that can be done."""
    if _is_settled(identity):
        with suppress(OSError):
            replace_file(_place(identity, about), digested(text.encode()), 0o600)


def _is_settled(identity: Identity) -> bool:
    return max(identity[3:]) + _SETTLED_NS < time.time_ns()


def _remember(name: str, known: _Known) -> None:
    if len(_files) >= _REMEMBERED:
        _files.pop(next(iter(_files)), None)
    _files[known.facts.identity, name] = known


def _place(identity: Identity, name: str) -> Path:
    key = hashlib.sha256(repr((identity, name, _own_code())).encode("utf-8", "surrogateescape")).hexdigest()
    return state_dir() / _FOLDER / (key[:32] + _SUFFIX)


@cache
def _own_code() -> str:
    """Stands for the modules that find the facts out: other ones may find others."""
    modules = sorted(Path(__file__).parent.glob("*.py"))
    disassembler = find_spec("capstone")
    if disassembler is not None and disassembler.origin:
        modules.append(Path(disassembler.origin))
    identities = [identity_of(os.stat(module)) for module in modules]
    return hashlib.sha256(repr(identities).encode()).hexdigest()
