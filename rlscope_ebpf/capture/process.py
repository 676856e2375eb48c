"""Looking at the process that is to be profiled, before anything touches it."""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from rlscope_ebpf.capture.kernel import effective_capabilities, how_to_get, kernel_version
from rlscope_ebpf.capture.known_files import Identity, identity_of, keep_text, known_text
from rlscope_ebpf.capture.pid_namespace import require_numbered, require_own_proc
from rlscope_ebpf.capture.tasks import read_thread_ids
from rlscope_ebpf.errors import NotPermittedError, ProfilerError, UnsupportedError, UsageError

PF_KTHREAD = 0x00200000  # include/linux/sched.h; field "flags" of /proc/PID/stat
_STAT_FLAGS, _STAT_START_TIME = 6, 19  # fields 9 and 22 of stat, counted after the closing parenthesis of the name

ELF_MAGIC = b"\x7fELF"
ELF_CLASS_BITS = {1: 32, 2: 64}
EM_X86_64 = 62

EXEC_PATIENCE_S = 0.25

SECCOMP_MODES = {0: "none", 1: "strict", 2: "filter"}

_known_versions: dict[Identity, str | None] = {}
_VERSION = "python version"
_NO_PYTHON = "none"
"""By device, inode and time of change of a file: a capture looks at the same interpreter several times."""

_PYTHON_FILE = re.compile(r"^(?:lib)?python(\d+\.\d+)?[a-z]*(?:\.so[\d.]*|-\w+)?$")


@dataclass(frozen=True, slots=True)
class PythonIdentity:
    """Which CPython runs in a process and which mapped file holds it."""

    version: str  # "3.11.7", "3.11" if only a file name tells, "" if nothing does
    image: str  # path as the target sees it


@dataclass(frozen=True, slots=True)
class TargetProcess:
    """What was seen of a process at one moment. `pid` and `start_ticks` together name it for good."""

    pid: int
    ppid: int
    comm: str
    command: tuple[str, ...]
    exe: str  # path as the target sees it; " (deleted)" removed
    uid: int
    state: str  # one letter, as in /proc/PID/stat
    threads: int
    bits: int  # 32 or 64
    python: PythonIdentity | None
    seccomp_mode: int  # the strictest of its threads: a key of SECCOMP_MODES
    namespace_pids: tuple[int, ...]  # NSpid: its pid here, then in each namespace further in
    same_mount_namespace: bool  # whether its paths are ours
    start_ticks: int  # since boot
    is_kernel_thread: bool = False

    @property
    def is_python(self) -> bool:
        """Whether CPython runs in it."""
        return self.python is not None

    @property
    def python_version(self) -> str:
        """ "3.11.7", or "" if it is not Python or does not say."""
        return self.python.version if self.python else ""

    @property
    def name(self) -> str:
        """What a person would call it: the script or module that a Python process runs, otherwise `comm`."""
        return (script_name(self.command) if self.is_python else None) or self.comm

    @property
    def allows_return_probes(self) -> bool:
        """Whether return probes are safe: false where a seccomp filter of the target may kill it for one."""
        return self.seccomp_mode == 0 or not _seccomp_sees_return_probes(kernel_version())


def inspect(pid: int) -> TargetProcess:
    """Look at a process and refuse the ones that cannot be profiled.

    Raises:
        UsageError: there is no such process, it has exited (also: a zombie), it is this process, or `pid` is a thread.
        NotPermittedError: this user may not look into it.
        UnsupportedError: a kernel thread, a 32-bit process, or one whose main thread has ended.
    """
    if pid == os.getpid():
        raise UsageError(f"Process {pid} is the profiler itself.", "Name the process that runs your training.")
    try:
        return _inspect(pid)
    except PermissionError as error:
        raise not_permitted(pid) from error
    except (FileNotFoundError, ProcessLookupError) as error:
        raise vanished(pid) from error
    except OSError as error:
        raise ProfilerError(
            f"Process {pid} cannot be inspected: {error.strerror}.", "Check that /proc is mounted and readable."
        ) from error


