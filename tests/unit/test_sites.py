"""Probe-site selection: known functions, known answers; random bytes never break it."""

from __future__ import annotations

import sys
from pathlib import Path

import capstone
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rlscope_ebpf.capture.code_source import code_source
from rlscope_ebpf.capture.elf import ElfFile, Function
from rlscope_ebpf.capture.exits import Code, ExitFinder, Jump, scan
from rlscope_ebpf.capture.site_choice import entry_site, other_site
from rlscope_ebpf.capture.sites import MAX_PUSHED, Site
from rlscope_ebpf.model.calibration import EMULATED, STEPPED

sys.path.insert(0, str(Path(__file__).parent))

from native_samples import ASSEMBLY, compile_library


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ElfFile:
    folder = tmp_path_factory.mktemp("sites")
    return ElfFile(str(compile_library(folder, "libsites.so", ASSEMBLY, "-nostdlib", suffix=".s")))


def function(elf: ElfFile, name: str) -> tuple[Function, bytes]:
    found = next(f for f in elf.local_functions() if f.name == name)
    return found, elf.read_vaddr(found.vaddr, elf.size_of(found))


def site(elf: ElfFile, name: str) -> Site | None:
    found, code = function(elf, name)
    return entry_site(code, found.vaddr)


@pytest.mark.parametrize(
    ("name", "offset", "site_class"),
    [
        ("nop5_first", 5, STEPPED),  # the nop would become a call into a page that forked children lack
        ("push_first", 0, EMULATED),
        ("push_r12_first", 0, EMULATED),
        ("endbr_push", 4, EMULATED),
        ("endbr_nop5", 0, STEPPED),
        ("mov_push", 5, EMULATED),
        ("test_jump", 3, EMULATED),
        ("red_zone_nop5", 0, STEPPED),
        ("loop_head", 0, STEPPED),  # the nop is hit once per turn
        ("far_loop_head", 0, STEPPED),
        ("frame_first", 0, STEPPED),  # behind it the return address is elsewhere
        ("nop9_first", 0, STEPPED),
        ("nop10_first", 10, STEPPED),  # the nop itself would never be hit
        ("nop10_push", 10, EMULATED),
        ("nop5_across_pages", 5, STEPPED),
    ],
)
def test_known_functions(library: ElfFile, name: str, offset: int, site_class: str) -> None:
    found = site(library, name)
    assert found is not None
    assert (found.offset, found.site_class) == (offset, site_class)
    assert found.vaddr == function(library, name)[0].vaddr + offset


def test_a_system_call_is_not_probed(library: ElfFile) -> None:
    assert site(library, "system_call") is None


def test_overwritten_arguments_are_named(library: ElfFile) -> None:
    found = site(library, "mov_push")
    assert found is not None
    assert found.written_arguments == {"rsi"}


def test_the_quick_decision_agrees_with_the_disassembler(library: ElfFile) -> None:
    # By bytes alone: push and endbr64 + push. The same function behind an instruction of no effect goes the long way.
    for name in ("push_first", "push_r12_first", "endbr_push"):
        found, code = function(library, name)
        quick = entry_site(code, found.vaddr)
        long = entry_site(b"\x89\xc0" + code, found.vaddr)  # mov %eax, %eax
        assert quick is not None
        assert long is not None
        assert (long.offset, long.site_class) == (quick.offset + 2, quick.site_class)


def boundaries(code: bytes, vaddr: int) -> set[int]:
    return {row[0] for row in capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64).disasm_lite(code, vaddr)}


PROLOGUES = st.sampled_from(
    [
        b"",
        b"\xf3\x0f\x1e\xfa",
        b"\x55",
        b"\x41\x54",
        b"\x0f\x1f\x44\x00\x00",
        b"\x31\xc0",
        b"\x48\x89\xf8",
        b"\x85\xff\x74\x02",
    ]
)


