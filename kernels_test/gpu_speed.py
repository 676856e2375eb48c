"""How much slower a real GPU program is under the profiler; needs what gpu_host.py needs, and takes its options.

    python kernels_test/gpu_speed.py [--out FOLDER] [--seconds N] [--only PART …] [--processors 2,4,6,8] [--simulated]

A program works all the time and notes how long its iterations take, in windows of 50 ms. Profilers come and go
meanwhile, different ones in turn: medians of the windows with one are compared with those just before and after it.

* mlp, ppo, a2c: `attach` to a launch-bound loop, and to PPO and A2C of Stable-Baselines3
* short: less of mlp
* run: the same of `run`, in pairs of processes
* turns, ppo turns: the same of `attach` and `run`, each in turns with a program that has no profiler; since each works
  half of the time, the limit is half of the default
* others: torch.profiler and cupti-python on the launch-bound loop
* together: kernel times by helper, and then by torch.profiler and cupti-python in turns, in one process
"""

from __future__ import annotations

import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from gpu_health import against, begin, end_of
from gpu_host import (
    Failed,
    Host,
    Process,
    attempt,
    helper_state,
    main,
    pin_apart,
    read_trace,
    wait_for_state,
    wait_until_heard,
)

ROUNDS = 3
PLAIN_S, ON_S, FIRST_S = 2.0, 4.5, 1.0
SETTLED_S = 0.4
"""After a profiler has gone; its last probes are taken away meanwhile."""

OPTIONS: dict[str, list[str]] = {
    "default": [],
    "samples": ["--mode", "sample"],
    "no GPU": ["--gpu", "off"],
    "no limit": ["--max-overhead", "0"],
}
SHORTER: dict[str, list[str]] = {name: OPTIONS[name] for name in ("default", "samples", "no GPU")}
LINES = {"mlp": "steady", "ppo": "train PPO", "a2c": "train A2C"}

Windows = list[tuple[int, float]]
Turn = tuple[str, int, int, int, int, int]  # what; when: before, asked for, there, told to leave, gone


def start_helper(host: Host, process: Process) -> None:
    """While the program works."""
    if not host.frida:
        process.say(f"!helper {host.helper}")


def turn(host: Host, process: Process, what: str, options: list[str], trace: Path) -> Turn:
    """One profiler comes and goes."""
    gpu = "off" not in options
    before = time.monotonic_ns()
    time.sleep(PLAIN_S)
    asked = time.monotonic_ns()
    if gpu:
        start_helper(host, process)
    with host.attached(process, trace, *options) as profiler:
        if gpu:
            wait_until_heard(process.pid, 20)
        else:
            time.sleep(2.5 if not host.simulated else 8)
        there = time.monotonic_ns()
        time.sleep(ON_S)
        if profiler.poll() is not None:
            raise Failed(f"the profiler ended with status {profiler.poll()}")
        leaves = time.monotonic_ns()
    if gpu:
        wait_for_state(process.pid, "DORMANT", 20)
    time.sleep(SETTLED_S)
    return what, before, asked, there, leaves, time.monotonic_ns()


def middle(windows: Windows, start_ns: float, end_ns: float) -> float:
    """Median of the windows that ended in between."""
    found = [us for at, us in windows if start_ns < at <= end_ns]
    return statistics.median(found) if found else float("nan")


def quartiles(values: list[float]) -> list[float]:
    """Rounded."""
    values = [value for value in values if value == value]
    if len(values) < 2:
        return [round(value, 3) for value in values]
    return [round(value, 3) for value in statistics.quantiles(values, n=4, method="inclusive")]


