"""The marker library as compiled: its entry points, its header, and a stress program under sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from rlscope_ebpf.paths import include_dir, marker_library

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "userspace" / "rlscope_markers.c"
STRESS = Path(__file__).parent / "stress.c"
NOP = bytes.fromhex("0f1f440000")

PROBED = [
    "rlscope_operation_begin",
    "rlscope_operation_end",
    "rlscope_phase",
    "rlscope_progress",
    "rlscope_metadata",
    "rlscope_process_name",
    "rlscope_operation_begin_python",
    "rlscope_operation_end_python",
]
CC = shutil.which("gcc") or "cc"


def dynamic_symbols(path: Path) -> dict[str, tuple[int, int, bytes]]:
    """Name -> address, size, bytes, of what the library exports."""
    found = {}
    with path.open("rb") as file:
        elf = ELFFile(file)
        for symbol in elf.get_section_by_name(".dynsym").iter_symbols():
            if symbol["st_shndx"] == "SHN_UNDEF" or not symbol.name:
                continue
            section = elf.get_section(symbol["st_shndx"])
            if section["sh_type"] == "SHT_NOBITS":
                continue
            start = symbol["st_value"] - section["sh_addr"]
            data = section.data()[start : start + symbol["st_size"]]
            found[symbol.name] = (symbol["st_value"], symbol["st_size"], data)
    return found


def test_every_probed_function_begins_with_one_5_byte_nop() -> None:
    symbols = dynamic_symbols(marker_library())
    assert {name: symbols[name][2][:5] for name in PROBED} == dict.fromkeys(PROBED, NOP)


def test_probed_functions_are_functions_of_their_own() -> None:
    symbols = dynamic_symbols(marker_library())
    addresses = {symbols[name][0] for name in PROBED}
    # nop, jump, and what lies behind it: equal targets need a different end.
    bodies = {
        (start + 10 + int.from_bytes(code[6:10], "little", signed=True), code[10:])
        for start, _, code in (symbols[name] for name in PROBED)
    }
    assert len(addresses) == len(PROBED)
    assert len(bodies) == len(PROBED), "identical code could be folded into one function"
    # The patched nop is a call: its bytes must not straddle two pages or cache lines.
    assert all(address % 32 == 0 for address in addresses)


def test_nothing_but_the_interface_is_exported() -> None:
    helpers = {"rlscope_intern", "rlscope_operation_depth", "rlscope_operation_name", "rlscope_markers_registry"}
    assert set(dynamic_symbols(marker_library())) == {*PROBED, *helpers}


def test_library_stays_loaded_and_keeps_its_name() -> None:
    """Thread exit and fork call back into it, so it must survive dlclose; and one process has one copy of it."""
    with marker_library().open("rb") as file:
        tags = {tag.entry.d_tag: tag for tag in ELFFile(file).get_section_by_name(".dynamic").iter_tags()}
    assert tags["DT_SONAME"].soname == "librlscope_markers.so"
    assert tags["DT_FLAGS_1"].entry.d_val & 0x8  # DF_1_NODELETE


def build(tmp_path: Path, *flags: str) -> Path:
    program = tmp_path / "stress"
    command = [CC, "-g", "-O1", "-std=gnu11", "-Wall", "-Wextra", "-pthread", "-fno-lto", f"-I{SOURCE.parent}", *flags]
    subprocess.run([*command, str(STRESS), str(SOURCE), "-o", str(program)], check=True, timeout=120)
    return program


@pytest.mark.parametrize(
    ("flags", "forks"),
    [
        ([], "busy"),
        (["-fsanitize=address,undefined", "-fno-sanitize-recover=all"], "alone"),
        (["-fsanitize=thread", "-Wno-tsan"], "never"),
    ],
    ids=["plain", "address+undefined", "thread"],
)
def test_stress(tmp_path: Path, flags: list[str], forks: str) -> None:
    program = build(tmp_path, *flags)
    result = subprocess.run([program, forks], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("ok ")
    assert result.stderr == ""


def test_header_serves_c_and_cplusplus_and_an_exception_closes_an_operation(tmp_path: Path) -> None:
    source = tmp_path / "program.cpp"
    source.write_text(
        """
        #include <rlscope_markers.h>
        #include <cstdio>
        int main() {
            try {
                rlscope::operation outer("outer");
                rlscope_operation_begin("inner");
                std::printf("%u %s\\n", rlscope_operation_depth(), rlscope_operation_name(1));
                rlscope_operation_end();
                throw 1;
            } catch (int) {}
            std::printf("%u\\n", rlscope_operation_depth());
        }
        """
    )
    folder = marker_library().parent
    program = tmp_path / "program"
    compiler = shutil.which("g++")
    assert compiler, "the tests need g++"
    link = [f"-L{folder}", "-lrlscope_markers", f"-Wl,-rpath,{folder}"]
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    subprocess.run([compiler, *warnings, f"-I{include_dir()}", source, "-o", program, *link], check=True, timeout=120)
    assert subprocess.run([program], capture_output=True, text=True, check=True).stdout == "2 inner\n0\n"
    as_c = [CC, "-std=c99", *warnings, "-fsyntax-only", "-x", "c", str(include_dir() / "rlscope_markers.h")]
    subprocess.run(as_c, check=True, timeout=60)


def test_out_of_memory_is_counted_and_survived(tmp_path: Path) -> None:
    """With no address space left, markers do nothing and say so."""
    source = tmp_path / "poor.c"
    source.write_text(
        """
        #include <rlscope_markers.h>
        #include <errno.h>
        #include <stdio.h>
        #include <sys/resource.h>
        extern struct rlscope_registry rlscope_markers_registry;
        int main(void) {
            struct rlimit none = {0, 0};
            setvbuf(stdout, NULL, _IONBF, 0);
            printf("start\\n");
            setrlimit(RLIMIT_AS, &none);
            errno = 42;
            rlscope_operation_begin("x");
            rlscope_phase("y");
            rlscope_metadata("a", "b");
            rlscope_operation_end();
            int kept = errno;
            printf("%d %d %d %d\\n", kept, (int)rlscope_operation_depth(),
                   (int)rlscope_markers_registry.lost_threads, rlscope_markers_registry.failed_mappings > 0);
            return 0;
        }
        """
    )
    program = tmp_path / "poor"
    subprocess.run(
        [CC, "-O1", "-pthread", "-fno-lto", f"-I{SOURCE.parent}", str(source), str(SOURCE), "-o", program], check=True
    )
    result = subprocess.run([program], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    assert (result.returncode, result.stdout) == (0, "start\n42 0 1 1\n")
