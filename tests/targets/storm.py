"""A family of processes that fork, execute, exit and crash at random, and write down who there was.

    storm.py SECONDS WORKERS SEED [STORMS]

READY pid, then a line on stdin lets it begin. Of several storms each needs a line, and so does the end. One that is
over says CALM, the last one TRUTH. TRUTH: one entry per process that it started: pid, parent, begin and end
(CLOCK_MONOTONIC, ns, as its parent saw them), exit status (negative: the signal), and how it came to be.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time


def now_ns() -> int:
    """The clock of the profiler."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def end(how: str) -> None:
    """End this process in one of several ways."""
    if how == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(3 if how == "fail" else 0)


def child(rng: random.Random, log: int) -> None:
    """Live for a while, perhaps have a child or become another program, and end."""
    seconds = rng.choice((0.0, 0.05, 0.15, 0.3, 0.6))
    way = rng.choice(("wait", "work", "exec", "nest"))
    if way == "exec":
        os.execv("/bin/sleep", ["sleep", str(seconds)])
    if way == "nest":
        spawn(rng, log, 1)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if way == "work":
            sum(range(500))
        else:
            time.sleep(0.01)
    end(rng.choice(("exit", "exit", "fail", "crash", "kill")))


def spawn(rng: random.Random, log: int, depth: int) -> tuple[int, int, str]:
    """Start a process. At depth 1 also wait for it, and write it down."""
    how = rng.choice(("fork", "fork", "spawn")) if depth == 0 else "fork"
    began = now_ns()
    if how == "spawn":
        words = ["sleep", str(rng.choice((0.02, 0.2, 0.4)))]
        pid = os.posix_spawn("/bin/sleep", words, dict(os.environ))
    else:
        seed = rng.random()
        pid = os.fork()
        if pid == 0:
            if depth:
                time.sleep(0.2)
                end("fail")
            child(random.Random(seed), log)
    if depth:
        _, status = os.waitpid(pid, 0)
        write(log, pid, began, status, how)
    return pid, began, how


def write(log: int, pid: int, began: int, status: int, how: str) -> None:
    """One line, in one piece, whoever writes."""
    entry = {
        "pid": pid,
        "parent": os.getpid(),
        "began": began,
        "ended": now_ns(),
        "status": os.waitstatus_to_exitcode(status),
        "how": how,
    }
    os.write(log, (json.dumps(entry) + "\n").encode())


def storm(seconds: float, workers: int, rng: random.Random, log: int) -> None:
    """Keep so many children for so long."""
    living: dict[int, tuple[int, str]] = {}
    until = time.monotonic() + seconds
    while living or time.monotonic() < until:
        while len(living) < workers and time.monotonic() < until:
            pid, began, how = spawn(rng, log, 0)
            living[pid] = began, how
        pid, status = os.waitpid(-1, 0)
        if pid in living:
            write(log, pid, living[pid][0], status, living[pid][1])
            del living[pid]


def main() -> None:
    """Raise so many storms, and tell of them."""
    seconds, workers, seed = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    storms = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    rng = random.Random(seed)
    path = f"/tmp/storm-{os.getpid()}.log"
    log = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    print("READY", os.getpid(), flush=True)
    for number in range(storms):
        sys.stdin.readline()
        storm(seconds, workers, rng, log)
        if number < storms - 1:
            print("CALM", number + 1, flush=True)
    with open(path) as file:
        entries = [json.loads(line) for line in file]
    os.unlink(path)
    print("TRUTH", json.dumps({"pid": os.getpid(), "processes": entries}), flush=True)
    if storms > 1:
        sys.stdin.readline()


if __name__ == "__main__":
    main()
