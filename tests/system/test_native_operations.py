"""`--marker`: calls of a native function that are operations, alone and together with `--library` on the same file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import Profiler, Program, report

pytestmark = pytest.mark.system

CALLS = 200
SPIN_NS = 1_000_000
DEPTH = 3

SOURCE = """
#include <time.h>
static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}
long spin_once(long ns) { long end = now() + ns; while (now() < end) ; return ns; }
static long (*volatile again)(long, long);
long spin_nested(long depth, long ns) { spin_once(ns); return depth > 1 ? again(depth - 1, ns) + 1 : 1; }
__attribute__((constructor)) static void init(void) { again = spin_nested; }
"""

LOOP = f"""
import ctypes, os, sys
import rlscope_ebpf.markers as rls
library = ctypes.CDLL(sys.argv[1])
print("READY", os.getpid(), flush=True)
sys.stdin.readline()
with rls.operation("loop"):
    for _ in range({CALLS}):
        library.spin_once({SPIN_NS})
    for _ in range({CALLS // 10}):
        library.spin_nested({DEPTH}, {SPIN_NS // 10})
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A C library with a function that spins and one that calls itself."""
    source, path = tmp_path / "spin.c", tmp_path / "libspin.so"
    source.write_text(SOURCE)
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", path, source], check=True)
    return path


@pytest.mark.parametrize("method", ["session", "multi"])
@pytest.mark.parametrize("with_library", [False, True], ids=["alone", "with library"])
def test_calls_are_operations(
    with_library: bool,
    method: str,
    library: Path,
    start_target: Callable[..., Program],
    attach: Callable[..., tuple[Profiler, Path]],
) -> None:
    target = start_target(sys.executable, "-c", LOOP, library, realtime=True)
    options = ["--attach-method", method, "--max-overhead", "0"]
    for name, symbol in (("step", "spin_once"), ("nested", "spin_nested")):
        options += ["--marker", f"{name}=libspin.so:{symbol}"]
    libraries = ("--library", "simulator=*libspin.so") if with_library else ()
    profiler, trace = attach(target, *options, libraries=libraries)
    target.go()
    target.finish()
    assert profiler.wait() == 0, profiler.stderr
    (process,) = report(trace)["processes"]
    rows: dict[tuple[str, ...], Any] = {tuple(row["path"]): row for row in process["operations"]}
    counts = {path: row["count"] for path, row in rows.items() if path[:1] == ("loop",)}
    nested = CALLS // 10
    expected = {("loop",): 1, ("loop", "step"): CALLS}
    for depth in range(1, DEPTH + 1):
        expected[("loop", *["nested"] * depth)] = nested
        expected[("loop", *["nested"] * depth, "step")] = nested
    assert counts == expected
    step = rows["loop", "step"]["raw"]
    assert CALLS * SPIN_NS <= step["wall_ns"] < 1.1 * CALLS * SPIN_NS
    category = "simulator" if with_library else "other"
    assert step["cpu_ns"][category] > 0.97 * step["wall_ns"]
