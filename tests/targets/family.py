"""A tree of processes that are there before anybody looks.

    family.py CHILDREN [SECONDS]

Forks so many children, each of which computes a little now and then until stdin of the first is closed (or for so many
seconds). READY pid.
"""

from __future__ import annotations

import os
import signal
import sys
import time


def child() -> None:
    """Work a little, again and again."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        sum(range(1000))
        time.sleep(0.05)


def main() -> None:
    """Have the children, and end them in the end."""
    pids = []
    for _ in range(int(sys.argv[1])):
        pid = os.fork()
        if pid == 0:
            os.close(0)
            child()
        pids.append(pid)
    print("READY", os.getpid(), flush=True)
    sys.stdin.readline()
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    for pid in pids:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
