"""`run`: a command from its very first instruction, whose exit status is passed on."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import (
    MARKER_LIBRARY,
    ROOT,
    START_S,
    TRUTH,
    Profiler,
    build,
    compare,
    operations_of,
    report,
    rlscope,
    total,
    until_it_agrees,
    wait_for,
)

pytestmark = pytest.mark.system

FIRST = f"""
import sys
sys.path.append({str(ROOT)!r})
import rlscope_ebpf.markers as rls
with rls.operation("very first"):
    sum(range(1000))
for _ in range(3):
    with rls.operation("then"):
        pass
print("output", *sys.argv[1:])
"""

SLOW = f"""
import signal, sys, time
sys.path.append({str(ROOT)!r})
import rlscope_ebpf.markers as rls
def leave(number, frame):
    print("leaving", flush=True)
    sys.exit(7)
signal.signal(signal.SIGINT, leave)
print("started", flush=True)
while True:
    with rls.operation("turn"):
        time.sleep(0.01)
"""


def _run(folder: Path, *words: str) -> tuple[int, str, str]:
    done = rlscope("run", "-o", "a.rlscope", "--no-tui", "--", *words, folder=folder)
    return done.status, done.stdout, done.stderr


@pytest.mark.parametrize("status", [0, 3, 255])
def test_exit_status_passes_through(status: int, tmp_path: Path) -> None:
    found, _, stderr = _run(tmp_path, sys.executable, "-c", f"raise SystemExit({status})")
    assert found == status, stderr
    assert report(tmp_path / "a.rlscope")["session"]["complete"]


def test_signal_that_ends_the_command(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert _run(tmp_path, sys.executable, "-c", code)[0] == 128 + signal.SIGKILL


def test_arguments_and_output_are_the_commands_own(tmp_path: Path) -> None:
    status, stdout, _ = _run(tmp_path, sys.executable, "-c", FIRST, "--duration", "x")
    assert status == 0
    assert "output --duration x" in stdout.splitlines()


def test_operations_of_the_first_moment_are_seen(tmp_path: Path) -> None:
    assert _run(tmp_path, sys.executable, "-c", FIRST)[0] == 0
    document = report(tmp_path / "a.rlscope")
    (process,) = document["processes"]
    operations = operations_of(document, process["pid"])
    assert operations["very first"]["count"] == 1
    assert operations["then"]["count"] == 3
    assert document["losses"]["events"] == 0


LATER = """
import sys, time
end = time.monotonic() + 0.4
while time.monotonic() < end:
    pass
import rlscope_ebpf.markers as rls
for _ in range(500):
    with rls.operation("turn"):
        pass
end = time.monotonic() + 1
while time.monotonic() < end:
    with rls.operation("later"):
        time.sleep(0.001)
assert "rlscope_ebpf" in rls.__file__ and sys.argv[1] in rls.__file__, rls.__file__
"""
"""Turns that are over long before a look for new libraries can have found the markers'."""


def _install(folder: Path) -> Path:
    """A copy of what `pip install` puts into the environment of a target."""
    package = folder / "rlscope_ebpf"
    package.mkdir(parents=True)
    for path in (ROOT / "rlscope_ebpf").iterdir():
        if path.name in ("__init__.py", "markers.py", "_markers_fallback.py", MARKER_LIBRARY.name) or (
            path.name.startswith("_markers.") and path.suffix == ".so"
        ):
            shutil.copy(path, package)
    return package


