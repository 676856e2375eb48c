"""Loading the GPU helper into a process that runs already, and starting one that is in there from before.

Whatever does it runs in a process of its own: it may hang or crash, and what it needs goes with it.
"""

from __future__ import annotations

import importlib.util
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from rlscope_ebpf.capture.gpu_files import HELPER_PREFIX
from rlscope_ebpf.capture.process import TargetProcess
from rlscope_ebpf.capture.quiet_threads import find_quiet_thread
from rlscope_ebpf.errors import ProfilerError, UnsupportedError

PATIENCE_S: Final = 20.0
"""What takes longer is broken off."""

_RTLD_NOW, _RTLD_NOLOAD, _RTLD_NODELETE = 2, 4, 0x1000
_REMOTE_EXEC_SINCE: Final = (3, 14)
_START: Final = "rlscope_gpu_start"
_ENTRY: Final = "rlscope_inject"  # of the library that Frida loads

_FRIDA = """
import sys, threading
if sys.path[:1] == [""]:
    del sys.path[0]
import frida
from rlscope_ebpf.capture.quiet_threads import code_areas, find_quiet_thread, wait_until_released
over = threading.Event()
device = frida.get_local_device()
device.on("uninjected", lambda *_: over.set())
process, patience = int(sys.argv[1]), float(sys.argv[5])
thread = find_quiet_thread(process, patience)
if thread is None:
    sys.exit({busy})
areas = code_areas(process)
there = False
try:
    device.inject_library_file(thread, sys.argv[2], sys.argv[3], sys.argv[4])
    there = over.wait(patience)
finally:
    wait_until_released(process, areas, patience / 2)
sys.exit(0 if there else 75)
"""
"""Looks for the thread at the last moment. After Frida has said that it is done, it borrows the thread once more, and
takes its own code out. If we ended before it has given the thread back, the target would go on where Frida's calls
return to: at no address at all."""

_BUSY: Final = 76  # exit status: no thread could be borrowed

_REMOTE_EXEC = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])"

_IN_TARGET = """exec('''
try:
    import ctypes
    try:
        helper = ctypes.CDLL(name, mode=again)
    except OSError:
        helper = ctypes.CDLL(path, mode=first)
    helper[start](0, 0)
except Exception:
    pass
''', {settings!r})
"""

_GDB = """
set pagination off
set confirm off
set unwindonsignal on
set width 0
sharedlibrary /lib(c|dl)[.-]
set $helper = ((void *(*)(const char *, int)) dlopen)("{name}", {again})
if $helper == 0
  set $helper = ((void *(*)(const char *, int)) dlopen)("{path}", {first})
end
if $helper != 0
  set $start = ((void *(*)(void *, const char *)) dlsym)($helper, "{start}")
  if $start != 0
    print ((unsigned (*)(unsigned, unsigned)) $start)(0, 0)
    echo rlscope-started\\n
  end
end
detach
"""


class Way(Enum):
    """Who loads it, as sentences name them."""

    REMOTE_EXEC = "Python's remote execution"
    FRIDA = "Frida"
    GDB = "gdb"


@dataclass(frozen=True, slots=True)
class Injected:
    """How it went."""

    way: Way
    seconds: float


def ways(process: TargetProcess, *, allow_gdb: bool) -> list[Way]:
    """What can be used for a process, the gentlest first."""
    found = []
    version = tuple(int(part) for part in process.python_version.split(".")[:2] if part.isdigit())
    if version >= _REMOTE_EXEC_SINCE and process.same_mount_namespace:
        found.append(Way.REMOTE_EXEC)
    if importlib.util.find_spec("frida") is not None:
        found.append(Way.FRIDA)
    if allow_gdb and shutil.which("gdb"):
        found.append(Way.GDB)
    return found


def inject(process: TargetProcess, helper: str, stub: str, chosen: list[Way]) -> Injected:
    """Load the helper (unless it is there) and start it, by the first of `chosen` ways that works.

    `helper` and `stub` are files as the target sees them. Raises UnsupportedError if no way works.
    """
    failures = []
    for way in chosen:
        begin = time.monotonic()
        try:
            _HOW[way](process, helper, stub)
        except ProfilerError as error:
            failures.append(error.problem)
            continue
        return Injected(way, time.monotonic() - begin)
    raise UnsupportedError(
        f"The GPU helper could not be loaded into process {process.pid}. {' '.join(failures)}",
        "Start the program with `rlscope-ebpf run`, which needs none of this, or use --gpu off.",
    )


