"""The bpf(2) system call: maps, programs, and links to what they run at.

Layouts: `union bpf_attr` and `struct bpf_map_info` of include/uapi/linux/bpf.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SYS_BPF = 321
_MAP_CREATE = 0
_MAP_LOOKUP = 1
_MAP_UPDATE = 2
_MAP_DELETE = 3
_PROG_LOAD = 5
_OBJECT_INFO = 15
_RAW_TRACEPOINT_OPEN = 17
_LINK_CREATE = 28

PROGRAM_KPROBE = 2
PROGRAM_TRACEPOINT = 5
PROGRAM_PERF_EVENT = 7
PROGRAM_RAW_TRACEPOINT = 17
"""`enum bpf_prog_type`; uprobes run programs of type kprobe."""

_LOG_BYTES = 1 << 18
_NAME_BYTES = 16

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class MapSpec:
    """What a map is made of. Sizes in bytes; `kind` is of `enum bpf_map_type`."""

    name: str
    kind: int
    key_bytes: int
    value_bytes: int
    entries: int
    flags: int


class _Element(ctypes.Structure):
    """`union bpf_attr` of the commands on a map's elements."""

    _fields_ = (
        ("map_fd", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
        ("key", ctypes.c_char_p),
        ("value", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
    )


class _Program(ctypes.Structure):
    """`union bpf_attr` of BPF_PROG_LOAD."""

    _fields_ = (
        ("prog_type", ctypes.c_uint32),
        ("insn_cnt", ctypes.c_uint32),
        ("insns", ctypes.c_char_p),
        ("license", ctypes.c_char_p),
        ("log_level", ctypes.c_uint32),
        ("log_size", ctypes.c_uint32),
        ("log_buf", ctypes.c_void_p),
        ("kern_version", ctypes.c_uint32),
        ("prog_flags", ctypes.c_uint32),
        ("prog_name", ctypes.c_char * _NAME_BYTES),
        ("prog_ifindex", ctypes.c_uint32),
        ("expected_attach_type", ctypes.c_uint32),
    )


INSTRUCTION_BYTES = 8


class BpfMap:
    """A BPF map with fixed-size keys and values, given as bytes."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def update(self, key: bytes, value: bytes) -> None:
        """Set. Raises OSError if the map is full."""
        call(_MAP_UPDATE, _Element(self.fd, 0, key, ctypes.cast(ctypes.c_char_p(value), ctypes.c_void_p)))

    def delete(self, key: bytes) -> None:
        """Remove, if it is there."""
        _call(_MAP_DELETE, _Element(self.fd, 0, key))

    def lookup_into(self, key: bytes, value: NDArray[Any]) -> bool:
        """Read a value into an array of its size; False if the key is not there."""
        return _call(_MAP_LOOKUP, _Element(self.fd, 0, key, ctypes.c_void_p(value.ctypes.data))) == 0


def create_map(spec: MapSpec) -> int:
    """Its descriptor. Raises OSError."""
    layout = struct.pack("<IIIIIII16s", spec.kind, spec.key_bytes, spec.value_bytes, spec.entries, spec.flags, 0, 0,
                         spec.name.encode()[: _NAME_BYTES - 1])  # fmt: skip
    return call(_MAP_CREATE, ctypes.create_string_buffer(layout, len(layout)))


def describe_map(fd: int, name: str) -> MapSpec:
    """What a map is made of. Raises OSError."""
    info = (ctypes.c_uint32 * 32)()
    attr = struct.pack("<IIQ", fd, ctypes.sizeof(info), ctypes.addressof(info))
    call(_OBJECT_INFO, ctypes.create_string_buffer(attr, len(attr)))
    kind, _, key_bytes, value_bytes, entries, flags = info[:6]
    return MapSpec(name, kind, key_bytes, value_bytes, entries, flags)


def load_program(name: str, instructions: bytes, kind: int, attach_type: int) -> int:
    """Its descriptor. `attach_type`: of `enum bpf_attach_type`, -1 if the kind has none.

    Raises OSError, with the end of what the kernel's verifier says in its text.
    """
    log = ctypes.create_string_buffer(_LOG_BYTES)
    attr = _Program(
        prog_type=kind,
        insn_cnt=len(instructions) // INSTRUCTION_BYTES,
        insns=instructions,
        license=b"GPL",
        prog_name=name.encode()[: _NAME_BYTES - 1],
        expected_attach_type=max(0, attach_type),
    )
    try:
        return call(_PROG_LOAD, attr)
    except OSError as error:
        attr.log_level, attr.log_size, attr.log_buf = 1, _LOG_BYTES, ctypes.addressof(log)
        _call(_PROG_LOAD, attr)  # once more, for the verifier's words
        said = log.value.decode(errors="replace").strip().splitlines()[-3:]
        raise OSError(error.errno, "; ".join([f"{name}: {error.strerror}", *said])) from error


def open_raw_tracepoint(name: str, prog_fd: int) -> int:
    """Run a program at a tracepoint, with the tracepoint's own arguments: its descriptor. Raises OSError."""
    text = ctypes.create_string_buffer(name.encode())
    layout = struct.pack("<QI4x", ctypes.addressof(text), prog_fd)
    return call(_RAW_TRACEPOINT_OPEN, ctypes.create_string_buffer(layout, len(layout)))


def create_link(attr: ctypes.Structure) -> int:
    """Its descriptor. Raises OSError."""
    return call(_LINK_CREATE, attr)


def call(command: int, attr: ctypes.Structure | ctypes.Array[Any]) -> int:
    """The system call. Raises OSError."""
    result = _call(command, attr)
    if result < 0:
        raise last_error()
    return result


def last_error() -> OSError:
    """Of a system call that has just failed."""
    number = ctypes.get_errno() or errno.EINVAL
    return OSError(number, os.strerror(number))


def _call(command: int, attr: ctypes.Structure | ctypes.Array[Any]) -> int:
    ctypes.set_errno(0)
    return int(_libc.syscall(_SYS_BPF, command, ctypes.byref(attr), ctypes.sizeof(attr)))