def load_what_inspecting_takes() -> None:
    """Load now what a look at a program of another kind would have to load: that takes 50 ms."""
    import elftools.elf.elffile
    import elftools.elf.hash  # noqa: F401


def inspect_forked(pid: int, origin: TargetProcess) -> TargetProcess:
    """The same of a process that `origin` has forked, and that runs the same program: much of it is known.

    Raises:
        UsageError: it has exited.
    """
    try:
        state, fields = _read_stat(pid)
    except OSError as error:
        raise vanished(pid) from error
    if state in "ZX":
        raise vanished(pid)
    try:
        status = _read_status(pid)
    except OSError as error:
        raise vanished(pid) from error
    require_numbered(pid, origin.comm, _namespace_pids(pid, status))
    return replace(
        origin,
        pid=pid,
        ppid=int(fields[1]),
        state=state,
        threads=1,
        namespace_pids=_namespace_pids(pid, status),
        start_ticks=int(fields[_STAT_START_TIME]),
    )


def read_environment(pid: int) -> list[tuple[str, str]]:
    """Names and values of the variables that a process's program was started with. Raises OSError."""
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return [(name, value) for name, _, value in (os.fsdecode(word).partition("=") for word in words)]


def is_alive(target: TargetProcess) -> bool:
    """Whether the very same process still runs: neither exited nor replaced by another one of the same pid."""
    try:
        state, fields = _read_stat(target.pid)
    except OSError:
        return False
    return state not in "ZX" and int(fields[_STAT_START_TIME]) == target.start_ticks


def open_pidfd(target: TargetProcess) -> int:
    """A file descriptor that becomes readable when the process exits. The caller closes it.

    Raises:
        UsageError: it has exited already, or its pid belongs to another process now.
    """
    try:
        descriptor = os.pidfd_open(target.pid)
    except (ProcessLookupError, OSError) as error:
        raise vanished(target.pid) from error
    # Only now is the pid held; whatever was looked at before may have been another process.
    if not is_alive(target):
        os.close(descriptor)
        raise vanished(target.pid)
    return descriptor


def identify_python(pid: int, exe: str, mapped_files: Iterable[str]) -> PythonIdentity | None:
    """Find CPython in a process.

    Args:
        pid: of the process, through whose root the files are opened.
        exe: path of its executable.
        mapped_files: paths of its mapped files, as the target sees them.

    Returns:
        The interpreter, or None: not CPython, or one linked in without exporting its symbols.
    """
    libraries = [path for path in mapped_files if re.match(r"libpython\d", os.path.basename(path))]
    for path in libraries:
        version = _python_version_of(f"/proc/{pid}/root{path}") or _version_in_name(path)
        return PythonIdentity(version, path)
    version_or_none = _python_version_of(f"/proc/{pid}/exe")
    if version_or_none is None:
        return None
    return PythonIdentity(version_or_none or _version_in_name(exe), exe)


def script_name(command: tuple[str, ...]) -> str | None:
    """The script or module a Python command line runs, without folder and suffix; None for `-c` and no script."""
    words = iter(command[1:])
    for word in words:
        if word == "-m":
            module = next(words, "")
            return module.removesuffix(".__main__").rpartition(".")[2] or None
        if word in ("-c", "-"):
            return None
        if word in ("-W", "-X", "--check-hash-based-pycs"):
            next(words, None)
        elif not word.startswith("-"):
            path = Path(word)
            return path.parent.name or None if path.name == "__main__.py" else path.stem
    return None


def not_permitted(pid: int) -> NotPermittedError:
    """The error for a process that this user may not look into; its remedy depends on who we are."""
    problem = f"This user may not look into process {pid}."
    held = effective_capabilities()
    if "CAP_SYS_PTRACE" not in held:
        if held or os.geteuid() == 0:
            problem = f"{problem.removesuffix('.')}: CAP_SYS_PTRACE is missing."
        return NotPermittedError(problem, how_to_get("CAP_SYS_PTRACE", held=held))
    if "CAP_DAC_READ_SEARCH" not in held:
        problem = f"{problem.removesuffix('.')}: CAP_DAC_READ_SEARCH is missing."
        return NotPermittedError(problem, how_to_get("CAP_DAC_READ_SEARCH", held=held))
    return NotPermittedError(
        problem, "The system protects it even from root (a security module, a sandbox): choose another process."
    )


