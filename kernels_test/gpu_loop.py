"""A process that uses a GPU and does what it is told, line by line; `gpu_host.py` measures on it.

    python gpu_loop.py [--simulated] [--spin LIBRARY]

It prints `READY pid`, and for each line on stdin `DONE json`:

    loop N             N iterations of a launch-bound training loop
    steady             the same until the next line, which ends it; a line `STEADY` first, and `RATE json` every second
    ppo N              N steps of Stable-Baselines3's PPO on CartPole, on the GPU
    train NAME         PPO or A2C of Stable-Baselines3 on CartPole, on the GPU, until the next line; `STEADY` first
    graphs NODES [N]   replay a graph of so many small kernels until the next line, at most N times a second; `STEADY`
                       first, and `RATE json`
    replays N          the same N times
    threads N KIND     from now on N threads launch by themselves, KIND: eager, graph, matmul (a graph with products),
                       shared (the same, all captured on one stream); 0: they end, and say how many of their results
                       were wrong
    mixed N            N times five kernels that run for 5, 10, 20, 50 and 100 us
    spin N NS          N kernels one after the other that each run for NS nanoseconds
    profile WHAT LINE  LINE under torch.profiler; WHAT: cuda, or both (CPU and CUDA)
    cupti LINE         LINE with records taken by cupti-python
    heard FILE         start the helper, and have it believe that somebody listens; unheard FILE: not any more
    helper FILE        load the GPU helper, or find it, and start it; `!helper FILE` while something goes on, unanswered

Times are of CLOCK_MONOTONIC; `launched` are kernels, where their number is known. What goes on until the next line
tells `windows`, too: when each of some 50 ms ended (train: each cycle), and how long an iteration in it took, in us.
`--simulated`: no real GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

import rlscope_ebpf.markers as rls

SYNCHRONISE_EVERY = 20
PATIENCE_MS = 20_000
WINDOW_S = 0.05
MIXED_NS = (5_000, 10_000, 20_000, 50_000, 100_000)
CYCLES = {"PPO": 1, "A2C": 50}  # rollouts that make one window
THREAD_KERNELS = 32
GRAPHS_TOGETHER = 50
REPLAYED_NODES = 20
PUSH_POP, NOTHING = b"\x55\x5d", b"\x90\x90"
"""What the helper's function begins with, and what does as little: something else means that somebody listens."""


class Windows:
    """How long iterations take, window by window."""

    def __init__(self, seconds: float = WINDOW_S) -> None:
        self.found: list[tuple[int, float]] = []
        self._seconds = seconds
        self._count = 0
        self._begin = time.monotonic()

    def count(self, iterations: int = 1) -> None:
        """So many are done."""
        self._count += iterations
        now = time.monotonic()
        if now - self._begin >= self._seconds:
            self.found.append((time.monotonic_ns(), round((now - self._begin) / self._count * 1e6, 2)))
            self._begin, self._count = now, 0


class SimulatedGraph:
    """A graph of the simulated driver."""

    def __init__(self, cuda: Any, kernel: Any, nodes: int) -> None:
        class Parameters(ctypes.Structure):
            _fields_ = (("func", ctypes.c_void_p), ("rest", ctypes.c_uint32 * 24))

        graph, self._executable, self._cuda = ctypes.c_void_p(), ctypes.c_void_p(), cuda
        parameters = Parameters(ctypes.addressof(kernel))
        cuda.cuGraphCreate(ctypes.byref(graph), 0)
        for _ in range(nodes):
            node = ctypes.c_void_p()
            cuda.cuGraphAddKernelNode_v2(ctypes.byref(node), graph, None, 0, ctypes.byref(parameters))
        cuda.cuGraphInstantiateWithFlags(ctypes.byref(self._executable), graph, ctypes.c_ulonglong(0))

    def replay(self) -> None:
        self._cuda.cuGraphLaunch(self._executable, None)

    def synchronize(self) -> None:
        self._cuda.cuCtxSynchronize()

    def is_wrong(self, replays: int) -> bool:
        return False


