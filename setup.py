"""Builds what is no Python: the C of userspace/ and, for a wheel, the BPF sources. All else is in pyproject.toml."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError

ROOT = Path(__file__).resolve().parent
PACKAGE = "rlscope_ebpf"
OLDEST_ABI = "cp310"

# Shared objects that are loaded into targets: file name -> sources.
LIBRARIES = {
    "librlscope_markers.so": ["userspace/rlscope_markers.c"],
    "librlscope_cartpole.so": ["userspace/demo/cartpole.c"],  # the demo's simulator
    "librlscope_calibration.so": ["userspace/rlscope_calibration.c"],  # what `calibrate` probes
    "librlscope_inject.so": ["userspace/rlscope_inject.c"],  # loads the GPU helper into a running process
    # The GPU helper. It declares what it uses of CUPTI itself: no CUDA is needed to compile it.
    "librlscope_cupti.so": [
        *("userspace/rlscope_cupti.c", "userspace/cupti_library.c"),
        *("userspace/cupti_launches.c", "userspace/cupti_records.c"),
    ],
}

# Those that are taken away again; threads may be in the others at any time.
PASSING = {"librlscope_inject.so"}

MARKERS = Extension(
    f"{PACKAGE}._markers",
    ["userspace/markers_module.c"],
    depends=["userspace/rlscope_markers.h", "userspace/rlscope_markers.c"],
    py_limited_api=True,
    # Without Python's headers, or on a free-threaded Python, markers go through ctypes.
    optional=True,
)

# The flags are ours alone, not those Python was built with: a distribution's (link-time optimisation, CET) would change
# the first bytes of functions that must begin with a nop.
COMPILE = [
    *("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden", "-fno-lto", "-pthread"),
    *("-shared", "-Wl,-z,relro", "-Wl,-z,now"),
]
if os.uname().machine == "x86_64":
    COMPILE.append("-fcf-protection=none")
# Descriptors: thread-local storage that is fast and still loads when the static block is used up. Older compilers
# other than GCC refuse the option.
FAST_TLS = ["-mtls-dialect=gnu2"] if os.uname().machine == "x86_64" else []


def compiler() -> list[str]:
    """$CC, Python's own compiler if it is here, or any."""
    candidates = [os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang"]
    for candidate in candidates:
        words = shlex.split(candidate or "")
        if words and shutil.which(words[0]):
            return words[:1]
    raise CompileError("no C compiler found: install gcc (Debian, Ubuntu: apt-get install gcc), or set CC")


def compile_shared(output: Path, sources: list[str], flags: list[str], optional_flags: list[str]) -> None:
    """One shared object, put in place whole: a running process may have the old one mapped."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        made = Path(folder) / output.name
        inputs = [os.path.join(ROOT, source) for source in sources]
        command = [*compiler(), *COMPILE, *inputs, "-o", str(made), *flags]
        for attempt in ([*command, *optional_flags], command):
            print(shlex.join(attempt), file=sys.stderr)
            result = subprocess.run(attempt)
            if result.returncode == 0:
                os.replace(made, output)
                return
    raise CompileError(f"compiling {', '.join(sources)} failed with status {result.returncode}")


class BuildNative(build_ext):
    """The libraries, then the extension that is linked against one of them and lies beside it."""

    def library_folder(self) -> Path:
        return Path(self.get_ext_fullpath(MARKERS.name)).resolve().parent

    def build_extensions(self) -> None:
        for name, sources in LIBRARIES.items():
            flags = [f"-Wl,-soname,{name}", *([] if name in PASSING else ["-Wl,-z,nodelete"])]
            compile_shared(self.library_folder() / name, sources, flags, FAST_TLS)
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        output = Path(self.get_ext_fullpath(ext.name)).resolve()
        includes = {sysconfig.get_path("include"), sysconfig.get_path("platinclude")}
        flags = [f"-I{folder}" for folder in sorted(filter(None, includes))]
        flags += [f"-L{self.library_folder()}", "-lrlscope_markers", "-Wl,-rpath,$ORIGIN"]
        compile_shared(output, ext.sources, flags, [])

    def copy_extensions_to_source(self) -> None:
        """After an in-place (editable) build."""
        super().copy_extensions_to_source()
        target = Path(self.get_finalized_command("build_py").get_package_dir(PACKAGE)).resolve()
        built = Path(self.build_lib).resolve() / PACKAGE
        for name in LIBRARIES:
            fresh = target / f".{name}.new.so"
            shutil.copy2(built / name, fresh)
            os.replace(fresh, target / name)


class PackSources(build_py):
    """Puts probes/ and the C header into the package. An editable installation uses the checkout's."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        package = Path(self.build_lib) / PACKAGE
        for target in ("_probes", "_include"):
            shutil.rmtree(package / target, ignore_errors=True)
        ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.o", ".*")
        shutil.copytree(ROOT / "probes", package / "_probes", ignore=ignored)
        (package / "_include").mkdir(parents=True)
        for header in sorted((ROOT / "userspace").glob("rlscope_*.h")):
            shutil.copy2(header, package / "_include")


free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
setup(
    ext_modules=[MARKERS],
    cmdclass={"build_ext": BuildNative, "build_py": PackSources},
    options={} if free_threaded else {"bdist_wheel": {"py_limited_api": OLDEST_ABI}},
)
