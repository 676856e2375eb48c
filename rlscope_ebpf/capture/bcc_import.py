"""Finding and importing the distribution's BCC from any Python, without its neighbours.

BCC's Python module comes with the distribution (`python3-bpfcc`, `python3-bcc`), never from PyPI, whose package called
`bcc` is something else. It is pure Python over `libbcc.so`, so any interpreter can import it. The folder it lies in is
not put on `sys.path`: the distribution's NumPy and the rest would shadow those of a virtual environment.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from types import ModuleType

from rlscope_ebpf.errors import UnsupportedError

PATH_VARIABLE = "RLSCOPE_BCC_PATH"
"""Environment variable: folders (colon-separated) that hold the `bcc` package, looked at before all others."""

_IMPORTING = threading.Lock()

MINIMUM_VERSION = (0, 18)
"""Oldest release whose Python module reads ring buffers (Ubuntu 22.04 ships it)."""

DISTRIBUTION_FOLDERS = (
    "/usr/lib/python3/dist-packages",
    "/usr/lib/python3.*/site-packages",
    "/usr/lib64/python3.*/site-packages",
    "/usr/local/lib/python3*/dist-packages",
    "/usr/local/lib/python3*/site-packages",
)
"""Where Debian, Ubuntu, Fedora and a build from source put it, as globs."""

INSTALL_COMMANDS: dict[str, str] = {
    "Debian": "apt install python3-bpfcc",
    "Ubuntu": "apt install python3-bpfcc",
    "Fedora": "dnf install python3-bcc",
}
"""What installs BCC, by distribution."""


@dataclass(frozen=True, slots=True)
class BccCandidate:
    """A package called `bcc` in some folder. `genuine` is false for PyPI's unrelated package."""

    folder: Path  # of the package itself
    version: str  # "" if it names none
    genuine: bool


def install_hint() -> str:
    """One sentence: how to install BCC on the distributions we know."""
    return (
        f"Install it with `{INSTALL_COMMANDS['Debian']}` (Debian, Ubuntu) or `{INSTALL_COMMANDS['Fedora']}` (Fedora), "
        f"or name the folder that holds it in {PATH_VARIABLE}."
    )


def search_folders(distribution_folders: Sequence[str] = DISTRIBUTION_FOLDERS) -> Iterator[Path]:
    """Every folder that may hold a package called `bcc`, best first: the variable, sys.path, the distribution's."""
    seen: set[Path] = set()
    named = [Path(entry) for entry in os.environ.get(PATH_VARIABLE, "").split(os.pathsep) if entry]
    # The variable may also name the package's own folder.
    named = [folder.parent if os.path.isfile(folder / "libbcc.py") else folder for folder in named]
    usual = [Path(entry) for entry in sys.path if entry]
    # The newest interpreter's folder first, if a distribution keeps several.
    installed = [Path(entry) for pattern in distribution_folders for entry in sorted(glob(pattern), reverse=True)]
    for folder in (*named, *usual, *installed):
        if folder not in seen:
            seen.add(folder)
            yield folder


def find_candidates(distribution_folders: Sequence[str] = DISTRIBUTION_FOLDERS) -> list[BccCandidate]:
    """Every package called `bcc` that could be imported, best first. Imports nothing."""
    found = []
    for folder in search_folders(distribution_folders):
        package = folder / "bcc"
        if os.path.isfile(package / "__init__.py"):  # unlike Path.is_file it takes a folder that may not be read
            found.append(BccCandidate(package, _read_version(package), _looks_genuine(package)))
    return found


def load_bcc(distribution_folders: Sequence[str] = DISTRIBUTION_FOLDERS) -> ModuleType:
    """Import BCC and return the module. Calling it again returns the same module.

    Raises:
        UnsupportedError: BCC is missing, too old, broken, or only PyPI's unrelated package was found.
    """
    with _IMPORTING:  # by another thread, perhaps
        loaded = sys.modules.get("bcc")
    if loaded is not None and hasattr(loaded, "BPF"):
        return loaded
    chosen = _choose(distribution_folders)
    with _IMPORTING:
        loaded = sys.modules.get("bcc")
        return loaded if loaded is not None and hasattr(loaded, "BPF") else _import_package(chosen)