@settings(deadline=None)
@given(st.lists(PROLOGUES, max_size=4).map(b"".join), st.binary(max_size=120), st.integers(0, 2**40))
def test_any_bytes_give_an_instruction_boundary_or_nothing(prologue: bytes, rest: bytes, vaddr: int) -> None:
    code = prologue + rest
    found = entry_site(code, vaddr)
    if found is not None:
        assert found.vaddr == vaddr + found.offset
        assert found.vaddr in boundaries(code, vaddr)


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=30), st.integers(0, 40))
def test_no_branch_back_to_a_chosen_site(filling: bytes, back: int) -> None:
    # mov %rdi, %rax; nop; filling; jne to `back`
    head = b"\x48\x89\xf8\x90"
    body = head + b"\x90" * len(filling)
    code = body + b"\x0f\x85" + (min(back, len(body)) - len(body) - 6).to_bytes(4, "little", signed=True) + b"\xc3"
    found = entry_site(code, 0x1000)
    assert found is not None
    assert found.offset == (0 if 0 < back <= 3 else 3)


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(0, 2**40))
def test_any_bytes_give_exits_on_boundaries_or_nothing(code: bytes, vaddr: int) -> None:
    found = ExitFinder(NoSource()).ways_out(Code(vaddr, code))
    if found is not None:
        assert set(found.sites) <= boundaries(code, vaddr)
        assert not found.tail_calls


class NoSource:
    """A file with nothing but the function itself."""

    def at(self, vaddr: int) -> Code | None:
        return None

    def is_code(self, vaddr: int) -> bool:
        return True

    def offsets(self, vaddr: int, count: int) -> NDArray[np.int64]:
        return np.arange(count, dtype=np.int64)

    def pointers(self, vaddr: int, count: int) -> NDArray[np.int64]:
        return np.arange(count, dtype=np.int64)

    def import_of(self, jump: Jump) -> str | None:
        return None

    def slot_throws(self, slot: int) -> bool:
        return True

    def stub_throws(self, vaddr: int) -> bool:
        return True


class Source(NoSource):
    """The functions of a library."""

    def __init__(self, elf: ElfFile) -> None:
        self.elf = elf
        self.slots = elf.import_slots()
        self.real = code_source(elf, frozenset())

    def is_code(self, vaddr: int) -> bool:
        return self.real.is_code(vaddr)

    def offsets(self, vaddr: int, count: int) -> NDArray[np.int64]:
        return self.real.offsets(vaddr, count)

    def pointers(self, vaddr: int, count: int) -> NDArray[np.int64]:
        return self.real.pointers(vaddr, count)

    def import_of(self, jump: Jump) -> str | None:
        return self.real.import_of(jump)

    def slot_throws(self, slot: int) -> bool:
        return self.slots.get(slot) != "harmless"

    def at(self, vaddr: int) -> Code | None:
        bounds = self.elf.bounds.containing(vaddr)
        return None if bounds is None else Code(bounds[0], self.elf.read_vaddr(*bounds))


EXITS = r"""
    .text
    .globl two_returns, into_other, other, conditional_out, far_call, through_slot, switch, leaf_register, virtual
    .globl through_harmless_slot, retpoline, pushed_return, zeros
    .type two_returns, @function
two_returns:
    test %edi, %edi
    je 1f
    ret
1:  rep ret
    .size two_returns, . - two_returns
    .type into_other, @function
into_other:
    jmp other
    .size into_other, . - into_other
    .type other, @function
other:
    push %rbx
    pop %rbx
    ret
    .size other, . - other
    .type conditional_out, @function
conditional_out:
    test %edi, %edi
    je other
    ret
    .size conditional_out, . - conditional_out
    .type far_call, @function
far_call:
    call *thing@GOTPCREL(%rip)
    ret
    .size far_call, . - far_call
    .type through_slot, @function
through_slot:
    jmp *thing@GOTPCREL(%rip)
    .size through_slot, . - through_slot
    .type through_harmless_slot, @function
through_harmless_slot:
    jmp *harmless@GOTPCREL(%rip)
    .size through_harmless_slot, . - through_harmless_slot
    .type retpoline, @function
retpoline:
    call 2f
1:  pause
    jmp 1b
2:  mov %rax, (%rsp)
    ret
    .size retpoline, . - retpoline
    .type pushed_return, @function
pushed_return:
    push %rdi
    ret
    .size pushed_return, . - pushed_return
    .type zeros, @function
zeros:
    jmp 1f
    .long 0
1:  ret
    .size zeros, . - zeros
    .type switch, @function
switch:
    lea table(%rip), %rdx
    movslq (%rdx,%rdi,4), %rax
    add %rdx, %rax
    jmp *%rax
2:  ret
3:  ret
    .size switch, . - switch
    .type leaf_register, @function
leaf_register:
    mov %rdi, %rax
    jmp *%rax
    .size leaf_register, . - leaf_register
    .type virtual, @function
virtual:
    mov (%rdi), %rax
    mov 16(%rax), %rax
    jmp *%rax
    .size virtual, . - virtual
    .section .rodata
table:
    .long 2b - table, 3b - table
    .section .note.GNU-stack, "", @progbits
"""