def _by_frida(process: TargetProcess, helper: str, stub: str) -> None:
    script = _FRIDA.format(busy=_BUSY)
    words = [sys.executable, "-c", script, str(process.pid), stub, _ENTRY, helper, str(PATIENCE_S / 3)]
    status, output = _run(words)
    if status == _BUSY:
        raise _all_busy(process.pid)
    if status:
        said = output.strip().splitlines()[-1:] or [f"status {status}"]
        raise UnsupportedError(f"Frida failed ({said[0]}).", "Update it.")


def _all_busy(pid: int) -> UnsupportedError:
    return UnsupportedError(
        f"None of the threads of process {pid} waits, so none can be borrowed to load it.", "Try again later."
    )


def _by_gdb(process: TargetProcess, helper: str, stub: str) -> None:
    thread = find_quiet_thread(process.pid, PATIENCE_S / 3)
    if thread is None:
        raise _all_busy(process.pid)
    text = _GDB.format(
        name=f"{HELPER_PREFIX}.so",
        path=helper,
        start=_START,
        again=_RTLD_NOW | _RTLD_NOLOAD,
        first=_RTLD_NOW | _RTLD_NODELETE,
    )
    with tempfile.NamedTemporaryFile("w", prefix="rlscope-", suffix=".gdb") as script:
        script.write(text)
        script.flush()
        # Symbols of the C library alone: those of a whole process take seconds, in which it stands still.
        early = ["-iex", "set auto-solib-add off", "-iex", "set debuginfod enabled off"]
        words = ["gdb", "-nx", "-batch", *early, "-p", str(thread), "-x", script.name]
        _, output = _run(words)
    if "rlscope-started" not in output:
        lines = [line for line in output.splitlines() if not line.startswith("[")]
        raise UnsupportedError(f"gdb failed ({lines[-1].strip() if lines else 'it said nothing'}).", "Update it.")


def _by_remote_exec(process: TargetProcess, helper: str, stub: str) -> None:
    settings = {
        "name": f"{HELPER_PREFIX}.so",
        "path": helper,
        "start": _START,
        "again": _RTLD_NOW | _RTLD_NOLOAD,
        "first": _RTLD_NOW | _RTLD_NODELETE,
    }
    folder = Path(tempfile.mkdtemp(prefix="rlscope-"))
    script = folder / "start.py"
    try:
        folder.chmod(0o755)
        script.write_text(_IN_TARGET.format(settings=settings))
        script.chmod(0o644)
        status, output = _run([process.exe, "-I", "-c", _REMOTE_EXEC, str(process.pid), str(script)])
        if status:
            said = output.strip().splitlines()[-1:] or [f"status {status}"]
            raise UnsupportedError(f"Python's remote execution failed ({said[0]}).", "Allow it in the target.")
        deadline = time.monotonic() + PATIENCE_S / 4
        while HELPER_PREFIX.encode() not in _maps(process.pid):
            if time.monotonic() > deadline:
                raise UnsupportedError("The target's main thread ran no Python for five seconds.", "Try again.")
            time.sleep(0.02)
        time.sleep(0.1)  # it is being started
    finally:
        # It is read when the main thread comes to it, which would complain if it were gone.
        with suppress(OSError):
            script.write_text("")


_HOW: dict[Way, Callable[[TargetProcess, str, str], None]] = {
    Way.REMOTE_EXEC: _by_remote_exec,
    Way.FRIDA: _by_frida,
    Way.GDB: _by_gdb,
}


def _maps(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/maps").read_bytes()
    return b""


def _run(words: list[str]) -> tuple[int, str]:
    """Exit status and output of a command. One that takes too long is interrupted, as by Ctrl-C, and then killed."""
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as child:
        try:
            output, _ = child.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGINT)
            try:
                output, _ = child.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                child.kill()
                output, _ = child.communicate()
            return child.returncode or 1, f"{output}\nit took longer than {PATIENCE_S:g} s"
    return child.returncode, output
