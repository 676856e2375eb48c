"""Whether somebody still has a hand in a process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from rlscope_ebpf.capture.quiet_threads import code_areas, wait_until_released

TARGET = """
import mmap, sys
print(flush=True)
for line in sys.stdin:
    if line == "put\\n":
        code = mmap.mmap(-1, 65536, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE)
    else:
        code.close()
    print(flush=True)
"""

Target = subprocess.Popen[str]


@pytest.fixture
def target() -> Iterator[Target]:
    words = [sys.executable, "-c", TARGET]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        child.stdout.readline()
        yield child
        child.kill()


def _ask(target: Target, line: str) -> None:
    assert target.stdin
    assert target.stdout
    target.stdin.write(f"{line}\n")
    target.stdin.flush()
    target.stdout.readline()


def test_code_that_was_put_into_a_process_is_waited_for(target: Target) -> None:
    before = code_areas(target.pid)
    assert wait_until_released(target.pid, before, 0.0)
    _ask(target, "put")
    assert len(code_areas(target.pid) - before) == 1
    assert not wait_until_released(target.pid, before, 0.05)
    _ask(target, "take")
    assert wait_until_released(target.pid, before, 60)


def test_a_process_that_has_ended_is_released(target: Target) -> None:
    before = code_areas(target.pid)
    _ask(target, "put")
    target.kill()
    target.wait()
    assert wait_until_released(target.pid, before, 60)
