"""`rlscope-ebpf demo`: a small bundled training loop under the profiler."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import click

from rlscope_ebpf.cli.options import capture_options, read_capture_options
from rlscope_ebpf.session.options import parse_library

LIBRARIES = ("simulator=*librlscope_cartpole*", "backend=*numpy*_multiarray_umath*")
"""What the demo's network and its physics run in."""


@click.command("demo")
@capture_options
def command(**given: Any) -> int:
    """Profile a small bundled training loop.

    An actor-critic learns to balance a pole: its network runs in NumPy, its physics in a small native simulator. It
    needs no GPU and no PyTorch, and takes less than a minute.
    """
    options = read_capture_options(**given)
    options = replace(options, libraries=(*options.libraries, *map(parse_library, LIBRARIES)))

    from rlscope_ebpf.cli.run import run_command

    return run_command([sys.executable, "-m", "rlscope_ebpf.demo.train"], options)
