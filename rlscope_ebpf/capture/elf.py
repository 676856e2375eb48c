"""ELF files of x86-64 as NumPy tables: symbols, imports, relocations, function bounds.

Files are read with `pread`, not mapped: a file that is truncated while it is open makes a short read here, not a
SIGBUS. Every offset that the file gives is checked. Whatever is wrong with a file ends in `ElfError`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.errors import ExitStatus, ProfilerError

_EHDR = np.dtype(
    [
        ("ident", "V16"),
        ("type", "<u2"),
        ("machine", "<u2"),
        ("version", "<u4"),
        ("entry", "<u8"),
        ("phoff", "<u8"),
        ("shoff", "<u8"),
        ("flags", "<u4"),
        ("ehsize", "<u2"),
        ("phentsize", "<u2"),
        ("phnum", "<u2"),
        ("shentsize", "<u2"),
        ("shnum", "<u2"),
        ("shstrndx", "<u2"),
    ]
)
_PHDR = np.dtype(
    [
        ("type", "<u4"),
        ("flags", "<u4"),
        ("offset", "<u8"),
        ("vaddr", "<u8"),
        ("paddr", "<u8"),
        ("filesz", "<u8"),
        ("memsz", "<u8"),
        ("align", "<u8"),
    ]
)
_SHDR = np.dtype(
    [
        ("name", "<u4"),
        ("type", "<u4"),
        ("flags", "<u8"),
        ("addr", "<u8"),
        ("offset", "<u8"),
        ("size", "<u8"),
        ("link", "<u4"),
        ("info", "<u4"),
        ("align", "<u8"),
        ("entsize", "<u8"),
    ]
)
_SYM = np.dtype([("name", "<u4"), ("info", "u1"), ("other", "u1"), ("shndx", "<u2"), ("value", "<u8"), ("size", "<u8")])
_RELA = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
_DYN = np.dtype([("tag", "<u8"), ("value", "<u8")])

EM_X86_64 = 62
PT_LOAD, PT_NOTE = 1, 4
PF_X, PF_W = 1, 2
SHT_SYMTAB, SHT_RELA, SHT_DYNAMIC, SHT_NOTE, SHT_NOBITS = 2, 4, 6, 7, 8
SHT_DYNSYM, SHT_INIT_ARRAY, SHT_FINI_ARRAY, SHT_RELR = 11, 14, 15, 19
SHT_VERDEF, SHT_VERNEED, SHT_VERSYM = 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR = 1, 2, 4
STT_OBJECT, STT_FUNC = 1, 2
STB_LOCAL, STB_WEAK = 0, 2
DT_NEEDED, DT_SONAME = 1, 14
R_X86_64_64, R_X86_64_GLOB_DAT, R_X86_64_JUMP_SLOT, R_X86_64_RELATIVE = 1, 6, 7, 8

_SHN_RESERVED = 0xFF00
_MAX_TABLE = 1 << 32  # no table of a real library is larger; a damaged size is refused before memory is asked for
_MAX_SECTIONS = 1 << 16

U64 = NDArray[np.uint64]


class ElfError(ProfilerError):
    """The file is not an ELF file that can be probed, or it is damaged."""

    status = ExitStatus.UNSUPPORTED

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}.", "Only intact 64-bit x86 ELF files can be probed.")


@dataclass(frozen=True, slots=True)
class Section:
    """A section header."""

    name: str
    type: int
    flags: int
    vaddr: int
    offset: int
    size: int
    link: int


@dataclass(frozen=True, slots=True)
class Function:
    """A function symbol that the file defines."""

    name: str
    vaddr: int
    size: int  # as the symbol says: 0 if it does not (see `ElfFile.size_of`)
    exported: bool  # other objects can call it by name
    weak: bool
    version: str  # "" if it has none; "libcudart.so.13"


@dataclass(frozen=True, slots=True)
class FunctionBounds:
    """Where functions begin and end, from symbols and from unwind tables (which stripping leaves).

    `starts` is sorted and holds no address twice; `sizes[i]` belongs to `starts[i]`.
    """

    starts: U64
    sizes: U64

    def containing(self, vaddr: int) -> tuple[int, int] | None:
        """Start and size of the function that `vaddr` lies in."""
        index = int(np.searchsorted(self.starts, np.uint64(vaddr), side="right")) - 1
        if index < 0:
            return None
        start, size = int(self.starts[index]), int(self.sizes[index])
        return (start, size) if vaddr < start + size else None

    def are_starts(self, vaddrs: U64) -> NDArray[np.bool_]:
        """Which of `vaddrs` are function starts."""
        if not len(self.starts):
            return np.zeros(len(vaddrs), bool)
        index = np.minimum(np.searchsorted(self.starts, vaddrs), len(self.starts) - 1)
        found: NDArray[np.bool_] = self.starts[index] == vaddrs
        return found


class _Strings:
    """A string table; out-of-range offsets give the empty string."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __getitem__(self, offset: int) -> str:
        end = self.data.find(b"\0", offset)
        return self.data[offset : end if end >= 0 else None].decode("utf-8", "replace")


