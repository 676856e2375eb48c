"""Calls everything that is probed in a training program, whether or not somebody is being profiled.

    outsider_loop.py CPU

`READY pid`. Each line "work SECONDS" is answered by JSON: of each piece of work in that time, the CPU time of the
thread and the time that passed, in ns. Each line "share PERCENT" is answered at once; from then on the program works
for that part of the time while nobody asks. It runs on one CPU.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time

import numpy as np
import torch

import rlscope_ebpf.markers as rls

ROUNDS = 120
PERIOD_S = 0.1


def piece() -> None:
    """Some milliseconds of short NumPy and PyTorch calls within operations, and a short sleep."""
    with rls.operation("piece"):
        for _ in range(ROUNDS):
            with rls.operation("numpy"):
                np.dot(LEFT, RIGHT)
                np.tanh(LEFT)
            with rls.operation("torch"):
                torch.relu(torch.add(TENSOR, TENSOR))
    time.sleep(0.0001)  # so that the scheduler's tracepoints are met


def work(seconds: float) -> list[tuple[int, int]]:
    """Pieces, one after the other: CPU time and time of each."""
    took = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        cpu, wall = time.thread_time_ns(), time.monotonic_ns()
        piece()
        took.append((time.thread_time_ns() - cpu, time.monotonic_ns() - wall))
    return took


def main() -> None:
    """Answer line by line."""
    os.sched_setaffinity(0, {int(sys.argv[1])})
    torch.set_num_threads(1)
    work(0.5)
    print("READY", os.getpid(), flush=True)
    share = 0.0
    while True:
        if share:
            work(PERIOD_S * share)
        if share and not select.select([sys.stdin], [], [], PERIOD_S * (1 - share))[0]:
            continue
        words = sys.stdin.readline().split()
        if not words:
            return
        if words[0] == "work":
            print(json.dumps(work(float(words[1]))), flush=True)
        else:
            share = float(words[1]) / 100
            print("so be it", flush=True)


LEFT, RIGHT = np.ones((16, 16)), np.ones((16, 16))
TENSOR = torch.ones(64)

if __name__ == "__main__":
    main()