class TorchGraph:
    """Kernels that add one to each number of a tensor, so it is known what comes of them; or such and products."""

    def __init__(self, torch: Any, nodes: int, *, products: bool = False, shared: bool = False) -> None:
        self._torch = torch
        self._stream = torch.cuda.Stream()
        on = torch.cuda.graphs.graph.default_capture_stream if shared else self._stream
        self._nodes = nodes
        with torch.cuda.stream(self._stream):
            self._sum = torch.zeros(256, dtype=torch.float64, device="cuda")
            self._a = torch.randn(512, 4096, device="cuda") if products else None
            self._b = torch.randn(4096, 64, device="cuda") if products else None
            self._expected = self._product() if products else None
        self._stream.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=on, capture_error_mode="thread_local"):
            for _ in range(nodes):
                self._sum.add_(1)
            if products:
                self._result = self._product()

    def _product(self) -> Any:
        found = self._a @ self._b
        return found @ self._torch.ones(64, 64, device="cuda")

    def replay(self) -> None:
        with self._torch.cuda.stream(self._stream):
            self._graph.replay()

    def synchronize(self) -> None:
        self._stream.synchronize()

    def is_wrong(self, replays: int) -> bool:
        """After so many since the last look."""
        with self._torch.cuda.stream(self._stream):
            wrong = bool((self._sum != self._nodes * replays).any().item())
            if self._expected is not None:
                wrong |= not self._torch.allclose(self._result, self._expected, rtol=1e-3, atol=1e-2)
            self._sum.zero_()
        self._stream.synchronize()
        return wrong


class Eager:
    """The same launched one by one."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._stream = torch.cuda.Stream()
        with torch.cuda.stream(self._stream):
            self._sum = torch.zeros(256, dtype=torch.float64, device="cuda")

    def replay(self) -> None:
        with self._torch.cuda.stream(self._stream):
            for _ in range(THREAD_KERNELS):
                self._sum.add_(1)

    def synchronize(self) -> None:
        self._stream.synchronize()

    def is_wrong(self, replays: int) -> bool:
        with self._torch.cuda.stream(self._stream):
            wrong = bool((self._sum != THREAD_KERNELS * replays).any().item())
            self._sum.zero_()
        self._stream.synchronize()
        return wrong


class SimulatedEager:
    """Launches of the simulated driver."""

    def __init__(self, work: SimulatedWork) -> None:
        self._work = work

    def replay(self) -> None:
        self._work.launch(THREAD_KERNELS)

    def synchronize(self) -> None:
        self._work.synchronize()

    def is_wrong(self, replays: int) -> bool:
        return False


class SimulatedWork:
    """The simulated driver: 30 kernels an iteration, 14 of them by a library's thread."""

    def __init__(self) -> None:
        import build as simcuda_build

        folder = simcuda_build.native()
        self._cuda = ctypes.CDLL(str(folder / "libcuda.so.1"))
        self._worker = ctypes.CDLL(str(folder / "libworker.so"))
        self._kernel, self._spin = ctypes.create_string_buffer(1), ctypes.create_string_buffer(1)
        self._cuda.simcuda_set_kernel(self._kernel, b"kernel", ctypes.c_int64(2000))
        self._cuda.cuInit(0)

    def iteration(self) -> None:
        with rls.operation("forward"):
            self._launch(self._kernel, 10)
        with rls.operation("backward"):
            self._worker.worker_run(self._kernel, *map(ctypes.c_int64, (14, 0, 1)))
        with rls.operation("step"):
            self._launch(self._kernel, 6)

    def launch(self, count: int) -> None:
        self._launch(self._kernel, count)

    def graph(self, nodes: int, *, products: bool = False, shared: bool = False) -> Any:
        return SimulatedGraph(self._cuda, self._kernel, nodes)

    def eager(self) -> Any:
        return SimulatedEager(self)

    def spin(self, count: int, ns: int) -> None:
        self._cuda.simcuda_set_kernel(self._spin, b"rlscope_spin", ctypes.c_int64(ns))
        self._launch(self._spin, count)

    def synchronize(self) -> None:
        self._cuda.cuCtxSynchronize()

    def _launch(self, kernel: Any, count: int) -> None:
        for _ in range(count):
            self._cuda.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None)