def attaches(host: Host, part: str, options: dict[str, list[str]], rounds: int = ROUNDS) -> None:
    """Profilers in turn on one program."""
    turns: list[Turn] = []
    facts: dict[str, dict[str, Any]] = {}
    with host.loop() as process:
        if part == "mlp":
            process.do("loop 300")
        begin(process, LINES[part])
        time.sleep(1)
        for number in range(1 if host.simulated else rounds):
            for what, each in options.items():
                trace = host.traces / f"{part}{number}{what.replace(' ', '')}.rlscope"
                try:
                    turns.append(turn(host, process, what, each, trace))
                    facts[what] = read_trace(trace, {})[""]
                    trace.unlink()
                except Exception as error:
                    host.results.add(part, what, error=repr(error))
        time.sleep(PLAIN_S)
        last = time.monotonic_ns()
        done = end_of(process)
        finalized = helper_state(process.pid).get("finalized", 0)
        process.end()
    windows: Windows = [(at, us) for at, us in done["windows"]]
    ends = [each[1] for each in turns[1:]] + [last]
    for what in options:
        ratios: dict[str, list[float]] = {"first": [], "on": [], "setting": [], "after": []}
        for (name, before, asked, there, leaves, gone), end in zip(turns, ends, strict=True):
            if name != what:
                continue
            after = middle(windows, gone, min(end, gone) + PLAIN_S * 1e9)
            plain = middle(windows, before, asked)
            base = (plain + after) / 2 if after == after else plain
            ratios["setting"].append(middle(windows, asked, there) / base)
            ratios["first"].append(middle(windows, there, there + FIRST_S * 1e9) / base)
            ratios["on"].append(middle(windows, there + FIRST_S * 1e9, leaves) / base)
            ratios["after"].append(after / plain)
        found = {name: quartiles(values) for name, values in ratios.items()}
        each = facts.get(what, {})
        kept = {name: each.get(name) for name in ("kernels", "matched", "hits", "losses", "notices")}
        host.results.add(part, f"attach {what}", **found, rounds=len(ratios["on"]), finalized=finalized, **kept)
    plain_us = [middle(windows, each[1], each[2]) for each in turns]
    host.results.add(part, "plain, us an iteration (cycle)", each=[round(us, 1) for us in plain_us])


def run(host: Host) -> None:
    """Pairs of processes."""
    ratios: list[float] = []
    facts: dict[str, Any] = {}

    def speed(trace: Path | None, *options: str) -> float:
        with host.loop(trace, *options) as process:
            process.do("loop 300")
            begin(process, "steady")
            time.sleep(2 + ON_S)
            end = time.monotonic_ns()
            done = end_of(process)
            process.end(60)
        return middle([(at, us) for at, us in done["windows"]], end - ON_S * 1e9, end)

    for number in range(ROUNDS):
        plain = speed(None)
        trace = host.traces / f"run{number}.rlscope"
        ratios.append(speed(trace) / plain)
        facts = read_trace(trace, {})[""]
        trace.unlink()
        host.results.add("run", f"pair {number + 1}", plain_us=plain, ratio=ratios[-1])
    kept = {name: facts[name] for name in ("kernels", "matched", "hits", "losses", "notices")}
    host.results.add("run", "all", ratio=quartiles(ratios), mean=statistics.mean(ratios), **kept)


HALF = ["--max-overhead", "2.5"]
HALVED: dict[str, list[str]] = {
    "default": HALF,
    "samples": [*HALF, "--mode", "sample"],
    "no GPU": [*HALF, "--gpu", "off"],
}


