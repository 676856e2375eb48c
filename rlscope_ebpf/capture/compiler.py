"""Compiling the BPF programs through BCC, and loading them.

An attach waits for this more than for anything else. It needs little beyond BCC and the standard library, so it can
begin before NumPy has been imported; and what has been compiled is kept for the next time.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from rlscope_ebpf.capture import kept_images
from rlscope_ebpf.capture.bcc_import import bcc_identity, load_bcc
from rlscope_ebpf.capture.bpf import PROGRAM_KPROBE, PROGRAM_PERF_EVENT, PROGRAM_RAW_TRACEPOINT, PROGRAM_TRACEPOINT
from rlscope_ebpf.capture.image import Image, LoadedImage, image_of
from rlscope_ebpf.capture.kernel import effective_capabilities, how_to_get, kernel_release
from rlscope_ebpf.capture.links import ATTACH_TYPES
from rlscope_ebpf.capture.marker_offsets import DEPTH_OFFSET, NAMES_OFFSET
from rlscope_ebpf.capture.pid_namespace import compiler_flags
from rlscope_ebpf.errors import NotPermittedError, UnsupportedError
from rlscope_ebpf.paths import probes_dir

SOURCES = ("thread.bpf.c", "texts.bpf.c", "programs.bpf.c", "sampling.bpf.c", "scheduler.bpf.c")
"""In the order in which they are joined."""

EVENT_RING_BYTES = 64 << 20
"""1.6 million events: at 300 thousand events a second the reader may pause for five seconds."""

TEXT_RING_BYTES = 1 << 20

SAMPLE_RING_BYTES = 16 << 20
"""16 thousand samples: with 16 busy CPUs, those of a second."""

_KERNEL_TYPES = "/sys/kernel/btf/vmlinux"

TRACEPOINTS: dict[str, str] = {
    "sched_switch": "rls_sched_switch",
    "sched_process_exit": "rls_sched_exit",
    "sched_process_exec": "rls_sched_exec",
}
"""Tracepoint of the `sched` system → program."""

RAW_TRACEPOINTS: dict[str, str] = {"sched_wakeup": "rls_sched_wakeup"}
"""Those that are met so often, also on account of others, that every look into their arguments counts."""

TICK, SAMPLE = "rls_tick", "rls_sample"
"""The programs of the clock."""

BCC_OPTIMISES = ("-Xclang", "-disable-llvm-passes")
"""Clang need not optimise: BCC lets LLVM do it once more in any case. A fifth of the time."""

COMPILER = threading.Lock()
"""Held while compiling: two compilations in one process at the same time make LLVM throw."""

_PAGE = 4096

Loaded = TypeVar("Loaded")


@dataclass(slots=True)
class CompiledPrograms:
    """Descriptors of the loaded programs, and of their maps by name."""

    method: str
    image: LoadedImage
    session_fd: int = -1  # only with method "session": entry and return
    entry_fd: int = -1
    return_fd: int = -1  # only with the other methods
    tracepoint_fds: dict[str, int] = field(default_factory=dict)
    raw_tracepoint_fds: dict[str, int] = field(default_factory=dict)
    tick_fd: int = -1
    sample_fd: int = -1

    @property
    def maps(self) -> dict[str, int]:
        """Descriptors by name."""
        return self.image.maps

    def close(self) -> None:
        """Unload."""
        self.image.close()


def compile_programs(method: str) -> CompiledPrograms:
    """Compile and load what an attach method needs.

    Raises:
        NotPermittedError: the privileges for BPF are missing.
        UnsupportedError: BCC is missing, or the kernel refuses the programs.
    """
    _require_privileges()
    flags = [
        f"-DEVENT_RING_PAGES={EVENT_RING_BYTES // _PAGE}",
        f"-DTEXT_RING_PAGES={TEXT_RING_BYTES // _PAGE}",
        f"-DSAMPLE_RING_PAGES={SAMPLE_RING_BYTES // _PAGE}",
        f"-DMARKER_DEPTH_OFFSET={DEPTH_OFFSET}",
        f"-DMARKER_NAMES_OFFSET={NAMES_OFFSET}",
        *compiler_flags(),
    ]
    if method == "session":
        flags.append("-DRLS_SESSION")
        probes = ["rls_session"]
    else:
        probes = ["rls_entry", "rls_return"]
    if os.path.exists(_KERNEL_TYPES):
        flags.append("-DRLS_KERNEL_TYPES")
    try:
        programs = [*probes, *TRACEPOINTS.values(), *RAW_TRACEPOINTS.values(), TICK, SAMPLE]
        return load_compiled(SOURCES, flags, programs, lambda image: _load(method, image))
    except OSError as error:
        raise UnsupportedError(
            f"The kernel's BPF programs could not be loaded ({error}).",
            "Run `rlscope-ebpf doctor` to see which requirement is not met.",
        ) from error


def _load(method: str, image: LoadedImage) -> CompiledPrograms:
    compiled = CompiledPrograms(method, image)
    if method == "session":
        compiled.session_fd = image.load("rls_session", PROGRAM_KPROBE, ATTACH_TYPES["session"])
        compiled.entry_fd = image.load("rls_session", PROGRAM_KPROBE, ATTACH_TYPES["multi"])
    else:
        compiled.entry_fd = image.load("rls_entry", PROGRAM_KPROBE, ATTACH_TYPES[method])
        compiled.return_fd = image.load("rls_return", PROGRAM_KPROBE, ATTACH_TYPES[method])
    for name, program in TRACEPOINTS.items():
        compiled.tracepoint_fds[name] = image.load(program, PROGRAM_TRACEPOINT)
    for name, program in RAW_TRACEPOINTS.items():
        compiled.raw_tracepoint_fds[name] = image.load(program, PROGRAM_RAW_TRACEPOINT)
    compiled.tick_fd = image.load(TICK, PROGRAM_PERF_EVENT)
    compiled.sample_fd = image.load(SAMPLE, PROGRAM_PERF_EVENT)
    return compiled


def load_compiled(
    sources: Sequence[str], flags: Sequence[str], programs: Sequence[str], load: Callable[[LoadedImage], Loaded]
) -> Loaded:
    """What `load` makes of the image of some of our sources (names, joined in this order).

    The image is the one that is kept, or is compiled now. It is closed if `load` raises.

    Raises OSError if it cannot be compiled or loaded, UnsupportedError if BCC is missing.
    """
    text = "".join((probes_dir() / name).read_text() for name in sources)
    key = _key(text, flags, programs)
    kept = kept_images.load(key)
    if kept is not None:
        try:
            return _loaded(kept, load)
        except (OSError, KeyError):
            kept_images.forget(key)
    try:
        image = _compile(text, [*flags, *BCC_OPTIMISES], programs)
        loaded = _loaded(image, load)
    except OSError:  # perhaps this BCC does not
        image = _compile(text, flags, programs)
        loaded = _loaded(image, load)
    kept_images.save(key, image)
    return loaded


def _loaded(image: Image, load: Callable[[LoadedImage], Loaded]) -> Loaded:
    into = LoadedImage(image)
    try:
        return load(into)
    except BaseException:
        into.close()
        raise


def _key(text: str, flags: Sequence[str], programs: Sequence[str]) -> str:
    """Of all that what BCC makes depends on."""
    digest = hashlib.sha256()
    headers = sorted(path for path in probes_dir().rglob("*.h"))
    for part in (text, *flags, *programs, kernel_release(), bcc_identity(), *(path.read_text() for path in headers)):
        digest.update(hashlib.sha256(part.encode()).digest())
    return digest.hexdigest()[:32]


def _compile(text: str, flags: Sequence[str], programs: Sequence[str]) -> Image:
    bcc = load_bcc()
    with COMPILER:
        # BCC looks for kernel headers there; ours are the few lines it needs of them.
        os.environ["BCC_KERNEL_SOURCE"] = str(probes_dir())
        try:
            module = bcc.BPF(text=text, cflags=[f"-I{probes_dir()}", "-Wno-macro-redefined", *flags])
        except Exception as error:  # BCC raises bare Exceptions
            raise OSError(str(error)) from error
        try:
            return image_of(bcc, module, programs)
        finally:
            module.cleanup()


def _require_privileges() -> None:
    """BCC would complain in words of its own on stderr, and only once all has been compiled."""
    held = effective_capabilities()
    if "CAP_SYS_ADMIN" in held or {"CAP_BPF", "CAP_PERFMON"} <= held:
        return
    missing = [name for name in ("CAP_BPF", "CAP_PERFMON") if name not in held]
    if os.geteuid() != 0 and not held:
        raise NotPermittedError("This user may not load BPF programs.", how_to_get(*missing))
    whose = "Root may not load BPF programs here" if os.geteuid() == 0 else "This user may not load BPF programs"
    verb = "is" if len(missing) == 1 else "are"
    raise NotPermittedError(f"{whose}: {' and '.join(missing)} {verb} missing.", how_to_get(*missing))
