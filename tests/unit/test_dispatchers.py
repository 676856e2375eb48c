"""The one function by which everything that pybind11 or nanobind bind is entered, found by its name."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from native_samples import compile_library

from rlscope_ebpf.capture.elf import ElfFile
from rlscope_ebpf.capture.maps import expected_object
from rlscope_ebpf.capture.pointers import ProcessMemory
from rlscope_ebpf.capture.selection import dispatchers

SOURCE = """
static __attribute__((noinline, used)) void *bound(void *self) __asm__("%s");
static __attribute__((noinline, used)) void *bound(void *self) { return self; }
static __attribute__((noinline, used)) void *other(void *self) { return (char *)self + 1; }
"""


@pytest.mark.parametrize(
    "symbol",
    [
        "_ZN8pybind1112cpp_function10dispatcherEP7_objectS2_S2_",
        "_ZN8pybind1112cpp_function10dispatcherEP7_objectS1_S1_",
        # from pybind11 3.0 on: arguments as an array (PyTorch 2.13)
        "_ZN8pybind1112cpp_function10dispatcherEP7_objectPKS2_mS2_",
        "_ZN8nanobind6detailL26nb_func_vectorcall_complexEP7_objectPKS2_mS2_",
    ],
)
def test_a_local_symbol_names_it(symbol: str, tmp_path: Path) -> None:
    path = compile_library(tmp_path, "libbound.so", SOURCE % symbol)
    mapped = expected_object(os.getpid(), str(path))
    assert mapped is not None
    with ElfFile(str(path)) as elf, ProcessMemory(os.getpid()) as memory:
        assert [found.name for found in dispatchers(elf, mapped, memory)] == [symbol]
