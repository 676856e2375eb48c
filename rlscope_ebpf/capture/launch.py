"""Starting a command so that it waits, with its program and libraries loaded, before its first instruction.

The child asks to be traced and calls `execve`; the kernel stops it when the new program is in place. A breakpoint on
the program's entry point then lets the dynamic linker do its work, so that the libraries the program is linked with
(libpython, for one) are mapped, too. Probes are attached as to any running process, and the child is let go: nobody
traces it from then on. Where tracing is forbidden altogether the command starts at once and its first milliseconds
are not seen; `LaunchedCommand.stopped` tells.
"""

from __future__ import annotations

import ctypes
import errno
import os
import pwd
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import NoReturn, final

from rlscope_ebpf.errors import NotPermittedError, ProfilerError, UsageError

PTRACE_TRACEME = 0
PTRACE_PEEKTEXT = 1
PTRACE_POKETEXT = 4
PTRACE_CONT = 7
PTRACE_GETREGS = 12
PTRACE_SETREGS = 13
PTRACE_DETACH = 17

AT_ENTRY = 9  # auxiliary vector: address of the program's first instruction
BREAKPOINT = 0xCC  # int3
_REGISTERS = ctypes.c_ulong * 27  # struct user_regs_struct of x86-64
_RIP = 16  # index in it

EXEC_FAILED = 127
"""Exit status of a child whose `execve` failed; the reason comes through the pipe."""

_RESTORED_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores them; a command expects them as usual


@dataclass(frozen=True, slots=True)
class Identity:
    """The user as whom a command runs."""

    uid: int
    gid: int
    name: str
    home: str


@final
@dataclass(slots=True)
class LaunchedCommand:
    """A child process. As a context manager: kills the command if it was never let go, and otherwise leaves it alone.

    `release` must be called from the thread that called `launch`: the kernel knows that thread as the tracer.
    """

    pid: int
    command: tuple[str, ...]
    stopped: bool  # waits before its first instruction
    _status: int | None = field(default=None, init=False)

    def release(self) -> None:
        """Let it run. Calling it again does nothing."""
        if self.stopped:
            self.stopped = False
            try:
                _ptrace(PTRACE_DETACH, self.pid)
            except ProcessLookupError:
                pass  # it was killed while it waited
            except OSError as error:
                raise ProfilerError(
                    f"The command cannot be let go: {error.strerror}.", "Start it by hand and use `attach`."
                ) from error

    def poll(self) -> int | None:
        """Exit status as a shell gives it (128 + number for a signal), or None while it runs."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        """Wait for its end and return its exit status as a shell gives it."""
        while (status := self._wait(0)) is None:
            pass  # a stop, not its end
        return status

    def kill(self) -> None:
        """End a command that has not begun."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def __enter__(self) -> LaunchedCommand:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.stopped:
            self.kill()

    def _wait(self, flags: int) -> int | None:
        if self._status is None:
            try:
                pid, raw = os.waitpid(self.pid, flags)
            except ChildProcessError:  # somebody else reaped it
                self._status = 0
                return self._status
            # WIFSTOPPED: only while it waits to be let go, which is no exit.
            if pid == self.pid and (os.WIFEXITED(raw) or os.WIFSIGNALED(raw)):
                self._status = shell_status(raw)
        return self._status


def launch(
    command: Sequence[str],
    *,
    output: int | None = None,
    identity: Identity | None = None,
    environment: Mapping[str, str] | None = None,
) -> LaunchedCommand:
    """Start a command and hold it before its first instruction. Call it before any thread is started.

    Args:
        command: program and arguments; the program is looked for in PATH.
        output: file descriptor for its stdout and stderr, stdin then being empty; None: it has ours, all three.
        identity: the user to become; None: stay who we are.
        environment: its environment; None: ours.

    Raises:
        UsageError: there is no such program, or it is no program.
        NotPermittedError: it may not be executed.
        ProfilerError: no process could be made.
    """
    words = [os.fspath(word) for word in command]
    values = dict(os.environ if environment is None else environment)
    if identity is not None:
        values.update(HOME=identity.home, USER=identity.name, LOGNAME=identity.name)
    program = shutil.which(words[0], path=values.get("PATH", os.defpath)) or words[0]
    groups = os.getgrouplist(identity.name, identity.gid) if identity is not None else []
    ptrace = _libc().ptrace  # looked up before the fork: the child should do as little as possible
    sys.stdout.flush()
    sys.stderr.flush()
    reason_read, reason_write = os.pipe()  # closed by a successful execve
    try:
        pid = os.fork()
    except OSError as error:
        os.close(reason_read)
        os.close(reason_write)
        raise ProfilerError(f"No process could be started: {error.strerror}.", "Close other programs first.") from error
    if pid == 0:
        try:
            _become(identity, groups)
            _redirect(output)
            for number in _RESTORED_SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            traced = ptrace(PTRACE_TRACEME, 0, None, None) == 0
            if not traced:
                os.write(reason_write, b"untraced\n")
            os.execve(program, words, values)
        except OSError as error:
            os.write(reason_write, f"{error.errno or 0}\n".encode())
        finally:
            os._exit(EXEC_FAILED)
    os.close(reason_write)
    with os.fdopen(reason_read, "rb") as reasons:
        answer = reasons.read().decode().split()
    traced = "untraced" not in answer
    failures = [int(word) for word in answer if word != "untraced"]
    if failures:
        os.waitpid(pid, 0)
        _refuse(words[0], failures[0])
    child = LaunchedCommand(pid, tuple(words), stopped=False)
    if traced:
        _, raw = os.waitpid(pid, 0)  # the stop after execve
        if os.WIFSTOPPED(raw):
            child.stopped = True
            _run_to_entry(child)
        else:
            child._status = shell_status(raw)
    return child


