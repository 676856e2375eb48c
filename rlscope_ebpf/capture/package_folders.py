"""Where a Python process imports its packages from, as far as that can be told from outside and beforehand."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import unquote, urlsplit

from rlscope_ebpf.capture.maps import MappedObject
from rlscope_ebpf.capture.process import read_environment
from rlscope_ebpf.paths import MARKER_LIBRARY

_STANDARD_LIBRARY: Final = re.compile(r"(?P<root>/.*/lib/python3(?:\.\d+)?)/lib-dynload/")
_MODULE: Final = re.compile(r"\.(cpython-\w+|abi3)[\w-]*\.so$")
_PACKAGE_DEPTH: Final = 5  # folders from a module up to the one that packages lie in
_INTERPRETER: Final = re.compile(r"(?:.*/)?python[\d.]*")
_PACKAGES: Final = ("lib*/python3*/*-packages", "local/lib*/python3*/*-packages")
_OWN_PACKAGE: Final = "rlscope_ebpf"
_MOST_LINKS: Final = 40  # symbolic links in one path, as the kernel has it
_MOST_LIBRARIES: Final = 8  # copies of the marker library that are worth the time to probe them


def package_folders(pid: int, objects: Iterable[MappedObject]) -> set[str]:
    """Folders from which a process can import packages, by its loaded modules, its program and its environment."""
    root = f"/proc/{pid}/root"
    folders = set(_folders_of_modules(objects)) | set(_folders_of_environment(pid))
    return folders | {added for folder in folders for added in _added_folders(root, folder)}


def marker_libraries(pid: int, objects: Iterable[MappedObject]) -> list[str]:
    """Copies of the marker library that a process, or what it executes next, may load.

    Their paths are as /proc/PID/maps has them. They are looked for also where an interpreter would look that its
    command line names or that is found by PATH.
    """
    root = f"/proc/{pid}/root"
    folders = list(package_folders(pid, objects))
    folders += [folder for folder in _folders_of_interpreters(pid) if folder not in folders]
    folders += [added for folder in list(folders) for added in _added_folders(root, folder)]
    folders += [added for folder in list(folders) for added in _editable_folders(root, folder)]
    found: dict[tuple[int, int], str] = {}
    for folder in folders:
        path = _real_path(root, f"{folder}/{_OWN_PACKAGE}/{MARKER_LIBRARY}")
        try:
            status = os.stat(root + path)
        except (OSError, ValueError):
            continue
        found.setdefault((status.st_dev, status.st_ino), path)
    return list(found.values())[:_MOST_LIBRARIES]


def _folders_of_modules(objects: Iterable[MappedObject]) -> Iterator[str]:
    """Where loaded modules lie, and where packages lie beside the standard library."""
    for mapped in objects:
        if match := _STANDARD_LIBRARY.match(mapped.path):
            yield f"{match['root']}/site-packages"
            yield "/usr/lib/python3/dist-packages"
        elif _MODULE.search(mapped.path):
            folder = mapped.path
            for _ in range(_PACKAGE_DEPTH):
                folder = os.path.dirname(folder)
                yield folder.rstrip("/")


def _folders_of_environment(pid: int) -> Iterator[str]:
    """Those of a virtual environment and of the user, and what the environment variables name."""
    try:
        words, folder, variables = _started_as(pid)
    except OSError:
        return
    yield from _python_path(folder, variables)
    program = _find_program(f"/proc/{pid}/root", words[0], folder, variables) if words else ""
    prefixes = (
        os.path.dirname(os.path.dirname(program)),
        variables.get("VIRTUAL_ENV", ""),
        variables.get("PYTHONUSERBASE", "") or variables.get("HOME", "") + "/.local",
    )
    for prefix in prefixes:
        yield from _folders_below(f"/proc/{pid}/root", prefix, ("lib/python3*/site-packages",))


def _folders_of_interpreters(pid: int) -> Iterator[str]:
    """Those of the interpreters that a process runs, or may run, and of the script that it names."""
    root = f"/proc/{pid}/root"
    try:
        words, folder, variables = _started_as(pid)
        image = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return
    programs = [*(word for word in words if _INTERPRETER.fullmatch(word)), "python3", "python"]
    paths = [_find_program(root, program, folder, variables) for program in dict.fromkeys(programs)]
    paths += [_real_path(root, path) for path in paths if path]
    for path in dict.fromkeys([*paths, image]):
        yield from _folders_below(root, os.path.dirname(os.path.dirname(path)), _PACKAGES)
    yield folder
    for word in words[1:]:
        if word.endswith(".py"):
            yield os.path.dirname(_real_path(root, os.path.join(folder, word)))


def _started_as(pid: int) -> tuple[list[str], str, Mapping[str, str]]:
    """Command line, current folder and environment of a process. Raises OSError."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = [os.fsdecode(word) for word in file.read().rstrip(b"\0").split(b"\0")]
    return words, os.readlink(f"/proc/{pid}/cwd"), dict(read_environment(pid))


def _python_path(folder: str, variables: Mapping[str, str]) -> Iterator[str]:
    for entry in variables.get("PYTHONPATH", "").split(":"):
        if entry:
            yield os.path.normpath(os.path.join(folder, entry))


def _find_program(root: str, word: str, folder: str, variables: Mapping[str, str]) -> str:
    """The path of a program as a shell in `folder` would find it; empty if there is none."""
    if "/" in word:
        return os.path.normpath(os.path.join(folder, word))
    for entry in variables.get("PATH", os.defpath).split(":"):
        path = os.path.normpath(os.path.join(folder, entry, word))
        if os.path.isfile(root + path):
            return path
    return ""


def _folders_below(root: str, prefix: str, patterns: Iterable[str]) -> Iterator[str]:
    if not prefix.startswith("/"):
        return
    for pattern in patterns:
        found = glob.glob(f"{root}{glob.escape(prefix.rstrip('/'))}/{pattern}")
        yield from (folder.removeprefix(root) for folder in found)


def _added_folders(root: str, folder: str) -> Iterator[str]:
    """What the path files in a folder of packages add."""
    if not folder.endswith("-packages"):
        return
    for path in glob.glob(f"{glob.escape(root + folder)}/*.pth"):
        with suppress(OSError), open(path, errors="surrogateescape") as file:
            yield from (line.strip() for line in file if line.startswith("/"))


def _editable_folders(root: str, folder: str) -> Iterator[str]:
    """Where this package lies if it is installed in editable mode, whose finder is code and not a path file."""
    if not folder.endswith("-packages"):
        return
    for path in glob.glob(f"{glob.escape(root + folder)}/{_OWN_PACKAGE}-*.dist-info/direct_url.json"):
        with suppress(OSError, ValueError, AttributeError), open(path, encoding="utf-8") as file:
            found = json.load(file)
            if found.get("dir_info", {}).get("editable"):
                yield unquote(urlsplit(found["url"]).path)


def _real_path(root: str, path: str) -> str:
    """A process's path without symbolic links, which are followed as seen from the process's own root."""
    rest = [part for part in reversed(path.split("/")) if part]
    real = ""
    links = 0
    while rest:
        part = rest.pop()
        if part == "..":
            real = os.path.dirname(real).rstrip("/")
            continue
        if part == ".":
            continue
        try:
            target = os.readlink(f"{root}{real}/{part}")
        except (OSError, ValueError):  # no link, or nothing there
            real = f"{real}/{part}"
            continue
        links += 1
        if links > _MOST_LINKS:
            return path
        if target.startswith("/"):
            real = ""
        rest += [word for word in reversed(target.split("/")) if word]
    return real
