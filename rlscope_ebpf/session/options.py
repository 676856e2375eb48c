"""What a capture is asked to do: the options of `attach` and `run`, read and checked once."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, get_args

from rlscope_ebpf.errors import UsageError
from rlscope_ebpf.model.categories import Category

GpuMode = Literal["auto", "cupti", "cupti-python", "off"]
CaptureMode = Literal["auto", "trace", "sample"]
AttachMethod = Literal["auto", "session", "multi", "perf"]

GPU_MODES: tuple[GpuMode, ...] = get_args(GpuMode)
CAPTURE_MODES: tuple[CaptureMode, ...] = get_args(CaptureMode)
ATTACH_METHODS: tuple[AttachMethod, ...] = get_args(AttachMethod)

LIBRARY_CATEGORIES: dict[str, Category] = {"backend": Category.BACKEND, "simulator": Category.SIMULATOR}
"""What `--library` may say on the left of the equals sign."""

TRACE_SUFFIX = ".rlscope"
DEFAULT_MAX_OVERHEAD = 5.0  # percent of the target's time
OPERATION_NAME_MAX = 127  # bytes of UTF-8, as for names given to a marker


@dataclass(frozen=True, slots=True)
class LibraryPattern:
    """Shared objects whose functions, called from elsewhere, are boundary calls of a category."""

    category: Category
    pattern: str  # glob; without a slash it is compared with the file's name, too
    file: str = ""  # the existing file that the pattern names, if it is a path: absolute, without symbolic links

    def matches(self, path: str) -> bool:
        """Whether a mapped file of this path is meant. `*` also spans slashes."""
        if path == self.file or fnmatchcase(path, self.pattern):
            return True
        return "/" not in self.pattern and fnmatchcase(path.rpartition("/")[2], self.pattern)

    def __str__(self) -> str:
        return f"{self.category.name.lower()}={self.pattern}"


@dataclass(frozen=True, slots=True)
class NativeMarker:
    """A native function each call of which is an operation."""

    name: str  # of the operation
    library: str  # path, file name or glob of the shared object (or executable)
    symbol: str
    file: str = ""  # as for LibraryPattern

    def matches(self, path: str) -> bool:
        """Whether the function is looked for in a mapped file of this path."""
        return (
            path == self.file or fnmatchcase(path, self.library) or fnmatchcase(path.rpartition("/")[2], self.library)
        )

    def __str__(self) -> str:
        return f"{self.name}={self.library}:{self.symbol}"


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """Everything that `attach` and `run` can be told. `run` fills `pids` in once the command has started."""

    pids: tuple[int, ...] = ()
    names: tuple[str, ...] = ()  # globs: processes of such names that come later are profiled, too
    cgroups: tuple[str, ...] = ()  # the same of control groups
    output: Path | None = None  # None: a name made of the process's name, pid and the time
    duration_s: float | None = None  # None: until interrupted or the target exits
    tui: bool = True  # False: not even on a terminal
    libraries: tuple[LibraryPattern, ...] = ()
    markers: tuple[NativeMarker, ...] = ()
    mode: CaptureMode = "auto"
    gpu: GpuMode = "auto"
    attach_method: AttachMethod = "auto"
    follow: bool = True  # also profile children
    max_overhead: float = DEFAULT_MAX_OVERHEAD  # percent; 0: no limit
    force: bool = False  # overwrite an existing trace
    write_trace: bool = True

    def as_dict(self) -> dict[str, Any]:
        """What the trace header keeps of them: plain values only."""
        return {
            "pids": list(self.pids),
            "names": list(self.names),
            "cgroups": list(self.cgroups),
            "duration_s": self.duration_s,
            "libraries": [str(library) for library in self.libraries],
            "markers": [str(marker) for marker in self.markers],
            "mode": self.mode,
            "gpu": self.gpu,
            "attach_method": self.attach_method,
            "follow": self.follow,
            "max_overhead": self.max_overhead,
        }


def parse_pids(values: Iterable[int]) -> tuple[int, ...]:
    """Pids in the order given, each once.

    Raises:
        UsageError: none is given, or one is not positive.
    """
    pids = tuple(dict.fromkeys(values))
    if not pids:
        raise UsageError("No process is named.", "Name it with --pid N; `pgrep -af python` lists candidates.")
    for pid in pids:
        if pid <= 0:
            raise UsageError(f"{pid} is not a process id.", "Give a positive number, as `ps` or `pgrep` prints it.")
    return pids


def parse_library(text: str) -> LibraryPattern:
    """Read `CATEGORY=PATTERN` of `--library`.

    Raises:
        UsageError: it has another form or names another category.
    """
    category, equals, pattern = text.partition("=")
    category, pattern = category.strip().lower(), pattern.strip()
    if not equals or not pattern:
        raise UsageError(
            f"--library {text!r} is not of the form CATEGORY=PATTERN.",
            "Write for example --library 'simulator=*/libmysim.so*'.",
        )
    if category not in LIBRARY_CATEGORIES:
        known = " or ".join(f"{name}=PATTERN" for name in LIBRARY_CATEGORIES)
        raise UsageError(f"--library knows no category {category!r}.", f"Use {known}.")
    return LibraryPattern(LIBRARY_CATEGORIES[category], pattern, _existing_file(pattern))


def _existing_file(pattern: str) -> str:
    """What a process that loads the library will have mapped; empty if the pattern is no path of a file."""
    if "/" not in pattern:
        return ""
    try:
        path = os.path.realpath(pattern)
    except ValueError:  # no path at all
        return ""
    return path if os.path.isfile(path) else ""


def parse_marker(text: str) -> NativeMarker:
    """Read `NAME=LIB:SYMBOL` of `--marker`.

    Raises:
        UsageError: it has another form, or the name is too long.
    """
    name, equals, function = text.partition("=")
    library, colon, symbol = function.partition(":")
    name, library, symbol = name.strip(), library.strip(), symbol.strip()
    if not (equals and colon and name and library and symbol):
        raise UsageError(
            f"--marker {text!r} is not of the form NAME=LIB:SYMBOL.",
            "Write for example --marker 'physics=libmujoco.so*:mj_step'.",
        )
    if re.search(r"[\s(]", symbol):
        raise UsageError(
            f"--marker {text!r} names no plain symbol: {symbol!r} has blanks or parentheses.",
            "Give the symbol as `nm -D` prints it, for C++ the mangled name.",
        )
    if len(name.encode()) > OPERATION_NAME_MAX:
        raise UsageError(
            f"The operation name of --marker {name[:20]}… is longer than {OPERATION_NAME_MAX} bytes.",
            "Choose a shorter name.",
        )
    return NativeMarker(name, library, symbol, _existing_file(library))


def parse_duration(value: float | None) -> float | None:
    """Check `--duration`, in seconds.

    Raises:
        UsageError: it is not a positive, finite number.
    """
    if value is not None and not (math.isfinite(value) and value > 0):
        raise UsageError(f"A duration of {value:g} s is not possible.", "Give a positive number of seconds.")
    return value


def parse_max_overhead(value: float) -> float:
    """Check `--max-overhead`, in percent of the target's time; 0 means no limit.

    Raises:
        UsageError: it is negative or not a finite number.
    """
    if not (math.isfinite(value) and value >= 0):
        raise UsageError(f"An overhead budget of {value:g} % is not possible.", "Give a percentage, or 0 for no limit.")
    return value


def default_trace_path(process_name: str, pid: int, now: time.struct_time | None = None) -> Path:
    """`rlscope-<name>-<pid>-<time>.rlscope` in the working folder; the name is cut to what any file system takes."""
    name = re.sub(r"[^A-Za-z0-9._+-]+", "_", process_name).strip("._") or "process"
    stamp = time.strftime("%Y%m%d-%H%M%S", now or time.localtime())
    return Path(f"rlscope-{name[:48]}-{pid}-{stamp}{TRACE_SUFFIX}")
