"""What must hold of a program's health on a real GPU; needs what gpu_host.py needs, and takes its options.

    python kernels_test/gpu_health.py [--out FOLDER] [--seconds N] [--only PART …] [--for S] [--simulated]

* long: graphs are replayed for S seconds: every kernel is counted, or its loss is, and memory stays what it is
* killed: the profiler is killed while it is attached: the program goes on, and another one can be attached
* threads: programs in which CUPTI cannot be finalized, several threads launching by themselves: torch.profiler
  afterwards, a second attach, and torch.profiler after that
* rate: how fast the program is after a profiler has gone, and after one was killed, next to one that had none: the two
  take turns of 50 ms
* alone: the same programs without any profiler: how many of their results are wrong
"""

from __future__ import annotations

import math
import signal
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from gpu_host import (
    Failed,
    Host,
    Process,
    attempt,
    helper_state,
    main,
    pin_apart,
    prepare_attach,
    read_trace,
    wait_for_state,
    wait_until_heard,
)

NODES = 64
"""Kernels of the graph that is replayed for long."""

PROGRAMS = ((1, "eager"), (2, "eager"), (5, "eager"), (1, "graph"), (3, "graph"), (5, "graph"), (3, "matmul"))
"""Threads beside the main one, and what they do."""

AT_ONCE = 4
ITERATIONS = 50
TURNS, TURN = 140, 60
"""Of each of two programs, and iterations in each."""


def resident_mb(pid: int) -> float:
    """Memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise Failed(f"process {pid} has no memory")


def begin(process: Process, line: str) -> None:
    """What goes on until the next line."""
    process.say(line)
    process.expect("STEADY", 60)


def end_of(process: Process) -> dict[str, Any]:
    """End it; what it did."""
    process.say("loop 1")
    done = process.answer(60)
    process.answer(60)
    return done


def long(host: Host) -> None:
    """Graph replays without an end."""
    trace = host.traces / "long.rlscope"
    memory: list[tuple[float, float, float]] = []
    with host.loop() as process:
        seen = prepare_attach(host, process)
        begin(process, f"graphs {NODES} {host.pace if not host.simulated else 0}")
        time.sleep(2)
        start = time.monotonic()
        with host.attached(process, trace, "--max-overhead", "0") as profiler:
            wait_until_heard(process.pid, 30)
            time.sleep(2)
            first = len(process.rates)
            until = time.monotonic() + host.long_s
            while time.monotonic() < until and profiler.poll() is None:
                at = round(time.monotonic() - start, 1)
                memory.append((at, round(resident_mb(process.pid), 1), round(resident_mb(profiler.pid), 1)))
                time.sleep(min(5.0, host.long_s / 4))
            time.sleep(1.1)
            last = len(process.rates) - 1
        wait_for_state(process.pid, "DORMANT", 20)
        counted = helper_state(process.pid)["counters"]
        time.sleep(2.2)
        rates = list(process.rates)
        done = end_of(process)
        status = process.end()
    begin_ns, end_ns = rates[first]["time_ns"], rates[last]["time_ns"]
    wanted = (rates[last]["replays"] - rates[first]["replays"]) * NODES
    facts = read_trace(trace, {"graphs": (begin_ns + 1, end_ns)})
    whole, found = facts[""], facts["graphs"]
    host.results.add(
        "long",
        f"{host.long_s:g} s",
        way=seen,
        status=status,
        seconds=(end_ns - begin_ns) / 1e9,
        wanted=wanted,
        graph_kernels=found["graph_kernels"],
        missing=wanted - found["graph_kernels"],
        wrong=done["wrong"],
        helper=counted,
        trace_mb=round(trace.stat().st_size / 1e6),
        per_s_on=statistics.median(rate["per_s"] for rate in rates[first:last]),
        per_s_off=statistics.median(rate["per_s"] for rate in rates[-2:]),
        **whole,
    )
    host.results.add("long", "memory: s, target MB, profiler MB", series=memory[:: max(1, len(memory) // 30)])
    half = memory[len(memory) // 4 :]
    host.results.add(
        "long",
        "growth after a quarter of the time, MB",
        target=round(half[-1][1] - half[0][1], 1),
        profiler=round(half[-1][2] - half[0][2], 1),
    )


def killed(host: Host) -> None:
    """No detach, no goodbye."""
    for line in ("steady", f"graphs {NODES}"):
        attempt(host, "killed", line, partial(_killed, host, line))


def _killed(host: Host, line: str) -> None:
    with host.loop() as process:
        process.do("loop 100")
        prepare_attach(host, process)
        begin(process, line)
        start = time.monotonic_ns()
        time.sleep(2)
        before = time.monotonic_ns()
        with host.attached(process, host.traces / "killed.rlscope") as profiler:
            wait_until_heard(process.pid, 30)
            time.sleep(3)
            kill_ns = time.monotonic_ns()
            profiler.send_signal(signal.SIGKILL)
            profiler.wait()
        took = wait_for_state(process.pid, "DORMANT", 20)
        asleep_ns = time.monotonic_ns()
        state = helper_state(process.pid)
        time.sleep(4)
        done = end_of(process)
        prepare_attach(host, process)
        begin(process, line)
        trace = host.traces / "again.rlscope"
        with host.attached(process, trace):
            wait_until_heard(process.pid, 30)
            time.sleep(2)
        wait_for_state(process.pid, "DORMANT", 20)
        end_of(process)
        facts = read_trace(trace, {})[""]
        seen = {} if host.simulated else process.do(f"profile cuda loop {ITERATIONS}")
        status = process.end()

    def us(start_ns: int, end_ns: int) -> float:
        return statistics.median([us for at, us in done["windows"] if start_ns < at <= end_ns] or [0.0])

    last = done["windows"][-1][0]
    host.results.add(
        "killed",
        line,
        dormant_after_s=round(took, 2),
        helper=state,
        us_before=us(start, before),
        us_attached=us(kill_ns - 2_000_000_000, kill_ns),
        us_after=us(asleep_ns, last),
        wrong=done.get("wrong"),
        profiler_kernels=seen.get("kernels"),
        status=status,
        again={name: facts[name] for name in ("gpu", "kernels", "matched", "losses")},
    )


def rate(host: Host) -> None:
    """Two programs in turns; a profiler comes to one of them and goes."""
    number = TURNS if not host.simulated else 20
    with host.loop() as alone, host.loop() as process:
        for each in (alone, process):
            each.do("loop 500")
            pin_apart(each.pid, host.processors)
        before = against(process, alone, number)
        host.results.add("rate", "before", ratio=before)
        for how in (signal.SIGTERM, signal.SIGKILL):
            prepare_attach(host, process)
            begin(process, "steady")
            with host.attached(process, host.traces / f"rate{how.name}.rlscope") as profiler:
                wait_until_heard(process.pid, 30)
                time.sleep(3)
                profiler.send_signal(how)
                profiler.wait(30)
            wait_for_state(process.pid, "DORMANT", 20)
            end_of(process)
            after = against(process, alone, number)
            width = math.hypot(*(high / low - 1 for low, _, high in (before, after))) / 2
            state = helper_state(process.pid)
            again = {"to_before": round(after[1] / before[1], 4), "give_or_take": round(width, 4)}
            host.results.add("rate", f"after {how.name}", ratio=after, **again, helper=state)
        statuses = [process.end(), alone.end()]
    host.results.add("rate", "end", statuses=statuses)


def against(process: Process, alone: Process, turns: int, line: str = f"loop {TURN}") -> tuple[float, float, float]:
    """How long turns of one take to those of the other: the median, between the ends of its 95 % interval."""
    ratios = []
    for number in range(turns):
        took = {each: each.do(line)["seconds"] for each in (process, alone)[:: 1 if number % 2 else -1]}
        ratios.append(took[process] / took[alone])
    ratios.sort()
    reach = math.ceil(0.98 * math.sqrt(turns))
    low, high = ratios[max(0, turns // 2 - reach)], ratios[min(turns - 1, turns // 2 + reach)]
    return round(low, 4), round(statistics.median(ratios), 4), round(high, 4)


def threads(host: Host) -> None:
    """Who launches next cannot be known."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for number, kind in PROGRAMS:
            step = partial(_threads, host, number, kind)
            pool.submit(attempt, host, "threads", f"{number} {kind}", step)


