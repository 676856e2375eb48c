"""A program that forks when it is told to: `READY pid`, then for each line N the children that it has had since.

Answers are JSON: of each child its pid and when it was forked (CLOCK_MONOTONIC, ns).
"""

from __future__ import annotations

import json
import os
import sys
import time

LIVES_S, PAUSE_S = 0.6, 0.15


def child() -> None:
    """Work a little, now and then."""
    until = time.monotonic() + LIVES_S
    while time.monotonic() < until:
        sum(range(1000))
        time.sleep(0.01)
    os._exit(0)


def main() -> None:
    """Answer line by line."""
    print("READY", os.getpid(), flush=True)
    for line in sys.stdin:
        forked = []
        for _ in range(int(line)):
            now = time.monotonic_ns()
            pid = os.fork()
            if not pid:
                child()
            forked.append((pid, now))
            time.sleep(PAUSE_S)
        for pid, _ in forked:
            os.waitpid(pid, 0)
        print(json.dumps(forked), flush=True)


if __name__ == "__main__":
    main()
