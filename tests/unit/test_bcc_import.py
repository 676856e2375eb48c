"""Finding BCC: the real one, PyPI's namesake, old ones, broken ones. Uses made-up packages, each in a fresh Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlscope_ebpf.capture import bcc_import

REPOSITORY = Path(__file__).resolve().parents[2]

LOAD = """
import sys
from rlscope_ebpf.capture.bcc_import import load_bcc, accepts_attach_type, bcc_version
from rlscope_ebpf.errors import UnsupportedError
before = list(sys.path)
try:
    module = load_bcc(distribution_folders=sys.argv[1:])
except UnsupportedError as error:
    print("ERROR", int(error.status), error.problem, "|", error.remedy)
else:
    assert load_bcc() is module
    assert sys.path == before, "sys.path was changed"
    print("OK", module.__file__, bcc_version(module), accepts_attach_type(module))
"""


def load_in_fresh_python(*folders: Path, **environment: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), **environment}
    command = [sys.executable, "-c", LOAD, *map(str, folders)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def make_bcc(folder: Path, version: str = "0.26.0", attach_type: bool = True, fail: str = "") -> Path:
    package = folder / "bcc"
    package.mkdir(parents=True)
    parameter = ", attach_type=-1" if attach_type else ""
    (package / "version.py").write_text(f"__version__ = '{version}'\n")
    (package / "libbcc.py").write_text(f"{fail}\nlib = None\n")
    (package / "table.py").write_text("")
    (package / "__init__.py").write_text(
        "from .libbcc import lib\nfrom .version import __version__\n"
        f"class BPF:\n    def load_func(self, name, kind, device=None{parameter}): ...\n"
    )
    (folder / "numpy.py").write_text("raise RuntimeError('the distribution NumPy was imported')\n")
    return package


def make_namesake(folder: Path) -> None:
    (folder / "bcc").mkdir(parents=True)
    (folder / "bcc" / "__init__.py").write_text("print('imported the namesake')\n")


def test_found_in_a_distribution_folder(tmp_path: Path) -> None:
    package = make_bcc(tmp_path / "dist")
    assert load_in_fresh_python(tmp_path / "dist") == f"OK {package / '__init__.py'} (0, 26, 0) True"


def test_namesake_on_sys_path_is_passed_over(tmp_path: Path) -> None:
    make_namesake(tmp_path / "venv")
    package = make_bcc(tmp_path / "dist")
    answer = load_in_fresh_python(tmp_path / "dist", PYTHONPATH=f"{REPOSITORY}:{tmp_path / 'venv'}")
    assert answer.startswith(f"OK {package}")


def test_only_the_namesake_is_named(tmp_path: Path) -> None:
    make_namesake(tmp_path / "venv")
    answer = load_in_fresh_python(PYTHONPATH=f"{REPOSITORY}:{tmp_path / 'venv'}")
    assert answer.startswith("ERROR 4 BCC is not installed: ")
    assert "PyPI" in answer
    assert str(tmp_path) in answer


def test_missing_says_what_to_install() -> None:
    answer = load_in_fresh_python()
    assert answer.startswith("ERROR 4 ")
    for command in bcc_import.INSTALL_COMMANDS.values():
        assert command in answer


def test_variable_wins_and_may_name_the_package(tmp_path: Path) -> None:
    make_bcc(tmp_path / "dist")
    package = make_bcc(tmp_path / "mine", version="0.30.1")
    for named in (tmp_path / "mine", package):
        answer = load_in_fresh_python(tmp_path / "dist", RLSCOPE_BCC_PATH=str(named))
        assert answer.startswith(f"OK {package}")
        assert "(0, 30, 1)" in answer


def test_old_release_is_refused_or_passed_over(tmp_path: Path) -> None:
    make_bcc(tmp_path / "old", version="0.12.0")
    answer = load_in_fresh_python(tmp_path / "old")
    assert answer.startswith("ERROR 4 BCC 0.12.0")
    assert "0.18 or newer" in answer
    package = make_bcc(tmp_path / "new", version="0.18.0", attach_type=False)
    assert load_in_fresh_python(tmp_path / "old", tmp_path / "new") == f"OK {package / '__init__.py'} (0, 18, 0) False"


def test_missing_library_is_a_sentence(tmp_path: Path) -> None:
    make_bcc(tmp_path / "dist", fail="raise OSError('libbcc.so.0: cannot open shared object file')")
    answer = load_in_fresh_python(tmp_path / "dist")
    assert answer.startswith("ERROR 4 ")
    assert "libbcc.so.0: cannot open" in answer


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0.26.0", (0, 26, 0)), ("0.30.0+git1a2b", (0, 30, 0)), ("v0.29", (0, 29)), ("@REVISION@", ())],
)
def test_parse_version(text: str, numbers: tuple[int, ...]) -> None:
    assert bcc_import.parse_version(text) == numbers
