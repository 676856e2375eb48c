"""What must hold on a real GPU, measured in one go of a few minutes; it needs root, Linux with BPF, BCC and PyTorch.

    python kernels_test/gpu_host.py [--out FOLDER] [--seconds N] [--only PART …] [--processors 2,4,6,8] [--simulated]

Each result is one line of JSON, printed and kept in FOLDER/results.jsonl (FOLDER: $OUT, or a temporary one). Parts
stand alone: each has its own time, and what fails in one is a line with `error`. `--simulated` tries the script itself
on the simulated CUDA; what needs PyTorch or cupti-python is then left out.

`--processors`: the targets run on these alone, and something of the lowest priority keeps them from ever being idle. A
virtual processor that idles takes 0.05 ms and more to wake up, and in a launch-bound loop, which waits for a thread of
PyTorch's in every iteration, that hides what is to be measured.

* sums: kernels of the same loop by the helper, torch.profiler and cupti-python; kernels that spin a set time
* slowdown: a launch-bound loop under `run` and `attach`, in pairs with the plain one; torch.profiler, cupti-python
* ppo: the same of PPO, if Stable-Baselines3 is there
* rounds: 20 attaches to a running loop, and its health
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import queue
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

SPIN = r"""
__global__ void rlscope_spin(unsigned long long ns)
{
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - begin < ns);
}
extern "C" int spin(int count, unsigned long long ns)
{
    for (int i = 0; i < count; i++)
        rlscope_spin<<<1, 1>>>(ns);
    return cudaGetLastError();
}
"""
SPINS, SPIN_NS = 1000, 200_000
START_S = 60.0
ROUNDS = 20
PROFILER = [sys.executable, "-m", "rlscope_ebpf"]


class Failed(Exception):
    """A step of a part; the others go on."""


class Results:
    """One line each."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / "results.jsonl").open("a")
        self._begin = time.monotonic()

    def add(self, part: str, what: str, **values: Any) -> None:
        """Print and keep one."""
        line = json.dumps({"part": part, "what": what, "at_s": round(time.monotonic() - self._begin, 1), **values})
        print(line, flush=True)
        self._file.write(line + "\n")
        self._file.flush()


