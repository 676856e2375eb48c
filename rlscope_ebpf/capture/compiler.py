"""Compiling and loading the BPF programs through BCC.

An attach waits for this more than for anything else. It needs nothing but BCC and the standard library, so it can begin
before NumPy has been imported.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from rlscope_ebpf.capture.bcc_import import load_bcc
from rlscope_ebpf.capture.kernel import effective_capabilities
from rlscope_ebpf.capture.links import ATTACH_TYPES
from rlscope_ebpf.capture.marker_offsets import DEPTH_OFFSET, NAMES_OFFSET
from rlscope_ebpf.errors import NotPermittedError, UnsupportedError
from rlscope_ebpf.paths import probes_dir

SOURCES = ("thread.bpf.c", "texts.bpf.c", "programs.bpf.c", "scheduler.bpf.c")
"""In the order in which they are joined."""

EVENT_RING_BYTES = 64 << 20
"""1.6 million events: at 300 thousand events a second the reader may pause for five seconds."""

TEXT_RING_BYTES = 1 << 20

TRACEPOINTS: dict[str, str] = {
    "sched_switch": "rls_sched_switch",
    "sched_process_exit": "rls_sched_exit",
    "sched_process_exec": "rls_sched_exec",
}
"""Tracepoint of the `sched` system → program."""

BCC_OPTIMISES = ("-Xclang", "-disable-llvm-passes")
"""Clang need not optimise: BCC lets LLVM do it once more in any case. A fifth of the time."""

COMPILER = threading.Lock()
"""Held while compiling: two compilations in one process at the same time make LLVM throw."""

_PAGE = 4096


@dataclass(slots=True)
class CompiledPrograms:
    """Descriptors of the loaded programs, and the module that holds their maps."""

    method: str
    bcc: ModuleType
    module: Any  # bcc.BPF
    session_fd: int = -1  # only with method "session": entry and return
    entry_fd: int = -1
    return_fd: int = -1  # only with the other methods
    tracepoint_fds: dict[str, int] = field(default_factory=dict)
    tick_fd: int = -1
    _fds: list[int] = field(default_factory=list)

    def load(self, name: str, attach_type: int) -> int:
        """Load a program; the same one may be loaded once for each attach type."""
        fd: int = self.module.load_func(name, self.bcc.BPF.KPROBE, attach_type=attach_type).fd
        del self.module.funcs[name.encode()]  # where BCC would find it the next time
        self._fds.append(fd)
        return fd

    def close(self) -> None:
        """Unload."""
        while self._fds:
            os.close(self._fds.pop())
        self.module.cleanup()


def compile_programs(method: str) -> CompiledPrograms:
    """Compile and load what an attach method needs.

    Raises:
        NotPermittedError: the privileges for BPF are missing.
        UnsupportedError: BCC is missing, or the kernel refuses the programs.
    """
    _require_privileges()
    bcc = load_bcc()
    # BCC looks for kernel headers there; ours are the few lines it needs of them.
    os.environ["BCC_KERNEL_SOURCE"] = str(probes_dir())
    text = "".join((probes_dir() / name).read_text() for name in SOURCES)
    flags = [
        f"-I{probes_dir()}",
        "-Wno-macro-redefined",
        f"-DEVENT_RING_PAGES={EVENT_RING_BYTES // _PAGE}",
        f"-DTEXT_RING_PAGES={TEXT_RING_BYTES // _PAGE}",
        f"-DMARKER_DEPTH_OFFSET={DEPTH_OFFSET}",
        f"-DMARKER_NAMES_OFFSET={NAMES_OFFSET}",
    ]
    if method == "session":
        flags.append("-DRLS_SESSION")
    try:
        with COMPILER:
            return _compile(method, bcc, text, [*flags, *BCC_OPTIMISES])
    except Exception:
        pass  # perhaps this BCC does not
    try:
        with COMPILER:
            return _compile(method, bcc, text, flags)
    except Exception as error:  # BCC raises bare Exceptions
        raise UnsupportedError(
            f"The kernel's BPF programs could not be loaded ({error}).",
            "Run `rlscope-ebpf doctor` to see which requirement is not met.",
        ) from error


def _compile(method: str, bcc: ModuleType, text: str, flags: list[str]) -> CompiledPrograms:
    compiled = CompiledPrograms(method, bcc, bcc.BPF(text=text, cflags=flags))
    if method == "session":
        compiled.session_fd = compiled.load("rls_session", ATTACH_TYPES["session"])
        compiled.entry_fd = compiled.load("rls_session", ATTACH_TYPES["multi"])
    else:
        compiled.entry_fd = compiled.load("rls_entry", ATTACH_TYPES[method])
        compiled.return_fd = compiled.load("rls_return", ATTACH_TYPES[method])
    for name, program in TRACEPOINTS.items():
        compiled.tracepoint_fds[name] = compiled.module.load_func(program, bcc.BPF.TRACEPOINT).fd
    compiled.tick_fd = compiled.module.load_func("rls_tick", bcc.BPF.PERF_EVENT).fd
    return compiled


def _require_privileges() -> None:
    """BCC would complain in words of its own on stderr, and only once all has been compiled."""
    held = effective_capabilities()
    if "CAP_SYS_ADMIN" in held or {"CAP_BPF", "CAP_PERFMON"} <= held:
        return
    if os.geteuid() != 0:
        raise NotPermittedError(
            "This user may not load BPF programs.", "Run the profiler as root, for example with sudo."
        )
    raise NotPermittedError(
        "Root may not load BPF programs here: CAP_BPF or CAP_PERFMON is missing.",
        "Give them to this container (--cap-add BPF --cap-add PERFMON), or run on the host.",
    )
