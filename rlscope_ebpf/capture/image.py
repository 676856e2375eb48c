"""Compiled BPF programs as data: what BCC makes of the sources, kept between sessions, and loaded into the kernel.

A program names its maps by descriptors, which are another session's the next time. So an image knows which instructions
do, and they get the new descriptors when it is loaded.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from types import ModuleType
from typing import Any

import msgpack

from rlscope_ebpf.capture.bpf import INSTRUCTION_BYTES, MapSpec, create_map, describe_map, load_program
from rlscope_ebpf.capture.state_files import digested, undigested

_FORMAT = "rlscope-ebpf.image/1"
_LOAD_IMMEDIATE = 0x18  # BPF_LD | BPF_IMM | BPF_DW, include/uapi/linux/bpf_common.h
_MAP_DESCRIPTOR = 1  # BPF_PSEUDO_MAP_FD


@dataclass(frozen=True, slots=True)
class Program:
    """One function. `maps`: number of each instruction that needs a map's descriptor → name of the map."""

    instructions: bytes
    maps: dict[int, str]

    def linked(self, descriptors: dict[str, int]) -> bytes:
        """The instructions with the descriptors of maps by name."""
        code = bytearray(self.instructions)
        for index, name in self.maps.items():
            at = index * INSTRUCTION_BYTES + 4
            code[at : at + 4] = descriptors[name].to_bytes(4, "little")
        return bytes(code)


@dataclass(frozen=True, slots=True)
class Image:
    """Programs by name, and the maps that they share."""

    maps: tuple[MapSpec, ...]
    programs: dict[str, Program]

    def packed(self) -> bytes:
        """As bytes, for `unpacked`."""
        programs = {name: [program.instructions, program.maps] for name, program in self.programs.items()}
        document = {"format": _FORMAT, "maps": [astuple(spec) for spec in self.maps], "programs": programs}
        body = bytes(msgpack.packb(document))
        return digested(body)

    @classmethod
    def unpacked(cls, data: bytes) -> Image:
        """The reverse. Raises ValueError if the bytes are not an image's, or are damaged."""
        body = undigested(data)
        try:
            document = msgpack.unpackb(body, strict_map_key=False)
            if document["format"] != _FORMAT:
                raise ValueError("another format")
            return cls(
                tuple(MapSpec(str(name), *map(int, numbers)) for name, *numbers in document["maps"]),
                {name: Program(code, maps) for name, (code, maps) in document["programs"].items()},
            )
        except ValueError:
            raise
        except Exception as error:  # msgpack's own, and those of a document of another shape
            raise ValueError(f"not an image: {error}") from error


@dataclass(slots=True)
class LoadedImage:
    """An image's maps in the kernel, by name, and its programs, loaded one by one. Raises OSError."""

    image: Image
    maps: dict[str, int] = field(default_factory=dict)
    _fds: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        try:
            for spec in self.image.maps:
                self.maps[spec.name] = create_map(spec)
        except OSError:
            self.close()
            raise

    def load(self, name: str, kind: int, attach_type: int = -1) -> int:
        """Load a program, for `kind` see `load_program`; the same one may be loaded for several attach types."""
        fd = load_program(name, self.image.programs[name].linked(self.maps), kind, attach_type)
        self._fds.append(fd)
        return fd

    def close(self) -> None:
        """Unload."""
        for fd in (*self._fds, *self.maps.values()):
            os.close(fd)
        self._fds.clear()
        self.maps.clear()


def image_of(bcc: ModuleType, module: Any, programs: Sequence[str]) -> Image:
    """What BCC has compiled (`module`: bcc.BPF): the programs of these names and all maps. Raises OSError."""
    names = {module[name].map_fd: name for name in _map_names(bcc.libbcc.lib, module.module)}
    maps = tuple(describe_map(fd, name) for fd, name in names.items())
    return Image(maps, {name: _program(module.dump_func(name.encode()), names) for name in programs})


def _map_names(lib: Any, module: int) -> list[str]:
    lib.bpf_num_tables.argtypes = (ctypes.c_void_p,)
    lib.bpf_num_tables.restype = ctypes.c_size_t
    lib.bpf_table_name.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    lib.bpf_table_name.restype = ctypes.c_char_p
    return [lib.bpf_table_name(module, index).decode() for index in range(lib.bpf_num_tables(module))]


def _program(code: bytes, names: dict[int, str]) -> Program:
    maps = {}
    for index in range(len(code) // INSTRUCTION_BYTES):
        at = index * INSTRUCTION_BYTES
        if code[at] == _LOAD_IMMEDIATE and code[at + 1] >> 4 == _MAP_DESCRIPTOR:
            maps[index] = names[int.from_bytes(code[at + 4 : at + 8], "little")]
    return Program(code, maps)