def _threads(host: Host, number: int, kind: str) -> None:
    line = f"graphs {NODES}" if kind != "eager" else "steady"
    found: dict[str, Any] = {}
    with host.loop() as process:
        process.do(f"threads {number} {kind}")
        for turn in ("first", "second"):
            process.do(f"helper {host.helper}")
            begin(process, line)
            trace = host.traces / f"threads{number}{kind}{turn}.rlscope"
            with host.attached(process, trace):
                wait_until_heard(process.pid, 30)
                time.sleep(3)
            wait_for_state(process.pid, "DORMANT", 30)
            state = helper_state(process.pid)
            done = end_of(process)
            facts = read_trace(trace, {})[""]
            found[turn] = {"finalized": state.get("finalized"), "wrong": done.get("wrong")}
            found[turn] |= {name: facts[name] for name in ("kernels", "matched", "losses")}
        if not host.simulated:  # torch.profiler keeps CUPTI from its first use on
            found |= {f"torch.profiler {what}": _profiled(process, what) for what in ("loop", "replays")}
        found["beside"] = process.do("threads 0")
        found["status"] = process.end()
    host.results.add("threads", f"{number} {kind}", **found)


def _profiled(process: Process, what: str) -> int | str:
    """Kernels that torch.profiler saw, or what went wrong."""
    try:
        return int(process.do(f"profile cuda {what} {ITERATIONS}", 90)["kernels"])
    except Failed as error:
        return str(error)[:400]


def alone(host: Host) -> None:
    """Results without a profiler."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for number, kind in (*PROGRAMS, (5, "shared")):
            pool.submit(attempt, host, "alone", f"{number} {kind}", partial(_alone, host, number, kind))


def _alone(host: Host, number: int, kind: str) -> None:
    with host.loop() as process:
        process.do(f"threads {number} {kind}")
        begin(process, f"graphs {NODES}")
        time.sleep(10 if not host.simulated else 1)
        done = end_of(process)
        beside = process.do("threads 0")
        process.end()
    host.results.add("alone", f"{number} {kind}", replays=done["replays"], wrong=done["wrong"], beside=beside)


PARTS = {"threads": threads, "alone": alone, "killed": killed, "rate": rate, "long": long}


if __name__ == "__main__":
    sys.exit(main(PARTS))