def turns(host: Host, line: str, number: int, ways: tuple[str, ...], helper_alone: bool = False) -> None:
    """Next to a program without a profiler."""
    number = min(number, 10) if host.simulated else number
    part = f"turns of {line}"
    with host.loop() as alone, host.loop() as process:
        for each in (alone, process):
            each.do(line)
            each.do(line)
            pin_apart(each.pid, host.processors)
        plain = against(process, alone, number, line)
        host.results.add(part, "plain", ratio=plain)
        if helper_alone:
            process.do(f"heard {host.helper}")
            begin(process, "steady")
            wait_for_state(process.pid, "ACTIVE", 20)
            end_of(process)
            found = against(process, alone, number, line)
            host.results.add(part, "helper alone", ratio=found, to_plain=round(found[1] / plain[1], 4))
            process.do(f"unheard {host.helper}")
            begin(process, "steady")
            wait_for_state(process.pid, "DORMANT", 20)
            end_of(process)
        for way in ways:
            trace = host.traces / "turns.rlscope"
            begin(process, "steady")
            if "off" not in HALVED[way]:
                start_helper(host, process)
            with host.attached(process, trace, *HALVED[way]):
                time.sleep(4)
                if "off" not in HALVED[way]:
                    wait_until_heard(process.pid, 30)
                end_of(process)
                against(process, alone, number // 6, line)
                found = against(process, alone, number, line)
                begin(process, "steady")
            time.sleep(2)
            end_of(process)
            facts = read_trace(trace, {})[""]
            kept = {name: facts[name] for name in ("kernels", "matched", "hits", "losses")}
            host.results.add(part, f"attach {way}", ratio=found, to_plain=round(found[1] / plain[1], 4), **kept)
        process.end()
        trace = host.traces / "turns-run.rlscope"
        with host.loop(trace, *HALF) as process:
            process.do(line)
            pin_apart(process.pid, host.processors)
            time.sleep(2)
            against(process, alone, number // 6, line)
            found = against(process, alone, number, line)
            process.end(60)
        host.results.add(part, "run", ratio=found, to_plain=round(found[1] / plain[1], 4))


def others(host: Host) -> None:
    """Profilers that work within the program."""
    for what, command in (("CUDA only", "profile cuda"), ("CPU and CUDA", "profile both"), ("cupti-python", "cupti")):
        attempt(host, "others", what, partial(_other, host, what, command))


def _other(host: Host, what: str, command: str) -> None:
    ratios, with_stop = [], []
    with host.loop() as process:
        process.do("loop 400")
        process.do(f"{command} loop 20")
        for _ in range(ROUNDS):
            plain = [process.do("loop 400")["seconds"]]
            done = process.do(f"{command} loop 400", 90)
            plain.append(process.do("loop 400")["seconds"])
            ratios.append(done["seconds"] / statistics.mean(plain))
            with_stop.append(done["seconds_with_stop"] / statistics.mean(plain))
        process.end()
    host.results.add("others", what, ratio=quartiles(ratios), with_stop=quartiles(with_stop))


def together(host: Host) -> None:
    """Kernel times by three, in one process."""
    for line in ("mixed 400", "loop 400"):
        attempt(host, "together", line, partial(_together, host, line))


def _together(host: Host, line: str) -> None:
    found: dict[str, list[tuple[int, int]]] = {"torch.profiler": [], "cupti-python": [], "helper": []}
    with host.loop() as process:
        process.do(line)
        for number in range(2):  # first: torch.profiler keeps CUPTI from its first use on
            process.do(f"helper {host.helper}")
            trace = host.traces / f"together{number}.rlscope"
            with host.attached(process, trace, "--max-overhead", "0"):
                wait_until_heard(process.pid, 20)
                time.sleep(0.5)
                done = process.do(line)
                time.sleep(0.3)
                begin(process, "steady")  # the helper leaves at the end of a call
            wait_for_state(process.pid, "DORMANT", 20)
            end_of(process)
            seen = read_trace(trace, {"it": (done["start_ns"], done["end_ns"])})["it"]
            found["helper"].append((seen["kernels"], seen["kernels_ns"]))
        # torch.profiler last: it leaves its own clock, the processor's ticks, to those that come after it.
        for what, command in (("cupti-python", "cupti"), ("torch.profiler", "profile cuda")):
            for _ in range(ROUNDS):
                other = process.do(f"{command} {line}", 90)
                found[what].append((other["kernels"], other["kernels_ns"]))
        process.end()
    each_ns = {what: statistics.median(ns / count for count, ns in rows) for what, rows in found.items()}
    host.results.add(
        "together",
        line,
        set_ns=done.get("set_ns"),
        rows=found,
        **{f"helper/{what}": round(each_ns["helper"] / ns, 5) for what, ns in each_ns.items() if what != "helper"},
    )


PARTS = {
    "mlp": partial(attaches, part="mlp", options=OPTIONS),
    "ppo": partial(attaches, part="ppo", options=SHORTER),
    "a2c": partial(attaches, part="a2c", options=SHORTER, rounds=2),
    "short": partial(attaches, part="mlp", options={name: OPTIONS[name] for name in ("default", "samples")}, rounds=2),
    "run": run,
    "turns": partial(turns, line="loop 60", number=110, ways=("default", "no GPU"), helper_alone=True),
    "ppo turns": partial(turns, line="ppo 512", number=14, ways=("default", "no GPU"), helper_alone=True),
    "others": others,
    "together": together,
}


if __name__ == "__main__":
    sys.exit(main(PARTS))
