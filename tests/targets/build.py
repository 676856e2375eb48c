"""Compiles the target programs into a cache folder; needs gcc, g++ and the standard library, no network.

Everything is keyed by what it is made of: sources, compiler and flags; extension modules also by the interpreter. So a
folder, once made, never changes, and any number of tests may share it.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "native"

LIBRARY_OPTIONS = ("--library", "simulator=*truth_simulator*", "--library", "backend=*truth_backend*")
"""Options of `attach` and `run` under which the programs' libraries have the categories that their truth names."""

COMMON_FLAGS = ("-O2", "-g", "-Wall", "-fPIC", "-fvisibility=hidden")
RPATH = "-Wl,-rpath,$ORIGIN"


@dataclass(frozen=True)
class Binary:
    """One thing to compile; `libraries` are others of this file, without `lib` and `.so`."""

    name: str
    sources: tuple[str, ...]
    flags: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()


def _shared(name: str, *sources: str, flags: tuple[str, ...] = (), libraries: tuple[str, ...] = ()) -> Binary:
    # -z now: the first call of a function must not pay for its lookup inside a measured stretch.
    linking = ("-shared", f"-Wl,-soname,lib{name}.so", "-Wl,-z,now", "-pthread")
    return Binary(f"lib{name}.so", sources, (*linking, *flags), libraries)


NATIVE: tuple[Binary, ...] = (
    _shared("truth_clock", "truth_clock.c"),
    # Functions of this one start with endbr64, as distributions build them; those of the backend do not.
    _shared(
        "truth_simulator",
        "truth_simulator.c",
        "truth_simulator_cpp.cc",
        flags=("-fcf-protection=full", "-fno-optimize-sibling-calls"),
        libraries=("truth_clock",),
    ),
    _shared("truth_backend", "truth_backend.c", flags=("-fcf-protection=none",), libraries=("truth_clock",)),
    _shared("truth_simulator_late", "truth_simulator_late.c", libraries=("truth_clock",)),
    _shared("truth_simulator_storm", "storm_step.c"),
    _shared("truth_glue", "truth_glue.cc", libraries=("truth_simulator", "truth_backend", "truth_clock")),
    _shared("stacks_library", "stacks_library.c"),
    _shared("stacks_contexts", "stacks_contexts.c"),
    _shared("stacks_hidden", "stacks_contexts.c", flags=("-DHIDDEN", "-ldl")),
    _shared("stacks_halves", "stacks_contexts.c", flags=("-DHALVES",)),
    _shared("stacks_exceptions", "stacks_exceptions.cc"),
    _shared("stacks_cancels", "stacks_cancels.cc", flags=("-pthread", "-ldl")),
    Binary("stacks", ("stacks.c",), ("-ldl",)),
    Binary("storm", ("storm.c",), ("-pthread", "-ldl")),
    Binary("paced", ("paced.c",), ("-ldl",)),
    Binary("native_ops", ("native_ops.c",), ("-pthread", "-ldl"), ("truth_simulator", "truth_clock")),
    Binary("registers", ("registers.c",), ("-pthread", "-O2")),
    Binary("zombie", ("zombie.c",)),
    Binary("brief", ("brief.c",)),
)

ELF32 = Binary("elf32", ("elf32.c",), ("-m32", "-nostdlib", "-static", "-ffreestanding", "-fno-pie", "-no-pie"))

EXTENSIONS: tuple[Binary, ...] = (
    Binary("truth_simulator_ext", ("truth_simulator_ext.c",), (), ("truth_clock",)),
    Binary(
        "truth_binding", ("truth_binding.c",), (), ("truth_glue", "truth_simulator", "truth_backend", "truth_clock")
    ),
)


class BuildError(RuntimeError):
    """A compiler said no; the message holds what it said."""


def _compiler(sources: tuple[str, ...]) -> str:
    cxx = any(source.endswith((".cc", ".cpp")) for source in sources)
    return os.environ.get("CXX", "g++") if cxx else os.environ.get("CC", "gcc")


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise BuildError(f"{command[0]} is missing. Install a C and a C++ compiler (Debian: gcc g++).") from error
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


