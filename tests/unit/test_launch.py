"""Starting commands: they wait before their first instruction, then run as if nobody had been there."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlscope_ebpf.capture import process
from rlscope_ebpf.capture.launch import Identity, launch, sudo_identity
from rlscope_ebpf.errors import NotPermittedError, UsageError

REPOSITORY = Path(__file__).resolve().parents[2]


def tracer_of(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("TracerPid:")).split()[1])


def is_inheritable(number: int) -> bool:
    try:
        return os.get_inheritable(number)
    except OSError:
        return False  # the folder that was being listed


def test_it_waits_with_its_program_in_place_and_then_runs_untraced(tmp_path: Path) -> None:
    proof = tmp_path / "ran"
    code = f"import time; open({str(proof)!r}, 'w').close(); time.sleep(60)"
    with launch([sys.executable, "-c", code]) as child:
        assert child.stopped
        time.sleep(0.1)
        assert not proof.exists()
        assert child.poll() is None
        seen = process.inspect(child.pid)
        assert seen.is_python
        assert seen.command[1:] == ("-c", code)
        child.release()
        child.release()
        end = time.monotonic() + 60
        while not proof.exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        assert tracer_of(child.pid) == 0
        os.kill(child.pid, signal.SIGTERM)
        assert child.wait() == 128 + signal.SIGTERM
        assert child.poll() == 128 + signal.SIGTERM


@pytest.mark.parametrize("status", [0, 7, 255])
def test_exit_status(status: int) -> None:
    with launch(["sh", "-c", f"exit {status}"]) as child:
        child.release()
        assert child.wait() == status


def test_a_command_that_was_never_let_go_is_ended(tmp_path: Path) -> None:
    proof = tmp_path / "ran"
    with launch(["touch", str(proof)]) as child:
        pid = child.pid
    assert not proof.exists()
    assert not Path(f"/proc/{pid}").exists()


def test_a_command_that_runs_is_left_alone() -> None:
    with launch(["sleep", "60"]) as child:
        child.release()
    assert child.poll() is None
    child.kill()
    assert child.poll() == 128 + signal.SIGKILL


def test_no_such_program(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no program"):
        launch(["no-such-program-here"])
    text = tmp_path / "text"
    text.write_text("hello")
    with pytest.raises(NotPermittedError, match="may not be executed"):
        launch([str(text)])
    text.chmod(0o755)
    with pytest.raises(UsageError, match="not a program"):
        launch([str(text)])


def test_output_goes_where_it_is_told_and_stdin_is_empty(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file, launch(["sh", "-c", "cat; echo out; echo err >&2"], output=file.fileno()) as child:
        child.release()
        assert child.wait() == 0
    assert log.read_text() == "out\nerr\n"


def test_it_inherits_no_descriptor_and_no_ignored_signal() -> None:
    read_end, write_end = os.pipe()
    code = "import os, signal\nprint(*os.listdir('/proc/self/fd'))\n"
    with launch([sys.executable, "-c", code], output=write_end) as child:
        child.release()
        assert child.wait() == 0
    os.close(write_end)
    inherited = {int(entry) for entry in os.listdir("/proc/self/fd")}
    handed_down = {number for number in inherited if number > 2 and number != read_end and is_inheritable(number)}
    seen = {int(word) for word in os.read(read_end, 4096).split()}
    assert seen - handed_down <= {0, 1, 2, 3}  # 3: the folder being listed
    os.close(read_end)
    read_end, write_end = os.pipe()
    with launch(["grep", "SigIgn", "/proc/self/status"], output=write_end) as child:
        child.release()
        child.wait()
    os.close(write_end)
    ignored = int(os.read(read_end, 4096).split()[1], 16)
    os.close(read_end)
    assert not ignored >> (signal.SIGPIPE - 1) & 1


def test_signals_arrive_as_usual() -> None:
    with launch(["sh", "-c", "trap 'exit 9' TERM; kill -TERM $$; exit 1"]) as child:
        child.release()
        assert child.wait() == 9


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to build a program without a dynamic linker")
def test_static_program_and_entry_point_is_whole(tmp_path: Path) -> None:
    source, program = tmp_path / "stub.c", tmp_path / "stub"
    # Exits with the first byte of its own code: the breakpoint must be gone.
    source.write_text(
        "void _start(void) { "
        '__asm__ volatile("leaq _start(%rip), %rsi; movzbl (%rsi), %edi; mov $60, %eax; syscall"); }'
    )
    subprocess.run(["gcc", "-O1", "-static", "-nostdlib", "-fno-pic", "-no-pie", "-o", program, source], check=True)
    plain = subprocess.run([program], check=False).returncode
    with launch([str(program)]) as child:
        child.release()
        assert child.wait() == plain != 0xCC


def test_a_killed_launcher_lets_the_command_run(tmp_path: Path) -> None:
    proof = tmp_path / "ran"
    code = (
        "import os, sys, signal\nfrom rlscope_ebpf.capture.launch import launch\n"
        f"child = launch(['touch', {str(proof)!r}])\n"
        "assert child.stopped\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    assert subprocess.run([sys.executable, "-c", code], env=env, check=False, timeout=60).returncode == -signal.SIGKILL
    end = time.monotonic() + 60
    while not proof.exists():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_it_runs_as_the_user_who_called_sudo() -> None:
    nobody = pwd.getpwnam("nobody")
    identity = sudo_identity({"SUDO_UID": str(nobody.pw_uid), "SUDO_GID": str(nobody.pw_gid)})
    assert identity == Identity(nobody.pw_uid, nobody.pw_gid, "nobody", nobody.pw_dir)
    read_end, write_end = os.pipe()
    with launch(["sh", "-c", "id -u; id -g; id -G; echo $HOME $USER"], output=write_end, identity=identity) as child:
        assert child.stopped  # root may hold another user's program
        child.release()
        assert child.wait() == 0
    os.close(write_end)
    answer = os.read(read_end, 4096).decode().split()
    os.close(read_end)
    gid = str(nobody.pw_gid)
    assert answer == [str(nobody.pw_uid), gid, gid, nobody.pw_dir, "nobody"]


def test_no_sudo_no_other_user() -> None:
    for values in ({}, {"SUDO_UID": "x", "SUDO_GID": "0"}, {"SUDO_UID": "0", "SUDO_GID": "0"}, {"SUDO_UID": "1"}):
        assert sudo_identity(values) is None
    assert sudo_identity({"SUDO_UID": "4000000", "SUDO_GID": "4000000"}) is None  # unknown here
