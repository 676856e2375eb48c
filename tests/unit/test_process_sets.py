"""Sets of processes: by name, by control group, as a tree."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlscope_ebpf.capture import process_sets
from rlscope_ebpf.capture.process_sets import find_processes
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
    (tmp_path / "job" / "inner").mkdir(parents=True)
    (tmp_path / "job" / "cgroup.procs").write_text("7000001\n")
    (tmp_path / "job" / "inner" / "cgroup.procs").write_text("7000002\n0\n")
    assert find_processes((), cgroups=["/job"]) == (7000001, 7000002)
    with pytest.raises(UsageError, match="no control group"):
        find_processes((), cgroups=["other"])


def test_each_process_once(sleeper: int) -> None:
    assert find_processes((sleeper,), names=[f"sleeper_{os.getpid()}"], trees=[sleeper]) == (sleeper,)
