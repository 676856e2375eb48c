"""A Python program whose operations give a simulated GPU work of exactly known number and time, and prints its truth.

    python operations.py [--rounds N] [--lines N] [--late] [--worker] [--helper LIBRARY]

It prints `READY pid`. Each line on stdin makes it run its rounds and print `TRUTH json`; at the end of stdin, or after
N lines, it ends. `--late` loads and starts CUDA only with the first line. `--worker`: some kernels are launched by
a thread of a backend library (native/worker.c), which is in no operation. `--helper`: the GPU helper is loaded from
there and started before READY, so that nobody has to load it. The truth, of all rounds since the start:

* `operations`: per path, how many kernels it launched and how long they ran, whenever that was. They run one after the
  other on a stream of the operation's thread, so their sum is their union;
* `inherited`: launched by the library's thread while one thread was waiting for it; `ambiguous`: while two were;
A line `other` makes it ask for CUPTI as another profiler would, and prints `OTHER error`.

* `kernels`: per name, count and total time; `launched`: all of them;
* `cupti`: what is enabled in the simulated CUPTI, if it is loaded.

RLSCOPE_LIBCUPTI is set by whoever starts it, to a libcupti.so.13 beside the libcuda.so.1 that this loads.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
import build as simcuda_build

try:
    import rlscope_ebpf.markers as rls
except ModuleNotFoundError:
    sys.path.append(str(HERE.parent))
    import rlscope_ebpf.markers as rls

KERNELS = {"_Z7forwardPf": 30_000, "_Z8backwardPf": 50_000, "_Z6updatePfi": 20_000}
"""Mangled name → duration, ns."""

PLAIN = {"_Z7forwardPf": "forward(float*)", "_Z8backwardPf": "backward(float*)", "_Z6updatePfi": "update(float*, int)"}
OTHERS_STREAM = 2
PATIENCE_MS = 600_000
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)(lambda *_: None)


class Gpu:
    """The simulated driver: kernels are launched and counted by the operation that launches them."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL(str(simcuda_build.native() / "libcuda.so.1"))
        self._functions = {name: ctypes.create_string_buffer(1) for name in KERNELS}
        for name, function in self._functions.items():
            self._cuda.simcuda_set_kernel(function, name.encode(), ctypes.c_int64(KERNELS[name]))
        self._check(self._cuda.cuInit(0))
        self._worker = ctypes.CDLL(str(simcuda_build.native() / "libworker.so"))
        self.launched: dict[tuple[tuple[str, ...], str], int] = defaultdict(int)
        self.inherited = self.ambiguous = 0

    def launch(self, name: str, count: int, stream: int = 0) -> None:
        """Kernels of this name, from within the operations that are open."""
        for _ in range(count):
            self._check(
                self._cuda.cuLaunchKernel(
                    self._functions[name], 1, 1, 1, 32, 1, 1, 0, ctypes.c_void_p(stream), None, None
                )
            )
        self.launched[rls.stack(), name] += count

    def delegate(self, name: str, count: int, stream: int = 0) -> None:
        """The same by the library's thread, which this one waits for."""
        self._worker.worker_run(self._functions[name], *map(ctypes.c_int64, (count, stream, 1)))
        self.launched[rls.stack(), name] += count
        self.inherited += count

    def delegate_together(self, name: str, count: int, stream: int = 0) -> None:
        """For two threads, which both wait for it: nobody can tell for whom it launches."""

        def wait() -> None:
            with rls.operation("together"):
                self._worker.worker_run(self._functions[name], *map(ctypes.c_int64, (count, stream, 2)))

        threads = [threading.Thread(target=wait) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.launched[(), name] += count
        self.ambiguous += count

    def synchronize(self) -> None:
        """Wait for all of it."""
        self._check(self._cuda.cuCtxSynchronize())

    @staticmethod
    def _check(error: int) -> None:
        if error:
            raise RuntimeError(f"CUDA error {error}")


def rounds(gpu: Gpu, count: int, *, worker: bool = False) -> None:
    """What a training loop does, and a thread beside it."""

    def beside() -> None:
        for _ in range(count):
            with rls.operation("beside"):
                gpu.launch("_Z7forwardPf", 4, OTHERS_STREAM)

    thread = threading.Thread(target=beside)
    thread.start()
    for _ in range(count):
        with rls.operation("act"):
            gpu.launch("_Z7forwardPf", 20)
            gpu.synchronize()
        with rls.operation("learn"):
            gpu.launch("_Z8backwardPf", 15)
            with rls.operation("update"):
                gpu.launch("_Z6updatePfi", 10)
            gpu.launch("_Z8backwardPf", 5)
            if worker:
                with rls.operation("backward"):
                    gpu.delegate("_Z8backwardPf", 7)
        # What was launched in there runs mostly in here.
        with rls.operation("wait"):
            gpu.synchronize()
    thread.join()
    if worker:
        gpu.delegate_together("_Z8backwardPf", 9)
    gpu.synchronize()


def truth(gpu: Gpu) -> dict[str, Any]:
    """The sums since the start."""
    operations: dict[str, dict[str, int]] = defaultdict(lambda: {"kernels": 0, "gpu_ns": 0})
    kernels: dict[str, dict[str, int]] = defaultdict(lambda: {"count": 0, "total_ns": 0})
    for (path, name), count in gpu.launched.items():
        row = operations["/".join(path) or "(untracked)"]
        row["kernels"] += count
        row["gpu_ns"] += count * KERNELS[name]
        kernels[PLAIN[name]]["count"] += count
        kernels[PLAIN[name]]["total_ns"] += count * KERNELS[name]
    return {
        "pid": os.getpid(),
        "operations": operations,
        "kernels": kernels,
        "launched": sum(gpu.launched.values()),
        "inherited": gpu.inherited,
        "ambiguous": gpu.ambiguous,
        "cupti": cupti_state(),
    }


def cupti_state() -> dict[str, int]:
    """What is enabled."""
    library = os.environ["RLSCOPE_LIBCUPTI"]
    if library not in Path("/proc/self/maps").read_text():
        return {}
    cupti = ctypes.CDLL(library)
    cupti.simcupti_get.restype = ctypes.c_int64
    return {name: cupti.simcupti_get(name.encode()) for name in ("subscribers", "kinds", "callbacks", "buffers")}


def ask_for_cupti() -> int:
    """The error, 0 if it was given; then it is kept."""
    cupti = ctypes.CDLL(os.environ["RLSCOPE_LIBCUPTI"])
    return int(cupti.cuptiSubscribe(ctypes.byref(ctypes.c_void_p()), CALLBACK, None))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="per line on stdin")
    parser.add_argument("--lines", type=int, default=0, help="end after so many; 0: only at the end of stdin")
    parser.add_argument("--late", action="store_true", help="load CUDA with the first line")
    parser.add_argument("--worker", action="store_true", help="have kernels launched by a library's thread, too")
    parser.add_argument("--helper", default="", help="the GPU helper's file")
    options = parser.parse_args()
    gpu = None if options.late else Gpu()
    if options.helper:
        ctypes.CDLL(options.helper).rlscope_gpu_start(0, PATIENCE_MS)
    print(f"READY {os.getpid()}", flush=True)
    for number, line in enumerate(sys.stdin, 1):
        if line.strip() == "other":
            print("OTHER", ask_for_cupti(), flush=True)
            continue
        gpu = gpu or Gpu()
        rounds(gpu, options.rounds, worker=options.worker)
        print("TRUTH", json.dumps(truth(gpu)), flush=True)
        if number == options.lines:
            break
    return 0


if __name__ == "__main__":
    sys.exit(main())