class ElfFile:
    """An open ELF file. A context manager. Tables are read when first asked for and kept."""

    def __init__(self, path: str) -> None:
        """Open and check the headers. Raises `ElfError`."""
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ElfError(path, f"cannot be opened ({error.strerror})") from error
        except ValueError:
            raise ElfError(path, "is not a path") from None
        try:
            self._size = os.fstat(self._fd).st_size
            self._read_headers()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; tables that were read stay."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> ElfFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    # Bytes

    def read(self, offset: int, size: int) -> bytes:
        """Bytes at a file offset. Raises `ElfError` if the file does not have them all."""
        if offset < 0 or size < 0 or size > _MAX_TABLE or offset + size > self._size:
            raise ElfError(self.path, "is truncated or damaged")
        if self._fd < 0:
            raise ElfError(self.path, "was closed")
        data = b""
        while len(data) < size:  # pread hands out at most 2 GiB at once
            try:
                part = os.pread(self._fd, size - len(data), offset + len(data))
            except OSError as error:
                raise ElfError(self.path, f"cannot be read ({error.strerror})") from error
            if not part:
                raise ElfError(self.path, "is truncated or damaged")
            data = data + part if data else part
        return data

    def read_vaddr(self, vaddr: int, size: int) -> bytes:
        """Bytes at a virtual address; fewer than `size` if the segment's part of the file ends before."""
        for segment in self._loads:
            start, length = int(segment["vaddr"]), int(segment["filesz"])
            if start <= vaddr < start + length:
                return self.read(int(segment["offset"]) + vaddr - start, min(size, start + length - vaddr))
        return b""

    def _table(self, offset: int, size: int, dtype: np.dtype[np.void]) -> NDArray[np.void]:
        count = size // dtype.itemsize
        return np.frombuffer(self.read(offset, count * dtype.itemsize), dtype)

    # Headers

    def _read_headers(self) -> None:
        ident = self.read(0, min(20, self._size))
        if ident[:4] != b"\x7fELF":
            raise ElfError(self.path, "is not an ELF file")
        if ident[4:6] != b"\x02\x01":
            raise ElfError(self.path, "is not a 64-bit little-endian ELF file")
        header = self._table(0, _EHDR.itemsize, _EHDR)[0]
        if int(header["machine"]) != EM_X86_64:
            raise ElfError(self.path, f"is for another processor (machine {int(header['machine'])})")
        if int(header["phnum"]) and int(header["phentsize"]) != _PHDR.itemsize:
            raise ElfError(self.path, "has program headers of an unknown size")
        self.segments = self._table(int(header["phoff"]), int(header["phnum"]) * _PHDR.itemsize, _PHDR)
        self._loads = self.segments[self.segments["type"] == PT_LOAD]
        self.sections = self._read_sections(header)

    def _read_sections(self, header: np.void) -> tuple[Section, ...]:
        offset, count = int(header["shoff"]), int(header["shnum"])
        if offset == 0:
            return ()
        if int(header["shentsize"]) != _SHDR.itemsize:
            raise ElfError(self.path, "has section headers of an unknown size")
        names_at = int(header["shstrndx"])
        first = self._table(offset, _SHDR.itemsize, _SHDR)[0]
        if count == 0:  # too many for the header's field
            count = int(first["size"])
        if names_at == 0xFFFF:
            names_at = int(first["link"])
        if count > _MAX_SECTIONS:
            raise ElfError(self.path, "has too many sections")
        rows = self._table(offset, count * _SHDR.itemsize, _SHDR)
        names = _Strings(b"")
        if names_at < count and int(rows[names_at]["type"]) != SHT_NOBITS:
            names = _Strings(self.read(int(rows[names_at]["offset"]), int(rows[names_at]["size"])))
        return tuple(
            Section(names[name], kind, flags, vaddr, start, size, link)
            for name, kind, flags, vaddr, start, size, link, *_ in rows.tolist()
        )

    def section(self, *, name: str | None = None, type: int | None = None) -> Section | None:
        """The first section of that name or type."""
        for section in self.sections:
            if (name is None or section.name == name) and (type is None or section.type == type):
                return section
        return None

    def section_data(self, section: Section) -> bytes:
        """A section's bytes; none for sections that the file does not hold (.bss)."""
        return b"" if section.type == SHT_NOBITS else self.read(section.offset, section.size)

    @cached_property
    def code_ranges(self) -> tuple[tuple[int, int], ...]:
        """[start, end) of executable segments, virtual addresses that the file has bytes for."""
        rows = self._loads[(self._loads["flags"] & PF_X) != 0]
        return tuple((int(row["vaddr"]), int(row["vaddr"]) + int(row["filesz"])) for row in rows)

    def is_code(self, vaddrs: U64) -> NDArray[np.bool_]:
        """Which of `vaddrs` lie in executable segments."""
        inside = np.zeros(len(vaddrs), bool)
        for start, end in self.code_ranges:
            inside |= (vaddrs >= np.uint64(min(start, 2**64 - 1))) & (vaddrs < np.uint64(min(end, 2**64 - 1)))
        return inside

    def offset_of(self, vaddr: int) -> int | None:
        """File offset of a virtual address."""
        for segment in self._loads:
            start = int(segment["vaddr"])
            if start <= vaddr < start + int(segment["filesz"]):
                return int(segment["offset"]) + vaddr - start
        return None

    def vaddr_of(self, offset: int) -> int | None:
        """Virtual address of a file offset."""
        for segment in self._loads:
            start = int(segment["offset"])
            if start <= offset < start + int(segment["filesz"]):
                return int(segment["vaddr"]) + offset - start
        return None

    # Dynamic section, build id

    @cached_property
    def _dynamic(self) -> list[tuple[int, int]]:
        section = self.section(type=SHT_DYNAMIC)
        if section is None or section.type == SHT_NOBITS:
            return []
        rows: list[tuple[int, int]] = self._table(section.offset, section.size, _DYN).tolist()
        return rows

    def _dynamic_strings(self, tag: int) -> tuple[str, ...]:
        section = self.section(type=SHT_DYNAMIC)
        if section is None:
            return ()
        strings = self._linked_strings(section)
        return tuple(strings[value] for key, value in self._dynamic if key == tag)

    @property
    def needed(self) -> tuple[str, ...]:
        """DT_NEEDED."""
        return self._dynamic_strings(DT_NEEDED)

    @property
    def soname(self) -> str | None:
        """DT_SONAME."""
        return next(iter(self._dynamic_strings(DT_SONAME)), None)

    @cached_property
    def build_id(self) -> str | None:
        """The GNU build id in hexadecimal."""
        for segment in self.segments[self.segments["type"] == PT_NOTE]:
            data = self.read(int(segment["offset"]), int(segment["filesz"]))
            position = 0
            while position + 12 <= len(data):
                name_size, size, kind = (int(v) for v in np.frombuffer(data, "<u4", 3, position))
                start = position + 12 + (name_size + 3 & ~3)
                if kind == 3 and data[position + 12 : position + 12 + name_size] == b"GNU\0":
                    return data[start : start + size].hex()
                position = start + (size + 3 & ~3)
        return None

    # Symbols

    def _linked_strings(self, section: Section) -> _Strings:
        if section.link >= len(self.sections):
            raise ElfError(self.path, "is damaged (a table without its strings)")
        linked = self.sections[section.link]
        cached = self._string_tables.get(linked.offset)
        if cached is None:
            cached = self._string_tables[linked.offset] = _Strings(self.section_data(linked))
        return cached

    @cached_property
    def _string_tables(self) -> dict[int, _Strings]:
        return {}

    def _symbols(self, kind: int) -> tuple[NDArray[np.void], _Strings]:
        section = self.section(type=kind)
        if section is None:
            return np.empty(0, _SYM), _Strings(b"")
        return self._table(section.offset, section.size, _SYM), self._linked_strings(section)

    @cached_property
    def _dynsym(self) -> tuple[NDArray[np.void], _Strings]:
        return self._symbols(SHT_DYNSYM)

    @cached_property
    def _symtab(self) -> tuple[NDArray[np.void], _Strings]:
        return self._symbols(SHT_SYMTAB)

    @property
    def has_symtab(self) -> bool:
        """Whether local symbols were kept (the file was not stripped)."""
        return self.section(type=SHT_SYMTAB) is not None

    def _defined_functions(self, table: NDArray[np.void]) -> NDArray[np.intp]:
        kind = (table["info"] & 15) == STT_FUNC
        placed = (table["shndx"] != 0) & (table["shndx"] < _SHN_RESERVED) & (table["value"] != 0)
        rows = np.flatnonzero(kind & placed)
        return rows[self.is_code(table["value"][rows])]

    @cached_property
    def imports(self) -> frozenset[str]:
        """Names of undefined dynamic symbols, without versions."""
        table, strings = self._dynsym
        rows = np.flatnonzero((table["shndx"] == 0) & (table["name"] != 0))
        return frozenset(strings[offset] for offset in table["name"][rows].tolist())

    @cached_property
    def exports(self) -> tuple[Function, ...]:
        """Functions that other objects can call by name (.dynsym), in table order."""
        table, strings = self._dynsym
        rows = self._exported_rows
        versions = self._versions(len(table))
        index = versions[1][rows] & 0x7FFF if versions else np.zeros(len(rows), np.uint16)
        names = versions[0] if versions else {}
        selected = table[rows]
        weak = selected["info"] >> 4 == STB_WEAK
        return tuple(
            Function(strings[name], vaddr, size, True, is_weak, names.get(version, ""))
            for name, vaddr, size, is_weak, version in zip(
                selected["name"].tolist(),
                selected["value"].tolist(),
                selected["size"].tolist(),
                weak.tolist(),
                index.tolist(),
                strict=True,
            )
        )

    @cached_property
    def _exported_rows(self) -> NDArray[np.intp]:
        """Of .dynsym."""
        table, _ = self._dynsym
        rows = self._defined_functions(table)
        found: NDArray[np.intp] = rows[
            (table["info"][rows] >> 4 != STB_LOCAL) & np.isin(table["other"][rows] & 3, (0, 3))
        ]
        return found

    def _exported_at(self, vaddrs: U64) -> set[tuple[str, int]]:
        """Name and address of those of `exports` that lie at some of these addresses; much faster than all."""
        table, strings = self._dynsym
        rows = self._exported_rows
        selected = table[rows[np.isin(table["value"][rows], vaddrs)]]
        return {
            (strings[name], vaddr)
            for name, vaddr in zip(selected["name"].tolist(), selected["value"].tolist(), strict=True)
        }

    def exports_any(self, names: Iterable[str]) -> bool:
        """Whether the file defines one of `names` for others; much faster than to list all it exports."""
        table, strings = self._dynsym
        data = strings.data
        for name in names:
            position = data.find(b"\0" + name.encode() + b"\0")
            if position >= 0 and bool(np.any((table["name"] == position + 1) & (table["shndx"] != 0))):
                return True
        return False

    def objects_named(self, *prefixes: bytes) -> list[tuple[int, int]]:
        """Address and size of data objects whose symbol begins with one of `prefixes`."""
        found = set()
        for table, strings in (self._dynsym, self._symtab):
            rows = np.flatnonzero(((table["info"] & 15) == STT_OBJECT) & (table["shndx"] != 0))
            selected = table[rows]
            for name, vaddr, size in zip(
                selected["name"].tolist(), selected["value"].tolist(), selected["size"].tolist(), strict=True
            ):
                if strings.data.startswith(prefixes, name):
                    found.add((vaddr, size))
        return sorted(found)

    def function_names(self, vaddrs: Iterable[int]) -> dict[int, str]:
        """Names of functions at addresses, as far as symbols tell; exported names before local ones."""
        wanted = np.array(sorted(vaddrs), np.uint64)
        names: dict[int, str] = {}
        for table, strings in (self._dynsym, self._symtab):
            rows = np.flatnonzero(((table["info"] & 15) == STT_FUNC) & (table["shndx"] != 0))
            rows = rows[np.isin(table["value"][rows], wanted)]
            for vaddr, name in zip(table["value"][rows].tolist(), table["name"][rows].tolist(), strict=True):
                names.setdefault(vaddr, strings[name].partition("@")[0])
        return names

    def local_functions(self, *, containing: str = "") -> tuple[Function, ...]:
        """Functions of .symtab whose name contains `containing`, exported ones too.

        Give a text to look for: in a table of hundreds of thousands of names that is much faster than all of them.
        """
        table, strings = self._symtab
        rows = self._defined_functions(table)
        if containing:
            rows = rows[_names_containing(strings.data, table["name"][rows], containing.encode())]
        selected = table[rows]
        exported = self._exported_at(selected["value"])
        functions = []
        for name_at, info, vaddr, size in zip(
            selected["name"].tolist(),
            selected["info"].tolist(),
            selected["value"].tolist(),
            selected["size"].tolist(),
            strict=True,
        ):
            name = strings[name_at].partition("@")[0]  # the static linker writes versions into .symtab names
            functions.append(Function(name, vaddr, size, (name, vaddr) in exported, info >> 4 == STB_WEAK, ""))
        return tuple(functions)

    def size_of(self, function: Function) -> int:
        """A function's size; where its symbol has none (hand-written assembly), up to the next function; else 0."""
        if function.size:
            return function.size
        bounds = self.bounds.containing(function.vaddr)
        return 0 if bounds is None else bounds[0] + bounds[1] - function.vaddr

    def _versions(self, count: int) -> tuple[dict[int, str], NDArray[np.uint16]] | None:
        section = self.section(type=SHT_VERSYM)
        if section is None or section.size < 2 * count:
            return None
        index = np.frombuffer(self.read(section.offset, 2 * count), "<u2")
        names: dict[int, str] = {}
        definitions = self.section(type=SHT_VERDEF)
        if definitions is not None:
            data = self.section_data(definitions)
            strings = self._linked_strings(definitions)
            position = 0
            while position + 20 <= len(data):
                _, flags, number = (int(v) for v in np.frombuffer(data, "<u2", 3, position))
                auxiliary, following = (int(v) for v in np.frombuffer(data, "<u4", 2, position + 12))
                if position + auxiliary + 4 <= len(data) and not flags & 1:  # 1: the file's own name, not a version
                    names[number] = strings[int(np.frombuffer(data, "<u4", 1, position + auxiliary)[0])]
                if following == 0:
                    break
                position += following
        return names, index

    # Bounds of functions

    @cached_property
    def stub_ranges(self) -> tuple[tuple[int, int], ...]:
        """[start, end) of the sections that hold import stubs."""
        return tuple(
            (section.vaddr, section.vaddr + section.size)
            for section in self.sections
            if section.flags & SHF_EXECINSTR and section.name.startswith((".plt", ".iplt"))
        )

    @cached_property
    def _function_ranges(self) -> tuple[tuple[int, int], ...]:
        """Where functions may lie: executable sections other than import stubs, or else executable segments."""
        ranges = [
            (section.vaddr, section.vaddr + section.size)
            for section in self.sections
            if section.flags & SHF_EXECINSTR and section.type != SHT_NOBITS
        ]
        clipped = [(low, high) for low, high in ranges if high < 2**64 and (low, high) not in self.stub_ranges]
        return tuple(clipped) or tuple((low, high) for low, high in self.code_ranges if high < 2**64)

    @cached_property
    def bounds(self) -> FunctionBounds:
        """Every function start known from symbols and from .eh_frame_hdr."""
        starts, sizes = [], []
        for table in (self._dynsym[0], self._symtab[0]):
            rows = self._defined_functions(table)
            starts.append(table["value"][rows])
            sizes.append(table["size"][rows])
        unwind = self._unwind_starts()
        starts.append(unwind)
        sizes.append(np.zeros(len(unwind), np.uint64))
        start = np.concatenate(starts).astype(np.uint64)
        size = np.concatenate(sizes).astype(np.uint64)
        inside = np.zeros(len(start), bool)
        for low, high in self._function_ranges:
            inside |= (start >= np.uint64(low)) & (start < np.uint64(high))
        start, size = start[inside], size[inside]
        order = np.lexsort((size, start))
        start, size = start[order], size[order]
        keep = np.append(start[1:] != start[:-1], True) if len(start) else np.empty(0, bool)  # the largest size
        start, size = start[keep], size[keep]
        if len(start):
            limits = np.append(start[1:], np.uint64(2**64 - 1))
            for low, high in self._function_ranges:
                inside = (start >= np.uint64(low)) & (start < np.uint64(high))
                limits[inside] = np.minimum(limits[inside], np.uint64(high))
            size = np.where((size == 0) | (size > limits - start), limits - start, size)
        return FunctionBounds(start, size)

    def _unwind_starts(self) -> U64:
        section = self.section(name=".eh_frame_hdr")
        if section is None or section.type == SHT_NOBITS or section.size < 12:
            return np.empty(0, np.uint64)
        data = self.section_data(section)
        # Version 1, pc-relative pointer, 4-byte count, 4-byte offsets from the section: what every linker writes.
        if data[0] != 1 or data[2] & 0x0F not in (0x03, 0x0B) or data[3] != 0x3B or data[1] & 0x0F != 0x0B:
            return np.empty(0, np.uint64)
        count = min(int(np.frombuffer(data, "<u4", 1, 8)[0]), (len(data) - 12) // 8)
        offsets = np.frombuffer(data, "<i4", 2 * count, 12)[::2].astype(np.int64)
        starts = (offsets + np.int64(min(section.vaddr, 2**62))).astype(np.uint64)
        return np.unique(starts[self.is_code(starts)])

    # Relocations

    @cached_property
    def relocations(self) -> NDArray[np.void]:
        """All dynamic relocations with addends: offset (vaddr of the slot), type, symbol (index), addend."""
        tables = [
            self._table(section.offset, section.size, _RELA)
            for section in self.sections
            if section.type == SHT_RELA and section.flags & SHF_ALLOC
        ]
        return np.concatenate(tables) if tables else np.empty(0, _RELA)

    def import_slots(self) -> dict[int, str]:
        """Address of each slot of the global offset table that the dynamic linker fills → symbol name."""
        rows = self.relocations
        rows = rows[np.isin(rows["type"], (R_X86_64_GLOB_DAT, R_X86_64_JUMP_SLOT))]
        table, strings = self._dynsym
        rows = rows[rows["symbol"] < len(table)]
        names = table["name"][rows["symbol"]].tolist()
        return {slot: strings[name] for slot, name in zip(rows["offset"].tolist(), names, strict=True)}

    def data_pointers(self) -> tuple[U64, U64]:
        """Slots that the dynamic linker fills with an address inside this file: (slot vaddrs, target vaddrs)."""
        rows = self.relocations
        relative = rows[rows["type"] == R_X86_64_RELATIVE]
        slots = [relative["offset"]]
        targets = [relative["addend"].astype(np.uint64)]
        table, _ = self._dynsym
        named = rows[(rows["type"] == R_X86_64_64) & (rows["symbol"] < len(table))]
        named = named[table["shndx"][named["symbol"]] != 0]
        slots.append(named["offset"])
        targets.append(table["value"][named["symbol"]] + named["addend"].astype(np.uint64))
        packed = self._packed_slots()
        slots.append(packed)
        targets.append(self.words_at(packed))
        return np.concatenate(slots).astype(np.uint64), np.concatenate(targets).astype(np.uint64)

    def _packed_slots(self) -> U64:
        """Slots of RELR relocations: an address, then bitmaps of which of the following words are relocated too."""
        section = self.section(type=SHT_RELR)
        if section is None:
            return np.empty(0, np.uint64)
        words = np.frombuffer(self.read(section.offset, section.size // 8 * 8), "<u8").tolist()
        slots: list[int] = []
        base = 0
        for word in words:
            if word & 1 == 0:
                slots.append(word)
                base = word + 8
            else:
                bits = word >> 1
                slots.extend(base + 8 * bit for bit in range(63) if bits >> bit & 1)
                base += 63 * 8
        return np.array([slot for slot in slots if slot < 2**63], np.uint64)

    def words_at(self, vaddrs: U64) -> U64:
        """The 8-byte words that the file holds at `vaddrs`; 0 where it holds none."""
        words = np.zeros(len(vaddrs), np.uint64)
        for segment in self._loads:
            start, length = int(segment["vaddr"]), int(segment["filesz"])
            if length < 8 or start + length >= 2**63:
                continue
            rows = np.flatnonzero((vaddrs >= np.uint64(start)) & (vaddrs <= np.uint64(start + length - 8)))
            if len(rows):
                low = int(vaddrs[rows].min())
                high = int(vaddrs[rows].max()) + 8
                data = np.frombuffer(self.read(int(segment["offset"]) + low - start, high - low), np.uint8)
                at = (vaddrs[rows] - np.uint64(low)).astype(np.intp)
                words[rows] = np.ascontiguousarray(data[at[:, None] + np.arange(8)]).view("<u8").ravel()
        return words


def _names_containing(data: bytes, offsets: NDArray[np.uint32], text: bytes) -> NDArray[np.bool_]:
    """Which of the strings that begin at `offsets` in a string table contain `text`."""
    position = data.find(text)
    found, ends = [], []
    while position >= 0:
        found.append(position)
        end = data.find(b"\0", position)
        ends.append(end if end >= 0 else len(data))
        position = data.find(text, position + 1)
    if not found:
        return np.zeros(len(offsets), bool)
    # A string contains the text if the first occurrence at or after its start lies before its end.
    index = np.searchsorted(np.array(found), offsets)
    inside = index < len(found)
    first = np.array(found)[np.minimum(index, len(found) - 1)]
    previous_end = np.array([data.rfind(b"\0", 0, position) for position in found])[np.minimum(index, len(found) - 1)]
    result: NDArray[np.bool_] = inside & (offsets > previous_end) & (offsets <= first)
    return result
