"""The one build of the markers under every CPython from 3.10 on that is found here, and what a marker costs there."""

from __future__ import annotations

import os
import re
import subprocess
from glob import glob
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OLDEST = (3, 10)


def interpreters() -> list[str]:
    """One path for each version found: those on PATH, the system's and pyenv's."""
    folders = [*os.environ.get("PATH", "").split(":"), "/usr/bin", "/usr/local/bin"]
    folders += sorted(glob(os.path.expanduser("~/.pyenv/versions/3.*/bin")))
    # pyenv's shims are scripts that start one of those, whichever the folder they are started in asks for.
    folders = [folder for folder in folders if folder and os.path.basename(folder) != "shims"]
    found: dict[str, str] = {}
    for folder in folders:
        for path in sorted(glob(f"{glob_escape(folder)}/python3.[0-9]*")):
            if not re.fullmatch(r"python3\.\d+", os.path.basename(path)):
                continue
            real = os.path.realpath(path)
            if real in found.values():
                continue
            try:
                result = subprocess.run(
                    [real, "-Ic", "import platform; print(platform.python_version())"],
                    capture_output=True,
                    text=True,
                    timeout=20,
                )
            except OSError:
                continue
            version = result.stdout.strip()
            parts = version.split(".")
            if result.returncode == 0 and len(parts) == 3 and (int(parts[0]), int(parts[1])) >= OLDEST:
                found.setdefault(version, real)
    return list(found.values())


def glob_escape(folder: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", folder)


PYTHONS = interpreters()
EXERCISE = """
import asyncio, sys, sysconfig
import rlscope_ebpf.markers as rls
expected = "ctypes" if sysconfig.get_config_var("Py_GIL_DISABLED") else "extension"
assert rls.BACKEND == expected, rls.BACKEND
with rls.operation("outer"):
    @rls.operation("décor")
    def f():
        return rls.stack()
    assert f() == ("outer", "décor")
    try:
        with rls.operation("x"):
            raise KeyError
    except KeyError:
        pass
    assert rls.stack() == ("outer",)
@rls.operation("task")
async def task():
    await asyncio.sleep(0)
    return rls.stack()
async def main():
    return await asyncio.gather(task(), task())
assert asyncio.run(main()) == [("task",)] * 2
for bad in (None, 1, b"x"):
    try:
        rls.operation(bad)
    except TypeError as error:
        assert "must be a str" in str(error)
    else:
        raise AssertionError(bad)
rls.phase("p"); rls.progress(1, total=2); rls.metadata(a=1); rls.process_name("n")
print("fine")
"""
COST = """
import contextlib, timeit
import rlscope_ebpf.markers as rls
def best(code):
    return min(timeit.repeat(code, globals=globals(), number=20000, repeat=15))
print(best('with rls.operation("x"): pass') / best('with contextlib.nullcontext(): pass'))
"""
IMPORT = """
import sys
before = set(sys.modules)
import rlscope_ebpf.markers
new = {name.partition(".")[0] for name in set(sys.modules) - before}
heavy = {"asyncio", "ctypes", "dataclasses", "importlib", "inspect", "logging", "pathlib", "subprocess", "threading"}
print(sorted(new & heavy), sorted(new - set(sys.stdlib_module_names)))
"""


def run(python: str, code: str, *options: str) -> str:
    environment = {"PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(
        [python, *options, "-c", code], capture_output=True, text=True, env=environment, cwd="/", timeout=60
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_at_least_this_python_is_found() -> None:
    assert PYTHONS


@pytest.mark.parametrize("python", PYTHONS)
def test_markers_work(python: str) -> None:
    assert run(python, EXERCISE) == "fine"


@pytest.mark.parametrize("python", PYTHONS)
def test_importing_imports_nothing_heavy(python: str) -> None:
    assert run(python, IMPORT, "-S") == "[] ['rlscope_ebpf']"


@pytest.mark.parametrize("python", PYTHONS)
def test_a_marker_nobody_listens_to_is_cheaper_than_nullcontext(python: str) -> None:
    assert float(run(python, COST)) < 1.0
