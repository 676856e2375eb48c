"""Exits found by reading the code, compared with those by which the code, run step by step, is left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import stepped

from rlscope_ebpf.capture.code_source import code_source
from rlscope_ebpf.capture.elf import ElfFile
from rlscope_ebpf.capture.exits import Code, ExitFinder

# Each takes (long, long) and must end by itself.
SOURCE = r"""
#include <stdlib.h>
#include <string.h>

#define FUNCTION __attribute__((noinline, used)) long
static volatile long sink;
__attribute__((cold, noinline)) static void unlikely(long a) { sink += a; }

FUNCTION leaf(long a, long b) { return a * 3 + b; }
FUNCTION branches(long a, long b) { if (a & 1) return b; if (a & 2) return leaf(a, b) + 1; return 7; }
FUNCTION tail(long a, long b) { return leaf(b, a); }
FUNCTION tail_of_tail(long a, long b) { return a & 1 ? tail(a, b) : branches(b, a); }
FUNCTION loop(long a, long b)
{
    long sum = 0;
    for (long i = 0; i < (a & 7); i++) {
        sum += leaf(i, b);
        if (sum > 40)
            return i;
    }
    return sum;
}
FUNCTION dense(long a, long b)
{
    switch (a & 15) {
    case 0: sink++; return 3;
    case 1: return leaf(a, b);
    case 2: sink += b; break;
    case 3: return branches(b, 1) * 2;
    case 4: sink -= b;
    case 5: sink ^= a; break;
    case 6: return a ^ b;
    case 7: unlikely(a); return 9;
    case 8: return tail(a, b);
    case 9: sink *= 3; return b - 2;
    }
    return sink;
}
FUNCTION dense_with_frame(long a, long b)
{
    char text[200];
    memset(text, (int)b, sizeof text);
    sink += text[a & 127];
    switch (a & 7) {
    case 0: sink += leaf(a, text[3]); break;
    case 1: return text[5];
    case 2: sink += branches(a, text[9]);
    case 3: return leaf(text[1], b);
    case 4: sink++; return sink;
    case 5: unlikely(b); break;
    }
    return leaf(sink, text[7]);
}
FUNCTION split(long a, long b)
{
    if (__builtin_expect(a == 5, 0)) { unlikely(a); if (b & 1) return 77; unlikely(b); }
    if (__builtin_expect(a == 6, 0)) { unlikely(b); return branches(a, b) + 3; }
    if (__builtin_expect(a == 9, 0)) abort();
    return leaf(a, b) + 1;
}
FUNCTION recursive(long a, long b) { return (a & 7) ? recursive((a & 7) - 1, b) + b : b; }
FUNCTION grows(long a, long b)
{
    char *text = __builtin_alloca((a & 7) * 16 + 16);
    memset(text, 1, (a & 7) * 16 + 16);
    sink += text[b & 7];
    return a & 1 ? text[3] : leaf(text[2], a);
}
FUNCTION computed(long a, long b)
{
    static const void *const places[] = { &&one, &&two, &&three, &&four };
    sink++;
    goto *places[a & 3];
one: sink += leaf(a, b); goto *places[3];
two: return b + 1;
three: unlikely(a); return 4;
four: return sink;
}
FUNCTION aligned(long a, long b)
{
    _Alignas(64) double values[16];
    for (int i = 0; i < 16; i++) values[i] = a * i;
    sink += (long)values[b & 15];
    return a & 1 ? leaf((long)values[3], b) : 5;
}
FUNCTION wide(long a, long b) { double x = (double)a; for (int i = 0; i < 8; i++) x = x * 1.5 + b; return (long)x; }
FUNCTION frees(long a, long b)
{
    void *p = malloc((a & 15) + 1);
    if (!p)
        return 1;
    memset(p, (int)b, (a & 15) + 1);
    free(p);
    return 2;
}
__attribute__((noinline, used)) void last_is_free(long a, long b) { void *p = malloc((a & 15) + b); sink++; free(p); }
FUNCTION pointer(long a, long b) { static long (*volatile f)(long, long) = leaf; return f(a, b); }

typedef long function(long, long);
static function *const all[] = {
    leaf, branches, tail, tail_of_tail, loop, dense, dense_with_frame, split, recursive, grows, computed, aligned, wide,
    frees, (function *)last_is_free, pointer,
};

int main(void)
{
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        for (long a = 0; a < 12; a++) {
            if (all[i] == split && a == 9)
                continue;
            __asm__ volatile("int3" : : "a"(all[i]) : "memory");
            all[i](a, 12 - a);
        }
    __asm__ volatile("int3" : : "a"(0L));
}
"""

MAY_BE_UNKNOWN = {"pointer", "computed"}
"""Functions whose exits no look at the code alone can tell for certain, whatever the compiler makes of them."""

VARIANTS = {
    "O0": "-O0",
    "O1": "-O1",
    "O2": "-O2",
    "O2-ibt": "-O2 -fcf-protection=full",
    "O2-plain": "-O2 -fcf-protection=none -fno-plt",
    "O2-no-pie": "-O2 -fno-pie -no-pie -fcf-protection=none",
    "O3": "-O3 -fomit-frame-pointer -mavx2 -mno-vzeroupper",
    "O3-frames": "-O3 -fno-omit-frame-pointer -fcf-protection=full",
    "O3-protected": "-O3 -fstack-protector-all -fstack-clash-protection",
    "Os": "-Os",
    "retpolines": "-O2 -mindirect-branch=thunk -fcf-protection=none",
}


@pytest.fixture(scope="module", params=VARIANTS.values(), ids=VARIANTS.keys())
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exits")
    (folder / "exits.c").write_text(SOURCE)
    path = folder / "exits"
    subprocess.run(["gcc", "-w", "-g", *request.param.split(), "-o", path, folder / "exits.c"], check=True)
    return path


def test_every_call_ends_at_one_exit(program: Path) -> None:
    with ElfFile("/lib/x86_64-linux-gnu/libc.so.6") as libc:
        harmless = frozenset(function.name for function in libc.exports)
    with ElfFile(str(program)) as elf:
        finder = ExitFinder(code_source(elf, harmless))
        functions = {function.vaddr: function for function in (*elf.local_functions(), *elf.exports)}
        first = int(elf.segments[elf.segments["type"] == 1]["vaddr"][0])
        known: dict[int, tuple[int, ...] | None] = {}
        followed = 0
        for base, call in stepped.calls(program):
            vaddr = call.function - base + first
            if vaddr not in known:
                code = Code(vaddr, elf.read_vaddr(vaddr, elf.size_of(functions[vaddr])))
                ways = finder.ways_out(code)
                known[vaddr] = None if ways is None or ways.tail_calls else ways.sites
                assert known[vaddr] is not None or functions[vaddr].name in MAY_BE_UNKNOWN, functions[vaddr].name
            exits = known[vaddr]
            if exits is None:
                continue
            passed = [address - base + first for address in call.level if address - base + first in exits]
            where = f"{functions[vaddr].name} is left at {call.end - base + first:#x}, exits {list(map(hex, exits))}"
            assert len(passed) == 1, f"{where}, passed {list(map(hex, passed))}"
            # Of a tail call into the C library the jump is the exit.
            inside = base <= call.end < base + program.stat().st_size + (1 << 20)
            assert not inside or passed == [call.end - base + first], where
            followed += 1
    assert followed > 150