def bcc_identity(distribution_folders: Sequence[str] = DISTRIBUTION_FOLDERS) -> str:
    """Which BCC `load_bcc` would import: its folder and version. Imports nothing. Raises as `load_bcc` does."""
    chosen = _choose(distribution_folders)
    return f"{chosen.folder} {chosen.version}"


def _choose(distribution_folders: Sequence[str]) -> BccCandidate:
    candidates = find_candidates(distribution_folders)
    genuine = [candidate for candidate in candidates if candidate.genuine]
    if not genuine:
        raise _missing(candidates)
    recent = [candidate for candidate in genuine if is_recent(candidate.version)]
    if not recent:
        oldest_accepted = ".".join(map(str, MINIMUM_VERSION))
        raise UnsupportedError(
            f"BCC {genuine[0].version} in {genuine[0].folder} is too old: {oldest_accepted} or newer is needed.",
            "Upgrade it: " + install_hint().removeprefix("Install it with "),
        )
    return recent[0]


def bcc_version(module: ModuleType) -> tuple[int, ...]:
    """Version of an imported BCC as numbers; () if it does not say."""
    return parse_version(str(getattr(module, "__version__", "")))


def accepts_attach_type(module: ModuleType) -> bool:
    """Whether `BPF.load_func` takes `attach_type`, which the multi and session attach methods need."""
    load_func = getattr(getattr(module, "BPF", None), "load_func", None)
    return load_func is not None and "attach_type" in inspect.signature(load_func).parameters


def parse_version(text: str) -> tuple[int, ...]:
    """The leading numbers of a version; () if there are none (a build from an untagged source)."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", text.strip())
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


def is_recent(version: str) -> bool:
    """Whether a version is new enough; one without numbers is a build from source and passes."""
    numbers = parse_version(version)
    return not numbers or numbers >= MINIMUM_VERSION


def _looks_genuine(package: Path) -> bool:
    return os.path.isfile(package / "libbcc.py") and os.path.isfile(package / "table.py")


def _read_version(package: Path) -> str:
    try:
        text = (package / "version.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    match = re.search(r"__version__\s*=\s*['\"]([^'\"]*)['\"]", text)
    return match.group(1) if match else ""


def _missing(candidates: Sequence[BccCandidate]) -> UnsupportedError:
    if candidates:
        return UnsupportedError(
            f"BCC is not installed: the package called bcc in {candidates[0].folder} comes from PyPI and is unrelated.",
            install_hint(),
        )
    return UnsupportedError("BCC's Python module (bcc) is not installed.", install_hint())


def _import_package(candidate: BccCandidate) -> ModuleType:
    """Import the package in `candidate.folder` under its own name, whatever sys.path says."""
    spec = importlib.util.spec_from_file_location(
        "bcc", candidate.folder / "__init__.py", submodule_search_locations=[str(candidate.folder)]
    )
    if spec is None or spec.loader is None:  # cannot happen for a .py file; keeps the types honest
        raise UnsupportedError(f"BCC in {candidate.folder} cannot be imported.", install_hint())
    # Another module of that name (PyPI's) and its submodules would be mixed with ours.
    replaced = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "bcc"}
    module = importlib.util.module_from_spec(spec)
    sys.modules["bcc"] = module
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escape sequences of old releases on new interpreters
            spec.loader.exec_module(module)
    except (ImportError, OSError, SyntaxError, AttributeError) as error:
        for name in [name for name in sys.modules if name.split(".")[0] == "bcc"]:
            del sys.modules[name]
        sys.modules.update(replaced)
        raise UnsupportedError(
            f"BCC in {candidate.folder} cannot be imported: {error}.",
            "Install it anew together with its library libbcc: " + install_hint().removeprefix("Install it with "),
        ) from error
    if not hasattr(module, "BPF"):
        raise UnsupportedError(f"The package in {candidate.folder} has no class BPF, so it is not BCC.", install_hint())
    return module
