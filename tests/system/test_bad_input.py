"""What cannot work: each time two sentences and the right exit status, never a traceback, and the target unharmed."""

from __future__ import annotations

import os
import random
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import (
    MARKER_LIBRARY,
    TRUTH,
    Profiler,
    Program,
    build,
    changed_text_bytes,
    compare,
    report,
    rlscope,
    total,
    until_it_agrees,
)

from rlscope_ebpf.capture.process import TargetProcess, open_pidfd
from rlscope_ebpf.errors import ExitStatus, UsageError
from rlscope_ebpf.session import runner
from rlscope_ebpf.session.options import CaptureOptions

pytestmark = pytest.mark.system

StartTarget = Callable[..., Program]
Attach = Callable[..., tuple[Profiler, Path]]

NOBODY = 65534
IDLE = "import os, time; print('READY', os.getpid(), flush=True); time.sleep({seconds})"

# Without privileges but for reading files, since the interpreter may lie in a folder of root's.
AS_NOBODY = (
    *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    *("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"),
)
WITHOUT_BPF = ("setpriv", "--bounding-set=-bpf,-perfmon,-sys_admin", "--inh-caps=-bpf,-perfmon,-sys_admin")
WITHOUT_PTRACE = ("setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace")


def _become_nobody() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


# -- processes that cannot be profiled ---------------------------------------------------------------------------------