def _environment(folder: Path) -> tuple[Path, Path]:
    """Interpreter and package folder of a new virtual environment."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    return folder / "bin" / "python", packages


@pytest.mark.parametrize("way", ["installed", "editable", "path file", "executed", "beside the script"])
def test_markers_of_another_environment_are_probed_before_they_are_loaded(way: str, tmp_path: Path) -> None:
    python, packages = _environment(tmp_path / "environment")
    script = tmp_path / "scripts" / "later.py"
    script.parent.mkdir()
    script.write_text(LATER)
    if way in ("installed", "executed"):
        _install(packages)
        where = "environment"
    elif way == "beside the script":
        _install(script.parent)
        where = "scripts"
    else:
        _install(tmp_path / "checkout")
        where = "checkout"
        if way == "editable":  # as pip leaves it: a finder that is code, and a note of where the package is
            (packages / "finder.pth").write_text(f"import sys; sys.path.append({str(tmp_path / 'checkout')!r})\n")
            notes = packages / "rlscope_ebpf-0.dist-info"
            notes.mkdir()
            url = (tmp_path / "checkout").as_uri()
            (notes / "direct_url.json").write_text(json.dumps({"dir_info": {"editable": True}, "url": url}))
        else:
            (packages / "here.pth").write_text(f"{tmp_path / 'checkout'}\n")
    words = [str(python), "-E", str(script), where]  # PYTHONPATH may lead to the checkout under test
    if way == "executed":
        words = ["/bin/sh", "-c", 'exec "$0" "$@"', *words]
    status, _, stderr = _run(tmp_path, *words)
    assert status == 0, stderr
    document = report(tmp_path / "a.rlscope")
    (process,) = document["processes"]
    operations = operations_of(document, process["pid"])
    assert operations["turn"]["count"] == 500
    assert "(unknown)" not in operations
    assert not [notice for notice in document["notices"] if "markers" in notice["text"]]


def test_markers_that_nobody_expected_are_said_to_come_late(tmp_path: Path) -> None:
    _install(tmp_path / "hidden")
    code = f"import sys; sys.path[:0] = [{str(tmp_path / 'hidden')!r}]\n" + LATER
    status, _, stderr = _run(tmp_path, sys.executable, "-c", code, "hidden")
    assert status == 0, stderr
    document = report(tmp_path / "a.rlscope")
    (notice,) = [notice for notice in document["notices"] if "The markers of" in notice["text"]]
    assert notice["important"]
    assert str(tmp_path / "hidden") in notice["text"]
    assert notice["text"] in stderr


POOL = """
#include <pthread.h>
static void *spin(void *nothing)
{
    for (volatile unsigned long turns = 0;; turns++)
        ;
    return nothing;
}
void begin(void)
{
    pthread_t thread;
    pthread_create(&thread, 0, spin, 0);
}
"""


def test_a_native_thread_that_no_probe_hears_of_is_said(tmp_path: Path) -> None:
    source, library = tmp_path / "pool.c", tmp_path / "libpool.so"
    source.write_text(POOL)
    subprocess.run(["gcc", "-shared", "-fPIC", "-pthread", "-o", library, source], check=True)
    code = f"import ctypes, time; ctypes.CDLL({str(library)!r}).begin(); time.sleep(2)"
    status, _, stderr = _run(tmp_path, sys.executable, "-c", code)
    assert status == 0, stderr
    document = report(tmp_path / "a.rlscope")
    (text,) = [each["text"] for each in document["notices"] if "not in the figures" in each["text"]]
    assert text.endswith("1 more thread ran that never entered Python, an operation or a probed library.")
    assert text in stderr


@pytest.mark.parametrize("before", ["exec", "sleep 0.5; exec"], ids=["at once", "later"])
def test_a_shell_that_becomes_the_program(before: str, tmp_path: Path) -> None:
    code = FIRST + "import time\ntime.sleep(1)\nsum(range(10_000_000))\ntime.sleep(0.1)\nsys.exit(7)"
    status, _, stderr = _run(tmp_path, "/bin/sh", "-c", f'{before} "$0" "$@"', sys.executable, "-c", code)
    assert status == 7, stderr
    document = report(tmp_path / "a.rlscope")
    (process,) = [each for each in document["processes"] if each["name"] != "sleep"]  # the shell's child
    assert process["command"][0] == sys.executable
    operations = operations_of(document, process["pid"])
    assert operations["very first"]["count"] == 1
    assert operations["then"]["count"] == 3
    assert total(document, process["pid"], "python") > 0


def test_operations_end_where_another_program_begins(tmp_path: Path) -> None:
    code = f"""
import os, sys
sys.path.append({str(ROOT)!r})
import rlscope_ebpf.markers as rls
with rls.operation("around"):
    os.execv(sys.executable, [sys.executable, "-c", {FIRST!r}])