class Process:
    """A child whose lines are read in the background; it is killed at the end, if it is still there."""

    def __init__(self, words: list[str], environment: dict[str, str], log: Path) -> None:
        self._log = log.open("ab")
        self.child = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=environment, text=True
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.rates: list[dict[str, Any]] = []
        self.pid = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            if line.startswith("RATE "):
                self.rates.append(json.loads(line[5:]))
            else:
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def expect(self, prefix: str, seconds: float) -> str:
        """The rest of the next line that begins so."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise Failed(f"no {prefix} within {seconds:g} s") from None
            if line is None:
                raise Failed(f"it ended without {prefix}, status {self.child.wait(10)}")
            if line.startswith(prefix):
                return line[len(prefix) :].strip()

    def ready(self) -> Process:
        """Wait until it is."""
        self.pid = int(self.expect("READY", START_S))
        return self

    def say(self, line: str) -> None:
        """A command whose answer is waited for later."""
        assert self.child.stdin is not None
        try:
            self.child.stdin.write(line + "\n")
            self.child.stdin.flush()
        except OSError as error:
            raise Failed(f"it is gone, status {self.child.poll()}") from error

    def answer(self, seconds: float = 60) -> dict[str, Any]:
        """What it did."""
        done: dict[str, Any] = json.loads(self.expect("DONE", seconds))
        if "error" in done:
            raise Failed(f"{done['error']} {done.get('where', '')}")
        return done

    def do(self, line: str, seconds: float = 60) -> dict[str, Any]:
        """A command and its answer."""
        self.say(line)
        return self.answer(seconds)

    def end(self, seconds: float = 30) -> int:
        """Let it end; its exit status."""
        assert self.child.stdin is not None
        with suppress(OSError):
            self.child.stdin.close()
        return self.child.wait(seconds)

    def close(self) -> None:
        """It must be gone."""
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()
            if self.pid not in (0, self.child.pid):  # it ran under the profiler, which is gone
                with suppress(OSError):
                    os.kill(self.pid, signal.SIGKILL)
        self._log.close()


class Host:
    """What parts share."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.folder = folder
        self.simulated: bool = options.simulated
        self.processors: set[int] = set(map(int, filter(None, options.processors.split(","))))
        self.results = Results(folder)
        self.deadline = time.monotonic() + options.seconds
        self.environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self.environment["PYTHONPATH"] = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
        self.traces = Path(tempfile.mkdtemp(prefix="rlscope-gpu-"))
        self.words = [sys.executable, str(HERE / "gpu_loop.py")]
        self.options: list[str] = []
        if self.simulated:
            sys.path.insert(0, str(HERE))
            import build as simcuda_build

            self.words.append("--simulated")
            self.options = ["--library", "backend=*/libworker.so"]
            self.environment["RLSCOPE_LIBCUPTI"] = str(simcuda_build.native() / "libcupti.so.13")
        self.helper = ROOT / "rlscope_ebpf" / "librlscope_cupti.so"
        self.long_s: float = options.long_s
        self.pace: int = options.pace
        self.frida = importlib.util.find_spec("frida") is not None

    @property
    def left(self) -> float:
        """Seconds."""
        return self.deadline - time.monotonic()

    def compile_spin(self) -> None:
        """Kernels that spin; without a compiler they are left out."""
        compiler = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        if self.simulated or not os.path.exists(compiler):
            return
        source, library = self.traces / "spin.cu", self.traces / "libspin.so"
        source.write_text(SPIN)
        words = [compiler, "-O2", "-arch=native", "-shared", "-Xcompiler", "-fPIC", "-o", str(library), str(source)]
        for arch in ("-arch=native", "-arch=sm_90"):
            words[2] = arch
            done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
            if not done.returncode:
                self.words += ["--spin", str(library)]
                return
        raise Failed(done.stderr[-500:])

    @contextmanager
    def loop(self, trace: Path | None = None, *options: str) -> Iterator[Process]:
        """The target, ready; with `trace`, under `run`."""
        words = self.words
        if trace is not None:
            words = [*PROFILER, "run", "--no-tui", "--force", "-o", str(trace), *self.options, *options, "--", *words]
        process = Process(words, self.environment, self.folder / "stderr.txt")
        try:
            process.ready()
            pin(process.pid, self.processors)
            yield process
        finally:
            process.close()

    @contextmanager
    def attached(self, target: Process, trace: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
        """The profiler on it, listening to its GPU; asked to leave at the end."""
        words = [*PROFILER, "attach", "--pid", str(target.pid), "--no-tui", "--force", "-o", str(trace)]
        words += [*self.options, *options]
        log = (self.folder / "stderr.txt").open("a")
        child = subprocess.Popen(words, env=self.environment, stdout=log, stderr=log, text=True)
        try:
            yield child
        finally:
            if child.poll() is None:
                child.terminate()
                try:
                    child.wait(30)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
            log.close()


def helper_state(pid: int) -> dict[str, Any]:
    """The helper in a process, from its memory."""
    from rlscope_ebpf.capture.gpu import read_status
    from rlscope_ebpf.capture.gpu_files import HELPER_PREFIX
    from rlscope_ebpf.capture.maps import read_maps

    for mapped in read_maps(pid):
        if mapped.name.startswith(HELPER_PREFIX):
            status = read_status(pid, mapped)
            if status is not None:
                facts = {"error": status.error, "call": status.failed_call, "finalized": status.finalized}
                facts["counters"] = {name: count for name, count in status.counters.items() if count}
                return {"state": status.state.name, **facts}
    return {"state": "ABSENT"}


def is_heard(pid: int) -> bool:
    """Whether a profiler's probes are on the helper."""
    import numpy as np

    from rlscope_ebpf.capture.elf import ElfFile
    from rlscope_ebpf.capture.gpu_files import HELPER_PREFIX
    from rlscope_ebpf.capture.gpu_layout import STATE_SYMBOL, STATUS_DTYPE
    from rlscope_ebpf.capture.maps import host_path, read_maps
    from rlscope_ebpf.capture.pointers import ProcessMemory, load_bias

    for mapped in read_maps(pid):
        path = host_path(pid, mapped) if mapped.name.startswith(HELPER_PREFIX) else None
        if path is None:
            continue
        with ElfFile(path) as elf, ProcessMemory(pid) as memory:
            bias = load_bias(elf, mapped)
            for vaddr, _ in elf.objects_named(STATE_SYMBOL.encode()):
                if bias is not None:
                    data = memory.read(bias + vaddr, STATUS_DTYPE.itemsize)
                    return bool(np.frombuffer(data, STATUS_DTYPE, count=1)[0]["listening"])
    return False


def wait_until_heard(pid: int, seconds: float) -> None:
    """The helper is active, and somebody listens."""
    wait_for_state(pid, "ACTIVE", seconds)
    deadline = time.monotonic() + seconds
    while not is_heard(pid):
        if time.monotonic() > deadline:
            raise Failed(f"nobody listens to the helper after {seconds:g} s")
        time.sleep(0.02)


def wait_for_state(pid: int, state: str, seconds: float) -> float:
    """How long it took."""
    begin = time.monotonic()
    while (found := helper_state(pid))["state"] != state:
        if time.monotonic() - begin > seconds:
            raise Failed(f"the helper is {found}, not {state}, after {seconds:g} s")
        time.sleep(0.02)
    return time.monotonic() - begin


def read_trace(trace: Path, windows: dict[str, tuple[int, int]]) -> dict[str, dict[str, Any]]:
    """Kernels launched in each window, and what the trace says of itself under ""."""
    import numpy as np

    from rlscope_ebpf.model.gpu import GpuKind
    from rlscope_ebpf.trace.reader import TraceReader

    reader = TraceReader(trace)
    rows = reader.table("gpu")
    rows = rows[rows["kind"] == GpuKind.KERNEL]
    spins = np.array([key for key, info in reader.strings.items() if "rlscope_spin" in info.text], np.uint32)
    losses = {name: value for name, value in reader.losses.as_dict().items() if value}
    counters = reader.counters
    found: dict[str, dict[str, Any]] = {
        "": {
            "gpu": reader.info.gpu,
            "reason": reader.info.gpu_reason,
            "complete": reader.complete,
            "losses": losses,
            "kernels": len(rows),
            "matched": counters.gpu_matched,
            "inherited": counters.gpu_inherited,
            "hits": counters.hits,
            "untracked_kernels": int(np.count_nonzero(rows["path"] == 0)),
            "nvml": {info.name: info.utilization for info in reader.devices.values()},
            "notices": [notice.text for notice in reader.notices],
        }
    }
    for name, (start, end) in windows.items():
        here = rows[(rows["launch_ns"] >= start) & (rows["launch_ns"] <= end)]
        spin = here[np.isin(here["name"], spins)]
        found[name] = {
            "kernels": len(here),
            "kernels_ns": int(here["duration_ns"].sum()),
            "graph_kernels": int(np.count_nonzero(here["graph"])),
            "spin_kernels": len(spin),
            "spin_ns": int(spin["duration_ns"].sum()),
            "inherited_path_0": int(np.count_nonzero(here["path"] == 0)),
        }
    return found


def window(done: dict[str, Any]) -> tuple[int, int]:
    """When it was done."""
    return done["start_ns"], done["end_ns"]


LOOPS, LOOP = 3, 500


def each_of(host: Host, kind: str, process: Process, lines: dict[str, str]) -> dict[str, dict[str, Any]]:
    """What the target answers to each line; those that fail are told of and left out."""
    done: dict[str, dict[str, Any]] = {}

    def take(name: str) -> None:
        done[name] = process.do(lines[name])

    for name in lines:
        attempt(host, "sums", f"{kind} {name}", lambda name=name: take(name))
    return done


def sums(host: Host) -> None:
    """The same work, seen by three."""
    found: dict[str, list[dict[str, Any]]] = {}
    works = {"spin": f"spin {SPINS} {SPIN_NS}", **{f"loop{number}": f"loop {LOOP}" for number in range(LOOPS)}}

    def helper() -> None:
        trace = host.traces / "sums.rlscope"
        with host.loop(trace, "--max-overhead", "0") as process:
            done = each_of(host, "helper", process, works)
            time.sleep(1)
            status = process.end(60)
        rows = read_trace(trace, {name: window(each) for name, each in done.items()})
        host.results.add("sums", "helper", status=status, **rows[""])
        found["helper"] = [{"name": name, **done[name], **rows[name]} for name in done]

    def other(kind: str, command: str) -> Callable[[], None]:
        def measure() -> None:
            with host.loop() as process:
                lines = {name: f"{command} {line}" for name, line in works.items()}
                found[kind] = [{"name": name, **done} for name, done in each_of(host, kind, process, lines).items()]
                process.end()

        return measure

    steps: dict[str, Callable[[], None]] = {"helper": helper}
    if not host.simulated:
        steps |= {
            "torch.profiler": other("torch.profiler", "profile cuda"),
            "cupti-python": other("cupti-python", "cupti"),
        }
    for kind, step in steps.items():
        attempt(host, "sums", kind, step)
    summary: dict[str, dict[str, float]] = {}
    for kind, rows in found.items():
        spin = [row for row in rows if row["name"] == "spin" and row["spin_kernels"]]
        loops = [row for row in rows if row["name"] != "spin" and row["kernels"]]
        each = summary[kind] = {}
        if spin:
            each["spin_kernels"] = spin[0]["spin_kernels"]
            each["spin_ns_each"] = spin[0]["spin_ns"] / spin[0]["spin_kernels"]
            each["spin_error"] = each["spin_ns_each"] / SPIN_NS - 1
        if loops:
            each["loop_kernels_per_iteration"] = statistics.median(row["kernels"] for row in loops) / LOOP
            each["loop_ns_per_iteration"] = statistics.median(row["kernels_ns"] for row in loops) / LOOP
            spread = [row["kernels_ns"] / LOOP for row in loops]
            each["loop_spread"] = max(spread) / min(spread) - 1
        host.results.add("sums", f"{kind} figures", **each)
    ours = summary.get("helper", {})
    for kind, theirs in summary.items():
        if kind != "helper":
            shared = ours.keys() & theirs.keys() & {"spin_ns_each", "loop_ns_per_iteration"}
            host.results.add("sums", f"helper against {kind}", **{key: ours[key] / theirs[key] - 1 for key in shared})


SLOW_LOOP = 800
FOR_ROUNDS_S = 85
ATTACHES = {
    "attach": [],
    "attach, no limit": ["--max-overhead", "0"],
    "attach, no GPU": ["--gpu", "off"],
    "attach, no GPU, no limit": ["--gpu", "off", "--max-overhead", "0"],
    "attach, samples": ["--mode", "sample"],
}


def attach_pair(
    host: Host, process: Process, part: str, what: str, line: str, options: list[str], count: int = 4
) -> None:
    """A process before, while and after a profiler is attached to it; that leaves while it works."""
    gpu = "off" not in options
    before = [process.do(line)["seconds"] for _ in range(count)]
    seen = prepare_attach(host, process) if gpu else ""
    trace = host.traces / "attach.rlscope"
    with host.attached(process, trace, *options):
        if gpu:
            wait_until_heard(process.pid, 30)
            time.sleep(2)
        else:
            time.sleep(4)
        during = [process.do(line)["seconds"] for _ in range(count)]
        process.say("steady")
        process.expect("STEADY", 10)
    if gpu:
        wait_for_state(process.pid, "DORMANT", 15)
    process.say(line)
    process.answer()
    process.answer()
    after = [process.do(line)["seconds"] for _ in range(count)]
    middle = statistics.median
    host.results.add(
        part,
        what,
        way=seen,
        ratio=middle(during) / middle(before),
        after_ratio=middle(after) / middle(before),
        finalized=helper_state(process.pid).get("finalized", 0),
        plain_s=before,
        attach_s=during,
        after_s=after,
    )
    host.results.add(part, f"{what}: trace", **read_trace(trace, {})[""])


def ppo(host: Host) -> None:
    """PPO of Stable-Baselines3 on CartPole, on the GPU."""
    with host.loop() as process:
        process.do("ppo 512")
        for what in ("attach", "attach, samples", "attach"):
            attempt(host, "ppo", what, partial(attach_pair, host, process, "ppo", what, "ppo 1024", ATTACHES[what], 3))
        process.end()


def slowdown(host: Host) -> None:
    """Pairs: the same loop plain and profiled."""
    plain: list[float] = []
    ran: list[float] = []
    line = f"loop {SLOW_LOOP}"

    def process_pair() -> None:
        with host.loop() as process:
            alone = [process.do(line)["seconds"] for _ in range(3)]
            process.end()
        trace = host.traces / "run.rlscope"
        with host.loop(trace) as process:
            time.sleep(1.5)  # the calls of libraries are followed a moment after these were loaded
            under = [process.do(line)["seconds"] for _ in range(3)]
            process.end(60)
        plain.append(statistics.median(alone))
        ran.append(statistics.median(under))
        host.results.add("slowdown", "run", ratio=ran[-1] / plain[-1], plain_s=alone, run_s=under)
        host.results.add("slowdown", "run trace", **read_trace(trace, {})[""])

    def attach_pairs() -> None:
        with host.loop() as process:
            process.do(line)
            for what, options in ATTACHES.items():
                attempt(host, "slowdown", what, partial(attach_pair, host, process, "slowdown", what, line, options))
            process.end()

    def in_process(**commands: str) -> Callable[[], None]:
        def measure() -> None:
            with host.loop() as process:
                for what, command in commands.items():
                    alone = [process.do(line)["seconds"] for _ in range(2)]
                    process.do(f"{command} loop 20")  # its own start
                    done = process.do(f"{command} {line}", 90)
                    base = statistics.median(alone)
                    ratios = {"ratio": done["seconds"] / base, "ratio_with_stop": done["seconds_with_stop"] / base}
                    host.results.add("slowdown", what.replace("_", " "), **ratios)
                process.end()

        return measure

    attempt(host, "slowdown", "run", process_pair)
    attempt(host, "slowdown", "attach", attach_pairs)
    if not host.simulated:
        both = in_process(torch_profiler_CUDA="profile cuda", torch_profiler_CPU_and_CUDA="profile both")
        attempt(host, "slowdown", "torch.profiler", both)
        attempt(host, "slowdown", "cupti-python", in_process(cupti_python="cupti"))
    if host.left > FOR_ROUNDS_S + 30:
        attempt(host, "slowdown", "run", process_pair)
    if ran:
        ratios = [under / alone for under, alone in zip(ran, plain, strict=True)]
        host.results.add("slowdown", "run, mean", ratio=statistics.mean(ratios), pairs=len(ratios))


def prepare_attach(host: Host, process: Process) -> str:
    """Without a way to load the helper from outside, the target does it itself when told to."""
    if host.frida:
        return "Frida"
    process.do(f"helper {host.helper}")
    return "the target itself"


def rounds(host: Host) -> None:
    """Attach and detach, again and again, to a loop that runs on."""
    with host.loop() as process:
        process.do("loop 200")
        process.say("steady")
        time.sleep(4)
        before = [rate["per_s"] for rate in process.rates[1:]]
        done = 0
        worst = 0.0
        for number in range(ROUNDS):
            if host.left < 25:
                host.results.add("rounds", "no time for more", rounds=done)
                break
            count = len(process.rates)
            way = "Frida"
            if not host.frida:
                process.say(f"helper {ROOT / 'rlscope_ebpf' / 'librlscope_cupti.so'}")
                process.answer()  # of the steady loop
                process.answer()
                process.say("steady")
                way = "the target itself"
            trace = host.traces / f"round{number}.rlscope"
            begin = time.monotonic()
            with host.attached(process, trace):
                wait_until_heard(process.pid, 30)
                active = time.monotonic() - begin
                time.sleep(0.8)
            left = time.monotonic()
            wait_for_state(process.pid, "DORMANT", 15)
            facts = read_trace(trace, {})[""]
            trace.unlink()
            longest = max((rate["longest_ms"] for rate in process.rates[count:]), default=0.0)
            worst = max(worst, longest)
            done += 1
            host.results.add(
                "rounds",
                f"round {number + 1}",
                way=way,
                active_s=round(active, 2),
                dormant_s=round(time.monotonic() - left, 2),
                longest_ms=round(longest, 1),
                alive=process.child.poll() is None,
                **facts,
            )
        time.sleep(4)
        after = [rate["per_s"] for rate in process.rates[-3:]]
        process.say("loop 1")
        process.answer()
        process.answer()
        host.results.add(
            "rounds",
            "all",
            rounds=done,
            rate_before=statistics.median(before or [0]),
            rate_after=statistics.median(after or [0]),
            rate_ratio=statistics.median(after or [0]) / (statistics.median(before or [0]) or 1),
            longest_ms=worst,
            longest_before_ms=max((rate["longest_ms"] for rate in process.rates[1:3]), default=0),
            helper=helper_state(process.pid),
        )
        if not host.simulated:
            seen = process.do("profile cuda loop 100")
            host.results.add("rounds", "torch.profiler afterwards", kernels=seen["kernels"], iterations=100)
        host.results.add("rounds", "end", status=process.end())


Part = Callable[["Host"], None]
PARTS: dict[str, Part] = {"sums": sums, "slowdown": slowdown, "ppo": ppo, "rounds": rounds}


def attempt(host: Host, part: str, what: str, step: Callable[[], None]) -> None:
    """A step that may fail by itself."""
    if host.left < 10:
        host.results.add(part, what, error="there was no time for it")
        return
    try:
        step()
    except Exception as error:
        where = [line.strip() for line in traceback.format_exc().splitlines()[-5:]]
        host.results.add(part, what, error=f"{type(error).__name__}: {error}", where=where)


def about(host: Host) -> None:
    """What this was measured on."""
    words = [*PROFILER, "doctor"]
    done = subprocess.run(words, env=host.environment, capture_output=True, text=True, timeout=60, check=False)
    (host.folder / "doctor.txt").write_text(done.stdout + done.stderr)
    facts: dict[str, Any] = {"python": sys.version.split()[0], "kernel": os.uname().release, "cores": os.cpu_count()}
    with suppress(OSError, subprocess.SubprocessError):
        query = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm", "--format=csv,noheader"]
        facts["gpu"] = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False).stdout.strip()
    facts |= {name: importlib.util.find_spec(name) is not None for name in ("frida", "cupti", "pynvml")}
    host.results.add("about", "host", doctor=done.returncode, **facts)