@pytest.fixture(scope="module")
def exits(tmp_path_factory: pytest.TempPathFactory) -> ElfFile:
    return ElfFile(
        str(compile_library(tmp_path_factory.mktemp("exits"), "libexits.so", EXITS, "-nostdlib", suffix=".s"))
    )


def left_at(elf: ElfFile, name: str) -> list[tuple[str, int]] | None:
    """Function and offset of each exit, by name."""
    found, code = function(elf, name)
    ways = ExitFinder(Source(elf)).ways_out(Code(found.vaddr, code))
    if ways is None:
        return None
    starts = {f.vaddr: f.name for f in elf.local_functions()}
    result = []
    for address in ways.sites:
        bounds = elf.bounds.containing(address)
        assert bounds is not None
        result.append((starts[bounds[0]], address - bounds[0]))
    return result + [(name, -1) for name in ways.tail_calls]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("two_returns", [("two_returns", 4), ("two_returns", 5)]),
        ("into_other", [("other", 2)]),  # a tail call is followed: its time still counts
        ("conditional_out", [("other", 2), ("conditional_out", 4)]),
        ("through_slot", [("thing", -1)]),  # into another object, which is to be looked at
        ("through_harmless_slot", [("through_harmless_slot", 0)]),  # of the C library: the jump is the exit
        ("switch", [("switch", 16), ("switch", 17)]),
        ("leaf_register", None),  # a tail call or a computed goto: cannot be told
        ("virtual", None),
        ("retpoline", None),  # its `ret` is a jump
        ("pushed_return", None),
        ("zeros", None),  # data
    ],
)
def test_exits_of_known_functions(exits: ElfFile, name: str, expected: list[tuple[str, int]] | None) -> None:
    assert left_at(exits, name) == expected


def test_instructions_that_overlap_are_refused() -> None:
    # jmp into the middle of the following mov: data among the code, or worse
    assert scan(b"\xeb\x01\xb8\x00\x00\x00\x00\xc3", 0x1000) is None


@pytest.mark.parametrize(
    ("name", "throws"), [("two_returns", False), ("into_other", False), ("far_call", True), ("virtual", True)]
)
def test_what_may_throw(exits: ElfFile, name: str, throws: bool) -> None:
    found, code = function(exits, name)
    assert ExitFinder(Source(exits)).throws(Code(found.vaddr, code)) is throws


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (b"\x55\x48\x89\xe5\x41\x57\xc3", (4, EMULATED, 1)),  # push rbp; mov rbp, rsp; push r15
        (b"\xf3\x0f\x1e\xfa\x55\x48\x89\xe5\x53\xc3", (8, EMULATED, 1)),  # endbr64; push; mov; push rbx
        (b"\xf3\x0f\x1e\xfa\x55\x48\x83\xec\x10\xc3", (0, STEPPED, 0)),  # endbr64; push; sub rsp
        (b"\x53\x48\x83\xec\x10\xc3", (1, STEPPED, 1)),  # push rbx; sub rsp, 16
        (b"\x48\x89\xf8\xc3", None),  # mov rax, rdi; ret
        (b"\x0f\x1f\x44\x00\x00\x55\xc3", None),  # 5-byte nop; push rbp: the push is the first
    ],
)
def test_another_site_than_the_first(code: bytes, expected: tuple[int, str, int] | None) -> None:
    first = entry_site(code, 0x1000)
    assert first is not None
    found = other_site(code, 0x1000, first)
    assert (None if found is None else (found.offset, found.site_class, found.pushed)) == expected


@settings(deadline=None)
@given(st.lists(PROLOGUES, max_size=4).map(b"".join), st.binary(max_size=120), st.integers(0, 2**40))
def test_any_other_site_lies_on_a_boundary_and_is_another(prologue: bytes, rest: bytes, vaddr: int) -> None:
    first = entry_site(prologue + rest, vaddr)
    found = None if first is None else other_site(prologue + rest, vaddr, first)
    if first is not None and found is not None:
        assert found.vaddr != first.vaddr
        assert found.vaddr in boundaries(prologue + rest, vaddr)
        assert 0 <= found.pushed <= MAX_PUSHED