def _inspect(pid: int) -> TargetProcess:
    require_own_proc()
    status = _read_status(pid)
    namespace_pids = _namespace_pids(pid, status)
    leader = int(status["Tgid"])
    if leader != pid:
        name = status["Name"]
        raise UsageError(f"{pid} is a thread ({name}) of process {leader}, not a process.", f"Use --pid {leader}.")
    state, fields = _read_stat(pid)
    if int(fields[_STAT_FLAGS]) & PF_KTHREAD:
        raise UnsupportedError(
            f"Process {pid} ({status['Name']}) is a kernel thread: it runs no program.",
            "Name the process that runs your training.",
        )
    if state in "ZX":
        if int(status["Threads"]) > 1:
            raise UnsupportedError(
                f"The main thread of process {pid} has ended while others run on, so its memory cannot be looked at.",
                "Let the main thread wait for the others instead of ending it.",
            )
        raise UsageError(
            f"Process {pid} ({status['Name']}) has exited and only waits for its parent to notice (a zombie).",
            "Name a process that runs.",
        )
    require_numbered(pid, status["Name"], namespace_pids)
    bits = _check_image(pid, status["Name"])
    exe = os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
    files = _wait_for_mapped_files(pid)
    command = _read_command(pid)
    return TargetProcess(
        pid=pid,
        ppid=int(status["PPid"]),
        comm=status["Name"],
        command=command or (status["Name"],),
        exe=exe,
        uid=int(status["Uid"].split()[0]),
        state=state,
        threads=int(status["Threads"]),
        bits=bits,
        python=identify_python(pid, exe, files),
        seccomp_mode=_strictest_seccomp(pid),
        namespace_pids=namespace_pids,
        same_mount_namespace=os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt"),
        start_ticks=int(fields[_STAT_START_TIME]),
    )


def vanished(pid: int) -> ProfilerError:
    """What to raise about a process that was not there, or is there no more."""
    is_shown = os.path.exists(f"/proc/{pid}")  # before it is asked for otherwise: it may end at any moment
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        pass
    except PermissionError:
        return not_permitted(pid)
    else:
        if not is_shown:  # the mount option hidepid
            return not_permitted(pid)
    return UsageError(
        f"There is no process {pid}; it may have exited.",
        "List candidates with `pgrep -af python` and name one of them.",
    )


def _read_status(pid: int) -> dict[str, str]:
    text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    return {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}


def _namespace_pids(pid: int, status: dict[str, str]) -> tuple[int, ...]:
    """Its numbers, from the namespace of /proc on inwards."""
    return tuple(int(number) for number in status.get("NSpid", str(pid)).split())


def _read_stat(pid: int) -> tuple[str, list[str]]:
    """State, and the fields after it. The name before may itself hold blanks and parentheses."""
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    fields = text[text.rindex(")") + 1 :].split()
    return fields[0], fields


def _read_command(pid: int) -> tuple[str, ...]:
    raw = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0")
    return tuple(part.decode(errors="replace") for part in raw.split(b"\0")) if raw else ()


def _check_image(pid: int, name: str) -> int:
    """Bits of the program. Raises UnsupportedError unless it is x86-64."""
    with open(f"/proc/{pid}/exe", "rb") as file:
        head = file.read(20)
    if head[:4] != ELF_MAGIC or len(head) < 20:
        raise UnsupportedError(f"Process {pid} ({name}) does not run an ELF program.", "Name a Linux process.")
    bits = ELF_CLASS_BITS.get(head[4], 0)
    (machine,) = struct.unpack_from("<H", head, 18)
    if bits == 32:
        raise UnsupportedError(
            f"Process {pid} ({name}) is a 32-bit process, which the probes do not understand.",
            "Run the training in a 64-bit Python.",
        )
    if bits != 64 or machine != EM_X86_64:
        raise UnsupportedError(
            f"Process {pid} ({name}) runs a program for another kind of processor (ELF machine {machine}).",
            "Profile programs for x86-64.",
        )
    return bits


