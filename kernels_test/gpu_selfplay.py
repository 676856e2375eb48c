"""Self-play workers that share a real GPU: what is reported of it, and how long it works for whom.

    python kernels_test/gpu_selfplay.py [--out FOLDER] [--seconds N] [--only PART …] [--simulated]

Needs what gpu_host.py needs. The parts are two ways of profiling the same, `run` and `attach`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gpu_host import HERE, PROFILER, Host, Process, main

WORKERS = 16
PLAY_S = 12
STARTED_S = 60.0
GAME = ["--library", "simulator=*/libconnect4.so"]


def words(host: Host, *more: str) -> list[str]:
    """The program."""
    network = ["--network", "simulated"] if host.simulated else ["--network", "cuda", "--start", "spawn"]
    number = str(4 if host.simulated else WORKERS)
    program = [sys.executable, str(HERE / "selfplay" / "main.py"), "--workers", number, "--seconds", str(PLAY_S)]
    return [*program, *network, *more]


def tell(host: Host, part: str, trace: Path, truth: dict[str, Any]) -> None:
    """One line for each worker, and one for the GPU."""
    done = subprocess.run(
        [*PROFILER, "report", "--format", "json", str(trace)], capture_output=True, env=host.environment
    )
    document = json.loads(done.stdout)
    text = subprocess.run([*PROFILER, "report", str(trace)], capture_output=True, text=True, env=host.environment)
    (host.folder / f"selfplay-{part}.txt").write_text(text.stdout)
    processes = {process["pid"]: process for process in document["processes"]}
    for worker in truth["workers"]:
        found = processes.get(worker["pid"])
        if found is None:
            host.results.add(part, worker["name"], error="it is not in the report")
            continue
        operations: dict[str, list[int]] = {}
        for row in found["operations"]:
            sums = operations.setdefault(row["name"], [0, 0])
            sums[0] += row["count"]
            sums[1] += row["inclusive_ns"]
        evaluations = operations.get("evaluate", [0, 0])
        host.results.add(
            part,
            worker["name"],
            devices=found["gpu_devices"],
            kernels=sum(kernel["count"] for kernel in found["gpu_kernels"]),
            kernels_ns=sum(kernel["total_ns"] for kernel in found["gpu_kernels"]),
            evaluations=[evaluations[0], worker["search"]["evaluations"]],
            evaluate_ns=[evaluations[1], worker["search"]["evaluate_ns"]],
            iterations=[found["steps"], worker["iterations"]],
            moves=worker["moves"],
        )
    losses = {name: value for name, value in document["losses"].items() if value}
    notices = [str(notice)[:200] for notice in document.get("notices", [])]
    host.results.add(part, "GPU", gpus=document["gpus"], losses=losses, notices=notices[:12])


def run(host: Host) -> None:
    """Started by the profiler."""
    trace = host.traces / "selfplay.rlscope"
    command = [*PROFILER, "run", "--follow", "--no-tui", "--force", "-o", str(trace), *GAME, "--", *words(host)]
    process = Process(command, host.environment, host.folder / "stderr.txt")
    try:
        process.expect("READY", STARTED_S)
        time.sleep(2)
        process.say("go")
        truth = json.loads(process.expect("TRUTH", STARTED_S))
        process.end(40)
    finally:
        process.close()
    tell(host, "run", trace, truth)


def attach(host: Host) -> None:
    """Profiled from a moment on; workers that cannot be entered start the helper themselves."""
    trace = host.traces / "attached.rlscope"
    process = Process(words(host, "--helper", str(host.helper)), host.environment, host.folder / "stderr.txt")
    try:
        process.pid = int(process.expect("READY", STARTED_S))
        with host.attached(process, trace, "--follow", *GAME):
            time.sleep(8)
            process.say("go")
            truth = json.loads(process.expect("TRUTH", STARTED_S))
            time.sleep(1)
        process.end(40)
    finally:
        process.close()
    tell(host, "attach", trace, truth)


if __name__ == "__main__":
    sys.exit(main({"run": run, "attach": attach}))