def test_no_such_process(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    rlscope("attach", "--pid", str(gone.pid), folder=tmp_path).refused(
        ExitStatus.USAGE, f"There is no process {gone.pid}"
    )
    assert not list(tmp_path.iterdir())  # and no trace is left behind


@pytest.mark.parametrize("milliseconds", [50, 400, 800, 1200, 1600, 2000, 2500])
def test_process_that_exits_during_attach(milliseconds: int, start_target: StartTarget, tmp_path: Path) -> None:
    """Somewhere between the first look at it and the first event. Afterwards it is a target that ended: fine."""
    target = start_target(sys.executable, "-c", IDLE.format(seconds=milliseconds / 1000))
    done = rlscope("attach", "--pid", str(target.pid), "-o", tmp_path / "a.rlscope", "--no-tui")
    assert target.wait() == 0
    if done.status == ExitStatus.OK:
        assert report(tmp_path / "a.rlscope")["session"]["complete"]
    else:
        done.refused(ExitStatus.USAGE, str(target.pid), "exited")  # gone, or not waited for by its parent: us
        assert not (tmp_path / "a.rlscope").exists()


def test_process_that_exits_before_its_files_are_looked_at(
    start_target: StartTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a zombie then, which has no files: that it has nothing to probe would be the wrong thing to say."""
    target = start_target(sys.executable, "-c", IDLE.format(seconds=60))

    def open_and_end(process: TargetProcess) -> int:
        descriptor = open_pidfd(process)
        os.kill(process.pid, signal.SIGKILL)
        select.select([descriptor], [], [])
        return descriptor

    monkeypatch.setattr(runner, "open_pidfd", open_and_end)
    with runner.Profiler(CaptureOptions(pids=(target.pid,))) as profiler, pytest.raises(UsageError, match="exited"):
        profiler.attach()


def test_32_bit_process(start_target: StartTarget) -> None:
    target = start_target(build.program("elf32"))
    rlscope("attach", "--pid", str(target.pid), "--no-trace").refused(ExitStatus.UNSUPPORTED, "32-bit")
    assert target.is_running()


def test_kernel_thread() -> None:
    threads = [entry for entry in os.listdir("/proc") if entry.isdigit() and _is_kernel_thread(entry)]
    assert threads, "No kernel thread is visible: run the system tests outside of a pid namespace."
    rlscope("attach", "--pid", threads[0], "--no-trace").refused(ExitStatus.UNSUPPORTED, "kernel thread")


def _is_kernel_thread(pid: str) -> bool:
    try:
        return bool(int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6]) & 0x00200000)
    except OSError:
        return False


def test_zombie(start_target: StartTarget) -> None:
    target = start_target(build.program("zombie"))
    assert target.pid != target.process.pid
    rlscope("attach", "--pid", str(target.pid), "--no-trace").refused(ExitStatus.USAGE, "zombie")


def test_process_without_anything_to_probe(start_target: StartTarget, tmp_path: Path) -> None:
    target = start_target(build.program("brief"), "20000")
    rlscope("attach", "--pid", str(target.pid), folder=tmp_path).refused(ExitStatus.UNSUPPORTED, "--library")
    assert not list(tmp_path.glob("*.rlscope"))
    assert target.is_running()
    assert changed_text_bytes(target.pid) == 0


def test_process_that_is_not_python(start_target: StartTarget, attach: Attach) -> None:
    """It works, without Python."""

    def attempt() -> tuple[int, list[Any]]:
        target = start_target(build.program("native_ops"), MARKER_LIBRARY, "300", realtime=True)
        profiler, trace = attach(target)
        target.go()
        truth = target.truth()
        target.finish()
        assert profiler.wait() == 0
        document = report(trace)
        return total(document, truth["pid"], "python"), compare.compare(truth, document)

    assert until_it_agrees(attempt) == 0


# -- privileges --------------------------------------------------------------------------------------------------------


def test_not_root_and_somebody_elses_process(start_target: StartTarget) -> None:
    target = start_target(sys.executable, "-c", IDLE.format(seconds=60))
    done = rlscope("attach", "--pid", str(target.pid), "--no-trace", prefix=AS_NOBODY)
    done.refused(ExitStatus.NOT_PERMITTED, "root")


def test_not_root_and_ones_own_process(start_target: StartTarget) -> None:
    """It can be looked at, but BPF is not to be had."""
    target = start_target("sleep", "60", ready=False, before=_become_nobody)
    done = rlscope("attach", "--pid", str(target.pid), "--no-trace", prefix=AS_NOBODY)
    done.refused(ExitStatus.NOT_PERMITTED, "root")


def test_maps_that_cannot_be_read(start_target: StartTarget) -> None:
    """Root without CAP_SYS_PTRACE, as in a container, and a process of another user."""
    target = start_target("sleep", "60", ready=False, before=_become_nobody)
    done = rlscope("attach", "--pid", str(target.pid), "--no-trace", prefix=WITHOUT_PTRACE)
    done.refused(ExitStatus.NOT_PERMITTED, "CAP_SYS_PTRACE")


def test_root_that_may_not_use_bpf(start_target: StartTarget) -> None:
    target = start_target("sleep", "60", ready=False)
    done = rlscope("attach", "--pid", str(target.pid), "--no-trace", prefix=WITHOUT_BPF)
    done.refused(ExitStatus.NOT_PERMITTED, "CAP_BPF")


# -- traces that cannot be written -------------------------------------------------------------------------------------


@pytest.fixture
def idle(start_target: StartTarget) -> Program:
    """A Python process that does nothing."""
    return start_target(sys.executable, "-c", IDLE.format(seconds=60))


def test_folder_that_does_not_exist(idle: Program, tmp_path: Path) -> None:
    done = rlscope("attach", "--pid", str(idle.pid), "-o", tmp_path / "no" / "a.rlscope")
    done.refused(ExitStatus.USAGE, str(tmp_path / "no"))


def test_file_that_exists(idle: Program, tmp_path: Path) -> None:
    trace = tmp_path / "a.rlscope"
    trace.write_bytes(b"precious")
    rlscope("attach", "--pid", str(idle.pid), "-o", trace).refused(ExitStatus.USAGE, "--force")
    assert trace.read_bytes() == b"precious"


def test_folder_that_may_not_be_written(idle: Program, small_disk: Callable[..., Path]) -> None:
    folder = small_disk("ro")
    done = rlscope("attach", "--pid", str(idle.pid), "-o", folder / "a.rlscope")
    assert done.status in (ExitStatus.USAGE, ExitStatus.NOT_PERMITTED)
    done.refused(done.status, str(folder))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """small_disk(option, …): a mounted file system of 96 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(*options: str) -> Path:
        words = ",".join(("size=96k", *options))
        subprocess.run(["mount", "-t", "tmpfs", "-o", words, "tmpfs", str(folder)], check=True)
        return folder

    yield mount
    subprocess.run(["umount", str(folder)], check=True)


def test_disk_that_fills_up(
    start_target: StartTarget, start_profiler: Callable[..., Profiler], small_disk: Callable[..., Path]
) -> None:
    trace = small_disk("rw") / "a.rlscope"
    target = start_target(
        sys.executable, TRUTH, "--seconds", "8", "--rate", "4000", "--scenario", "ctypes_held", "--scenario", "nesting"
    )
    words = ("attach", "--pid", str(target.pid), "-o", trace, "--no-tui", *build.LIBRARY_OPTIONS)
    profiler = start_profiler(*words).wait_until_attached()
    target.go()
    assert profiler.wait(60) == ExitStatus.FAILED
    assert target.is_running()
    *_, problem, remedy = profiler.stderr.strip().splitlines()
    assert problem.startswith("rlscope-ebpf: ")
    assert "no space left on device" in problem.lower()
    assert remedy.endswith(".")
    assert "nested" in profiler.stdout or "outer" in profiler.stdout or "ctypes_held" in profiler.stdout  # the summary
    assert not report(trace, status=ExitStatus.DAMAGED)["session"]["complete"]
    target.finish()


# -- traces that cannot be read ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of a short run."""
    folder = tmp_path_factory.mktemp("trace")
    words = (sys.executable, TRUTH, "--seconds", "2", "--rate", "3000", "--scenario", "ctypes_held")
    target = Program(words, folder).wait_until_ready()
    profiler = Profiler(
        ("attach", "--pid", str(target.pid), "-o", "a.rlscope", "--no-tui", *build.LIBRARY_OPTIONS), folder
    )
    try:
        profiler.wait_until_attached()
        target.go()
        target.finish()
        assert profiler.wait() == 0
    finally:
        target.close()
        profiler.close()
    assert report(folder / "a.rlscope")["session"]["complete"]
    return folder / "a.rlscope"


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.6, 0.9, 0.999])
def test_truncated_trace(share: float, good_trace: Path, tmp_path: Path) -> None:
    content = good_trace.read_bytes()
    broken = tmp_path / "broken.rlscope"
    broken.write_bytes(content[: int(share * len(content))])
    done = rlscope("report", broken, "--format", "json")
    if done.stdout:
        assert '"complete": false' in done.stdout
    done.refused(done.status)
    assert done.status == ExitStatus.DAMAGED if share else done.status in (ExitStatus.USAGE, ExitStatus.DAMAGED)