class TorchWork:
    """A small network trained on the GPU: launch-bound."""

    def __init__(self, spin: str) -> None:
        import torch

        self._torch = torch
        self._library = ctypes.CDLL(spin) if spin else None
        torch.manual_seed(0)
        layers = torch.nn
        self._net = layers.Sequential(
            layers.Linear(512, 1024), layers.ReLU(), layers.Linear(1024, 1024), layers.ReLU(), layers.Linear(1024, 64)
        ).cuda()
        self._optimizer = torch.optim.Adam(self._net.parameters())
        self._x = torch.randn(256, 512, device="cuda")
        self._y = torch.randn(256, 64, device="cuda")
        for _ in range(100):
            self.iteration()
        self.synchronize()

    def iteration(self) -> None:
        with rls.operation("forward"):
            loss = self._torch.nn.functional.mse_loss(self._net(self._x), self._y)
        with rls.operation("backward"):
            self._optimizer.zero_grad()
            loss.backward()
        with rls.operation("step"):
            self._optimizer.step()

    def graph(self, nodes: int, *, products: bool = False, shared: bool = False) -> Any:
        return TorchGraph(self._torch, nodes, products=products, shared=shared)

    def eager(self) -> Any:
        return Eager(self._torch)

    @property
    def can_spin(self) -> bool:
        """Whether there is a library for that."""
        return self._library is not None

    def spin(self, count: int, ns: int) -> None:
        if self._library is None:
            raise RuntimeError("there is no library whose kernels spin")
        if self._library.spin(ctypes.c_int(count), ctypes.c_ulonglong(ns)):
            raise RuntimeError("a kernel that spins was not launched")

    def synchronize(self) -> None:
        self._torch.cuda.synchronize()


