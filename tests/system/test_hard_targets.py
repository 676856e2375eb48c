"""Targets that cannot be looked at as others: hidden, asleep for good, of two users, or another program meanwhile.

Each is profiled as it should be, or refused in two sentences; nothing hangs. Stopped ones are in test_odd_targets.py.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Profiler, Program, changed_text_bytes, operations_of, report, rlscope, wait_for

from rlscope_ebpf.errors import ExitStatus

pytestmark = pytest.mark.system

StartTarget = Callable[..., Program]
StartProfiler = Callable[..., Profiler]

STEPS = 20
ANNOTATED = f"""
import os, sys, time
from rlscope_ebpf import markers as rls
with rls.operation("first"):
    pass
print("READY", os.getpid(), flush=True)
BEFORE
sys.stdin.readline()
for _ in range({STEPS}):
    with rls.operation("step"):
        time.sleep(0.01)
"""
MARKERS = "librlscope_markers"

NOBODY = 65534
AS_NOBODY = (
    *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    *("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"),
)
WITHOUT_PTRACE = ("setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace")


def annotated(before: str = "") -> str:
    return ANNOTATED.replace("BEFORE", before)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def steps(trace: Path, pid: int) -> int:
    return int(operations_of(report(trace), pid)["step"]["count"])


# -- /proc that hides processes ----------------------------------------------------------------------------------------


def hiding(option: int) -> tuple[str, ...]:
    """Prefix of a command in whose /proc processes are hidden: from whom, `option` says (proc(5))."""
    return ("unshare", "--mount", "sh", "-c", 'mount -t proc -o "hidepid=$0" proc /proc && exec "$@"', str(option))


@pytest.mark.parametrize("way", ["--pid", "--tree"])
@pytest.mark.parametrize("option", [1, 2, 4])
def test_process_that_proc_hides(option: int, way: str, start_target: StartTarget) -> None:
    target = start_target("sleep", "600", ready=False)
    words = ("attach", way, str(target.pid), "--no-trace")
    done = rlscope(*words, prefix=(*hiding(option), *AS_NOBODY))
    done.refused(ExitStatus.NOT_PERMITTED, f"may not look into process {target.pid}", "root")
    assert target.is_running()


def test_process_that_proc_hides_from_root_without_ptrace(start_target: StartTarget) -> None:
    """Who may send it signals, and does not see it."""
    target = start_target(*AS_NOBODY, "sleep", "600", ready=False)
    done = rlscope("attach", "--pid", str(target.pid), "--no-trace", prefix=(*hiding(4), *WITHOUT_PTRACE))
    done.refused(ExitStatus.NOT_PERMITTED, f"may not look into process {target.pid}", "CAP_SYS_PTRACE")


def test_proc_hides_nothing_from_root(start_target: StartTarget, start_profiler: StartProfiler, tmp_path: Path) -> None:
    target = start_target(*AS_NOBODY, "sleep", "600", ready=False)
    wait_for(lambda: Path(f"/proc/{target.pid}/comm").read_text() == "sleep\n", 60, "the target")
    started = start_target(sys.executable, "-c", annotated())
    trace = tmp_path / "t.rlscope"
    profiler = start_profiler(
        "attach", "--pid", str(started.pid), "-o", trace, "--max-overhead", "0", prefix=hiding(2)
    ).wait_until_attached()
    started.go()
    started.finish()
    assert profiler.wait(120) == 0
    assert steps(trace, started.pid) == STEPS


# -- a process that waits and takes no signal --------------------------------------------------------------------------

VFORK = """
#include <unistd.h>
void wait_for_a_line(void)
{
    if (vfork() == 0) {
        char byte = 0;
        while (byte != '\\n' && read(0, &byte, 1) == 1)
            ;
        _exit(0);
    }
}
"""


def test_uninterruptible_sleep(start_target: StartTarget, start_profiler: StartProfiler, tmp_path: Path) -> None:
    """Who has called vfork sleeps so until the child executes a program or ends, and lends it its memory meanwhile."""
    (tmp_path / "vfork.c").write_text(VFORK)
    library = tmp_path / "vfork.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, tmp_path / "vfork.c"], check=True)
    target = start_target(
        sys.executable, "-c", annotated(f"import ctypes; ctypes.CDLL({str(library)!r}).wait_for_a_line()")
    )
    wait_for(lambda: state_of(target.pid) == "D", 60, "the sleep")
    trace = tmp_path / "t.rlscope"
    profiler = start_profiler(
        "attach", "--pid", str(target.pid), "-o", trace, "--max-overhead", "0"
    ).wait_until_attached()
    assert state_of(target.pid) == "D"
    target.go()  # the child
    target.go()
    target.finish()
    assert profiler.wait(120) == 0
    assert steps(trace, target.pid) == STEPS


def test_uninterruptible_sleep_that_does_not_end(start_target: StartTarget, tmp_path: Path) -> None:
    """The profiler does not wait for it: not to attach, not to end."""
    program = tmp_path / "vfork"
    (tmp_path / "vfork.c").write_text(VFORK + "int main(void) { wait_for_a_line(); return 0; }\n")
    subprocess.run(["cc", "-O1", "-o", program, tmp_path / "vfork.c"], check=True)
    target = start_target(program, ready=False)
    wait_for(lambda: state_of(target.pid) == "D", 60, "the sleep")
    done = rlscope("attach", "--pid", str(target.pid), "--no-trace", "--duration", "1", "--mode", "sample")
    assert done.status == ExitStatus.OK, done.stderr
    assert state_of(target.pid) == "D"
    assert changed_text_bytes(target.pid) == 0
    target.go()
    assert target.wait() == 0


# -- a setuid program --------------------------------------------------------------------------------------------------


@pytest.fixture
def setuid_target(start_target: StartTarget, tmp_path: Path) -> Program:
    """A Python that nobody has started and that runs as root."""
    python = tmp_path / "python3"
    shutil.copyfile("/usr/bin/python3", python)
    python.chmod(0o4755)
    target = start_target(*AS_NOBODY, python, "-c", annotated())
    status = Path(f"/proc/{target.pid}/status").read_text()
    assert f"\nUid:\t{NOBODY}\t0\t0\t0\n" in status
    return target


def test_setuid_program(setuid_target: Program, start_profiler: StartProfiler, tmp_path: Path) -> None:
    trace = tmp_path / "t.rlscope"
    profiler = start_profiler(
        "attach", "--pid", str(setuid_target.pid), "-o", trace, "--max-overhead", "0"
    ).wait_until_attached()
    setuid_target.go()
    setuid_target.finish()
    assert profiler.wait(120) == 0
    assert steps(trace, setuid_target.pid) == STEPS


def test_setuid_program_and_who_has_started_it(setuid_target: Program) -> None:
    done = rlscope("attach", "--pid", str(setuid_target.pid), "--no-trace", prefix=AS_NOBODY)
    done.refused(ExitStatus.NOT_PERMITTED, f"may not look into process {setuid_target.pid}", "root")
    setuid_target.go()
    setuid_target.finish()


# -- a process that executes another program ---------------------------------------------------------------------------


@pytest.mark.parametrize("milliseconds", [100, 500, 1000, 2000])
def test_process_that_executes_during_attach(
    milliseconds: int, start_target: StartTarget, start_profiler: StartProfiler, tmp_path: Path
) -> None:
    """Somewhere between the first look at it and the first event. The new program is what counts."""
    program = tmp_path / "program.py"
    program.write_text(annotated())
    code = f"import os, sys, time; time.sleep({milliseconds / 1000}); os.execv(sys.executable, sys.argv[1:])"
    target = start_target(sys.executable, "-c", code, sys.executable, program, ready=False)
    trace = tmp_path / "t.rlscope"
    profiler = start_profiler(
        "attach", "--pid", str(target.pid), "-o", trace, "--max-overhead", "0"
    ).wait_until_attached()
    target.wait_until_ready()
    wait_for(lambda: changed_text_bytes(target.pid, MARKERS) > 0, 60, "probes in the new program's markers")
    target.go()
    target.finish()
    assert profiler.wait(120) == 0
    assert steps(trace, target.pid) == STEPS
