"""System tests: the real product on real targets. What cannot run fails: a skip would look like a pass."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import harness


def _why_not() -> str | None:
    """What is missing for BPF, as a sentence."""
    from rlscope_ebpf.capture.bcc_import import load_bcc
    from rlscope_ebpf.capture.kernel import attach_methods, kernel_release, kernel_version
    from rlscope_ebpf.errors import ProfilerError

    if os.geteuid() != 0:
        return "System tests attach probes: run them as root."
    if not attach_methods(kernel_version()):
        return f"System tests attach probes, which kernel {kernel_release()} cannot."
    if not harness.PROFILER.exists():
        return f"System tests start {harness.PROFILER}, which is not there: install the project into this environment."
    try:
        load_bcc()
    except ProfilerError as error:
        return f"{error.problem} {error.remedy}"
    return None


@pytest.fixture(scope="session", autouse=True)
def can_run() -> None:
    """Every system test needs it."""
    reason = _why_not()
    if reason is not None:
        pytest.fail(reason, pytrace=False)


@pytest.fixture
def start_target(tmp_path: Path) -> Iterator[Callable[..., harness.Program]]:
    """start_target(word, …, realtime=…): a target program that waits for the profiler."""
    programs = []

    def start(*command: str | Path, ready: bool = True, **options: Any) -> harness.Program:
        program = harness.Program(command, tmp_path, **options)
        programs.append(program)
        return program.wait_until_ready() if ready else program

    yield start
    for program in programs:
        program.close()


@pytest.fixture
def start_profiler(tmp_path: Path) -> Iterator[Callable[..., harness.Profiler]]:
    """start_profiler(word, …): `rlscope-ebpf word …` in a folder of its own."""
    profilers = []

    def start(*arguments: str | Path, **options: Any) -> harness.Profiler:
        profiler = harness.Profiler(arguments, tmp_path, **options)
        profilers.append(profiler)
        return profiler

    yield start
    for profiler in profilers:
        profiler.close()


@pytest.fixture
def attach(
    start_profiler: Callable[..., harness.Profiler], tmp_path: Path
) -> Callable[..., tuple[harness.Profiler, Path]]:
    """attach(target, option, …): the profiler, attached, and the trace it writes.

    Nothing is taken off for what it costs unless the options name a limit: counts are exact only then.
    """

    def start(
        target: harness.Program, *options: str | Path, libraries: tuple[str, ...] = harness.build.LIBRARY_OPTIONS
    ) -> tuple[harness.Profiler, Path]:
        trace = tmp_path / f"{target.pid}-{len(list(tmp_path.glob('*.rlscope')))}.rlscope"
        words = ["attach", "--pid", str(target.pid), "-o", trace, "--no-tui", *libraries]
        limit = () if "--max-overhead" in options else ("--max-overhead", "0")
        return start_profiler(*words, *limit, *options).wait_until_attached(), trace

    return start
