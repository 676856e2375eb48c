"""The GPU helper in a command that `run` starts: the CUDA driver loads what an environment variable names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from rlscope_ebpf.capture.gpu_files import HELPER_PREFIX, INJECTION_VARIABLE, place
from rlscope_ebpf.capture.gpu_python import SOCKET_VARIABLE, PythonCapture
from rlscope_ebpf.capture.launch import Identity
from rlscope_ebpf.errors import ProfilerError
from rlscope_ebpf.paths import gpu_library, target_python
from rlscope_ebpf.session.options import GpuMode


@dataclass(frozen=True, slots=True)
class LaunchedHelper:
    """What `run` did so that its command loads the helper by itself."""

    path: str = ""  # the file, named in the command's environment; "": it is not
    obstacle: str = ""  # why not, a sentence
    listener: PythonCapture | None = None  # of cupti-python, which the command's Python will load

    @property
    def works(self) -> bool:
        """Whether it will load a helper."""
        return bool(self.path) or self.listener is not None


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
    if mode == "cupti-python":
        with _python_environment(identity, values) as prepared:
            yield prepared
        return
    if given and not Path(given).name.startswith(HELPER_PREFIX):
        obstacle = f"{INJECTION_VARIABLE} names {given}, which is left alone. Unset it for GPU times."
        yield CommandEnvironment(values, LaunchedHelper(obstacle=obstacle))
        return
    try:
        files = place([gpu_library()], root="/", **_user(identity))
    except ProfilerError as error:
        yield CommandEnvironment(values, LaunchedHelper(obstacle=f"{error.problem} {error.remedy}"))
        return
    try:
        values[INJECTION_VARIABLE] = files.paths[0]
        yield CommandEnvironment(values, LaunchedHelper(path=files.paths[0]))
    finally:
        files.close()


class _User(TypedDict):
    uid: int
    gids: list[int]


def _user(identity: Identity | None) -> _User:
    if identity is None:
        return {"uid": os.geteuid(), "gids": os.getgroups()}
    return {"uid": identity.uid, "gids": os.getgrouplist(identity.name, identity.gid)}


@contextmanager
def _python_environment(identity: Identity | None, values: dict[str, str]) -> Iterator[CommandEnvironment]:
    """An environment in which Python imports our sitecustomize, which starts the helper."""
    files = place(sorted(target_python().glob("*.py")), root="/", **_user(identity))
    listener = PythonCapture()
    try:
        values[SOCKET_VARIABLE] = listener.path
        folders = [os.path.dirname(files.paths[0]), *filter(None, [values.get("PYTHONPATH")])]
        values["PYTHONPATH"] = os.pathsep.join(folders)
        yield CommandEnvironment(values, LaunchedHelper(listener=listener))
    finally:
        listener.close()
        files.close()