@pytest.mark.parametrize("seed", range(6))
def test_flipped_bytes(seed: int, good_trace: Path, tmp_path: Path) -> None:
    chance = random.Random(seed)
    content = bytearray(good_trace.read_bytes())
    for _ in range(3):
        content[chance.randrange(200, len(content))] ^= 1 << chance.randrange(8)
    broken = tmp_path / "broken.rlscope"
    broken.write_bytes(content)
    done = rlscope("report", broken, "--format", "json")
    done.refused(ExitStatus.DAMAGED)
    assert '"complete": false' in done.stdout


def test_not_a_trace(tmp_path: Path) -> None:
    broken = tmp_path / "notes.txt"
    broken.write_text("no trace at all\n" * 100)
    rlscope("report", broken).refused(ExitStatus.USAGE)
    rlscope("report", tmp_path / "missing.rlscope").refused(ExitStatus.USAGE, "missing.rlscope")


# -- the command line itself -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("attach",),
        ("attach", "--pid", "x"),
        ("attach", "--pid", "-4"),
        ("attach", "--pid", "1", "--library", "gpu=*x*"),
        ("attach", "--pid", "1", "--library", "simulator"),
        ("attach", "--pid", "1", "--marker", "step"),
        ("attach", "--pid", "1", "--max-overhead", "-3"),
        ("attach", "--pid", "1", "--duration", "0"),
        ("attach", "--pid", "1", "--attach-method", "magic"),
        ("attach", "--pid", "1", "--no-trace", "-o", "a.rlscope"),
        ("run",),
        ("report",),
        ("frobnicate",),
    ],
    ids=" ".join,
)
def test_wrong_usage(words: tuple[str, ...]) -> None:
    rlscope(*words).refused(ExitStatus.USAGE)


def test_help_is_quick() -> None:
    """At least once in ten times: the machine may be busy."""
    for verb in ("attach", "run", "report", "view", "doctor", "demo"):
        took: list[float] = []
        while not took or (min(took) >= 0.5 and len(took) < 10):
            start = time.monotonic()
            done = rlscope(verb, "--help", prefix=AS_NOBODY)
            took.append(time.monotonic() - start)
            assert done.status == 0
            assert re.search(rf"rlscope-ebpf {verb}", done.stdout)
        assert min(took) < 0.5, (verb, took)
