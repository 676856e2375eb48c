"""What can be made ready before the target is known, while the rest of the program is still being imported."""

from __future__ import annotations

import ctypes
import threading
from types import TracebackType
from typing import TYPE_CHECKING

from rlscope_ebpf.capture.compiler import compile_programs
from rlscope_ebpf.capture.kernel import choose_attach_method

if TYPE_CHECKING:
    from rlscope_ebpf.capture.engine import Engine

_CLONE_FS = 0x200  # include/uapi/linux/sched.h: working folder, root and umask
_LIBC = ctypes.CDLL(None)


def leave_working_folder() -> bool:
    """Give the calling thread a working folder of its own, which BCC may change. False where that is forbidden."""
    return bool(_LIBC.unshare(_CLONE_FS) == 0)


class Preparation:
    """Compiles and loads the BPF programs in a thread of its own. Use as a context manager.

    Compiling is most of what an attach waits for, and runs outside of the interpreter lock. But BCC changes the working
    folder meanwhile, so the thread gets one of its own; where that is forbidden (a container's seccomp filter), it
    waits until `engine` is called. `wanted` is an attach method or "auto".
    """

    def __init__(self, wanted: str) -> None:
        self._wanted = wanted
        self._engine: Engine | None = None
        self._error: BaseException | None = None
        self._asked = threading.Event()
        self._wanted_still = True
        self._thread = threading.Thread(target=self._make, name="bpf-compiler")
        self._thread.start()

    def engine(self) -> Engine:
        """The engine, once it is there; it then belongs to the caller.

        Raises:
            UnsupportedError: the kernel has no such attach method, BCC is missing, or the programs were refused.
            NotPermittedError: the privileges for BPF are missing.
        """
        self._asked.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        engine, self._engine = self._engine, None
        if engine is None:
            raise RuntimeError("handed out already")
        return engine

    def __enter__(self) -> Preparation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wanted_still = False
        self._asked.set()
        self._thread.join()  # a compiler must not be at work while the process ends
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _make(self) -> None:
        if not leave_working_folder():
            self._asked.wait()
        if not self._wanted_still:
            return
        try:
            method = choose_attach_method(self._wanted)
            compiled = compile_programs(method)
            from rlscope_ebpf.capture.engine import Engine

            self._engine = Engine(method, compiled)
        except Exception as error:  # raised where the engine is asked for
            self._error = error
