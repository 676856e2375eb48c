"""The value with which glibc hides code and stack addresses that it stores, such as those in a jmp_buf."""

from __future__ import annotations

import struct

_AT_RANDOM = 25
_GUARD_OFFSET = 8  # of the 16 random bytes the first half is the stack protector's (glibc, dl-osinfo.h)


def read_pointer_guard(pid: int) -> int:
    """The guard of a process, from the random bytes that the kernel gave it; 0 if they cannot be read."""
    try:
        with open(f"/proc/{pid}/auxv", "rb") as file:
            entries = dict(struct.iter_unpack("<QQ", file.read()))
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(entries[_AT_RANDOM] + _GUARD_OFFSET)
            return int.from_bytes(memory.read(8), "little")
    except (OSError, KeyError, struct.error, ValueError, OverflowError):
        return 0