class Commands:
    """What the lines mean."""

    def __init__(self, work: Any, lines: queue.Queue[str | None]) -> None:
        self._work = work
        self._lines = lines
        self._model: Any = None
        self._graph: Any = None
        self._running: list[threading.Thread] = []
        self._end = threading.Event()
        self._making = threading.Lock()  # one captures at a time
        self._made: list[dict[str, Any]] = []

    def do(self, line: str) -> dict[str, Any]:
        word, *rest = line.split()
        command: Callable[..., dict[str, Any]] = getattr(self, f"_{word}")
        return command(*rest)

    def _loop(self, count: str) -> dict[str, Any]:
        return self._timed(lambda: self._iterations(int(count)), iterations=int(count))

    def _iterations(self, count: int) -> None:
        with rls.operation("train"):
            for number in range(count):
                self._work.iteration()
                if number % SYNCHRONISE_EVERY == 0:
                    self._work.synchronize()

    def _ppo(self, steps: str) -> dict[str, Any]:
        if self._model is None:
            from stable_baselines3 import PPO

            self._model = PPO("MlpPolicy", "CartPole-v1", n_steps=512, device="cuda", seed=0)
        model = self._model
        return self._timed(lambda: model.learn(int(steps), reset_num_timesteps=False), steps=int(steps))

    def _spin(self, count: str, ns: str) -> dict[str, Any]:
        def spin() -> None:
            with rls.operation("spin"):
                self._work.spin(int(count), int(ns))

        return self._timed(spin, launched=int(count), set_ns=int(ns))

    def _timed(self, work: Callable[[], None], **more: int) -> dict[str, Any]:
        start = time.monotonic_ns()
        work()
        self._work.synchronize()
        end = time.monotonic_ns()
        return {"start_ns": start, "end_ns": end, "seconds": (end - start) / 1e9, **more}

    def _steady(self) -> dict[str, Any]:
        print("STEADY", flush=True)
        begin = last = time.monotonic()
        total = count = 0
        worst = longest = 0.0
        windows = Windows()
        with rls.operation("train"):
            while self._lines.empty():
                start = time.monotonic()
                self._work.iteration()
                total, count = total + 1, count + 1
                if total % SYNCHRONISE_EVERY == 0:
                    self._work.synchronize()
                windows.count()
                now = time.monotonic()
                longest, worst = max(longest, now - start), max(worst, now - start)
                if now - last >= 1:
                    rate = {"time_ns": time.monotonic_ns(), "per_s": count / (now - last), "longest_ms": longest * 1e3}
                    print("RATE", json.dumps(rate), flush=True)
                    last, count, longest = now, 0, 0.0
        self._work.synchronize()
        seconds = time.monotonic() - begin
        each = {"iterations": total, "per_s": total / seconds, "longest_ms": worst * 1e3}
        return each | {"windows": windows.found}

    def _graphs(self, nodes: str, most: str = "0") -> dict[str, Any]:
        graph = self._work.graph(int(nodes))
        print("STEADY", flush=True)
        last = begin = time.monotonic()
        total = count = wrong = 0
        windows = Windows()
        with rls.operation("replay"):
            while self._lines.empty():
                for _ in range(GRAPHS_TOGETHER):
                    graph.replay()
                graph.synchronize()
                wrong += graph.is_wrong(GRAPHS_TOGETHER)
                count += GRAPHS_TOGETHER
                if int(most):
                    time.sleep(max(0.0, begin + (total + count) / int(most) - time.monotonic()))
                windows.count(GRAPHS_TOGETHER)
                now = time.monotonic()
                if now - last >= 1:
                    total += count
                    rate = {"time_ns": time.monotonic_ns(), "per_s": count / (now - last), "longest_ms": 0.0}
                    print("RATE", json.dumps(rate | {"replays": total, "wrong": wrong}), flush=True)
                    last, count = now, 0
        total += count
        seconds = time.monotonic() - begin
        each = {"replays": total, "launched": total * int(nodes), "wrong": wrong, "seconds": seconds}
        return each | {"windows": windows.found}

    def _replays(self, count: str) -> dict[str, Any]:
        if self._graph is None:
            self._graph = self._work.graph(REPLAYED_NODES)

        def replay() -> None:
            for _ in range(int(count)):
                self._graph.replay()
            self._graph.synchronize()

        return self._timed(replay, launched=int(count) * REPLAYED_NODES)

    def _train(self, name: str) -> dict[str, Any]:
        import stable_baselines3
        from stable_baselines3.common.callbacks import BaseCallback

        windows = Windows(0)
        lines = self._lines
        every = CYCLES[name]

        class Watch(BaseCallback):
            rollouts = 0

            def _on_step(self) -> bool:
                return lines.empty()

            def _on_rollout_start(self) -> None:
                self.rollouts += 1
                if self.rollouts % every == 0:
                    windows.count(every)

        options = {"n_steps": 512} if name == "PPO" else {}
        model = getattr(stable_baselines3, name)("MlpPolicy", "CartPole-v1", device="cuda", seed=0, **options)
        model.learn(2048)
        print("STEADY", flush=True)
        watch = Watch()
        begin, steps = time.monotonic(), model.num_timesteps
        model.learn(1 << 40, callback=watch, reset_num_timesteps=False)
        seconds = time.monotonic() - begin
        return {"steps_per_s": (model.num_timesteps - steps) / seconds, "windows": windows.found}

    def _threads(self, number: str, kind: str = "eager") -> dict[str, Any]:
        if int(number):
            self._end = threading.Event()
            self._made = [{"replays": 0, "wrong": 0} for _ in range(int(number))]
            self._running = [threading.Thread(target=self._beside, args=(kind, made)) for made in self._made]
            started = time.monotonic()
            for thread in self._running:
                thread.start()
            while not all(made["replays"] for made in self._made) and time.monotonic() < started + 30:
                time.sleep(0.01)
            return {"threads": int(number)}
        self._end.set()
        for thread in self._running:
            thread.join()
        return {"threads": 0, "made": self._made, "wrong": sum(made["wrong"] for made in self._made)}

    def _beside(self, kind: str, made: dict[str, Any]) -> None:
        try:
            with self._making:
                if kind == "eager":
                    work = self._work.eager()
                else:
                    work = self._work.graph(32, products=kind in ("matmul", "shared"), shared=kind == "shared")
            while not self._end.is_set():
                for _ in range(10):
                    work.replay()
                work.synchronize()
                made["wrong"] += work.is_wrong(10)
                made["replays"] += 10
        except Exception as error:
            made["error"] = repr(error)

    def _mixed(self, count: str) -> dict[str, Any]:
        def spin() -> None:
            with rls.operation("mixed"):
                for _ in range(int(count)):
                    for ns in MIXED_NS:
                        self._work.spin(1, ns)

        return self._timed(spin, launched=int(count) * len(MIXED_NS), set_ns=int(count) * sum(MIXED_NS))

    def _profile(self, what: str, *line: str) -> dict[str, Any]:
        from torch.autograd import DeviceType
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CUDA] + ([ProfilerActivity.CPU] if what == "both" else [])
        begin = time.monotonic()
        with profile(activities=activities) as profiler:
            done = self.do(" ".join(line))
        done["seconds_with_stop"] = time.monotonic() - begin
        if what == "both":
            return done
        names: dict[str, list[float]] = {}
        for event in profiler.events() or []:
            if event.device_type == DeviceType.CUDA and not event.name.lower().startswith(("memcpy", "memset")):
                names.setdefault(event.name, []).append(event.time_range.end - event.time_range.start)
        return done | sums({name: (len(times), sum(times) * 1e3) for name, times in names.items()})

    def _cupti(self, *line: str) -> dict[str, Any]:
        from cupti import cupti

        kernels: dict[str, list[int]] = {}

        def completed(activities: list[Any]) -> None:
            for activity in activities:
                kernels.setdefault(activity.name, []).append(activity.end - activity.start)

        cupti.activity_register_callbacks(lambda: (8 << 20, 0), completed)
        cupti.activity_enable(cupti.ActivityKind.CONCURRENT_KERNEL)
        begin = time.monotonic()
        try:
            done = self.do(" ".join(line))
        finally:
            cupti.activity_flush_all(1)
            cupti.activity_disable(cupti.ActivityKind.CONCURRENT_KERNEL)
        done["seconds_with_stop"] = time.monotonic() - begin
        return done | sums({name: (len(times), sum(times)) for name, times in kernels.items()})

    def _helper(self, path: str) -> dict[str, Any]:
        return {"state": _helper_library(path).rlscope_gpu_start(0, PATIENCE_MS)}

    def _heard(self, path: str) -> dict[str, Any]:
        _write(_helper_library(path).rlscope_gpu_records, NOTHING)
        return self._helper(path)

    def _unheard(self, path: str) -> dict[str, Any]:
        _write(_helper_library(path).rlscope_gpu_records, PUSH_POP)
        return {}


