"""The GPU helper in a command that `run` starts: the CUDA driver loads what an environment variable names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rlscope_ebpf.capture.gpu_files import HELPER_PREFIX, INJECTION_VARIABLE, place
from rlscope_ebpf.capture.launch import Identity
from rlscope_ebpf.errors import ProfilerError
from rlscope_ebpf.paths import gpu_library
from rlscope_ebpf.session.options import GpuMode


@dataclass(frozen=True, slots=True)
class LaunchedHelper:
    """What `run` did so that its command loads the helper by itself."""

    path: str = ""  # the file, named in the command's environment; "": it is not
    obstacle: str = ""  # why not, a sentence


@dataclass(frozen=True, slots=True)
class CommandEnvironment:
    """The environment of a command, and what it will do about the GPU."""

    environment: dict[str, str]
    helper: LaunchedHelper


@contextmanager
def prepare_environment(
    mode: GpuMode, identity: Identity | None, environment: Mapping[str, str] | None = None
) -> Iterator[CommandEnvironment]:
    """What a command started as `identity` (None: as we are) needs to load the helper, for as long as it runs."""
    values = dict(os.environ if environment is None else environment)
    given = values.get(INJECTION_VARIABLE, "")
    if mode == "off":
        yield CommandEnvironment(values, LaunchedHelper())
        return
    if given and not Path(given).name.startswith(HELPER_PREFIX):
        obstacle = f"{INJECTION_VARIABLE} names {given}, which is left alone. Unset it for GPU times."
        yield CommandEnvironment(values, LaunchedHelper(obstacle=obstacle))
        return
    uid = os.geteuid() if identity is None else identity.uid
    gids = os.getgroups() if identity is None else os.getgrouplist(identity.name, identity.gid)
    try:
        files = place([gpu_library()], root="/", uid=uid, gids=gids)
    except ProfilerError as error:
        yield CommandEnvironment(values, LaunchedHelper(obstacle=f"{error.problem} {error.remedy}"))
        return
    try:
        values[INJECTION_VARIABLE] = files.paths[0]
        yield CommandEnvironment(values, LaunchedHelper(path=files.paths[0]))
    finally:
        files.close()
