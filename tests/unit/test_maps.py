"""Mapped objects: parsing, deleted files, polling, errors."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlscope_ebpf.capture.maps import MapsWatcher, Segment, host_path, parse_maps, read_maps
from rlscope_ebpf.errors import NotPermittedError, UsageError

SAMPLE = rb"""
00400000-00401000 r--p 00000000 fe:00 101                                /opt/a b/lib x.so
00401000-00403000 r-xp 00001000 fe:00 101                                /opt/a b/lib x.so
7f0000000000-7f0000001000 r-xp 00000000 fe:00 102                        /opt/gone.so (deleted)
7f0000002000-7f0000003000 r--p 00000000 fe:00 103                        /usr/share/data.bin
7f0000004000-7f0000005000 r-xp 00000000 00:01 104                        /memfd:jit (deleted)
7f0000006000-7f0000007000 rwxp 00000000 00:05 105                        /dev/zero (deleted)
7f0000008000-7f0000009000 r-xp 00000000 00:05 106                        /dev/nvidia0
7f000000a000-7f000000b000 r-xp 00000000 fe:00 107                        /opt/new\012line.so
7f000000c000-7f000000d000 rwxp 00000000 00:00 0
7ffc00000000-7ffc00001000 r-xp 00000000 00:00 0                          [vdso]
"""


def test_parse() -> None:
    objects = {found.path: found for found in parse_maps(SAMPLE.lstrip())}
    assert list(objects) == ["/opt/a b/lib x.so", "/opt/gone.so", "/opt/new\nline.so"]
    first = objects["/opt/a b/lib x.so"]
    assert first.key == (0xFE, 0, 101)
    assert first.name == "lib x.so"
    assert first.segments == (
        Segment(0x400000, 0x401000, 0, "r--p"),
        Segment(0x401000, 0x403000, 0x1000, "r-xp"),
    )
    assert not first.deleted
    assert objects["/opt/gone.so"].deleted
    assert first.address(0x1234) == 0x401234
    assert first.address(0x3000) is None


@given(st.binary(max_size=400))
def test_any_text_parses(text: bytes) -> None:
    assert all(found.segments for found in parse_maps(text))


def test_own_process() -> None:
    objects = read_maps(os.getpid())
    libc = next(found for found in objects if found.name.startswith("libc.so"))
    assert host_path(os.getpid(), libc) == f"/proc/{os.getpid()}/root{libc.path}"
    assert not any(found.path.startswith("[") for found in objects)


TARGET = """
import ctypes, os, sys
print("ready", flush=True)
for line in sys.stdin:
    action, _, path = line.strip().partition(" ")
    if action == "load":
        library = ctypes.CDLL(path)
    else:
        os.unlink(path)
    print("done", flush=True)
"""


class Target:
    """A process that loads and deletes what it is told to."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", TARGET], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    @property
    def pid(self) -> int:
        return self.process.pid

    def do(self, action: str, path: Path) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{action} {path}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def end(self) -> None:
        self.process.communicate()


def a_library(folder: Path) -> Path:
    """A copy of some library that the test process itself does not need."""
    original = next(found for found in read_maps(os.getpid()) if found.name.startswith("libm.so"))
    return Path(shutil.copy(original.path, folder / "libcopy.so"))


@pytest.fixture(scope="module", autouse=True)
def needs_libm() -> None:
    ctypes.CDLL("libm.so.6")


def test_a_library_loaded_later_is_found_once(tmp_path: Path) -> None:
    path = a_library(tmp_path)
    target = Target()
    watcher = MapsWatcher(target.pid)
    first = watcher.poll()
    assert first
    assert all(found.name != "libcopy.so" for found in first)
    assert watcher.poll() == []
    target.do("load", path)
    later = watcher.poll()
    assert later is not None
    assert [found.name for found in later] == ["libcopy.so"]
    assert watcher.poll() == []
    assert {found.key for found in first} < set(watcher.objects)
    target.end()
    assert watcher.poll() is None or watcher.poll() == []  # reaped, or not quite yet


def test_a_deleted_and_replaced_library_can_still_be_opened(tmp_path: Path) -> None:
    path = a_library(tmp_path)
    content = path.read_bytes()
    target = Target()
    target.do("load", path)
    target.do("delete", path)
    path.write_bytes(b"something else")
    found = next(found for found in read_maps(target.pid) if found.name.startswith("libcopy.so"))
    assert found.deleted
    opened = host_path(target.pid, found)
    if os.geteuid() == 0:
        assert opened is not None
        assert "map_files" in opened
        assert Path(opened).read_bytes() == content
    else:
        assert opened is None or Path(opened).read_bytes() == content
    target.end()


def test_no_such_process() -> None:
    with pytest.raises(UsageError, match="no process 4194305"):
        read_maps(4194305)
    assert MapsWatcher(4194305).poll() is None


def test_not_permitted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(NotPermittedError, match="sudo"):
        read_maps(1)


def test_a_zombie_has_nothing_mapped() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert read_maps(child) == []
    os.waitpid(child, 0)