def _wait_for_mapped_files(pid: int) -> list[str]:
    """A process in the middle of `execve` maps nothing for a moment; one that is exiting maps nothing ever again."""
    deadline = time.monotonic() + EXEC_PATIENCE_S
    while not (files := _mapped_files(pid)):
        if time.monotonic() > deadline:
            raise ProcessLookupError
        time.sleep(0.005)
    return files


def _mapped_files(pid: int) -> list[str]:
    """Paths of the files that a process maps, each once, in order."""
    with open(f"/proc/{pid}/maps", errors="surrogateescape") as file:
        lines = [line.rstrip("\n").split(None, 5) for line in file]
    paths = (parts[5].removesuffix(" (deleted)") for parts in lines if len(parts) == 6 and parts[5].startswith("/"))
    return list(dict.fromkeys(paths))


def _strictest_seccomp(pid: int) -> int:
    """A filter belongs to a thread, and a return probe may fire on any of them."""
    texts = (_read_if_there(f"/proc/{pid}/task/{tid}/status") for tid in read_thread_ids(pid))
    modes = (re.search(r"^Seccomp:\s*(\d+)", text, re.MULTILINE) for text in texts if text is not None)
    return max((int(mode.group(1)) for mode in modes if mode), default=0)


def _read_if_there(path: str) -> str | None:
    """Text of a file of a thread, or None if it has ended meanwhile."""
    try:
        return Path(path).read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None


def _seccomp_sees_return_probes(version: tuple[int, ...]) -> bool:
    """Kernels from 6.11 return from a probed function by a system call of its own, `uretprobe`, which seccomp filters
    did not know and denied, until 6.12.13, 6.13.2 and 6.14 let it pass without asking them."""
    if version < (6, 11):
        return False
    return not (version >= (6, 13, 2) or (6, 12, 13) <= version < (6, 13))


def _version_in_name(path: str) -> str:
    match = _PYTHON_FILE.match(os.path.basename(path))
    return (match.group(1) or "") if match else ""


def _python_version_of(path: str) -> str | None:
    """Version of the CPython that an ELF file exports; "" if it exports one that does not say; None if none."""
    try:
        with open(path, "rb") as file:
            identity = identity_of(os.fstat(file.fileno()))
            if identity not in _known_versions:
                _known_versions[identity] = _kept_version(identity, file)
            return _known_versions[identity]
    except OSError:
        return None


def _kept_version(identity: Identity, file: BinaryIO) -> str | None:
    kept = known_text(identity, _VERSION)
    if kept is None:
        version = _exported_python_version(file)
        keep_text(identity, _VERSION, _NO_PYTHON if version is None else version)
        return version
    return None if kept == _NO_PYTHON else kept


def _exported_python_version(file: BinaryIO) -> str | None:
    from elftools.common.exceptions import ELFError

    try:
        return _find_python_version(file)
    except ELFError:
        return None


def _find_python_version(file: BinaryIO) -> str | None:
    from elftools.elf.elffile import ELFFile
    from elftools.elf.hash import ELFHashSection, GNUHashSection

    elf = ELFFile(file)
    for name in (".gnu.hash", ".hash"):
        table = elf.get_section_by_name(name)
        if not isinstance(table, (GNUHashSection, ELFHashSection)):
            continue
        if table.get_symbol("PyEval_SaveThread") is None:
            return None
        symbol = table.get_symbol("Py_Version")  # a constant, exported since 3.11
        if symbol is None:
            return ""
        address = symbol["st_value"]
        for segment in elf.iter_segments("PT_LOAD"):
            start = segment["p_vaddr"]
            if start <= address < start + segment["p_filesz"]:
                file.seek(segment["p_offset"] + address - start)
                packed = int.from_bytes(file.read(4), "little")
                return f"{packed >> 24}.{packed >> 16 & 0xFF}.{packed >> 8 & 0xFF}"
        return ""
    return None
