"""Every chosen site fires exactly once a call on this kernel, whatever its class. Counted by plain perf uprobes."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from native_samples import ASSEMBLY, compile_library

from rlscope_ebpf.capture.cookie import Action, Group, SiteClass
from rlscope_ebpf.capture.elf import ElfFile
from rlscope_ebpf.capture.engine import Engine, ProbeSite
from rlscope_ebpf.capture.exits import Code, ExitFinder
from rlscope_ebpf.capture.kernel import attach_methods, kernel_version
from rlscope_ebpf.capture.maps import read_maps
from rlscope_ebpf.capture.site_choice import entry_site
from rlscope_ebpf.model.calibration import EMULATED, STEPPED
from rlscope_ebpf.model.categories import Category

pytestmark = pytest.mark.system

CALLS = 200
LEFT_OUT = {"system_call"}  # would make whatever system call the registers say

DRIVER = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for name in sys.argv[2:]:
    for _ in range({calls}):
        library[name](3)
print("done", flush=True)
"""

_PERF_EVENT_OPEN = 298
_libc = ctypes.CDLL(None, use_errno=True)


def count_hits(path: Path, offset: int, pid: int) -> int:
    """Descriptor of a counter of hits of the instruction at a file offset."""
    kind = int(Path("/sys/bus/event_source/devices/uprobe/type").read_text())
    name = ctypes.create_string_buffer(str(path).encode())
    attributes = bytearray(128)
    struct.pack_into("<II", attributes, 0, kind, len(attributes))
    struct.pack_into("<QQ", attributes, 56, ctypes.addressof(name), offset)
    buffer = (ctypes.c_char * len(attributes)).from_buffer(attributes)
    descriptor: int = _libc.syscall(_PERF_EVENT_OPEN, buffer, pid, -1, -1, 0)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), f"{path}+{offset:#x}")
    return descriptor


class NoSource:
    """Functions that call and jump nowhere else."""

    def at(self, vaddr: int) -> Code | None:
        return None

    def slot_throws(self, slot: int) -> bool:
        return True

    def stub_throws(self, vaddr: int) -> bool:
        return True


def test_entries_and_exits_fire_once_a_call(tmp_path: Path) -> None:
    path = compile_library(tmp_path, "libsites.so", ASSEMBLY, "-nostdlib", suffix=".s")
    places: dict[str, int] = {}  # what → file offset
    classes = set()
    names = []
    with ElfFile(str(path)) as elf:
        finder = ExitFinder(NoSource())
        for function in elf.exports:
            if function.name in LEFT_OUT:
                continue
            names.append(function.name)
            code = elf.read_vaddr(function.vaddr, elf.size_of(function))
            site = entry_site(code, function.vaddr)
            assert site is not None, function.name
            classes.add(site.site_class)
            ways = finder.ways_out(Code(function.vaddr, code))
            assert ways is not None, function.name
            for what, vaddr in (("entry", site.vaddr), *(("exit", vaddr) for vaddr in ways.sites)):
                offset = elf.offset_of(vaddr)
                assert offset is not None
                places[f"{function.name} {what}"] = offset
    assert classes == {
        EMULATED,
        STEPPED,
    }  # functions that begin with a 5-byte nop are among them, and never probed there
    child = subprocess.Popen(
        [sys.executable, "-c", DRIVER.format(calls=CALLS), str(path), *names],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    counters = {what: count_hits(path, offset, child.pid) for what, offset in places.items()}
    output, _ = child.communicate("\n")
    assert output == "done\n"  # the probed code still does what it did
    assert child.returncode == 0
    hits = {what: struct.unpack("<Q", os.read(counter, 8))[0] for what, counter in counters.items()}
    for counter in counters.values():
        os.close(counter)
    assert hits == dict.fromkeys(places, CALLS)


SHARED = """
__attribute__((noinline)) int one(int n) { return n + 1; }
"""


def test_an_exit_that_functions_share_is_probed_once(tmp_path: Path) -> None:
    """Functions that jump into the same code end there: what a hit costs would grow with their number."""
    path = compile_library(tmp_path, "libshared.so", SHARED)
    with ElfFile(str(path)) as elf:
        (function,) = [function for function in elf.exports if function.name == "one"]
        code = Code(function.vaddr, elf.read_vaddr(function.vaddr, elf.size_of(function)))
        ways = ExitFinder(NoSource()).ways_out(code)
        assert ways is not None
        (vaddr,) = ways.sites
        offset = elf.offset_of(vaddr)
        assert offset is not None
    child = subprocess.Popen(
        [sys.executable, "-c", DRIVER.format(calls=CALLS), str(path), "one"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    (mapped,) = [each for each in read_maps(child.pid) if each.path == str(path)]
    sites = [
        ProbeSite(
            path=str(path), library=str(path), symbol=symbol, offset=offset, address=mapped.address(offset) or 0,
            category=Category.SIMULATOR, site_class=SiteClass.STEPPED, group=Group.BOUNDARY, action=Action.EXIT,
        )
        for symbol in ("one", "two", "three")
    ]  # fmt: skip
    engine = Engine(attach_methods(kernel_version())[0])
    try:
        engine.add_target(child.pid, is_python=True, assume_held=True)
        probes = engine.attach(child.pid, sites[:2]) + engine.attach(child.pid, sites[2:])
        assert [probe.armed for probe in probes] == [True, True, True]
        assert child.communicate("\n")[0] == "done\n"
        assert engine.counters().total_hits == CALLS
    finally:
        engine.close()
        child.kill()
