"""What the profiler may do once it is attached, and as whom it can be run."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Profiler, Program, operations_of, report, rlscope, wait_for

from rlscope_ebpf.capture.kernel import CAPABILITIES
from rlscope_ebpf.capture.privileges import ACCOUNTS, EFFECTIVE, LOADING
from rlscope_ebpf.errors import ExitStatus
from rlscope_ebpf.paths import STATE_VARIABLE

pytestmark = pytest.mark.system

StartTarget = Callable[..., Program]
StartProfiler = Callable[..., Profiler]
Attach = Callable[..., tuple[Profiler, Path]]

NOBODY = 65534
ANNOTATED = """
import os, sys, time
from rlscope_ebpf import markers as rls
print("READY", os.getpid(), flush=True)
sys.stdin.readline()
for _ in range(40):
    with rls.operation("step"):
        time.sleep(0.01)
if os.fork() == 0:
    for _ in range(100):
        with rls.operation("child"):
            time.sleep(0.01)
    os._exit(0)
os.wait()
"""
SOMEBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")


def with_capabilities(*names: str) -> tuple[str, ...]:
    """Runs a command as nobody, with these capabilities and no others, also in the bounding set."""
    words = ",".join(("-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in names)))
    return (*SOMEBODY, f"--inh-caps={words}", f"--ambient-caps={words}", f"--bounding-set={words}")


REQUIRED = ("CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH")


def bits(*names: str) -> int:
    """As in /proc/PID/status."""
    return sum(1 << CAPABILITIES[name] for name in names)


def threads(pid: int) -> list[dict[str, int]]:
    """CapPrm, CapEff, CapBnd and NoNewPrivs of all threads of a process; the first is the main one."""
    found = []
    for tid in sorted(map(int, os.listdir(f"/proc/{pid}/task"))):
        try:
            text = Path(f"/proc/{pid}/task/{tid}/status").read_text()
        except OSError:
            continue
        values = {name: int(value, 16) for name, value in re.findall(r"^(Cap\w+):\s*([0-9a-f]+)", text, re.MULTILINE)}
        values["NoNewPrivs"] = int(re.findall(r"^NoNewPrivs:\s*(\d)", text, re.MULTILINE)[0])
        found.append(values)
    return found


@pytest.mark.parametrize("gpu", ["off", "auto"])
@pytest.mark.parametrize("limit", ["0", "5"])
def test_what_is_kept_once_attached(gpu: str, limit: str, start_target: StartTarget, attach: Attach) -> None:
    target = start_target(sys.executable, "-c", ANNOTATED)
    profiler, trace = attach(target, "--gpu", gpu, "--max-overhead", limit)
    kept = bits(*EFFECTIVE)
    most = kept | bits(*ACCOUNTS) | (bits(*LOADING) if gpu == "auto" else 0)

    def given_up() -> bool:
        return all(
            each["CapEff"] & ~(kept | bits(*ACCOUNTS)) == 0 and each["CapPrm"] & ~most == 0 and each["NoNewPrivs"]
            for each in threads(profiler.pid)
        )

    # Threads that only worked for the attach end soon after it.
    wait_for(given_up, 30, "all threads' privileges given up")
    main = threads(profiler.pid)[0]
    assert main["CapEff"] & ~kept == 0
    assert main["CapEff"] & bits(*REQUIRED) == bits(*REQUIRED)
    assert main["CapBnd"] & ~most == 0
    wait_for(
        lambda: any(each["CapEff"] & bits(*ACCOUNTS) for each in threads(profiler.pid)), 60, "the accounts' thread"
    )
    assert given_up()  # whoever came since
    target.go()
    target.finish()
    assert profiler.wait(120) == 0
    document = report(trace)
    assert operations_of(document, target.pid)["step"]["count"] == 40
    (child,) = [each for each in document["processes"] if each["ppid"] == target.pid]
    assert [row["name"] for row in child["operations"] if row["name"] == "child"] == ["child"]


def test_the_command_of_run_keeps_what_it_has(tmp_path: Path) -> None:
    """It is the target, not the profiler, and its environment is as it was."""
    code = "import os; print(open('/proc/self/status').read(), [name for name in os.environ if 'NUM_T' in name])"
    done = rlscope("run", "--no-trace", "--no-tui", "--", sys.executable, "-c", code, folder=tmp_path)
    assert done.status == 0, done.stderr
    own = Path("/proc/self/status").read_text()
    for name in ("CapEff", "CapPrm", "CapBnd", "NoNewPrivs"):
        assert re.findall(rf"^{name}:\s*(\w+)", done.stdout, re.MULTILINE) == re.findall(
            rf"^{name}:\s*(\w+)", own, re.MULTILINE
        )
    assert " []" in done.stdout


def test_four_capabilities_are_enough(
    start_target: StartTarget, start_profiler: StartProfiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's, root's, process; its files are root's alone."""
    state, folder = tmp_path / "state", tmp_path / "traces"
    for each in (state, folder):
        each.mkdir()
        os.chown(each, NOBODY, NOBODY)
    for parent in tmp_path.parents:  # pytest keeps its folders to itself
        if parent.stat().st_mode & 0o001 == 0 and str(parent).startswith("/tmp"):
            parent.chmod(0o711)
    tmp_path.chmod(0o711)
    monkeypatch.setenv(STATE_VARIABLE, str(state))
    target = start_target(sys.executable, "-c", ANNOTATED)
    trace = folder / "t.rlscope"
    words = ("attach", "--pid", str(target.pid), "-o", trace, "--max-overhead", "0", "--no-tui")
    profiler = start_profiler(*words, prefix=with_capabilities(*REQUIRED)).wait_until_attached()
    wait_for(
        lambda: all(each["CapEff"] & ~bits(*REQUIRED) == 0 and each["NoNewPrivs"] for each in threads(profiler.pid)),
        30,
        "all threads' privileges given up",
    )
    target.go()
    target.finish()
    assert profiler.wait(120) == 0
    assert (trace.stat().st_uid, trace.stat().st_gid) == (NOBODY, NOBODY)
    document = report(trace)
    assert operations_of(document, target.pid)["step"]["count"] == 40
    assert [row["count"] for each in document["processes"] for row in each["operations"] if row["name"] == "child"]


