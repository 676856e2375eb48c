"""What is said of a GPU helper that cannot be probed."""

from __future__ import annotations

import errno
import os
from typing import Any, cast

import pytest

from rlscope_ebpf.session.gpu_watch import GpuWatch, _Watched


class Capture:
    """Fails as the kernel does."""

    def __init__(self, number: int) -> None:
        self._number = number

    def attach(self, pid: int, path: str) -> None:
        raise OSError(self._number, os.strerror(self._number))


class Target:
    pid = 4242


@pytest.mark.parametrize(("number", "said"), [(errno.ESRCH, 0), (errno.EPERM, 1)])
def test_a_process_that_ends_at_this_moment_is_no_problem(number: int, said: int) -> None:
    watch = object.__new__(GpuWatch)
    notices: list[str] = []
    watch._capture, watch._notices = cast("Any", Capture(number)), notices
    watched = _Watched(cast("Any", Target()))
    assert not watch._listen(watched, "/helper.so")
    assert len(notices) == said
    assert bool(watched.problem) == bool(said)
