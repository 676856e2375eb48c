"""A program that waits in every way that there is, one operation each, and prints how long it waited.

    python waits.py [--seconds S] [--folder PLACE]

Protocol as truth.py's: `READY pid`, a line on stdin, `TRUTH json`, another line (or the end of stdin), the end. The
truth is the main thread's alone (others only make it wait), by operation, in ns: `wall`, and as the kernel accounts for
the thread, for which it needs no tracepoint, `cpu` and `delay` (it waited for a CPU). What is left it was blocked.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import select
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns

try:
    import rlscope_ebpf.markers as rls
except ModuleNotFoundError:  # not installed: the checkout that this file lies in
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    import rlscope_ebpf.markers as rls

SHORT_S = 0.01
BLOCK = 4 << 20
"""Large, so that waits are long: each is told a few microseconds longer than the kernel accounts for."""

FILE_BYTES = 16 * BLOCK
HOGS = 2


def accounted() -> tuple[int, int]:
    """What this thread has run, and waited for a CPU, in ns."""
    ran, waited, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return int(ran), int(waited)


def until(seconds: float, step: Callable[[], object]) -> None:
    end = monotonic_ns() + int(seconds * 1e9)
    while monotonic_ns() < end:
        step()


def work(milliseconds: float) -> None:
    """Python's own."""
    end = time.thread_time_ns() + int(milliseconds * 1e6)
    while time.thread_time_ns() < end:
        pass


def sleeping(seconds: float) -> None:
    def step() -> None:
        time.sleep(SHORT_S)
        select.select([], [], [], SHORT_S)
        select.poll().poll(SHORT_S * 1e3)

    until(seconds, step)


def locking(seconds: float) -> None:
    """Another thread has the lock nearly all the time."""
    lock, stop = threading.Lock(), threading.Event()

    def hold() -> None:
        while not stop.is_set():
            with lock:
                time.sleep(SHORT_S)
            time.sleep(SHORT_S / 10)

    holder = threading.Thread(target=hold)
    holder.start()

    def step() -> None:
        with lock:
            pass

    until(seconds, step)
    stop.set()
    holder.join()


def piping(seconds: float) -> None:
    """Another process writes now and then."""
    source, sink = os.pipe()
    child = os.fork()
    if not child:
        os.close(source)
        try:
            while True:
                time.sleep(SHORT_S)
                os.write(sink, b"x")
        finally:
            os._exit(0)
    os.close(sink)
    waiting = select.poll()
    waiting.register(source, select.POLLIN)

    def step() -> None:
        os.read(source, 1)
        waiting.poll()
        os.read(source, 1)

    until(seconds, step)
    os.close(source)
    os.kill(child, 9)
    os.waitpid(child, 0)


def reading(seconds: float, folder: str) -> None:
    """From the disk itself, past all memory; where the file system does not allow that, writing until it is there.

    Ahead of all ordinary threads: where it competes with them, kernels from 6.12 on may lose the begin of such a wait,
    and account for too much.
    """
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        os.truncate(file.fileno(), 0)
        for _ in range(FILE_BYTES // BLOCK):
            file.write(os.urandom(BLOCK))
        file.flush()
        os.fsync(file.fileno())
        try:
            direct = os.open(file.name, os.O_RDONLY | os.O_DIRECT)
        except OSError:
            direct = -1
        buffer = mmap.mmap(-1, BLOCK)  # aligned to a page
        place = 0

        def step() -> None:
            nonlocal place
            if direct >= 0:
                os.preadv(direct, [buffer], place)
            else:
                os.pwrite(file.fileno(), buffer, place)
                os.fsync(file.fileno())
            place = (place + BLOCK) % FILE_BYTES

        with measured("disk"):
            until(seconds, step)
        if direct >= 0:
            os.close(direct)
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def competing(seconds: float) -> None:
    """For one CPU, with programs that want all of it: preempted while it works, and late when it wakes."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    hogs = []
    for _ in range(HOGS):
        child = os.fork()
        if not child:
            while True:
                pass
        hogs.append(child)

    def step() -> None:
        work(2)
        time.sleep(SHORT_S / 5)

    with measured("compete"):
        until(seconds, step)
    for child in hogs:
        os.kill(child, 9)
        os.waitpid(child, 0)
    os.sched_setaffinity(0, allowed)


TRUTH: dict[str, dict[str, int]] = {}


class measured:
    """An operation, and its truth."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.operation = rls.operation(name)

    def __enter__(self) -> None:
        self.start = monotonic_ns(), *accounted()
        self.operation.__enter__()

    def __exit__(self, *error: object) -> None:
        self.operation.__exit__(*error)
        wall, cpu, delay = (now - then for now, then in zip((monotonic_ns(), *accounted()), self.start, strict=True))
        TRUTH[self.name] = {"wall": wall, "cpu": cpu, "delay": delay}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--folder", default=str(Path(__file__).parent))
    options = parser.parse_args()
    print(f"READY {os.getpid()}", flush=True)
    sys.stdin.readline()
    for name, wait in (("sleep", sleeping), ("lock", locking), ("io", piping)):
        with measured(name):
            wait(options.seconds)
    reading(options.seconds, options.folder)
    competing(options.seconds)
    with measured("run"):
        work(options.seconds * 500)
    print(f"TRUTH {json.dumps({'pid': os.getpid(), 'operations': TRUTH})}", flush=True)
    sys.stdin.readline()


main()
