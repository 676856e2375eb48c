"""What the system tests are made of: target programs, the profiler as a person starts it, and looks at both."""

from __future__ import annotations

import glob
import importlib.util
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ROOT / "tests" / "targets"
TRUTH = TARGETS / "truth.py"
MARKER_LIBRARY = ROOT / "rlscope_ebpf" / "librlscope_markers.so"
PROFILER = Path(sys.executable).with_name("rlscope-ebpf")

START_S = 60.0
"""A target may have to compile its libraries first."""

ATTACH_S = 120.0
STOP_S = 30.0

REALTIME = ("chrt", "--fifo", "1")
"""Prefix of a target whose own stamps must be close to its probes': no ordinary process takes its CPU in between."""


def load(name: str) -> types.ModuleType:
    """A module of the targets' folder, which is no package: its files run as scripts under other interpreters."""
    known = f"rlscope_targets_{name}"
    if known in sys.modules:
        return sys.modules[known]
    spec = importlib.util.spec_from_file_location(known, TARGETS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[known] = module
    spec.loader.exec_module(module)
    return module


build: Any = load("build")
compare: Any = load("compare")


@cache
def interpreters() -> dict[str, str]:
    """Name → path: the running interpreter, one of each supported version that pyenv has, and the distribution's."""
    found = {os.path.realpath(sys.executable): sys.executable}
    for path in sorted([*glob.glob(os.path.expanduser("~/.pyenv/versions/3.1[0-3]*/bin/python3")), "/usr/bin/python3"]):
        if os.path.exists(path):
            found.setdefault(os.path.realpath(path), path)
    names = {}
    for path in found.values():
        done = subprocess.run([path, "-V"], capture_output=True, text=True, check=True)
        version = done.stdout.split()[1]
        if re.match(r"3\.1[0-3]\.", version):
            whose = "running" if path == sys.executable else "distribution" if path.startswith("/usr/bin") else "pyenv"
            names[f"{version}-{whose}"] = path
    return names


def wait_for(condition: Callable[[], Any], seconds: float, what: str, *, turn_s: float = 0.01) -> Any:
    """Polls until `condition` gives something true, which is returned; otherwise fails, saying what did not come."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(turn_s)


class Program:
    """A target program and its protocol: READY pid, a line from us, TRUTH json."""

    def __init__(
        self,
        command: Sequence[str | Path],
        folder: Path,
        *,
        realtime: bool = False,
        environment: dict[str, str] | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        self._out = folder / f"target-{time.monotonic_ns()}.out"
        self._err = self._out.with_suffix(".err")
        words = [*(REALTIME if realtime else ()), *map(str, command)]
        with open(self._out, "wb") as out, open(self._err, "wb") as err:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                env=os.environ | {"PYTHONPATH": str(ROOT)} | (environment or {}),
                preexec_fn=before,
            )
        self.pid = self.process.pid

    def wait_until_ready(self) -> Program:
        """Until it waits for the profiler; `pid` is then the one it names."""

        def ready() -> re.Match[str] | None:
            assert self.process.poll() is None or "READY" in self.output, f"the target ended: {self.errors}"
            return re.search(r"^READY (\d+)$", self.output, re.MULTILINE)

        self.pid = int(wait_for(ready, START_S, "READY of the target")[1])
        return self

    def go(self) -> None:
        """Lets it work."""
        self.say("go\n")

    def say(self, text: str) -> None:
        """Writes to its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    @property
    def output(self) -> str:
        """Its stdout so far."""
        return self._out.read_text(errors="replace")

    @property
    def errors(self) -> str:
        """Its stderr so far."""
        return self._err.read_text(errors="replace")

    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def wait(self, seconds: float = 120) -> int:
        """Waits for its end; exit status."""
        return self.process.wait(seconds)

    def finish(self, seconds: float = 120) -> str:
        """Waits for its end, which must be a good one; its stdout."""
        status = self.wait(seconds)
        assert status == 0, f"the target ended with status {status}: {self.errors}"
        return self.output

    def truth(self, seconds: float = 120) -> dict[str, Any]:
        """The truth it prints; with `--linger` it runs on."""
        match = wait_for(
            lambda: re.search(r"^TRUTH (.*)\n", self.output, re.MULTILINE) or not self.is_running(), seconds, "TRUTH"
        )
        if match is True:
            match = re.search(r"^TRUTH (.*)\n", self.output, re.MULTILINE)
        assert match, f"the target ended without a truth: {self.errors}"
        found: dict[str, Any] = json.loads(match[1])
        return found

    def close(self) -> None:
        """Kills it if it still runs."""
        if self.is_running():
            self.process.kill()
            self.process.wait()
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()


class Profiler:
    """`rlscope-ebpf VERB …`, running."""

    def __init__(
        self,
        arguments: Sequence[str | Path],
        folder: Path,
        *,
        prefix: Sequence[str] = (),
        stdin: int = subprocess.DEVNULL,
        group: bool = False,  # of its own, as a shell gives to what it starts
    ) -> None:
        number = time.monotonic_ns()
        self._out = folder / f"profiler-{number}.out"
        self._err = folder / f"profiler-{number}.err"
        self.started = time.monotonic()
        with open(self._out, "wb") as out, open(self._err, "wb") as err:
            self.process = subprocess.Popen(
                [*prefix, str(PROFILER), *map(str, arguments)],
                stdin=stdin,
                stdout=out,
                stderr=err,
                cwd=folder,
                start_new_session=group,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stdout(self) -> str:
        """Its stdout so far."""
        return self._out.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """Its stderr so far."""
        return self._err.read_text(errors="replace")

    def wait_until_attached(self, seconds: float = ATTACH_S) -> Profiler:
        """Until it says that it profiles: every probe is set by then."""

        def attached() -> bool:
            assert self.process.poll() is None, f"the profiler ended: {self.stderr}"
            return re.search(r"^Profiling ", self.stderr, re.MULTILINE) is not None

        wait_for(attached, seconds, "the profiler's attach")
        return self

    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        self.process.send_signal(number)

    def wait(self, seconds: float = STOP_S) -> int:
        """Waits for its end; exit status. Whatever happened, there was no traceback."""
        status = self.process.wait(seconds)
        assert "Traceback" not in self.stderr, self.stderr
        return status

    def stop(self) -> int:
        """Ctrl-C."""
        self.signal(signal.SIGINT)
        return self.wait()

    def close(self) -> None:
        """Kills it if it still runs."""
        if self.is_running():
            self.process.kill()
            self.process.wait()


def rlscope(*arguments: str | Path, folder: Path | None = None, prefix: Sequence[str] = ()) -> Finished:
    """Runs `rlscope-ebpf` to its end."""
    done = subprocess.run(
        [*prefix, str(PROFILER), *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        cwd=folder,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Finished(done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True)
class Finished:
    """How a run ended."""

    status: int
    stdout: str
    stderr: str

    def refused(self, status: int, *words: str) -> None:
        """Asserts that it ended with this status, and said in two sentences why, with these words in them."""
        assert self.status == status, self.stderr
        lines = [line for line in self.stderr.strip().splitlines() if not line.startswith("Attaching to ")]
        assert len(lines) == 2, self.stderr
        problem, remedy = lines
        assert problem.startswith("rlscope-ebpf: "), problem
        for sentence in (problem, remedy):
            assert sentence.rstrip().endswith("."), sentence
        for word in words:
            assert word in self.stderr, self.stderr


ATTEMPTS = 3
"""A preemption between a stamp of the target and the probe beside it makes them disagree by chance; a wrong figure of
the profiler disagrees every time."""
TIMES = ("wall_ns", "cpu_ns.", "total_ns", "p50_ns", "p99_ns")

Result = TypeVar("Result")


def until_it_agrees(attempt: Callable[[], tuple[Result, list[Any]]], attempts: int = ATTEMPTS) -> Result:
    """The result of the first attempt without a mismatch; times may be wrong in a few, counts in none."""
    found: list[str] = []
    for _ in range(attempts):
        result, mismatches = attempt()
        if not mismatches:
            return result
        found.append("\n".join(map(str, mismatches)))
        if not all(mismatch.what.startswith(TIMES) for mismatch in mismatches):
            break  # a count or a transition is never wrong by chance
    raise AssertionError(f"{len(found)} runs contradict the truth:\n" + "\n--\n".join(found))


def report(trace: Path, *, status: int = 0) -> dict[str, Any]:
    """`report --format json` of a trace."""
    done = rlscope("report", trace, "--format", "json")
    assert done.status == status, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def process_of(document: dict[str, Any], pid: int) -> dict[str, Any]:
    """The one process of a report that has this pid."""
    (found,) = [each for each in document["processes"] if each["pid"] == pid]
    return dict(found)


def operations_of(document: dict[str, Any], pid: int) -> dict[str, dict[str, Any]]:
    """Path ("a/b") → operation; phases must not matter: the same path in two phases is an error here."""
    rows = process_of(document, pid)["operations"]
    named = {"/".join(row["path"]) or row["name"]: row for row in rows}
    assert len(named) == len(rows)
    return named


def total(document: dict[str, Any], pid: int, category: str) -> int:
    """Time of one category over all operations of a process, ns."""
    return sum(row["raw"]["cpu_ns"][category] for row in process_of(document, pid)["operations"])


# -- looks at a process ------------------------------------------------------------------------------------------------


def _executable_ranges(pid: int) -> Iterator[tuple[int, int, int, str]]:
    with open(f"/proc/{pid}/maps") as file:
        for line in file:
            parts = line.split(None, 5)
            if len(parts) == 6 and "x" in parts[1] and parts[5].startswith("/"):
                start, end = (int(part, 16) for part in parts[0].split("-"))
                yield start, end, int(parts[2], 16), parts[5].rstrip("\n")


def changed_text_bytes(pid: int, file_name: str = "") -> int:
    """How many bytes of the process's code differ from its files: a probe is a breakpoint (or a call) in there.

    `file_name`: only of files with this in their paths.
    """
    differences = 0
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for start, end, offset, path in _executable_ranges(pid):
            file = Path(f"/proc/{pid}/root{path}")
            if file_name not in path or not file.exists():
                continue
            with open(file, "rb") as content:
                content.seek(offset)
                original = content.read(end - start)
            memory.seek(start)
            current = memory.read(len(original))
            if current != original:
                differences += sum(a != b for a, b in zip(current, original, strict=True))
    return differences


@dataclass(frozen=True)
class Footprint:
    """What a process holds."""

    descriptors: int
    threads: int
    resident: int  # bytes


def footprint(pid: int) -> Footprint:
    """Of a running process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return Footprint(
        len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task")), pages * resource.getpagesize()
    )
