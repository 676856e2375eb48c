"""What parts of CUPTI cost a launch-bound training loop, on a host with a GPU; it needs PyTorch and a C compiler.

    python kernels_test/gpu_costs.py [--rounds N] [--processors 2,4,6,8] [PART+PART…] …

Each line of parts is measured in a process of its own: rounds of the loop with these parts on, then off again, then
after cuptiFinalize, which is as if CUPTI had never been there. Prints one line of JSON each: µs per iteration, ratios
to the loop after cuptiFinalize (quartiles), and ns per call of some functions, the least of all. Parts:

    serial                      records of kernels that may not run at once
    pinned, one, large, zeroed  CUPTI's buffers for the GPU in the host's memory; ours not by thread; 64 MB for the GPU;
                                ours are zero when it gets them
    hardware                    the GPU's own events, where it has them
    kernels, copies, waits      activity records of kernels; of copies and sets; of synchronisation
    clock                       CLOCK_MONOTONIC as CUPTI's clock
    launches                    callbacks at the driver's functions that launch
    calls                       records of these calls, without a subscription
    flush                       ten flushes a second
    helper                      the GPU helper, with nobody's probes
    nothing
"""

from __future__ import annotations

import argparse
import ctypes
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE)]

DEFAULT = ("nothing", "kernels", "copies", "waits", "launches", "launches+kernels", "calls+kernels")
DEFAULT += ("launches+kernels+copies+clock+flush", "launches+kernels+copies+waits+clock+flush", "helper")
ATTRIBUTES: dict[str, tuple[int, Any]] = {
    "pinned": (8, ctypes.c_uint8(1)),
    "one": (9, ctypes.c_uint8(0)),
    "large": (0, ctypes.c_size_t(64 << 20)),
    "zeroed": (5, ctypes.c_uint8(1)),
}
"""CUpti_ActivityAttribute, and what it is set to."""

KINDS = {"kernels": (10,), "serial": (3,), "copies": (1, 2, 22), "waits": (38,), "calls": (4,)}
LAUNCHING = (b"cuLaunch", b"cuGraphLaunch", b"cuMemcpy", b"cuMemset")
DRIVER, RUNTIME = 1, 2
ACTIVE, DORMANT = 2, 0
LOOP = 60
LAUNCHES = 300


