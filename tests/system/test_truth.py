"""Programs that know where their time went, and the profiler's report of them."""

from __future__ import annotations

import glob
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness import TRUTH, Profiler, Program, build, compare, interpreters, report, until_it_agrees

pytestmark = pytest.mark.system

Attach = Callable[..., tuple[Profiler, Path]]
StartTarget = Callable[..., Program]

# Stretches so long that the probes' own time, which is not corrected here, stays far below the tolerance.
FULL = ("--seconds", "9", "--rate", "300", "--shortest", "2000")
SHORT = ("--seconds", "5", "--rate", "300", "--shortest", "2000")

# New kernels take up to a second to remove one perf-event probe, so here are few: two libraries, no binding modules.
PERF_LIBRARIES = ("--library", "simulator=*libtruth_simulator.so", "--library", "backend=*libtruth_backend.so")
PERF_SCENARIOS = (
    *("ctypes_released", "ctypes_held", "cffi", "binding", "recursion", "cross", "longjmps", "native_threads"),
    *("nesting", "decorated", "sleep", "threads", "open_before", "open_at_end"),
)
DETACH_S = 120.0


def _expect_truth(
    python: str, work: tuple[str, ...], options: tuple[str, ...], start_target: StartTarget, attach: Attach
) -> dict[str, Any]:
    return until_it_agrees(lambda: _try_truth(python, work, options, start_target, attach))


def _try_truth(
    python: str, work: tuple[str, ...], options: tuple[str, ...], start_target: StartTarget, attach: Attach
) -> tuple[dict[str, Any], list[Any]]:
    target = start_target(python, TRUTH, *work, realtime=True)
    profiler, trace = attach(target, *options)
    target.go()
    truth = target.truth()
    target.finish()
    assert profiler.wait(DETACH_S) == 0, profiler.stderr
    document = report(trace)
    assert document["session"]["complete"]
    assert document["session"]["probes_armed"] == document["session"]["probes_attached"] > 0
    # What the truth is unsure of is allowed for; it must not be what the comparison then consists of.
    assert sum(row["unsure_ns"] for row in truth["operations"]) < 0.05 * truth["elapsed_ns"]
    return truth, compare.compare(truth, document)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("python", interpreters().values(), ids=interpreters())
def test_every_interpreter(python: str, start_target: StartTarget, attach: Attach) -> None:
    truth = _expect_truth(python, FULL, (), start_target, attach)
    paths = {"/".join(row["path"]) for row in truth["operations"]}
    assert {"ctypes_released", "extension/world", "callback_binding/marked", "worker-7/act", "late"} <= paths
    if python == sys.executable:
        assert not truth["skipped"]  # this environment has every kind of binding


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("method", ["session", "multi"])
def test_every_attach_method(method: str, start_target: StartTarget, attach: Attach) -> None:
    _expect_truth(sys.executable, SHORT, ("--attach-method", method), start_target, attach)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_perf_events(start_target: StartTarget, attach: Attach) -> None:
    work = [word for name in PERF_SCENARIOS for word in ("--scenario", name)]
    options = ("--attach-method", "perf")
    _expect_truth(sys.executable, (*SHORT, *work), options, start_target, partial(attach, libraries=PERF_LIBRARIES))


def test_no_interpreter_is_left_out() -> None:
    tested = {os.path.realpath(path) for path in interpreters().values()}
    present = glob.glob(os.path.expanduser("~/.pyenv/versions/3.1[0-3]*/bin/python3"))
    assert {os.path.realpath(path) for path in (*present, sys.executable)} <= tested


BLOCKED_IN_READ = """
import os, sys, threading, time
import rlscope_ebpf.markers as rls
print("READY", os.getpid(), flush=True)
sys.stdin.readline()
receive, send = os.pipe()
threading.Timer(1.0, os.write, (send, b"x")).start()
with rls.operation("blocked"):
    os.read(receive, 1)
"""


@pytest.mark.parametrize("python", interpreters().values(), ids=interpreters())
def test_time_blocked_in_a_read_is_not_python(python: str, start_target: StartTarget, attach: Attach) -> None:
    """Also where the interpreter has the release of its lock inlined (built with link-time optimisation): no probe sees
    it there, but the scheduler does."""
    target = start_target(python, "-c", BLOCKED_IN_READ)
    profiler, trace = attach(target)
    target.go()
    target.finish()
    assert profiler.wait() == 0
    (process,) = report(trace)["processes"]
    (operation,) = [row for row in process["operations"] if row["path"] == ["blocked"]]
    assert operation["raw"]["cpu_ns"]["other"] > 0.9e9


WANT_THE_LOCK = """
import os, sys, threading, time
import rlscope_ebpf.markers as rls
print("READY", os.getpid(), flush=True)
sys.stdin.readline()
end = time.monotonic() + 2
def work():
    with rls.operation("work"):
        while time.monotonic() < end:
            pass
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.parametrize("python", interpreters().values(), ids=interpreters())
def test_waiting_for_the_interpreter_lock_is_not_python(python: str, start_target: StartTarget, attach: Attach) -> None:
    """Who wants it back in the middle of a loop passes no probe."""
    target = start_target(python, "-c", WANT_THE_LOCK, realtime=True)
    profiler, trace = attach(target)
    target.go()
    target.finish()
    assert profiler.wait() == 0
    (process,) = report(trace)["processes"]
    (operation,) = [row for row in process["operations"] if row["path"] == ["work"]]
    raw = operation["raw"]
    # One of the four runs Python at a time; the others look for the lock every 5 ms, and may wait for a processor then.
    assert 0.2 * raw["wall_ns"] < raw["cpu_ns"]["python"] < 0.5 * raw["wall_ns"]
    assert raw["cpu_ns"]["python"] + raw["cpu_ns"]["other"] == raw["wall_ns"]


NEVER_RELEASES = """
import ctypes, os, sys, threading, time
simulator = ctypes.PyDLL(sys.argv[1])
simulator.sim_spin.argtypes = [ctypes.c_int64]
def work():
    start = time.monotonic()
    while time.monotonic() < start + float(sys.argv[2]):
        simulator.sim_spin(1_000_000)
        end = time.monotonic() + 0.002
        while time.monotonic() < end:
            pass
thread = threading.Thread(target=work)
if sys.argv[3] == "thread":
    thread.start()
    print("READY", os.getpid(), flush=True)
    thread.join()
else:
    print("READY", os.getpid(), flush=True)
    work()
"""


@pytest.mark.parametrize("where", ["main", "thread"])
@pytest.mark.parametrize("python", interpreters().values(), ids=interpreters())
def test_a_thread_that_never_releases_the_lock_runs_python(
    python: str, where: str, start_target: StartTarget, attach: Attach
) -> None:
    """It took the lock before the attach, so that no probe ever says that it holds it."""
    target = start_target(
        python, "-c", NEVER_RELEASES, build.native() / "libtruth_simulator.so", "60", where, realtime=True
    )
    profiler, trace = attach(target, libraries=("--library", "simulator=*libtruth_simulator.so"))
    time.sleep(3)
    assert profiler.stop() == 0
    (process,) = report(trace)["processes"]
    (row,) = process["operations"]
    cpu_ns = row["raw"]["cpu_ns"]
    # It runs Python twice as long as the simulator, but for the time until it is first found there by the clock.
    assert 0 < cpu_ns["simulator"] < cpu_ns["python"]
    assert row["transitions"]["python_to_simulator"] > 5 * row["transitions"].get("other_to_simulator", 0)