def _helper_library(path: str) -> ctypes.CDLL:
    maps = Path("/proc/self/maps").read_text().splitlines()
    found = [line.split(None, 5)[5].strip() for line in maps if "librlscope_cupti" in line]
    return ctypes.CDLL(found[0] if found else path)


def _write(function: Any, code: bytes) -> None:
    """What a function begins with."""
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(ctypes.cast(function, ctypes.c_void_p).value or 0)
        memory.write(code)


def sums(kernels: dict[str, tuple[int, float]]) -> dict[str, Any]:
    """Kernels, by name: how many, and how long in all, ns."""
    spins = [value for name, value in kernels.items() if "rlscope_spin" in name]
    return {
        "kernels": sum(count for count, _ in kernels.values()),
        "kernels_ns": sum(ns for _, ns in kernels.values()),
        "spin_kernels": sum(count for count, _ in spins),
        "spin_ns": sum(ns for _, ns in spins),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--simulated", action="store_true", help="on the simulated CUDA")
    parser.add_argument("--spin", default="", help="a library with spin(count, ns)")
    options = parser.parse_args()
    work = SimulatedWork() if options.simulated else TorchWork(options.spin)
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in map(str.strip, sys.stdin):
            if line.startswith("!"):
                commands.do(line[1:])
            else:
                lines.put(line)
        lines.put(None)

    commands = Commands(work, lines)
    threading.Thread(target=read, daemon=True).start()
    print(f"READY {os.getpid()}", flush=True)
    while (line := lines.get()) is not None:
        try:
            done = commands.do(line)
        except Exception as error:
            done = {"error": f"{type(error).__name__}: {error}", "where": traceback.format_exc().splitlines()[-4:]}
        print("DONE", json.dumps(done), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
