"""ELF tables against pyelftools; damaged files end in ElfError and nothing else."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from native_samples import compile_library

from rlscope_ebpf.capture.elf import ElfError, ElfFile
from rlscope_ebpf.capture.maps import parse_maps
from rlscope_ebpf.capture.pointers import static_pointers
from rlscope_ebpf.capture.stubs import import_stubs

SOURCE = r"""
#include <stdlib.h>
#include <string.h>
typedef struct { const char *name; void *(*call)(void *, void *); int flags; const char *doc; } method;
static void *first(void *self, void *args) { return self; }
static void *second(void *self, void *args) { return strdup("x"); }
static void *slot(void *self, void *args) { return args; }
method methods[] = {{"first", first, 1, "doc"}, {"second", second, 4, 0}, {0}};
void *(*table[])(void *, void *) = {slot, 0};
void *exported(size_t size) { return malloc(size); }
__attribute__((weak)) int weak_one(void) { return 1; }
__attribute__((visibility("hidden"))) int hidden(void) { return 2; }
int calls_hidden(void) { return hidden() + weak_one(); }
__attribute__((constructor)) void set_up(void) { table[1] = first; }
"""

VERSIONS = "ONE { global: exported; local: nothing; }; TWO { global: calls_hidden; } ONE;"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("elf")


@pytest.fixture(scope="module")
def library(folder: Path) -> Path:
    (folder / "versions").write_text(VERSIONS)
    flags = (
        "-Wl,-soname,libsample.so.1",
        "-Wl,--build-id=0x0123456789abcdef",
        f"-Wl,--version-script={folder}/versions",
    )
    return compile_library(folder, "libsample.so", SOURCE, *flags)


def oracle_functions(path: Path, section: str) -> dict[str, tuple[int, int]]:
    with path.open("rb") as file:
        table = ELFFile(file).get_section_by_name(section)
        assert isinstance(table, SymbolTableSection)
        return {
            symbol.name.partition("@")[0]: (symbol["st_value"], symbol["st_size"])
            for symbol in table.iter_symbols()
            if symbol["st_info"]["type"] == "STT_FUNC" and symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_value"]
        }


@pytest.mark.parametrize("which", ["sample", "libc"])
def test_symbols_agree_with_pyelftools(which: str, library: Path) -> None:
    path = library
    if which == "libc":
        path = Path(next(m.path for m in parse_maps(Path("/proc/self/maps").read_bytes()) if m.name == "libc.so.6"))
    with ElfFile(str(path)) as elf:
        expected = oracle_functions(path, ".dynsym")
        assert {f.name for f in elf.exports} == set(expected)
        assert {(f.vaddr, f.size) for f in elf.exports} >= set(expected.values())
        with path.open("rb") as file:
            reference = ELFFile(file)
            dynamic = reference.get_section_by_name(".dynamic")
            assert isinstance(dynamic, DynamicSection)
            assert elf.needed == tuple(t.needed for t in dynamic.iter_tags("DT_NEEDED"))  # type: ignore[attr-defined]
            assert elf.soname == next(t.soname for t in dynamic.iter_tags("DT_SONAME"))  # type: ignore[attr-defined]
            dynsym = reference.get_section_by_name(".dynsym")
            assert isinstance(dynsym, SymbolTableSection)
            undefined = {s.name for s in dynsym.iter_symbols() if s["st_shndx"] == "SHN_UNDEF" and s.name}
            assert elf.imports == undefined


def test_local_symbols_versions_and_identity(library: Path) -> None:
    with ElfFile(str(library)) as elf:
        local = {f.name: f for f in elf.local_functions()}
        assert {name: (f.vaddr, f.size) for name, f in local.items()} == oracle_functions(library, ".symtab")
        assert local["exported"].exported
        assert not local["hidden"].exported
        assert {f.name: f.version for f in elf.exports}["exported"] == "ONE"
        assert {f.name: f.version for f in elf.exports}["calls_hidden"] == "TWO"
        assert [f.name for f in elf.local_functions(containing="hidd")] == [
            f.name for f in elf.local_functions() if "hidd" in f.name
        ]
        assert {f.name for f in elf.exports if f.weak} == {"weak_one"}
        assert elf.build_id == "0123456789abcdef"
        assert elf.exports_any(["nothing", "exported"])
        assert not elf.exports_any(["malloc", "hidden", "xported"])


def test_offsets(library: Path) -> None:
    with ElfFile(str(library)) as elf, library.open("rb") as file:
        found = next(f for f in elf.exports if f.name == "exported")
        offset = elf.offset_of(found.vaddr)
        assert offset is not None
        assert elf.vaddr_of(offset) == found.vaddr
        file.seek(offset)
        assert file.read(found.size) == elf.read_vaddr(found.vaddr, found.size)
        assert elf.offset_of(2**60) is None


def test_function_starts_survive_stripping(library: Path, folder: Path) -> None:
    stripped = folder / "stripped.so"
    subprocess.run(["strip", "-s", str(library), "-o", str(stripped)], check=True)
    with ElfFile(str(library)) as whole, ElfFile(str(stripped)) as bare:
        assert not bare.has_symtab
        known = {f.vaddr for f in whole.local_functions()}
        starts = set(bare.bounds.starts.tolist())
        assert {f.vaddr for f in whole.local_functions() if f.name in ("first", "second", "slot", "hidden")} <= starts
        assert all(
            bare.bounds.containing(vaddr) == (vaddr, size)
            for vaddr, size in zip(bare.bounds.starts.tolist(), bare.bounds.sizes.tolist(), strict=True)
        )
        assert known & starts


@pytest.mark.parametrize("packing", ["", "-Wl,-z,pack-relative-relocs"])
def test_pointers_in_data(folder: Path, packing: str) -> None:
    path = compile_library(folder, f"libpointers{len(packing)}.so", SOURCE, *filter(None, [packing]))
    with ElfFile(str(path)) as elf:
        if packing:
            assert elf.section(type=19) is not None, "the linker packed nothing"
        names = {f.vaddr: f.name for f in elf.local_functions()}
        found = static_pointers(elf)
        assert {names[v] for v in found.interpreter.tolist()} == {"first", "second"}
        others = {names[v] for v in found.others.tolist()}
        assert "slot" in others
        assert "set_up" not in others  # constructors are nobody's entry


@pytest.mark.parametrize("flags", [("-fcf-protection=none", "-Wl,-z,lazy"), ("-fcf-protection=full", "-Wl,-z,now")])
def test_import_stubs(folder: Path, flags: tuple[str, ...]) -> None:
    path = compile_library(folder, f"libstubs{flags[0][-4:]}.so", SOURCE, *flags)
    with ElfFile(str(path)) as elf:
        stubs = import_stubs(elf)
    listing = subprocess.run(
        ["objdump", "-d", "-j.plt", "-j.plt.sec", "-j.plt.got", str(path)], capture_output=True, text=True
    )
    expected = {}
    for line in listing.stdout.splitlines():
        if line.endswith("@plt>:"):
            expected[line.split("<")[1].partition("@")[0]] = int(line.split()[0], 16)
    assert {"malloc", "strdup"} <= stubs.keys() or {"malloc", "__strdup"} <= stubs.keys()
    assert stubs == {name: vaddr for name, vaddr in expected.items() if name in stubs}
    assert set(expected) <= set(stubs)


def test_large_tables_are_fast() -> None:
    # The interpreter's own symbol tables: some ten thousand names.
    path = next(
        m.path for m in parse_maps(Path("/proc/self/maps").read_bytes()) if ElfFile(m.path).exports_any(["Py_Main"])
    )
    took = []
    for _ in range(3):
        start = time.perf_counter()
        with ElfFile(path) as elf:
            count = len(elf.local_functions()) + len(elf.exports)
        took.append(time.perf_counter() - start)
    assert count > 1000
    assert min(took) < 1


def everything(path: str) -> None:
    """Reads all there is."""
    with ElfFile(path) as elf:
        _ = (elf.imports, elf.exports, elf.needed, elf.soname, elf.build_id, elf.relocations, elf.code_ranges)
        for found in (*elf.local_functions(), *elf.exports):
            elf.read_vaddr(found.vaddr, min(elf.size_of(found), 4096))
        elf.bounds.are_starts(elf.bounds.starts)
        elf.import_slots()
        import_stubs(elf)
        static_pointers(elf)
        static_pointers(elf, vtables=False)
        elf.words_at(np.array([0, 8, 2**63, 2**64 - 1], np.uint64))
        elf.function_names([0, 1, 2**63])


QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@QUICK
@given(st.data())
def test_damaged_files(library: Path, folder: Path, data: st.DataObject) -> None:
    whole = library.read_bytes()
    broken = bytearray(whole)
    # Headers and tables are where damage hurts; most of the file is code and padding.
    with ElfFile(str(library)) as elf:
        table = len(whole) - 64 * len(elf.sections)
    places = st.integers(0, 0x600) | st.integers(table, len(whole) - 1) | st.integers(0, len(whole) - 1)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(places)
        values = data.draw(
            st.binary(min_size=1, max_size=8) | st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\xff" * 7 + b"\x7f"])
        )
        broken[at : at + len(values)] = values
    path = folder / "broken.so"
    path.write_bytes(broken)
    try:
        everything(str(path))
    except ElfError:
        return


@QUICK
@given(st.integers(0, 20000))
def test_truncated_files(library: Path, folder: Path, size: int) -> None:
    whole = library.read_bytes()
    path = folder / "short.so"
    path.write_bytes(whole[: size % len(whole)])
    with pytest.raises(ElfError):
        everything(str(path))


@QUICK
@given(st.binary(max_size=300))
def test_anything_behind_the_magic(folder: Path, rest: bytes) -> None:
    path = folder / "noise.so"
    path.write_bytes(b"\x7fELF\x02\x01\x01" + rest)
    try:
        everything(str(path))
    except ElfError:
        return


def test_other_kinds_of_files(library: Path, folder: Path) -> None:
    whole = library.read_bytes()
    cases = {
        "32": (whole[:4] + b"\x01" + whole[5:], "is not a 64-bit"),
        "arm": (whole[:18] + b"\xb7\x00" + whole[20:], "another processor"),
        "text": (b"#!/bin/sh\n", "is not an ELF file"),
        "empty": (b"", "is not an ELF file"),
    }
    for name, (content, problem) in cases.items():
        path = folder / name
        path.write_bytes(content)
        with pytest.raises(ElfError, match=problem):
            ElfFile(str(path))
    with pytest.raises(ElfError, match="No such file"):
        ElfFile(str(folder / "missing"))
    with pytest.raises(ElfError):
        ElfFile("a\0b")
