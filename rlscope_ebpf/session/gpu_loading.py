"""Getting the GPU helper into a target that runs already, in a thread of its own."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

from rlscope_ebpf.capture.gpu_files import HELPER_PREFIX, INJECTION_VARIABLE, PlacedFiles, place
from rlscope_ebpf.capture.gpu_injection import Injected, Way, inject
from rlscope_ebpf.capture.privileges import EFFECTIVE, LOADING, raise_in_thread, raised
from rlscope_ebpf.capture.process import TargetProcess, read_environment
from rlscope_ebpf.errors import ProfilerError
from rlscope_ebpf.paths import gpu_library, injection_library


class Loading:
    """The helper on its way into one process. `chosen`: how it may be done."""

    def __init__(self, process: TargetProcess, chosen: list[Way]) -> None:
        """Put the files where the target can read them. Raises ProfilerErrors."""
        self.result: Injected | None = None
        self.error: ProfilerError | None = None
        self._process = process
        self._chosen = chosen
        self._thread: threading.Thread | None = None
        uid, gids = _identity(process.pid)
        root = "/" if process.same_mount_namespace and _same_root(process.pid) else f"/proc/{process.pid}/root"
        with raised(LOADING):
            self._files: PlacedFiles = place([gpu_library(), injection_library()], root=root, uid=uid, gids=gids)

    @property
    def host_path(self) -> str:
        """The helper's file as we can open it."""
        return self._files.host_path(0)

    @property
    def over(self) -> bool:
        """Whether `result` or `error` tells what became of it."""
        return self._thread is not None and not self._thread.is_alive()

    def begin(self) -> None:
        """Start it."""
        thread = threading.Thread(target=self._load, name="gpu-loader")
        thread.start()
        self._thread = thread

    def close(self) -> None:
        """Wait for its end, and remove what was copied."""
        if self._thread is not None:
            self._thread.join()
        self._close_files()

    def _load(self) -> None:
        helper, stub = self._files.paths
        raise_in_thread({*EFFECTIVE, *LOADING})
        try:
            self.result = inject(self._process, helper, stub, self._chosen)
        except ProfilerError as error:
            self.error = error
        except Exception as error:  # nothing of this may end the session
            self.error = ProfilerError(f"The GPU helper could not be loaded: {error}.", "Use --gpu off.")
        finally:
            self._close_files()

    def _close_files(self) -> None:
        with raised(LOADING):
            self._files.close()


def foreign_injection(pid: int) -> str:
    """The library, not ours, that CUDA was told to load into a process and did load; otherwise empty."""
    with suppress(OSError):
        for path in (value for name, value in read_environment(pid) if name == INJECTION_VARIABLE):
            name = os.path.basename(path)
            if name and not name.startswith(HELPER_PREFIX):
                maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
                return path if f"/{name}\n" in maps else ""
    return ""


def _same_root(pid: int) -> bool:
    with suppress(OSError):
        return os.path.samefile(f"/proc/{pid}/root", "/")
    return False


def _identity(pid: int) -> tuple[int, tuple[int, ...]]:
    """User and groups by which the process's file accesses are judged; nobody's if it is gone."""
    with suppress(OSError, ValueError, KeyError):
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        status = {key: value.split() for key, _, value in (line.partition(":") for line in lines)}
        return int(status["Uid"][3]), (int(status["Gid"][3]), *map(int, status["Groups"]))
    return 65534, ()
