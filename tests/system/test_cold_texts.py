"""Names that are not in memory when a marker is called: constants of a library that nothing has touched yet."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Profiler, Program, report

pytestmark = pytest.mark.system

PROGRAM = """
import ctypes, mmap, os, sys, time
from rlscope_ebpf.paths import marker_library
markers, libc = ctypes.CDLL(str(marker_library())), ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]

def constant(text):
    # A page of a file, as a constant of a library is, which has not been read yet.
    path = os.path.join(sys.argv[1], text)
    with open(path, "wb") as file:
        file.write(text.encode() + bytes(4096 - len(text)))
    with open(path, "rb") as file:
        return ctypes.c_void_p(libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_PRIVATE, file.fileno(), 0))

markers.rlscope_operation_begin(b"known")
markers.rlscope_operation_end()
print("READY", os.getpid(), flush=True)
sys.stdin.readline()
markers.rlscope_metadata(constant("key"), constant("value"))
markers.rlscope_phase(constant("collect"))
for _ in range(3):
    name = constant("step")
    for _ in range(2):  # the first time it is not in memory, the second time it is
        markers.rlscope_operation_begin(name)
        markers.rlscope_operation_end()
markers.rlscope_operation_begin(None)
markers.rlscope_operation_end()
time.sleep(1)
"""


def test_they_are_known(
    start_target: Callable[..., Program], attach: Callable[..., tuple[Profiler, Path]], tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    folder = tmp_path / "texts"
    folder.mkdir()
    target = start_target(sys.executable, script, folder)
    profiler, trace = attach(target, "--max-overhead", "0")
    target.go()
    assert profiler.wait(120) == 0, profiler.stderr
    (process,) = report(trace)["processes"]
    assert process["metadata"] == {"key": "value"}
    assert process["phases"][-1]["name"] == "collect"
    counts = {row["name"]: row["count"] for row in process["operations"] if row["path"]}
    assert counts == {"step": 6, "": 1}
