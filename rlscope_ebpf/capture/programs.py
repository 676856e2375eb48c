"""Loading the BPF programs through BCC, and their maps."""

from __future__ import annotations

import ctypes
import os
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.capture.bcc_import import load_bcc
from rlscope_ebpf.capture.counters import COUNTERS, ProbeCounters, parse_counters
from rlscope_ebpf.capture.kernel import effective_capabilities
from rlscope_ebpf.capture.links import ATTACH_TYPES
from rlscope_ebpf.capture.markers_layout import DEPTH_OFFSET, NAMES_OFFSET
from rlscope_ebpf.capture.ring import Ring
from rlscope_ebpf.errors import NotPermittedError, UnsupportedError
from rlscope_ebpf.model.events import EVENT_DTYPE, TEXT_DTYPE
from rlscope_ebpf.paths import probes_dir

SOURCES = ("thread.bpf.c", "texts.bpf.c", "programs.bpf.c", "scheduler.bpf.c")
"""In the order in which they are joined."""

EVENT_RING_BYTES = 64 << 20
"""1.6 million events: at 300 thousand events a second the reader may pause for five seconds."""

TEXT_RING_BYTES = 1 << 20

TRACEPOINTS: dict[str, str] = {"sched_switch": "rls_sched_switch", "sched_process_exit": "rls_sched_exit"}
"""Tracepoint of the `sched` system → program."""

_PAGE = 4096
_SET_NO_GIL = 0  # enum rls_setting


class BpfMap:
    """A BPF map with fixed-size keys and values, given as bytes."""

    def __init__(self, bcc: ModuleType, table: Any) -> None:
        self._lib = bcc.libbcc.lib
        self.fd: int = table.map_fd

    def update(self, key: bytes, value: bytes) -> None:
        """Set. Raises OSError if the map is full."""
        if self._lib.bpf_update_elem(self.fd, ctypes.c_char_p(key), ctypes.c_char_p(value), 0) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def delete(self, key: bytes) -> None:
        """Remove, if it is there."""
        self._lib.bpf_delete_elem(self.fd, ctypes.c_char_p(key))

    def lookup_into(self, key: bytes, value: NDArray[Any]) -> bool:
        """Read a value into an array of its size; False if the key is not there."""
        return bool(self._lib.bpf_lookup_elem(self.fd, ctypes.c_char_p(key), ctypes.c_void_p(value.ctypes.data)) == 0)


class Programs:
    """The compiled and loaded programs of one session, their rings and maps.

    Raises NotPermittedError without the privileges, UnsupportedError if BCC is missing or the kernel refuses the
    programs.
    """

    def __init__(self, method: str) -> None:
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
        self._program_fds: list[int] = []
        try:
            self._bpf = bcc.BPF(text=text, cflags=flags)
            if method == "session":
                self.session_fd = self._load(bcc, "rls_session", ATTACH_TYPES["session"])
                self.entry_fd = self._load(bcc, "rls_session", ATTACH_TYPES["multi"])
            else:
                self.entry_fd = self._load(bcc, "rls_entry", ATTACH_TYPES[method])
                self.return_fd = self._load(bcc, "rls_return", ATTACH_TYPES[method])
            self.tracepoint_fds = {
                name: self._bpf.load_func(program, bcc.BPF.TRACEPOINT).fd for name, program in TRACEPOINTS.items()
            }
        except Exception as error:  # BCC raises bare Exceptions
            raise UnsupportedError(
                f"The kernel's BPF programs could not be loaded ({error}).",
                "Run `rlscope-ebpf doctor` to see which requirement is not met.",
            ) from error
        self.events = Ring(self._bpf["events"].map_fd, EVENT_RING_BYTES, EVENT_DTYPE)
        self.texts = Ring(self._bpf["texts"].map_fd, TEXT_RING_BYTES, TEXT_DTYPE)
        self._targets = BpfMap(bcc, self._bpf["targets"])
        self._records = BpfMap(bcc, self._bpf["marker_records"])
        self._counters = BpfMap(bcc, self._bpf["counters"])
        self._settings = BpfMap(bcc, self._bpf["settings"])
        self._cpus = _possible_cpus()

    def _load(self, bcc: ModuleType, name: str, attach_type: int) -> int:
        """Load a program; the same one may be loaded once for each attach type."""
        fd: int = self._bpf.load_func(name, bcc.BPF.KPROBE, attach_type=attach_type).fd
        del self._bpf.funcs[name.encode()]  # where BCC would find it the next time
        self._program_fds.append(fd)
        return fd

    def add_target(self, pid: int, *, is_python: bool, assume_held: bool, pointer_guard: int = 0) -> None:
        """Let a process's hits through. For the rest see `struct target`."""
        flags = bytes((is_python, assume_held)).ljust(8, b"\0")
        self._targets.update(_u32(pid), pointer_guard.to_bytes(8, "little") + flags)

    def remove_target(self, pid: int) -> None:
        """Let no more hits of a process through on threads that have made none yet."""
        self._targets.delete(_u32(pid))

    def add_marker_record(self, tid: int, address: int) -> None:
        """Where a thread's record of open operations lies in its process."""
        self._records.update(_u32(tid), address.to_bytes(8, "little"))

    def forget_gil(self) -> None:
        """Tell the programs that the interpreter lock is not probed: who has held it counts as holding it."""
        self._settings.update(_u32(_SET_NO_GIL), _u32(1))

    def counters(self) -> ProbeCounters:
        """The programs' counters, summed over CPUs."""
        totals = np.zeros(COUNTERS, np.uint64)
        per_cpu = np.zeros(self._cpus, np.uint64)
        for index in range(COUNTERS):
            if self._counters.lookup_into(_u32(index), per_cpu):
                totals[index] = per_cpu.sum()
        return parse_counters(totals)

    def close(self) -> None:
        """Unmap the rings and unload the programs."""
        self.events.close()
        self.texts.close()
        while self._program_fds:
            os.close(self._program_fds.pop())
        self._bpf.cleanup()


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


def _u32(value: int) -> bytes:
    return value.to_bytes(4, "little")


def _possible_cpus() -> int:
    """CPUs that a per-CPU map has room for: `0-3` → 4."""
    with open("/sys/devices/system/cpu/possible") as file:
        return int(file.read().strip().replace(",", "-").split("-")[-1]) + 1