class Parts:
    """Turns parts of CUPTI on and off in this process."""

    def __init__(self, parts: set[str], native: ctypes.CDLL, work: Any) -> None:
        maps = Path("/proc/self/maps").read_text().splitlines()
        self._parts = parts
        self._native = native
        self._work = work
        self._cupti = ctypes.CDLL(next(line.split()[-1] for line in maps if "libcupti.so" in line))
        self._subscriber = ctypes.c_void_p()
        self._failed: list[str] = []
        used = ("cuptiActivityGetNextRecord", "cuptiActivityFlushAll", "cuptiFinalize")
        native.costs_use(*(_address(getattr(self._cupti, name)) for name in used))
        self._helper = ctypes.CDLL(str(ROOT / "rlscope_ebpf" / "librlscope_cupti.so"))

    @property
    def failed(self) -> list[str]:
        """Calls of CUPTI that did not work."""
        return self._failed

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(self._cupti, name)(*arguments)
        if result:
            self._failed.append(f"{name}{arguments}: {result}")

    def _functions(self, prefixes: tuple[bytes, ...]) -> list[int]:
        name = ctypes.c_char_p()
        found = []
        for number in range(1, 2048):
            name.value = None
            if self._cupti.cuptiGetCallbackName(DRIVER, number, ctypes.byref(name)):
                continue
            if name.value and name.value.startswith(prefixes):
                found.append(number)
        return found

    def _subscribe(self) -> None:
        self._call("cuptiSubscribe", ctypes.byref(self._subscriber), _address(self._native.costs_called), None)

    def _kinds(self) -> list[int]:
        return [kind for part, kinds in KINDS.items() if part in self._parts for kind in kinds]

    def on(self) -> None:
        if "helper" in self._parts:
            self._native.costs_listen(_address(self._helper.rlscope_gpu_records), 1)
            self._helper.rlscope_gpu_start(0, 0)
            self._wait_for(ACTIVE)
            return
        if "launches" in self._parts:
            self._subscribe()
        if "clock" in self._parts:
            self._call("cuptiActivityRegisterTimestampCallback", _address(self._native.costs_clock))
        for part, (attribute, value) in ATTRIBUTES.items():
            if part in self._parts:
                size = ctypes.c_size_t(ctypes.sizeof(value))
                set_to = ctypes.byref(size), ctypes.byref(value)
                self._call("cuptiActivitySetAttribute", attribute, *set_to)
        if "hardware" in self._parts:
            self._call("cuptiActivityEnableHWTrace", ctypes.c_uint8(1))
        if self._kinds():
            callbacks = (_address(self._native.costs_request), _address(self._native.costs_complete))
            self._call("cuptiActivityRegisterCallbacks", *callbacks)
        for kind in self._kinds():
            self._call("cuptiActivityEnable", kind)
        launching = set(self._functions(LAUNCHING))
        if "calls" in self._parts:
            for function in set(self._functions((b"cu",))) - launching:
                self._cupti.cuptiActivityEnableDriverApi(function, ctypes.c_uint8(0))
        if "launches" in self._parts:
            for function in launching:
                self._call("cuptiEnableCallback", 1, self._subscriber, DRIVER, function)
        self._native.costs_flush(int("flush" in self._parts))

    def off(self) -> None:
        """As far as it goes without cuptiFinalize, which the helper uses by itself."""
        if "helper" in self._parts:
            self._helper.rlscope_gpu_stop()
            self._wait_for(DORMANT)
            self._native.costs_listen(_address(self._helper.rlscope_gpu_records), 0)
            return
        self._native.costs_flush(0)
        if self._subscriber.value:
            for function in self._functions(LAUNCHING):
                self._call("cuptiEnableCallback", 0, self._subscriber, DRIVER, function)
        for kind in self._kinds():
            self._call("cuptiActivityDisable", kind)
        if self._kinds():
            self._call("cuptiActivityFlushAll", 1)
        if self._subscriber.value:
            self._call("cuptiUnsubscribe", self._subscriber)
            self._subscriber.value = None

    def finalize(self) -> None:
        """In the exit of a call, while nothing else is done."""
        if self._parts & {"helper", "nothing"}:
            return
        self._subscribe()
        self._native.costs_want_finalize()
        for domain in (RUNTIME, DRIVER):
            self._call("cuptiEnableDomain", 1, self._subscriber, domain)
        self._work.synchronize()
        if not self._native.costs_finalized():
            self._failed.append("cuptiFinalize was not called")
        self._subscriber.value = None

    def finalized(self) -> int:
        """How often the helper did so itself."""
        return int(self._state()[11])

    def _state(self) -> Any:
        return (ctypes.c_uint32 * 14).in_dll(self._helper, "rlscope_gpu_state")

    def _wait_for(self, state: int) -> None:
        deadline = time.monotonic() + 10
        while self._state()[4] != state:
            self._work.iteration()
            if time.monotonic() > deadline:
                raise RuntimeError(f"the helper is in state {self._state()[4]}, not {state}")


