"""The loop under a seccomp filter that kills the process at system calls which were unknown when it was written.

    python sandboxed.py [options of loop.py]

Numbers 335 to 423 do not exist on x86-64, or rather did not: the kernel's probes use two of them.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

import loop

PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
SECCOMP_RET_ALLOW = 0x7FFF0000
SECCOMP_RET_KILL_PROCESS = 0x80000000
BPF_LOAD_WORD = 0x20
BPF_JUMP_IF_GE = 0x35
BPF_RETURN = 0x06

FIRST_UNKNOWN, FIRST_KNOWN = 335, 424


def confine() -> None:
    """Installs the filter."""
    program = b"".join(
        struct.pack("<HBBI", *row)
        for row in (
            (BPF_LOAD_WORD, 0, 0, 0),  # the system call's number
            (BPF_JUMP_IF_GE, 0, 2, FIRST_UNKNOWN),
            (BPF_JUMP_IF_GE, 1, 0, FIRST_KNOWN),
            (BPF_RETURN, 0, 0, SECCOMP_RET_KILL_PROCESS),
            (BPF_RETURN, 0, 0, SECCOMP_RET_ALLOW),
        )
    )
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("<HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


if __name__ == "__main__":
    import build

    build.native()  # compilers may call what they like
    confine()
    if "--forbidden" in sys.argv:
        ctypes.CDLL(None).syscall(400)  # proves that the filter kills
        os._exit(0)
    sys.exit(loop.main())
