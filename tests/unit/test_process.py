"""Looking at processes: real zombies, threads, kernel threads and 32-bit programs, each refused in two sentences."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rlscope_ebpf.capture import process
from rlscope_ebpf.capture.kernel import attach_methods, parse_release
from rlscope_ebpf.capture.tasks import read_thread_ids, thread_ids
from rlscope_ebpf.errors import ExitStatus, NotPermittedError, ProfilerError, UnsupportedError, UsageError

REPOSITORY = Path(__file__).resolve().parents[2]

STUB_32 = 'void _start(void) { for (;;) __asm__ volatile("int $0x80" :: "a"(29)); }'  # pause() for ever


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.01)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def python_target(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    script = tmp_path / "train_agent.py"
    script.write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "print('ready', flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-u", str(script), "--steps", "5"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        yield child
        child.kill()


def refused(pid: int, kind: type[ProfilerError]) -> ProfilerError:
    with pytest.raises(kind) as caught:
        process.inspect(pid)
    error = caught.value
    assert type(error) is kind
    assert error.problem.endswith(".")
    assert error.remedy.endswith(".")
    assert str(pid) in error.problem
    return error


def test_python_process(python_target: subprocess.Popen[bytes]) -> None:
    seen = process.inspect(python_target.pid)
    assert seen.pid == python_target.pid
    assert seen.ppid == os.getpid()
    assert seen.bits == 64
    assert seen.is_python
    assert seen.python_version == ".".join(map(str, sys.version_info[:3]))
    assert seen.command[1:] == ("-u", seen.command[2], "--steps", "5")
    assert seen.name == "train_agent"
    assert seen.threads == 2
    assert seen.uid == os.getuid()
    assert seen.same_mount_namespace
    assert seen.namespace_pids[0] == python_target.pid
    threads = read_thread_ids(python_target.pid)
    assert len(threads) == 2
    assert threads[0] == python_target.pid


def test_identity_outlives_the_process(python_target: subprocess.Popen[bytes]) -> None:
    seen = process.inspect(python_target.pid)
    assert process.is_alive(seen)
    reused = replace(seen, start_ticks=seen.start_ticks - 1)
    assert not process.is_alive(reused)
    with pytest.raises(UsageError):
        process.open_pidfd(reused)
    descriptor = process.open_pidfd(seen)
    try:
        python_target.kill()
        wait_until(lambda: state_of(python_target.pid) == "Z")
        assert not process.is_alive(seen)  # a zombie is not alive
    finally:
        os.close(descriptor)
    python_target.wait()
    assert not process.is_alive(seen)
    assert thread_ids(seen.pid) == []
    with pytest.raises(OSError):
        read_thread_ids(seen.pid)
    with pytest.raises(UsageError):
        process.open_pidfd(seen)


def test_no_such_process() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert refused(child.pid, UsageError).status == ExitStatus.USAGE
    refused(2**31 - 1, UsageError)
    refused(2**40, UsageError)


def test_itself() -> None:
    assert "the profiler itself" in refused(os.getpid(), UsageError).problem


def test_zombie() -> None:
    child = subprocess.Popen(["true"])
    try:
        wait_until(lambda: state_of(child.pid) == "Z")
        assert "zombie" in refused(child.pid, UsageError).problem
    finally:
        child.wait()


def test_ended_main_thread_is_not_a_zombie() -> None:
    code = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=lambda: (print('ready', flush=True), time.sleep(60))).start()\n"
        "ctypes.CDLL(None).syscall(60, 0)\n"  # exit: this thread alone
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        try:
            wait_until(lambda: state_of(child.pid) == "Z")
            assert "main thread" in refused(child.pid, UnsupportedError).problem
        finally:
            child.kill()


def test_thread_id_names_its_process(python_target: subprocess.Popen[bytes]) -> None:
    other = thread_ids(python_target.pid)[1]
    assert f"--pid {python_target.pid}" in refused(other, UsageError).remedy


def test_own_thread_is_a_thread() -> None:
    ids: list[int] = []
    done = threading.Event()

    def sleep() -> None:
        ids.append(threading.get_native_id())
        done.wait()

    thread = threading.Thread(target=sleep)
    thread.start()
    try:
        wait_until(lambda: bool(ids))
        assert f"process {os.getpid()}" in refused(ids[0], UsageError).problem
    finally:
        done.set()
        thread.join()


@pytest.mark.skipif(not Path("/proc/2/status").exists(), reason="this /proc shows no kernel threads")
def test_kernel_thread() -> None:
    assert refused(2, UnsupportedError).status == ExitStatus.UNSUPPORTED


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to build a 32-bit program")
def test_32_bit_process(tmp_path: Path) -> None:
    source, program = tmp_path / "stub.c", tmp_path / "stub32"
    source.write_text(STUB_32)
    subprocess.run(
        ["gcc", "-m32", "-static", "-nostdlib", "-ffreestanding", "-fno-pic", "-o", program, source], check=True
    )
    with subprocess.Popen([program]) as child:
        try:
            wait_until(lambda: os.readlink(f"/proc/{child.pid}/exe") == str(program))
            assert "32-bit" in refused(child.pid, UnsupportedError).problem
        finally:
            child.kill()


def test_process_that_is_not_python() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            wait_until(lambda: os.readlink(f"/proc/{child.pid}/exe").endswith(("sleep", "coreutils", "busybox")))
            seen = process.inspect(child.pid)
            assert not seen.is_python
            assert seen.python_version == ""
            assert seen.name == "sleep"
        finally:
            child.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_not_permitted(python_target: subprocess.Popen[bytes]) -> None:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgid(65534)
            os.setuid(65534)
            try:
                process.inspect(python_target.pid)
                answer = "was allowed"
            except ProfilerError as error:
                answer = f"{type(error).__name__} {error}"
            os.write(write_end, answer.encode())
        finally:
            os._exit(0)
    os.close(write_end)
    os.waitpid(child, 0)
    answer = os.read(read_end, 4096).decode()
    os.close(read_end)
    assert answer.startswith(NotPermittedError.__name__)
    assert "sudo" in answer


def test_root_without_the_capability_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(process, "effective_capabilities", lambda: frozenset[str]())
    assert "CAP_SYS_PTRACE" in process.not_permitted(5).problem
    assert "--cap-add SYS_PTRACE" in process.not_permitted(5).remedy
    monkeypatch.setattr(process, "effective_capabilities", lambda: frozenset({"CAP_SYS_PTRACE"}))
    assert "CAP_DAC_READ_SEARCH is missing" in process.not_permitted(5).problem
    both = frozenset({"CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"})
    monkeypatch.setattr(process, "effective_capabilities", lambda: both)
    assert "even from root" in process.not_permitted(5).remedy
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(process, "effective_capabilities", lambda: frozenset[str]())
    assert "sudo" in process.not_permitted(5).remedy


def test_seccomp_of_any_thread_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    # One thread of two installs a filter that allows everything.
    code = (
        "import ctypes, threading, time\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "class Prog(ctypes.Structure): _fields_ = [('len', ctypes.c_ushort), ('filter', ctypes.c_void_p)]\n"
        "rule = ctypes.create_string_buffer(b'\\x06\\0\\0\\0\\0\\0\\xff\\x7f', 8)\n"
        "def sandbox():\n"
        "    assert libc.prctl(38, 1, 0, 0, 0) == 0\n"
        "    prog = Prog(1, ctypes.addressof(rule))\n"
        "    assert libc.prctl(22, 2, ctypes.byref(prog)) == 0\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
        "threading.Thread(target=sandbox, daemon=True).start()\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            seen = process.inspect(child.pid)
            assert seen.seccomp_mode == 2
            assert process.SECCOMP_MODES[seen.seccomp_mode] == "filter"
            assert seen.name == "python3" or seen.name == seen.comm  # -c names no script
        finally:
            child.kill()
    monkeypatch.setattr(process, "kernel_version", lambda: (6, 11, 0))
    assert not seen.allows_return_probes
    assert replace(seen, seccomp_mode=0).allows_return_probes


@pytest.mark.parametrize(
    ("release", "sees"),
    [
        ("5.15.0-100-generic", False),
        ("6.10.9", False),
        ("6.11.0-29-generic", True),
        ("6.12.12", True),
        ("6.12.48+deb13-amd64", False),
        ("6.13.1", True),
        ("6.13.2", False),
        ("6.14.0", False),
    ],
)
def test_kernels_whose_seccomp_denies_return_probes(release: str, sees: bool) -> None:
    assert process._seccomp_sees_return_probes(parse_release(release)) is sees


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("python", "train.py"), "train"),
        (("python3.11", "-u", "-X", "dev", "/a/b/train.py", "-m", "x"), "train"),
        (("python", "-m", "sb3.train"), "train"),
        (("python", "-m", "pkg.__main__"), "pkg"),
        (("python", "/a/pkg/__main__.py"), "pkg"),
        (("python", "-c", "print()"), None),
        (("python",), None),
        (("python", "-m"), None),
    ],
)
def test_script_name(command: tuple[str, ...], name: str | None) -> None:
    assert process.script_name(command) == name


def python_interpreters() -> list[str]:
    found = {sys.executable, "/usr/bin/python3"}
    found.update(str(path) for path in (Path.home() / ".pyenv/versions").glob("3.1*/bin/python"))
    return sorted(path for path in found if Path(path).exists())


@pytest.mark.parametrize("interpreter", python_interpreters())
def test_every_python_here_is_identified(interpreter: str) -> None:
    code = "import sys; print('.'.join(map(str, sys.version_info[:3])), flush=True); sys.stdin.read()"
    with subprocess.Popen([interpreter, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            version = child.stdout.readline().decode().strip()
            seen = process.inspect(child.pid)
            # Python 3.10 exports no version: the file's name tells the first two numbers.
            assert seen.is_python
            assert version.startswith(seen.python_version)
            assert seen.python_version.count(".") >= 1
        finally:
            child.kill()


def test_deleted_executable(tmp_path: Path) -> None:
    program = tmp_path / "sleeper"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    with subprocess.Popen([program, "60"]) as child:
        try:
            wait_until(lambda: os.readlink(f"/proc/{child.pid}/exe") == str(program))
            program.unlink()
            assert process.inspect(child.pid).exe == str(program)
        finally:
            child.send_signal(signal.SIGKILL)


@pytest.mark.parametrize(
    ("version", "methods"),
    [
        ((5, 10), ()),
        ((5, 15, 0), ("perf",)),
        ((6, 6), ("multi", "perf")),
        ((6, 18, 44), ("session", "multi", "perf")),
        ((), ()),
    ],
)
def test_attach_methods_by_kernel(version: tuple[int, ...], methods: tuple[str, ...]) -> None:
    assert attach_methods(version) == methods
