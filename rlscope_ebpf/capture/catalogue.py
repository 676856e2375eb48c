"""The built-in catalogue of probed functions: data from catalogue.toml, checked when read."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any, Final

from rlscope_ebpf.capture.cookie import Action, Group
from rlscope_ebpf.errors import ProfilerError
from rlscope_ebpf.model.categories import Category

# In the standard library from Python 3.11 on.
tomllib: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

PYTHON_CALLS: Final = frozenset(
    {
        "PyObject_Call",
        "PyObject_CallFunction",
        "PyObject_CallFunctionObjArgs",
        "PyObject_CallMethod",
        "PyObject_CallMethodObjArgs",
        "PyObject_CallNoArgs",
        "PyObject_CallObject",
        "PyObject_CallOneArg",
        "PyObject_Vectorcall",
        "PyObject_VectorcallMethod",
        "PyEval_CallObjectWithKeywords",
        "_PyObject_Vectorcall",
        "_PyObject_MakeTpCall",
    }
)
"""Functions of the C API by which native code calls Python; probed as import stubs where `callbacks` says "stubs"."""

WHEN: Final = ("always", "frame", "native")


@dataclass(frozen=True, slots=True)
class Entry:
    """Some functions of a library and what a hit on them means."""

    symbols: frozenset[str] = frozenset()
    match: re.Pattern[str] | None = None
    unless: re.Pattern[str] | None = None
    contains: str = ""
    methods: bool = False
    dispatcher: bool = False
    imports: frozenset[str] = frozenset()
    action: Action = Action.CALL
    noexcept: bool = False
    from_python: bool = False
    when: str = "always"

    @property
    def key(self) -> str:
        """The same for entries that name the same functions, in any session."""
        patterns = [pattern and pattern.pattern for pattern in (self.match, self.unless)]
        return repr((sorted(self.symbols), *patterns, self.contains, self.methods, sorted(self.imports)))

    def takes(self, name: str) -> bool:
        """Whether a function of this name is meant."""
        if self.match is not None and self.match.fullmatch(name) is None and name not in self.symbols:
            return False
        if self.match is None and not self.methods and name not in self.symbols:
            return False
        return self.unless is None or self.unless.fullmatch(name) is None


@dataclass(frozen=True, slots=True)
class Library:
    """Objects that are probed in the same way."""

    name: str
    files: tuple[str, ...]
    defines: tuple[str, ...]
    category: Category
    group: Group
    callbacks: bool  # probe its import stubs of PYTHON_CALLS as calls back into Python
    entries: tuple[Entry, ...]
    covers: tuple[str, ...] = ()

    def matches_path(self, path: str) -> bool:
        """Whether a file of this path is meant (by `files`; `defines` needs a look into the file)."""
        return _matches(path, self.files)

    def covers_path(self, path: str) -> bool:
        """Whether code of this file, called by whatever, is the library's: it is probed, or comes along with it."""
        return _matches(path, self.files) or _matches(path, self.covers)


def _matches(path: str, globs: Iterable[str]) -> bool:
    name = path.rpartition("/")[2]
    return any(fnmatchcase(name, glob) or fnmatchcase(path, glob) for glob in globs)


class CatalogueError(ProfilerError):
    """The catalogue cannot be used."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"The probe catalogue is wrong: {problem}.", "Reinstall rlscope-ebpf.")


@cache
def builtin_catalogue() -> tuple[Library, ...]:
    """The catalogue that comes with the package. Raises `CatalogueError`."""
    try:
        text = (files("rlscope_ebpf.capture") / "catalogue.toml").read_text(encoding="utf-8")
    except OSError as error:
        raise CatalogueError(f"it cannot be read ({error})") from error
    return parse_catalogue(text)


def parse_catalogue(text: str) -> tuple[Library, ...]:
    """Libraries from TOML text, in order. Raises `CatalogueError`."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CatalogueError(str(error)) from error
    _check_keys(data, {"library"}, "the file")
    return tuple(_library(row) for row in data.get("library", ()))


def _library(row: Mapping[str, Any]) -> Library:
    name = str(row.get("name", "?"))
    _check_keys(row, {"name", "files", "defines", "category", "group", "callbacks", "covers", "entry"}, name)
    callbacks = row.get("callbacks", "none")
    if callbacks not in ("none", "stubs"):
        raise CatalogueError(f"{name} has callbacks = {callbacks!r}")
    if not row.get("files") and not row.get("defines"):
        raise CatalogueError(f"{name} says neither files nor defines")
    try:
        category, group = Category[str(row["category"]).upper()], Group[str(row["group"]).upper()]
    except KeyError as error:
        raise CatalogueError(f"{name} has no known category or group ({error})") from None
    return Library(
        name=name,
        files=tuple(row.get("files", ())),
        defines=tuple(row.get("defines", ())),
        category=category,
        group=group,
        callbacks=callbacks == "stubs",
        entries=tuple(_entry(entry, name) for entry in row.get("entry", ())),
        covers=tuple(row.get("covers", ())),
    )


_ENTRY_KEYS = {
    *("symbols", "match", "except", "contains", "methods", "dispatcher", "imports"),
    *("action", "noexcept", "from_python", "when"),
}


def _entry(row: Mapping[str, Any], library: str) -> Entry:
    _check_keys(row, _ENTRY_KEYS, library)
    when = row.get("when", "always")
    if when not in WHEN:
        raise CatalogueError(f"{library} has when = {when!r}")
    try:
        return Entry(
            symbols=frozenset(row.get("symbols", ())),
            match=re.compile(row["match"]) if "match" in row else None,
            unless=re.compile(row["except"]) if "except" in row else None,
            contains=row.get("contains", ""),
            methods=bool(row.get("methods", False)),
            dispatcher=bool(row.get("dispatcher", False)),
            imports=frozenset(row.get("imports", ())),
            action=Action[str(row.get("action", "call")).upper()],
            noexcept=bool(row.get("noexcept", False)),
            from_python=bool(row.get("from_python", False)),
            when=when,
        )
    except re.error as error:
        raise CatalogueError(f"{library} has a pattern that is none ({error})") from error
    except KeyError as error:
        raise CatalogueError(f"{library} has an unknown action ({error})") from None


def _check_keys(row: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    unknown = set(row) - set(known)
    if unknown:
        raise CatalogueError(f"{where} has unknown keys ({', '.join(sorted(unknown))})")