@pytest.mark.parametrize("missing", REQUIRED)
def test_each_missing_capability_is_named(missing: str, start_target: StartTarget) -> None:
    """Two sentences. Without CAP_DAC_READ_SEARCH this test could not read its own interpreter; so it has another."""
    target = start_target("sleep", "60", ready=False)
    time.sleep(0.1)
    prefix = with_capabilities(*sorted({*REQUIRED, "CAP_DAC_OVERRIDE"} - {missing}))
    doctor = rlscope("doctor", prefix=prefix)
    assert doctor.status == ExitStatus.NOT_PERMITTED
    assert re.search(rf"{missing} .*may not", doctor.stdout), doctor.stdout
    assert "AmbientCapabilities" in doctor.stdout
    if missing != "CAP_DAC_READ_SEARCH":
        done = rlscope("attach", "--pid", str(target.pid), "--no-trace", prefix=prefix)
        done.refused(ExitStatus.NOT_PERMITTED, missing)


def test_files_belong_to_who_called_sudo(
    start_target: StartTarget, start_profiler: StartProfiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trace and exported reports; what is kept of the host stays root's, who alone may write what it believes."""
    state = tmp_path / "state"
    monkeypatch.setenv(STATE_VARIABLE, str(state))
    monkeypatch.setenv("SUDO_UID", str(NOBODY))
    monkeypatch.setenv("SUDO_GID", str(NOBODY))
    target = start_target(sys.executable, "-c", ANNOTATED)
    trace = tmp_path / "t.rlscope"
    profiler = start_profiler("attach", "--pid", str(target.pid), "-o", trace, "--no-tui").wait_until_attached()
    target.go()
    target.finish()
    assert profiler.wait(120) == 0
    table = tmp_path / "t.json"
    done = rlscope("report", trace, "--format", "json", "-o", table, folder=tmp_path)
    assert done.status == 0, done.stderr
    for file in (trace, table):
        assert (file.stat().st_uid, file.stat().st_gid) == (NOBODY, NOBODY)
    kept = [path for path in state.rglob("*") if path.is_file()]
    assert kept
    assert {path.stat().st_uid for path in kept} == {0}


def test_a_setuid_program_of_another_user(start_target: StartTarget, tmp_path: Path) -> None:
    """Who may not look into it is told so; root may."""
    program = tmp_path / "sleep"
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o4755)  # root's

    def become_nobody() -> None:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)

    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_mode & 0o001 == 0 and str(parent).startswith("/tmp"):
            parent.chmod(0o711)
    target = start_target(program, "60", ready=False, before=become_nobody)
    wait_for(lambda: "sleep" in Path(f"/proc/{target.pid}/comm").read_text(), 10, "the program")
    assert re.search(r"^Uid:\s+65534\s+0\s", Path(f"/proc/{target.pid}/status").read_text(), re.MULTILINE)
    without_ptrace = with_capabilities("CAP_BPF", "CAP_PERFMON", "CAP_DAC_READ_SEARCH")
    done = rlscope("attach", "--pid", str(target.pid), "--no-trace", prefix=without_ptrace)
    done.refused(ExitStatus.NOT_PERMITTED, str(target.pid), "CAP_SYS_PTRACE")
    as_root = rlscope("attach", "--pid", str(target.pid), "--no-trace")
    as_root.refused(ExitStatus.UNSUPPORTED, "--library")  # there is only nothing in it to be probed
    os.kill(target.pid, signal.SIGTERM)
