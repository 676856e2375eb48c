"""Programs that benchmarks start: targets that answer line by line, and the profiler as a person starts it."""

from __future__ import annotations

import importlib.util
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[1]
PROFILER = Path(sys.executable).with_name("rlscope-ebpf")

_TURN_S = 0.002


class BenchmarkError(RuntimeError):
    """Something that a benchmark needs is missing or went wrong; the message is a reason for a table."""


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll until it holds. Raises BenchmarkError after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise BenchmarkError(f"{what}: not within {seconds:g} s")
        time.sleep(_TURN_S)


class Child:
    """A child process that does not outlive its `with`. Its stderr is kept in a file."""

    def __init__(self, command: Sequence[str | Path], *, stdin: int, stdout: int) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        words = [str(word) for word in command]
        try:
            self.process = subprocess.Popen(
                words,
                stdin=stdin,
                stdout=stdout,
                stderr=self._errors,
                env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            )
        except FileNotFoundError as error:
            raise BenchmarkError(f"{words[0]} is missing") from error

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def errors(self) -> str:
        """Its stderr so far."""
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), size, 0).decode(errors="replace")

    def failure(self, what: str) -> BenchmarkError:
        """An error with the last line that it said."""
        said = self.errors.strip().splitlines()
        return BenchmarkError(f"{what}: {said[-1] if said else f'status {self.process.poll()}'}")

    def stop(self, number: signal.Signals = signal.SIGINT, seconds: float = 60) -> int:
        """Send a signal and wait for the end; exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(seconds)

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill it if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self._errors.close()


class Target(Child):
    """A program that prints `READY pid`, then answers each line with a line."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        super().__init__(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._buffer = b""
        self.greeting = self.answer(60)
        if not self.greeting.startswith("READY"):
            raise self.failure("the target does not start")

    def __enter__(self) -> Target:
        return self

    def ask(self, line: str, seconds: float = 120) -> str:
        """Send a line; its answer. Raises BenchmarkError if none comes."""
        self.tell(line)
        return self.answer(seconds)

    def tell(self, line: str) -> None:
        """Send a line, and do not wait."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise self.failure("the target ended") from error

    def answer(self, seconds: float) -> str:
        """The next line that it says. Raises BenchmarkError if none comes."""
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise BenchmarkError(f"the target did not answer within {seconds:g} s")
            part = os.read(descriptor, 1 << 16)
            if not part:
                self.process.wait()
                raise self.failure("the target ended")
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()


class Attached(Child):
    """`rlscope-ebpf attach`, attached. Stopped by Ctrl-C at the end of its `with`."""

    def __init__(self, pid: int, *options: str | Path) -> None:
        need_profiler()
        super().__init__(
            [PROFILER, "attach", "--pid", str(pid), "--no-tui", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        wait_for(self._is_attached, 60, "attaching")

    def __enter__(self) -> Attached:
        return self

    def _is_attached(self) -> bool:
        if self.process.poll() is not None:
            raise self.failure("the profiler ended")
        return re.search(r"^Profiling ", self.errors, re.MULTILINE) is not None

    def detach(self) -> None:
        """Stop it. Raises BenchmarkError if it failed."""
        if self.stop() != 0:
            raise self.failure("the profiler failed")


def load_target_module(name: str) -> types.ModuleType:
    """A module of tests/targets, which is no package: its files run as scripts, and import each other as such."""
    folder = ROOT / "tests" / "targets"
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    known = f"benchmarks_targets_{name}"
    if known not in sys.modules:
        spec = importlib.util.spec_from_file_location(known, folder / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[known] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[known]


def need_profiler() -> None:
    """Raises BenchmarkError if this environment has no `rlscope-ebpf`, or it may not attach."""
    if not PROFILER.exists():
        raise BenchmarkError(f"{PROFILER.name} is not installed in this environment (make setup)")
    need_root()


def need_root() -> None:
    """Raises BenchmarkError if probes may not be attached."""
    if os.geteuid() != 0:
        raise BenchmarkError("not root")


def compile_program(source: Path, folder: Path, *flags: str) -> Path:
    """Compile one C file. Raises BenchmarkError."""
    program = folder / source.stem
    compiler = os.environ.get("CC", "gcc")
    try:
        done = subprocess.run(
            [compiler, "-O2", "-Wall", "-o", str(program), str(source), "-rdynamic", *flags, "-ldl"],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise BenchmarkError(f"{compiler} is missing (apt install gcc)") from error
    if done.returncode:
        raise BenchmarkError(f"{source.name} does not compile: {done.stderr.strip().splitlines()[0]}")
    return program
