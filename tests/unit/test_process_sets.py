"""Sets of processes: by name, by control group, as a tree."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlscope_ebpf.capture import process_sets
from rlscope_ebpf.capture.process_sets import ProcessSet, find_processes
from rlscope_ebpf.errors import UsageError

SLEEPER = "import sys; print(1, flush=True); sys.stdin.readline()"


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[int]:
    """A Python process that runs a script of a name that nobody else has."""
    script = tmp_path / f"sleeper_{os.getpid()}.py"
    script.write_text(SLEEPER)
    with subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_by_the_name_of_a_script(sleeper: int) -> None:
    assert find_processes((), names=[f"sleeper_{os.getpid()}*"]) == (sleeper,)


def test_a_name_without_process_is_an_error() -> None:
    with pytest.raises(UsageError, match="matches 'no-such-name-"):
        find_processes((), names=["no-such-name-*"])


def test_a_tree_has_its_root_and_what_descends_from_it(sleeper: int) -> None:
    found = find_processes((), trees=[os.getppid()])
    assert found[0] == os.getppid()
    assert sleeper in found
    assert os.getpid() not in found  # the profiler itself


def test_a_tree_without_root_is_an_error() -> None:
    with pytest.raises(UsageError, match="There is no process"):
        find_processes((), trees=[1 << 30])


def test_control_groups_with_those_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_sets, "_CGROUPS", tmp_path)
    monkeypatch.setattr(process_sets, "_can_be_profiled", lambda _pid: True)
    (tmp_path / "job" / "inner").mkdir(parents=True)
    (tmp_path / "job" / "cgroup.procs").write_text("7000001\n")
    (tmp_path / "job" / "inner" / "cgroup.procs").write_text("7000002\n0\n")
    assert find_processes((), cgroups=["/job"]) == (7000001, 7000002)
    with pytest.raises(UsageError, match="no control group"):
        find_processes((), cgroups=["other"])


def test_each_process_once(sleeper: int) -> None:
    assert find_processes((sleeper,), names=[f"sleeper_{os.getpid()}"], trees=[sleeper]) == (sleeper,)


def test_who_cannot_be_profiled_is_left_out_of_a_set(sleeper: int) -> None:
    with subprocess.Popen(["/bin/sleep", "0"]) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        assert find_processes((), names=["sleep*"], trees=[os.getpid()]).count(zombie.pid) == 0


def test_a_set_knows_who_belongs_to_it(sleeper: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_name = ProcessSet([f"sleeper_{os.getpid()}"], ())
    assert by_name
    assert by_name.has(sleeper)
    assert by_name.members() == [sleeper]
    assert not by_name.has(os.getppid())
    assert not ProcessSet(["*"], ()).has(os.getpid())  # the profiler itself
    assert not ProcessSet((), ())

    line = Path(f"/proc/{sleeper}/cgroup").read_text().splitlines()[0].split(":", 2)
    monkeypatch.setattr(process_sets, "_CGROUPS", tmp_path)
    own = tmp_path / line[1].removeprefix("name=") / line[2].lstrip("/")
    assert ProcessSet((), [str(own)]).has(sleeper)
    assert ProcessSet((), [str(own.parent)]).has(sleeper)
    assert not ProcessSet((), [str(own / "inner")]).has(sleeper)
    assert not ProcessSet((), [str(tmp_path / "another")]).has(sleeper)