def pin(pid: int, processors: set[int]) -> None:
    """All threads of a process to these, if there are any."""
    for task in os.listdir(f"/proc/{pid}/task") if processors else []:
        os.sched_setaffinity(int(task), processors)


def pin_apart(pid: int, processors: set[int]) -> None:
    """The main thread, the one that PyTorch's backward pass runs in, and the others each to processors of their own."""
    if len(processors) < 3:
        return
    first, second, *rest = sorted(processors)
    for task in os.listdir(f"/proc/{pid}/task"):
        name = Path(f"/proc/{pid}/task/{task}/comm").read_text()
        where = [first] if int(task) == pid else [second] if name.startswith("pt_autograd") else rest
        os.sched_setaffinity(int(task), where)


@contextmanager
def never_idle(processors: set[int]) -> Iterator[None]:
    """Keeps these busy with what gives way to anything else."""
    spinning: list[int] = []
    for processor in processors:
        pid = os.fork()
        if not pid:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            os.sched_setaffinity(0, {processor})
            parent = os.getppid()
            while os.getppid() == parent:
                sum(range(100_000))
            os._exit(0)
        spinning.append(pid)
    try:
        yield
    finally:
        for pid in spinning:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def main(parts: Mapping[str, Part] = PARTS) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for results; default $OUT")
    parser.add_argument("--seconds", type=float, default=235, help="for all of it")
    parser.add_argument("--only", choices=parts, action="append", help="this part alone; repeatable")
    parser.add_argument("--simulated", action="store_true", help="on the simulated CUDA")
    parser.add_argument("--for", type=float, default=20, dest="long_s", metavar="S", help="for parts that take long")
    parser.add_argument("--pace", type=int, default=1700, help="replays a second in these; 0: as fast as it goes")
    parser.add_argument("--processors", default="", help="the targets run on these alone, and they never idle")
    options = parser.parse_args()
    folder = options.out or Path(os.environ.get("OUT") or tempfile.mkdtemp(prefix="rlscope-results-"))
    folder.mkdir(parents=True, exist_ok=True)
    host = Host(options, folder)
    with never_idle(host.processors):
        attempt(host, "about", "host", lambda: about(host))
        attempt(host, "about", "kernels that spin", host.compile_spin)
        for name in options.only or (
            name for name in parts if name != "ppo" or importlib.util.find_spec("stable_baselines3")
        ):
            attempt(host, name, "all", lambda name=name: parts[name](host))
    shutil.rmtree(host.traces, ignore_errors=True)
    print(f"results: {folder / 'results.jsonl'}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
