"""Targets in pid, mount and user namespaces and roots of their own, and the profiler in a container's."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import ROOT, Finished, Profiler, Program, process_of, report, rlscope, wait_for

from rlscope_ebpf.errors import ExitStatus

pytestmark = pytest.mark.system

StartTarget = Callable[..., Program]
StartProfiler = Callable[..., Profiler]

STEPS, CHILD_STEPS = 50, 300  # of 10 ms: a child runs unseen at first
FAMILY = f"""
import multiprocessing, os, sys, time
from rlscope_ebpf import markers as rls

def work(name, steps):
    for _ in range(steps):
        with rls.operation(name):
            time.sleep(0.01)

if __name__ == "__main__":
    print("READY", os.getpid(), flush=True)
    sys.stdin.readline()
    rls.process_name("boss")
    work("own", {STEPS})
    for method in ("fork", "spawn"):
        child = multiprocessing.get_context(method).Process(target=work, args=(method, {CHILD_STEPS}))
        child.start()
        child.join()
        assert child.exitcode == 0
"""
CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
SELF_CONTAINED = (
    "unshare",
    "--user",
    "--map-root-user",
    "--pid",
    "--mount",
    "--uts",
    "--ipc",
    "--fork",
    "--kill-child",
)


def _needed(file: Path) -> set[Path]:
    """The shared objects that a program or library needs."""
    done = subprocess.run(["ldd", str(file)], capture_output=True, text=True, check=False)
    return {Path(path) for path in re.findall(r"(/\S+) \(0x", done.stdout)}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root folder with a Python of its own in it, at a path that is not there outside: /jail/python."""
    root = tmp_path_factory.mktemp("root")
    home = root / "jail" / "python"
    library = Path(sysconfig.get_path("stdlib"))
    without = shutil.ignore_patterns(
        "test", "tests", "site-packages", "idlelib", "tkinter", "ensurepip", "lib2to3", "config-*", "__pycache__"
    )
    shutil.copytree(library, home / "lib" / library.name, ignore=without, symlinks=False)
    (home / "bin").mkdir()
    shutil.copy(os.path.realpath(sys.executable), home / "bin" / "python")
    extensions = {
        *(home / "lib" / library.name / "lib-dynload").glob("*.so"),
        *(ROOT / "rlscope_ebpf").glob("_markers*.so"),
    }
    needed: set[Path] = set()
    for file in (home / "bin" / "python", *extensions):
        needed |= _needed(file)
    for file in needed:
        (root / str(file).lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(file), root / str(file).lstrip("/"))
    package = home / "lib" / library.name / "rlscope_ebpf"
    package.mkdir()
    for file in [*(ROOT / "rlscope_ebpf").glob("*.py"), *(ROOT / "rlscope_ebpf").glob("*.so")]:
        shutil.copy(file, package)
    for folder in ("proc", "dev", "tmp"):
        (root / folder).mkdir(exist_ok=True)
    (root / "family.py").write_text(FAMILY)
    return root


def jailed(root: Path) -> tuple[str, ...]:
    """A command that runs the family in `root`, in namespaces of its own."""
    script = (
        f"mount --rbind {root} {root} && mount -t proc proc {root}/proc && mount --rbind /dev {root}/dev "
        f"&& cd {root} && exec chroot . /jail/python/bin/python /family.py"
    )
    return (*SELF_CONTAINED, "sh", "-c", script)


def inner_pid(target: Program) -> int:
    """Its number here, once it is ready to be attached to; it knows itself as process 1."""
    wait_for(lambda: "READY" in target.output or not target.is_running(), 60, "READY of the target")
    assert re.search(r"^READY 1$", target.output, re.MULTILINE), target.errors
    outer = target.process.pid
    return int(Path(f"/proc/{outer}/task/{outer}/children").read_text().split()[0])


def boss_of(trace: Path) -> int:
    """Who did what only the first process does."""
    (boss,) = [
        each["pid"] for each in report(trace)["processes"] if any(row["name"] == "own" for row in each["operations"])
    ]
    return int(boss)


def check_family(trace: Path, boss: int) -> list[int]:
    """That a trace tells all that the family did; the pids of the children."""
    document = report(trace)
    own = process_of(document, boss)
    assert own["metadata"]["process_name"] == "boss"
    assert {row["name"]: row["count"] for row in own["operations"] if row["name"] == "own"} == {"own": STEPS}
    done: dict[str, int] = {}
    children = [each for each in document["processes"] if each["ppid"] == boss]
    for child in children:
        for row in child["operations"]:
            if row["name"] in ("fork", "spawn"):
                done[row["name"]] = row["count"]
    assert set(done) == {"fork", "spawn"}, done
    assert all(count <= CHILD_STEPS for count in done.values()), done
    assert document["losses"]["events"] == 0
    return [child["pid"] for child in children]


