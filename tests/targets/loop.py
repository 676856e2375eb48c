"""Runs until it is told to stop: rounds of an operation with a call of the simulator in it.

    python loop.py [--first-call SECONDS] [--exec-after SECONDS]

Prints `READY pid`, waits for a line, then for a second one (or the end of stdin) between rounds, prints `ROUNDS n` and
exits with status 0. With `--first-call` a call of so many seconds runs from the very beginning, in an operation called
`first`, without waiting for the first line. With `--exec-after` it replaces itself by a fresh loop after so long.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import select
import sys
import time
from pathlib import Path

try:
    import rlscope_ebpf.markers as rls
except ModuleNotFoundError:  # not installed: the checkout that this file lies in
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    import rlscope_ebpf.markers as rls

import build

STEP_NS = 2_000_000


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs until it is told to stop.")
    parser.add_argument("--first-call", type=float, default=0.0)
    parser.add_argument("--exec-after", type=float, default=0.0)
    parser.add_argument("--resumed", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    simulator = ctypes.CDLL(str(build.native() / "libtruth_simulator.so"))
    simulator.sim_spin.argtypes = [ctypes.c_int64]
    simulator.sim_spin.restype = None
    name = "resumed" if options.resumed else "round"

    if not options.resumed:
        print(f"READY {os.getpid()}", flush=True)
    if options.first_call:
        with rls.operation("first"):
            simulator.sim_spin(int(options.first_call * 1e9))
    elif not options.resumed:
        sys.stdin.readline()
    end = time.monotonic() + (options.exec_after or 1e9)
    rounds = 0
    while not select.select([0], [], [], 0)[0]:
        with rls.operation(name):
            simulator.sim_spin(STEP_NS)
        rounds += 1
        if time.monotonic() > end:
            os.execv(sys.executable, [sys.executable, __file__, "--resumed"])
    print(f"ROUNDS {rounds}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
