"""The session's engine, by itself, for benchmarks of its parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.processes import BenchmarkError, need_root
from rlscope_ebpf.capture.engine import Engine
from rlscope_ebpf.capture.kernel import attach_methods, kernel_version


@contextmanager
def loaded_engine() -> Iterator[Engine]:
    """With the attach method that a session would take. Raises BenchmarkError or a ProfilerError."""
    need_root()
    methods = attach_methods(kernel_version())
    if not methods:
        raise BenchmarkError("the kernel has no attach method for probes with cookies")
    engine = Engine(methods[0])
    try:
        yield engine
    finally:
        engine.close()