def shell_status(raw: int) -> int:
    """A `waitpid` status as a shell reports it: the exit status, or 128 + the signal's number."""
    return 128 + os.WTERMSIG(raw) if os.WIFSIGNALED(raw) else os.WEXITSTATUS(raw)


def sudo_identity(environment: Mapping[str, str] | None = None) -> Identity | None:
    """The user who called sudo, if that is how we became root; otherwise None."""
    values = os.environ if environment is None else environment
    if os.geteuid() != 0:
        return None
    try:
        uid, gid = int(values["SUDO_UID"]), int(values["SUDO_GID"])
        if uid == 0:
            return None
        entry = pwd.getpwuid(uid)
    except (KeyError, ValueError):
        return None
    return Identity(uid, gid, entry.pw_name, entry.pw_dir)


def _become(identity: Identity | None, groups: list[int]) -> None:
    if identity is not None:
        os.setgroups(groups)
        os.setgid(identity.gid)
        os.setuid(identity.uid)


def _redirect(output: int | None) -> None:
    if output is not None:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)


def _refuse(program: str, number: int) -> NoReturn:
    if number in (errno.ENOENT, errno.ENOTDIR):
        raise UsageError(f"There is no program {program}.", "Check its spelling, or give its path.")
    if number == errno.ENOEXEC:
        raise UsageError(f"{program} is not a program.", "Name its interpreter first, as in `python train.py`.")
    if number in (errno.EACCES, errno.EPERM):
        raise NotPermittedError(f"{program} may not be executed.", "Make it executable, or name its interpreter first.")
    raise ProfilerError(f"{program} cannot be executed: {os.strerror(number)}.", "Start it by hand to see why.")


def _run_to_entry(child: LaunchedCommand) -> None:
    """From the stop after execve to the program's entry point. If that cannot be done it stays where it is."""
    pid = child.pid
    try:
        entry = _entry_point(pid)
        original = _peek(pid, entry)
        _ptrace(PTRACE_POKETEXT, pid, entry, original & ~0xFF | BREAKPOINT)
    except (OSError, ValueError):
        return
    deliver = 0
    while True:
        with suppress(ProcessLookupError):  # killed meanwhile: the wait below says so
            _ptrace(PTRACE_CONT, pid, 0, deliver)
        _, raw = os.waitpid(pid, 0)
        if not os.WIFSTOPPED(raw):
            child.stopped = False
            child._status = shell_status(raw)
            return
        deliver = os.WSTOPSIG(raw)
        if deliver == signal.SIGTRAP:
            break
    registers = _REGISTERS()
    _ptrace(PTRACE_GETREGS, pid, 0, ctypes.addressof(registers))
    registers[_RIP] = entry  # behind the breakpoint now
    _ptrace(PTRACE_SETREGS, pid, 0, ctypes.addressof(registers))
    _ptrace(PTRACE_POKETEXT, pid, entry, original)


def _entry_point(pid: int) -> int:
    with open(f"/proc/{pid}/auxv", "rb") as file:
        numbers = memoryview(file.read()).cast("Q")
    vector = dict(zip(numbers[::2], numbers[1::2], strict=True))
    if AT_ENTRY not in vector:
        raise ValueError("no entry point")
    return vector[AT_ENTRY]


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    return libc


def _ptrace(request: int, pid: int, address: int = 0, data: int = 0) -> int:
    libc = _libc()
    ctypes.set_errno(0)
    result: int = libc.ptrace(request, pid, address, data)
    number = ctypes.get_errno()
    if result == -1 and number:
        raise OSError(number, os.strerror(number))
    return result


def _peek(pid: int, address: int) -> int:
    return _ptrace(PTRACE_PEEKTEXT, pid, address) & 0xFFFF_FFFF_FFFF_FFFF