"""
    assert _run(tmp_path, sys.executable, "-c", code)[0] == 0
    document = report(tmp_path / "a.rlscope")
    (process,) = document["processes"]
    operations = operations_of(document, process["pid"])
    assert operations["around"]["count"] == 1
    assert operations["very first"]["count"] == 1
    assert operations["then"]["count"] == 3
    assert not [path for path in operations if "/" in path]


def test_a_command_without_anything_to_probe_passes_its_status_on(tmp_path: Path) -> None:
    status, stdout, stderr = _run(tmp_path, "/bin/sh", "-c", "echo said; exit 9")
    assert status == 9, stderr
    assert "said" in stdout.splitlines()
    document = report(tmp_path / "a.rlscope")
    (notice,) = document["notices"]
    assert notice["important"]
    assert notice["text"].startswith("Where the command's time went is not known: ")
    assert notice["text"] in stderr
    # So nothing is claimed of it, such as that it was on a CPU all the time.
    (process,) = document["processes"]
    assert process["operations"] == []
    assert "nothing was seen of what it did" in stdout


def test_known_truth_from_the_first_instruction(start_profiler: Callable[..., Profiler], tmp_path: Path) -> None:
    """Everything of the program, whose libraries are all loaded while the profiler looks on. Counts are exact."""
    # The truth begins after the modules were loaded, which may call their libraries meanwhile.
    ignored = ("thrown_to_binding", "(untracked)")

    def attempt() -> tuple[None, list[Any]]:
        receive, send = os.pipe()
        work = ("--seconds", "2", "--scenario", "ctypes_held", "--scenario", "nesting", "--scenario", "exceptions")
        profiler = start_profiler(
            "run",
            "-o",
            "a.rlscope",
            "--force",
            "--no-tui",
            "--max-overhead",
            "0",
            *build.LIBRARY_OPTIONS,
            "--",
            sys.executable,
            TRUTH,
            *work,
            stdin=receive,
        )
        os.close(receive)
        wait_for(lambda: "READY" in profiler.stdout, START_S, "READY of the command")
        time.sleep(1)  # in which its libraries are found
        os.write(send, b"go\n")
        os.close(send)
        assert profiler.wait(60) == 0, profiler.stderr
        truth = json.loads(re.findall(r"^TRUTH (.*)$", profiler.stdout, re.MULTILINE)[0])
        document = report(tmp_path / "a.rlscope")
        return None, compare.compare(truth, document, tolerance=0.1, ignore=ignored)

    until_it_agrees(attempt)


FIRST_CALLS = """
import ctypes, sys
step = ctypes.CDLL(sys.argv[1]).storm_step
for _ in range(100):
    step(None)
"""


@pytest.mark.parametrize("how", ["path", "symbolic link", "operation"])
def test_a_library_named_by_its_path_is_seen_from_its_first_call(how: str, tmp_path: Path) -> None:
    """Nothing here waits for the profiler, which would need a moment to find a library that has been loaded."""
    library = build.native() / "libtruth_simulator_storm.so"
    named = library
    if how == "symbolic link":
        named = tmp_path / "libsimulator.so"
        named.symlink_to(library)
    option = ("--marker", f"step={named}:storm_step") if how == "operation" else ("--library", f"simulator={named}")
    # A session would set no return probes before it has looked at what was loaded.
    words = ("--max-overhead", "0", "--attach-method", "perf", *option)
    command = (sys.executable, "-c", FIRST_CALLS, str(library))
    done = rlscope("run", "-o", "a.rlscope", "--no-tui", *words, "--", *command, folder=tmp_path)
    assert done.status == 0, done.stderr
    document = report(tmp_path / "a.rlscope")
    (process,) = document["processes"]
    if how == "operation":
        assert operations_of(document, process["pid"])["step"]["count"] == 100
    else:
        (row,) = process["operations"]
        assert row["transitions"]["python_to_simulator"] == 100


def test_ctrl_c_reaches_the_command_and_waits_for_it(start_profiler: Callable[..., Profiler], tmp_path: Path) -> None:
    profiler = start_profiler("run", "-o", "a.rlscope", "--no-tui", "--", sys.executable, "-c", SLOW, group=True)
    profiler.wait_until_attached()
    wait_for(lambda: "started" in profiler.stdout, 60, "the command's start")
    time.sleep(0.5)
    os.killpg(profiler.pid, signal.SIGINT)  # as a terminal does
    assert profiler.wait() == 7
    assert "leaving" in profiler.stdout
    assert "turn" in profiler.stdout  # the summary
    assert report(tmp_path / "a.rlscope")["session"]["complete"]


def test_sigterm_ends_the_profiler_not_the_command(start_profiler: Callable[..., Profiler], tmp_path: Path) -> None:
    profiler = start_profiler("run", "-o", "a.rlscope", "--no-tui", "--", sys.executable, "-c", SLOW)
    profiler.wait_until_attached()
    wait_for(lambda: "started" in profiler.stdout, 60, "the command's start")
    time.sleep(0.5)
    profiler.signal(signal.SIGTERM)
    assert profiler.wait() == 0
    (process,) = report(tmp_path / "a.rlscope")["processes"]
    os.kill(process["pid"], signal.SIGINT)  # it is still there: raises otherwise
    assert str(process["pid"]) in profiler.stderr


def test_program_that_does_not_exist(tmp_path: Path) -> None:
    rlscope("run", "--", "no-such-program-anywhere", folder=tmp_path).refused(2, "no-such-program-anywhere")
    assert not list(tmp_path.iterdir())
