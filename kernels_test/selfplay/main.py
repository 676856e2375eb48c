"""Self-play workers that share one GPU: processes that play Connect Four against themselves and learn from it.

    python main.py [--workers N] [--seconds S] [--network auto|simulated|cuda|cpu] [--start fork|spawn]

Prints `READY pid` once all workers are there, waits for a line on stdin (not with --go), plays, and prints
`TRUTH json`: per worker what it knows about itself, and with the simulated GPU what that did. On the simulated GPU it
needs RLSCOPE_LIBCUPTI to be profiled, and SIMCUDA_SHARED, the name of an empty file, for the workers to share one:
each has one of its own otherwise.

Each worker has a name ("selfplay-03"), phases ("selfplay", "train"), operations (mcts, select, evaluate, expand, train)
and progress, an iteration being some moves and a little training.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import os
import sys
import time
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

try:
    import rlscope_ebpf.markers as rls
except ModuleNotFoundError:
    sys.path.append(str(HERE.parents[1]))
    import rlscope_ebpf.markers as rls

import build as native_build
from game import GOES_ON, WON, Game, Position
from networks import device_work, make_network
from search import Search

ROUNDS = 12
"""Of a search for one move: so often leaves are evaluated."""

MOVES, TRAININGS = 4, 2
"""Of an iteration."""

PATIENCE_MS = 600_000


@dataclass(frozen=True)
class Settings:
    """What all workers are to do."""

    seconds: float
    network: str
    helper: str


def work(number: int, settings: Settings, parent: Connection) -> None:
    """Be a worker."""
    rls.process_name(f"selfplay-{number:02d}")
    network = make_network(settings.network)
    if settings.helper:
        ctypes.CDLL(settings.helper).rlscope_gpu_start(0, PATIENCE_MS)
    game = Game(seed=number + 1)
    search = Search(game, network)
    parent.send("ready")
    parent.recv()
    position, moves, games, iterations = Position(), 0, 0, 0
    learned: list[tuple[bytes, int]] = []
    until = time.monotonic() + settings.seconds
    while time.monotonic() < until:
        rls.phase("selfplay")
        with rls.operation("play"):
            for _ in range(MOVES):
                column = search.choose(position, ROUNDS)
                learned.append((search.features_of(position), column))
                position, state = game.after(position, [column])
                moves += 1
                if state != GOES_ON:
                    games += 1
                    position = Position()
        rls.phase("train")
        for _ in range(TRAININGS):
            with rls.operation("train"):
                results = [1.0 if state == WON else 0.0] * len(learned)
                network.train([each for each, _ in learned], [column for _, column in learned], results)
        learned.clear()
        iterations += 1
        rls.progress(iterations)
    parent.send(
        {
            "pid": os.getpid(),
            "name": f"selfplay-{number:02d}",
            "iterations": iterations,
            "moves": moves,
            "games": games,
            "trainings": iterations * TRAININGS,
            "search": asdict(search.truth),
            "game": game.truth(),
            "gpu": network.truth(),
        }
    )
    parent.recv()  # so that it is there until all have finished
    # multiprocessing lets a forked process leave by _exit. No library can finish then, the GPU helper neither: what the
    # GPU did in the last tenth of a second would not be told.
    ctypes.CDLL(None).exit(0)


def _take(connections: list[Connection]) -> list[Any]:
    """One message of each."""
    found: dict[int, Any] = {}
    left = {id(each): number for number, each in enumerate(connections)}
    while left:
        for each in wait([connections[number] for number in left.values()]):
            assert isinstance(each, Connection)
            found[left.pop(id(each))] = each.recv()  # EOFError: the worker has ended
    return [found[number] for number in range(len(connections))]


def main() -> int:
    """Start the workers, let them play, print what they know."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--network", default="auto", choices=("auto", "simulated", "cuda", "cpu"))
    parser.add_argument("--start", default="", choices=("", "fork", "spawn"), help="PyTorch on a GPU needs spawn")
    parser.add_argument("--helper", default="", help="the GPU helper's file: started by the workers themselves")
    parser.add_argument("--go", action="store_true", help="do not wait for a line")
    options = parser.parse_args()
    native_build.native()  # once, and not in every worker
    simulated = options.network == "simulated" or not os.path.exists("/dev/nvidiactl")
    context = multiprocessing.get_context(options.start or ("fork" if simulated else "spawn"))
    settings = Settings(options.seconds, options.network, options.helper)
    connections, processes = [], []
    for number in range(options.workers):
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(number, settings, theirs))
        process.start()
        theirs.close()
        connections.append(ours)
        processes.append(process)
    _take(connections)
    print("READY", os.getpid(), flush=True)
    print("WORKERS", json.dumps([process.pid for process in processes]), flush=True)
    if not options.go:
        sys.stdin.readline()
    for each in connections:
        each.send("go")
    truth = {"pid": os.getpid(), "workers": _take(connections)}
    if any(worker["gpu"].get("device") for worker in truth["workers"]):
        truth["device"] = device_work(ctypes.CDLL(str(native_build.native() / "libcuda.so.1")), 0)
    print("TRUTH", json.dumps(truth), flush=True)
    for each in connections:
        each.send("end")
    for process in processes:
        process.join()
    return int(any(process.exitcode for process in processes))


if __name__ == "__main__":
    sys.exit(main())