def test_a_target_in_a_container_of_its_own(
    root: Path, start_target: StartTarget, start_profiler: StartProfiler, tmp_path: Path
) -> None:
    target = start_target(*jailed(root), ready=False, environment={"PYTHONPATH": "", "PYTHONHOME": ""})
    boss = inner_pid(target)
    trace = tmp_path / "t.rlscope"
    profiler = start_profiler("attach", "--pid", str(boss), "-o", trace, "--max-overhead", "0", "--no-tui")
    profiler.wait_until_attached()
    target.go()
    target.finish()
    assert profiler.wait(120) == 0
    check_family(trace, boss)
    assert f"pid {boss} (1 in its container)" in rlscope("report", trace).stdout
    document = report(trace)
    children = [each for each in document["processes"] if each["ppid"] == boss]
    assert process_of(document, boss)["namespace_pids"] == [1]
    assert all(len(each["namespace_pids"]) == 1 and each["namespace_pids"][0] > 1 for each in children), children
    assert document["session"]["probes_armed"] == document["session"]["probes_attached"] > 0


def test_a_command_in_a_container_of_its_own(root: Path, tmp_path: Path) -> None:
    trace = tmp_path / "t.rlscope"
    # It begins once it has been noticed, too, and has its probes.
    words = ("sh", "-c", f"(sleep 15; echo go) | env -u PYTHONPATH -u PYTHONHOME {shlex.join(jailed(root))}")
    done = rlscope("run", "-o", trace, "--max-overhead", "0", "--no-tui", "--", *words, folder=tmp_path)
    assert done.status == 0, done.stderr
    boss = boss_of(trace)
    assert check_family(trace, boss)


# -- the profiler in a container ---------------------------------------------------------------------------------------


def in_container(folder: Path, *lines: str) -> Finished:
    """Runs a shell script in pid and mount namespaces of its own; P is the profiler, PY is Python."""
    script = folder / "inside.sh"
    profiler = Path(sys.executable).with_name("rlscope-ebpf")
    script.write_text("\n".join(["set -u", f"P={profiler}", f"PY={sys.executable}", f"cd {folder}", *lines]) + "\n")
    done = subprocess.run(
        [*CONTAINER, "sh", str(script)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Finished(done.returncode, done.stdout, done.stderr)


def test_the_profiler_in_a_container(tmp_path: Path) -> None:
    """The kernel numbers its processes otherwise."""
    (tmp_path / "family.py").write_text(FAMILY)
    done = in_container(
        tmp_path,
        "mkfifo go",
        "$PY family.py <go >out & T=$!",
        "exec 5>go",
        "while ! grep -q READY out; do sleep 0.1; done",
        "(while ! grep -q '^Profiling' err; do sleep 0.1; done; echo go >&5) &",
        "$P attach --pid $T -o t.rlscope --max-overhead 0 --no-tui 2>err; S=$?; cat err >&2",
        'echo "pid=$T status=$S"',
    )
    found = re.search(r"pid=(\d+) status=0", done.stdout)
    assert found, done.stdout + done.stderr
    boss = int(found[1])
    assert boss < 100  # numbered anew
    children = check_family(tmp_path / "t.rlscope", boss)
    assert all(pid < 1000 for pid in children), children
    assert "process events are not to be had (this is not the host's pid namespace)" in done.stderr


def test_the_profiler_in_a_container_samples(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(
        "import time\nend = time.time() + 30\nwhile time.time() < end: sum(range(1000))\n"
    )
    done = in_container(
        tmp_path,
        "$PY busy.py & T=$!",
        "sleep 1",
        '$P attach --pid $T -o t.rlscope --mode sample --duration 3 --no-tui; echo "pid=$T status=$?"',
        "kill $T",
    )
    found = re.search(r"pid=(\d+) status=0", done.stdout)
    assert found, done.stdout + done.stderr
    (untracked,) = process_of(report(tmp_path / "t.rlscope"), int(found[1]))["operations"]
    cpu_ns = untracked["raw"]["cpu_ns"]
    assert cpu_ns["python"] > 0.9 * sum(cpu_ns.values()), cpu_ns


def test_a_command_of_the_profiler_in_a_container(tmp_path: Path) -> None:
    (tmp_path / "family.py").write_text(FAMILY)
    done = in_container(
        tmp_path, "echo | $P run -o t.rlscope --max-overhead 0 --no-tui -- $PY family.py; echo status=$?"
    )
    assert "status=0" in done.stdout, done.stdout + done.stderr
    boss = boss_of(tmp_path / "t.rlscope")
    check_family(tmp_path / "t.rlscope", boss)


def test_a_container_inside_of_the_profilers_is_refused(tmp_path: Path) -> None:
    done = in_container(
        tmp_path,
        "unshare --pid --fork --kill-child --mount-proc sleep 60 & U=$!",
        "sleep 1",
        "$P attach --pid $(cat /proc/$U/task/$U/children) --no-trace; S=$?",
        "kill $U",
        "exit $S",
    )
    done.refused(ExitStatus.UNSUPPORTED, "further pid namespace", "on the host")


def test_a_proc_of_another_namespace_is_refused(start_target: StartTarget) -> None:
    """`unshare --pid` without a /proc of its own: pids in /proc are not those of system calls."""
    target = start_target("sleep", "60", ready=False)
    time.sleep(0.2)
    words = ("unshare", "--pid", "--fork", "--kill-child")
    done = rlscope("attach", "--pid", str(target.pid), "--no-trace", prefix=words)
    done.refused(ExitStatus.UNSUPPORTED, "/proc", "mount")
    doctor = rlscope("doctor", prefix=words)
    assert doctor.status == ExitStatus.UNSUPPORTED
    assert "another pid namespace" in doctor.stdout
