"""Small shared objects compiled for the tests of symbols, sites and plans."""

from __future__ import annotations

import subprocess
from pathlib import Path

ASSEMBLY = r"""
    .macro function name
    .globl \name
    .type \name, @function
    .p2align 6
\name:
    .endm
    .macro finish name
    .size \name, . - \name
    .endm
    .text
    function nop5_first
    .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
    ret
    finish nop5_first
    function push_first
    push %rbp
    pop %rbp
    ret
    finish push_first
    function push_r12_first
    push %r12
    pop %r12
    ret
    finish push_r12_first
    function endbr_push
    endbr64
    push %rbx
    pop %rbx
    ret
    finish endbr_push
    function endbr_nop5
    endbr64
    .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
    ret
    finish endbr_nop5
    function mov_push
    mov %rdi, %rax
    xor %esi, %esi
    push %rbx
    pop %rbx
    ret
    finish mov_push
    function test_jump
    test %rdi, %rdi
    je 1f
    inc %eax
1:  ret
    finish test_jump
    function red_zone_nop5
    mov %rdi, -8(%rsp)
    .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
    mov -8(%rsp), %rax
    ret
    finish red_zone_nop5
    function loop_head
    mov %rdi, %rax
1:  nop
    dec %rax
    jne 1b
    ret
    finish loop_head
    function far_loop_head
    mov %rdi, %rax
1:  jmp 2f
    .fill 200, 1, 0x90
2:  dec %rax
    jne 1b
    ret
    finish far_loop_head
    function frame_first
    sub $24, %rsp
    push %rbx
    pop %rbx
    add $24, %rsp
    ret
    finish frame_first
    function nop9_first
    .byte 0x66, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00
    ret
    finish nop9_first
    function nop10_first
    .byte 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00
    mov %edi, %eax
    ret
    finish nop10_first
    function nop10_push
    .byte 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00
    push %rbx
    pop %rbx
    ret
    finish nop10_push
    function system_call
    syscall
    ret
    finish system_call
    .p2align 12
    .fill 4093, 1, 0xcc
    .globl nop5_across_pages
    .type nop5_across_pages, @function
nop5_across_pages:
    .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
    ret
    finish nop5_across_pages
    .section .note.GNU-stack, "", @progbits
"""
"""Functions whose best probe site is known."""


def compile_library(folder: Path, name: str, source: str, *flags: str, suffix: str = ".c") -> Path:
    """Compile `source` into `folder`/`name`."""
    path = folder / f"{name}{suffix}"
    path.write_text(source)
    compiler = "g++" if suffix == ".cc" else "gcc"
    subprocess.run(
        [compiler, "-O2", "-shared", "-fPIC", str(path), "-o", str(folder / name), *flags],
        check=True,
        capture_output=True,
        text=True,
    )
    return folder / name