def _address(function: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(ctypes.cast(function, ctypes.c_void_p).value)


def _iterations(work: Any, count: int) -> float:
    begin = time.perf_counter()
    for number in range(count):
        work.iteration()
        if number % 20 == 0:
            work.synchronize()
    work.synchronize()
    return (time.perf_counter() - begin) / count * 1e6


def _calls(native: ctypes.CDLL, work: Any) -> dict[str, float]:
    """ns per call."""
    driver = ctypes.CDLL("libcuda.so.1")
    native.costs_time.restype = ctypes.c_double
    number = ctypes.c_int()
    none = ctypes.c_void_p()
    times = {}
    for name in ("cuCtxGetDevice", "cuCtxGetCurrent", "cuCtxSynchronize"):
        word = ctypes.byref(ctypes.c_void_p()) if name == "cuCtxGetCurrent" else ctypes.byref(number)
        times[name] = round(native.costs_time(_address(getattr(driver, name)), word, none, none, 2000), 1)
    work.synchronize()
    if work.can_spin:
        times["launch"] = min(_launch_ns(work) for _ in range(15))
    return times


def _launch_ns(work: Any) -> float:
    """An empty kernel's launch, which waits for nothing: so many fit into the queue."""
    begin = time.perf_counter()
    work.spin(LAUNCHES, 0)
    took = time.perf_counter() - begin
    work.synchronize()
    return round(took / LAUNCHES * 1e9, 1)


def measure(parts: str, native: ctypes.CDLL, rounds: int, spin: str) -> dict[str, Any]:
    """One line."""
    from gpu_loop import TorchWork

    work = TorchWork(spin)
    print("READY", flush=True)
    sys.stdin.readline()
    switch = Parts(set(parts.split("+")), native, work)
    calls: dict[str, dict[str, float]] = {}
    us: dict[str, list[float]] = {}

    def take(what: str, count: int = 1) -> None:
        _iterations(work, 10)
        us.setdefault(what, []).extend(_iterations(work, LOOP) for _ in range(count))
        for name, ns in _calls(native, work).items():
            calls.setdefault(what, {})[name] = min(ns, calls.get(what, {}).get(name, ns))

    _iterations(work, 300)
    take("before", 8)
    for _ in range(rounds):
        switch.on()
        take("on")
        switch.off()
        take("off")
        switch.finalize()
        take("finalized")
    base = us["finalized"] if parts != "helper" else [statistics.median(us["off"])] * rounds
    ratios = {
        what: [round(ratio, 3) for ratio in statistics.quantiles(map(_ratio, us[what], base), n=4)]
        for what in ("on", "off")
    }
    return {
        "parts": parts,
        "us": {what: round(statistics.median(values), 1) for what, values in us.items()},
        "ratio": ratios,
        "ns": calls,
        "records": int(native.costs_records()),
        "helper_finalized": switch.finalized(),
        "failed": list(dict.fromkeys(switch.failed))[:3],
    }


def _ratio(value: float, base: float) -> float:
    return value / base


def build_spin(folder: Path) -> str:
    """Kernels of the time that they are told; "" without CUDA's compiler."""
    from gpu_host import SPIN

    compiler = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    source, library = folder / "spin.cu", folder / "libspin.so"
    source.write_text(SPIN)
    words = [compiler, "-O2", "-arch=native", "-shared", "-Xcompiler", "-fPIC", "-o", str(library), str(source)]
    try:
        subprocess.run(words, check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return ""
    return str(library)


def build(folder: Path) -> Path:
    """The part in C."""
    library = folder / "libcosts.so"
    source = HERE / "native" / "cupti_costs.c"
    words = ["cc", "-O2", "-shared", "-fPIC", "-pthread", f"-I{ROOT / 'userspace'}", str(source), "-o", str(library)]
    subprocess.run(words, check=True)
    return library


def main() -> int:
    from gpu_host import never_idle, pin

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", default=DEFAULT)
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--processors", default="", help="the loops run on these alone, and they never idle")
    parser.add_argument("--library", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--spin", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.library:
        native = ctypes.CDLL(str(options.library))
        native.costs_records.restype = ctypes.c_uint64
        print(json.dumps(measure(options.parts[0], native, options.rounds, options.spin)))
        return 0
    processors = set(map(int, filter(None, options.processors.split(","))))
    with tempfile.TemporaryDirectory() as folder, never_idle(processors):
        words = [sys.executable, __file__, "--rounds", str(options.rounds), "--library", str(build(Path(folder)))]
        words += ["--spin", build_spin(Path(folder))]
        started = [
            subprocess.Popen([*words, parts], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for parts in options.parts
        ]
        for process in started:  # all begin at once, and then wait for their turn
            if process.stdout is not None:
                process.stdout.readline()
            pin(process.pid, processors)
        for parts, process in zip(options.parts, started, strict=True):
            answer, _ = process.communicate("go\n", timeout=120)
            print(answer.strip() or json.dumps({"parts": parts, "status": process.returncode}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
