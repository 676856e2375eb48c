"""What the wheel holds, and that it works installed elsewhere; where the package's own files are looked for."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from test_markers_pythons import PYTHONS

from rlscope_ebpf import __version__, paths
from rlscope_ebpf.errors import UnsupportedError

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ["pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "rlscope_ebpf", "probes", "userspace"]
# Of the same version as this one there is nothing to learn.
OTHER_PYTHONS = [python for python in PYTHONS if not python.endswith(f"3.{sys.version_info[1]}")]


def run(*command: str | Path, cwd: Path) -> str:
    result = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, cwd=cwd, timeout=280, env={"PATH": "/usr/bin:/bin"}
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy without anything compiled in it."""
    folder = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy2(ROOT / name, folder / name)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    run(sys.executable, "-m", "pip", "wheel", ".", *options, "--wheel-dir", "dist", cwd=folder)
    (made,) = (folder / "dist").glob("*.whl")
    return made


@pytest.mark.slow
def test_one_wheel_serves_all_pythons(wheel: Path) -> None:
    assert wheel.name.startswith(f"rlscope_ebpf-{__version__}-cp310-abi3-linux_")


@pytest.mark.slow
def test_the_wheel_holds_what_is_no_python(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {f"rlscope_ebpf/_probes/{path.relative_to(ROOT / 'probes')}" for path in (ROOT / "probes").rglob("*.[ch]")}
    wanted |= {
        "rlscope_ebpf/_include/rlscope_markers.h",
        "rlscope_ebpf/_markers.abi3.so",
        "rlscope_ebpf/_markers.pyi",
        "rlscope_ebpf/librlscope_markers.so",
        "rlscope_ebpf/py.typed",
    }
    tracked = subprocess.run(
        ["git", "ls-files", "rlscope_ebpf"], capture_output=True, text=True, cwd=ROOT, timeout=30, check=True
    ).stdout.splitlines()
    wanted |= {name for name in tracked if (ROOT / name).exists()}
    assert wanted <= names, sorted(wanted - names)
    assert not [name for name in names if name.startswith(("tests", "probes", "benchmarks", "userspace"))]


@pytest.mark.slow
def test_the_wheel_works_where_nothing_else_is_installed(wheel: Path, tmp_path: Path) -> None:
    """As in a target's environment: `pip install --no-deps`."""
    target = tmp_path / "site"
    options = ["--no-deps", "--no-index", "--quiet", "--target", target]
    run(sys.executable, "-m", "pip", "install", *options, wheel, cwd=tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(target)!r})\n"
        "import rlscope_ebpf, rlscope_ebpf.markers as rls, rlscope_ebpf.paths as paths\n"
        "with rls.operation('x'): print(rls.BACKEND, rls.stack())\n"
        "print(paths.probes_dir().name, paths.include_dir().name, paths.marker_library().name)\n"
        "print(rlscope_ebpf.__file__)"
    )
    output = run(sys.executable, "-S", "-c", code, cwd=tmp_path).splitlines()
    assert output[:2] == ["extension ('x',)", "_probes _include librlscope_markers.so"]
    assert output[2].startswith(str(target))


@pytest.mark.slow
@pytest.mark.parametrize("python", OTHER_PYTHONS)
def test_the_wheel_works_in_an_environment_of_another_python(wheel: Path, tmp_path: Path, python: str) -> None:
    """As the README says for a target: the profiler's wheel, built once, and none of its dependencies."""
    environment = tmp_path / "venv"
    run(python, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    inside = environment / "bin" / "python"
    options = ["--no-deps", "--no-index", "--quiet"]
    run(sys.executable, "-m", "pip", "--python", inside, "install", *options, wheel, cwd=tmp_path)
    code = (
        "import sys, rlscope_ebpf.markers as rls\n"
        "with rls.operation('x'): print(rls.BACKEND, rls.stack(), rls.__file__.startswith(sys.prefix))"
    )
    assert run(inside, "-c", code, cwd=tmp_path) == "extension ('x',) True\n"


def test_the_command_works_from_a_checkout(tmp_path: Path) -> None:
    command = Path(sys.executable).parent / "rlscope-ebpf"
    assert run(command, "--version", cwd=tmp_path).split()[-1] == __version__
    assert run(sys.executable, "-m", "rlscope_ebpf", "--version", cwd=tmp_path).split()[-1] == __version__


def test_a_checkout_finds_its_own_files() -> None:
    assert paths.probes_dir() == ROOT / "probes"
    assert paths.include_dir() == ROOT / "userspace"
    assert paths.marker_library() == ROOT / "rlscope_ebpf" / "librlscope_markers.so"


def test_an_installation_that_lacks_files_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "PACKAGE", tmp_path / "rlscope_ebpf")
    for function in (paths.probes_dir, paths.include_dir, paths.userspace_dir, paths.marker_library):
        with pytest.raises(UnsupportedError, match="lacks") as caught:
            function()
        assert "make setup" in caught.value.remedy
