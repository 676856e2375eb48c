"""Runs a small program one instruction at a time: by which instruction does each call of its functions end?

The program calls its functions between breakpoints: `int3` with the function's address in rax before a call, and with 0
in rax at the end of all.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_TRACEME, _CONT, _SINGLESTEP, _GETREGS, _SETOPTIONS = 0, 7, 9, 12, 0x4200
_EXITKILL = 0x100000
_ADDR_NO_RANDOMIZE = 0x0040000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_libc.ptrace.restype = ctypes.c_long


class _Registers(ctypes.Structure):
    """struct user_regs_struct of x86-64."""

    _fields_ = tuple(
        (name, ctypes.c_ulonglong)
        for name in (
            *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi"),
            *("orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"),
        )
    )


@dataclass(frozen=True)
class Call:
    """One call of a function."""

    function: int  # address in the process
    end: int  # of the instruction that left it
    level: list[int] = field(default_factory=list)  # instructions run while rsp was as at the entry


def calls(program: Path) -> Iterator[tuple[int, Call]]:
    """Base address of the program and each call that it makes, in order."""
    pid = os.fork()
    if pid == 0:
        try:
            _libc.personality(_ADDR_NO_RANDOMIZE)
            _libc.ptrace(_TRACEME, 0, None, None)
            os.execv(program, [str(program)])
        finally:
            os._exit(127)
    try:
        _wait(pid)
        _libc.ptrace(_SETOPTIONS, pid, None, _EXITKILL)
        _go(pid, _CONT)
        base = _base(pid, program)
        while function := _registers(pid).rax:
            yield base, _follow(pid, function)
            _go(pid, _CONT)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _follow(pid: int, function: int) -> Call:
    while _registers(pid).rip != function:
        _go(pid, _SINGLESTEP)
    entry_rsp = _registers(pid).rsp
    level: list[int] = []
    while True:
        before = _registers(pid)
        if before.rsp == entry_rsp:
            level.append(before.rip)
        _go(pid, _SINGLESTEP)
        if _registers(pid).rsp > entry_rsp:
            return Call(function, before.rip, level)


def _registers(pid: int) -> _Registers:
    registers = _Registers()
    assert _libc.ptrace(_GETREGS, pid, None, ctypes.byref(registers)) == 0
    return registers


def _go(pid: int, how: int) -> None:
    assert _libc.ptrace(how, pid, None, None) == 0
    _wait(pid)


def _wait(pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    assert os.WIFSTOPPED(status), f"the program ended: {status:#x}"
    assert os.WSTOPSIG(status) == signal.SIGTRAP, signal.Signals(os.WSTOPSIG(status)).name


def _base(pid: int, program: Path) -> int:
    with open(f"/proc/{pid}/maps") as maps:
        return next(int(line.split("-")[0], 16) for line in maps if line.rstrip().endswith(str(program)))