def _compile(binary: Binary, folder: Path, extra: tuple[str, ...] = (), library_folder: Path | None = None) -> None:
    """Compiles into `folder`; C and C++ sources each by their own compiler."""
    common = COMMON_FLAGS
    objects = []
    for source in binary.sources:
        path = SOURCES / source if not Path(source).is_absolute() else Path(source)
        target = folder / f"{binary.name}.{path.stem}.o"
        compiling = [
            flag for flag in (*binary.flags, *extra) if flag.startswith(("-f", "-I", "-m", "-D", "-std", "-O"))
        ]
        _run([_compiler((source,)), *common, *compiling, "-c", str(path), "-o", str(target)])
        objects.append(target)
    where = library_folder or folder
    linking = [*(str(item) for item in objects), *(f"{where}/lib{library}.so" for library in binary.libraries)]
    rpath = [RPATH] if library_folder is None else [f"-Wl,-rpath,{library_folder}"]
    if binary is ELF32:
        rpath = []
    flags = [flag for flag in (*binary.flags, *extra) if not flag.startswith(("-I", "-D", "-std"))]
    _run([_compiler(binary.sources), "-o", str(folder / binary.name), *linking, *flags, *rpath])
    for item in objects:
        item.unlink()


def cache_folder() -> Path:
    """Where built programs are kept: $RLSCOPE_TEST_CACHE, otherwise a folder of the user's below the temporary one."""
    chosen = os.environ.get("RLSCOPE_TEST_CACHE")
    folder = Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"rlscope-targets-{os.getuid()}"
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    return folder


def _key(*parts: str) -> str:
    digest = hashlib.sha256()
    for path in (Path(__file__), *sorted(SOURCES.iterdir())):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    for part in (_run([_compiler(("x.c",)), "--version"]), _run([_compiler(("x.cc",)), "--version"]), *parts):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


class _Building:
    """Hands out an empty folder that becomes `final` only if everything in it was built. Locked against others."""

    def __init__(self, final: Path) -> None:
        self.final = final
        self.folder = final.with_name(f"{final.name}.{os.getpid()}.part")

    def __enter__(self) -> Path | None:
        self._lock = open(self.final.with_name(f"{self.final.name}.lock"), "w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        if self.final.is_dir():
            return None
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        return self.folder

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        try:
            if kind is None and self.folder.is_dir():
                self.folder.rename(self.final)
            shutil.rmtree(self.folder, ignore_errors=True)
        finally:
            self._lock.close()


def native() -> Path:
    """Folder with the shared libraries and the programs written in C."""
    final = cache_folder() / f"native-{_key()}"
    if not final.is_dir():
        with _Building(final) as folder:
            if folder is not None:
                for binary in NATIVE:
                    _compile(binary, folder)
    return final


def program(name: str) -> Path:
    """Path of one program of `NATIVE` (storm, paced, native_ops, zombie, brief) or of `elf32`.

    Raises BuildError for `elf32` where the compiler cannot make 32-bit x86 code.
    """
    if name != ELF32.name:
        return native() / name
    final = cache_folder() / f"elf32-{_key()}"
    if not final.is_dir():
        with _Building(final) as folder:
            if folder is not None:
                _compile(ELF32, folder)
    return final / name


def _binding_extensions() -> tuple[tuple[Binary, tuple[str, ...]], ...]:
    """The modules made with pybind11 and nanobind, each if this interpreter can import it."""
    found: list[tuple[Binary, tuple[str, ...]]] = []
    if importlib.util.find_spec("pybind11"):
        import pybind11

        module = Binary("truth_simulator_pybind", ("truth_simulator_pybind.cc",), ("-std=c++17",), ("truth_clock",))
        found.append((module, (f"-I{pybind11.get_include()}",)))
    if importlib.util.find_spec("nanobind"):
        import nanobind

        source = Path(nanobind.source_dir())
        robin = source.parent / "ext" / "robin_map" / "include"
        module = Binary(
            "truth_simulator_nanobind",
            ("truth_simulator_nanobind.cc", str(source / "nb_combined.cpp")),
            ("-std=c++17", "-fno-strict-aliasing", "-O1"),
            ("truth_clock",),
        )
        found.append((module, ("-DNDEBUG", "-DNB_COMPACT_ASSERTIONS", f"-I{nanobind.include_dir()}", f"-I{robin}")))
    return tuple(found)


def extensions() -> Path:
    """Folder with the extension modules for the running interpreter; pybind11 and nanobind ones where those import."""
    libraries = native()
    bindings = _binding_extensions()
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    python = ("-shared", "-Wl,-z,now", f"-I{sysconfig.get_path('include')}")
    names = ",".join(f"{binary.name} {flags}" for binary, flags in bindings)
    final = cache_folder() / f"extensions-{_key(sys.version, sys.prefix, suffix, names, str(libraries))}"
    if not final.is_dir():
        with _Building(final) as folder:
            if folder is not None:
                for binary, flags in (*((binary, ()) for binary in EXTENSIONS), *bindings):
                    _compile(binary, folder, (*python, *flags), libraries)
                    (folder / binary.name).rename(folder / f"{binary.name}{suffix}")
    return final


if __name__ == "__main__":
    print(native())
    print(extensions())
