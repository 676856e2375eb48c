"""A process that uses a GPU and does what it is told, line by line; `gpu_host.py` measures on it.

    python gpu_loop.py [--simulated] [--spin LIBRARY]

It prints `READY pid`, and for each line on stdin `DONE json`:

    loop N             N iterations of a launch-bound training loop
    steady             the same until the next line, which ends it; a line `STEADY` first, and `RATE json` every second
    ppo N              N steps of Stable-Baselines3's PPO on CartPole, on the GPU
    spin N NS          N kernels one after the other that each run for NS nanoseconds
    profile WHAT LINE  LINE under torch.profiler; WHAT: cuda, or both (CPU and CUDA)
    cupti LINE         LINE with records taken by cupti-python
    helper FILE        load the GPU helper, or find it, and start it

Times are of CLOCK_MONOTONIC; `launched` are kernels, where their number is known. `--simulated`: no real GPU.
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
        with rls.operation("train"):
            while self._lines.empty():
                start = time.monotonic()
                self._work.iteration()
                total, count = total + 1, count + 1
                if total % SYNCHRONISE_EVERY == 0:
                    self._work.synchronize()
                now = time.monotonic()
                longest, worst = max(longest, now - start), max(worst, now - start)
                if now - last >= 1:
                    rate = {"time_ns": time.monotonic_ns(), "per_s": count / (now - last), "longest_ms": longest * 1e3}
                    print("RATE", json.dumps(rate), flush=True)
                    last, count, longest = now, 0, 0.0
        self._work.synchronize()
        seconds = time.monotonic() - begin
        return {"iterations": total, "per_s": total / seconds, "longest_ms": worst * 1e3}

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
        maps = Path("/proc/self/maps").read_text().splitlines()
        found = [line.split(None, 5)[5].strip() for line in maps if "librlscope_cupti" in line]
        library = ctypes.CDLL(found[0] if found else path)
        return {"state": library.rlscope_gpu_start(0, PATIENCE_MS)}


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
        for line in sys.stdin:
            lines.put(line.strip())
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    commands = Commands(work, lines)
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
