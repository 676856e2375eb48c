"""`rlscope-ebpf demo`: a small bundled training loop under the profiler."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from rlscope_ebpf.cli.options import capture_options, read_capture_options
from rlscope_ebpf.session.options import parse_library

SIMULATOR, NUMPY = "*librlscope_cartpole*", "*numpy*_multiarray_umath*"
"""What the demo's physics and its network run in."""


@click.command("demo")
@capture_options
def command(**given: Any) -> int:
    """Profile a small bundled training loop.

    An actor-critic learns to balance a pole: its network runs in NumPy, its physics in a small native simulator. It
    needs no GPU and no PyTorch, and takes less than a minute.
    """
    options = read_capture_options(**given)
    options = replace(options, libraries=(*options.libraries, *map(parse_library, libraries())))

    from rlscope_ebpf.cli.run import run_command

    return run_command([sys.executable, "-m", "rlscope_ebpf.demo.train"], options)


def libraries() -> tuple[str, str]:
    """As for --library. By their full paths, if these are known: then they are probed before they are loaded."""
    from rlscope_ebpf.demo.build import packaged_simulator

    package = importlib.util.find_spec("numpy")  # the demo runs under the same interpreter
    folders = package.submodule_search_locations if package is not None else None
    numpy = [str(path) for folder in folders or () for path in Path(folder).rglob("_multiarray_umath*.so")]
    simulator = packaged_simulator()
    return (
        f"simulator={SIMULATOR if simulator is None else simulator}",
        f"backend={numpy[0] if len(numpy) == 1 else NUMPY}",
    )
