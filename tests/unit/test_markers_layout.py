"""Reading the marker library's registry: the C layout, this very process, and memory that holds anything at all."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlscope_ebpf.markers as rls
from rlscope_ebpf.capture import marker_offsets
from rlscope_ebpf.capture import markers_layout as layout
from rlscope_ebpf.capture.maps import read_maps
from rlscope_ebpf.capture.markers_layout import ThreadStack, parse_process, parse_registry, read_thread_stacks
from rlscope_ebpf.capture.pointers import ProcessMemory
from rlscope_ebpf.paths import include_dir

ROOT = Path(__file__).resolve().parents[2]


def c_layout(tmp_path: Path) -> dict[str, int]:
    """Sizes and offsets as the C compiler sees the header."""
    fields = [("rlscope_registry", name) for name in layout.REGISTRY_DTYPE.names or ()]
    fields += [("rlscope_thread_record", name) for name in layout.RECORD_DTYPE.names or ()]
    lines = [f'printf("{s}.{f} %zu\\n", offsetof(struct {s}, {f}));' for s, f in fields]
    lines += [f'printf("{s} %zu\\n", sizeof(struct {s}));' for s in ("rlscope_registry", "rlscope_thread_record")]
    constants = ["NAME_MAX", "MAX_DEPTH", "METADATA_MAX", "FIRST_CHUNK", "CHUNKS", "MARKERS_VERSION"]
    lines += [f'printf("{name} %zu\\n", (size_t)RLSCOPE_{name});' for name in constants]
    source = tmp_path / "layout.c"
    source.write_text(
        "#include <rlscope_markers.h>\n#include <stdio.h>\nint main(void) {\n" + "\n".join(lines) + "return 0; }\n"
    )
    program = tmp_path / "layout"
    compiler = shutil.which("gcc") or "cc"
    subprocess.run([compiler, f"-I{include_dir()}", str(source), "-o", str(program)], check=True, timeout=60)
    output = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in (line.split() for line in output.splitlines())}


def test_the_mirror_agrees_with_the_header(tmp_path: Path) -> None:
    compiled = c_layout(tmp_path)
    mirrored = {
        "rlscope_registry": layout.REGISTRY_DTYPE.itemsize,
        "rlscope_thread_record": layout.RECORD_DTYPE.itemsize,
        "NAME_MAX": layout.NAME_MAX,
        "MAX_DEPTH": layout.MAX_DEPTH,
        "METADATA_MAX": layout.METADATA_MAX,
        "FIRST_CHUNK": layout.FIRST_CHUNK,
        "CHUNKS": layout.CHUNKS,
        "MARKERS_VERSION": layout.VERSION,
    }
    for struct, dtype in (("rlscope_registry", layout.REGISTRY_DTYPE), ("rlscope_thread_record", layout.RECORD_DTYPE)):
        assert dtype.fields
        mirrored |= {f"{struct}.{name}": field[1] for name, field in dtype.fields.items()}
    assert compiled == mirrored
    assert compiled["rlscope_thread_record.depth"] == marker_offsets.DEPTH_OFFSET
    assert compiled["rlscope_thread_record.names"] == marker_offsets.NAMES_OFFSET


def own_stacks() -> dict[int, ThreadStack]:
    return {stack.tid: stack for stack in read_thread_stacks(os.getpid(), read_maps(os.getpid()))}


def parse_own_registry() -> list[ThreadStack]:
    """Also of threads that are gone, if any still had a record."""
    address = layout.registry_address(os.getpid(), read_maps(os.getpid()))
    assert address
    with ProcessMemory(os.getpid()) as memory:
        return parse_registry(memory.read, address)


def wait_until_gone(tid: int) -> None:
    """Python's `join` comes back before the thread's very end, where its record is given back."""
    deadline = time.monotonic() + 30
    while Path(f"/proc/self/task/{tid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_open_operations_of_every_thread_are_read() -> None:
    ready, go = threading.Barrier(101), threading.Event()
    tids: dict[int, int] = {}

    def run(number: int) -> None:
        with rls.operation("thread"), rls.operation(f"nested {number}"):
            tids[number] = threading.get_native_id()
            ready.wait(30)
            go.wait(30)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(100)]
    for thread in threads:
        thread.start()
    ready.wait(30)
    try:
        stacks = own_stacks()
    finally:
        go.set()
        for thread in threads:
            thread.join()
    # A hundred records lie in two chunks.
    assert {i: stacks[tid].names for i, tid in tids.items()} == {i: ("thread", f"nested {i}") for i in range(100)}
    assert all(stacks[tid].settled and stacks[tid].depth == 2 for tid in tids.values())
    assert len({stacks[tid].record_address for tid in tids.values()}) == 100
    for tid in tids.values():
        wait_until_gone(tid)
    records = {stack.tid for stack in parse_own_registry()}
    assert not records & set(tids.values()), "threads that are gone have no record"


def test_changes_count_begins_and_ends() -> None:
    tid = threading.get_native_id()
    with rls.operation("first"):
        pass
    before = own_stacks()[tid].changes
    for _ in range(5):
        with rls.operation("x"):
            pass
    assert own_stacks()[tid].changes == before + 5 * 2 * 2


def test_deep_stacks_keep_their_depth() -> None:
    for _ in range(70):
        rls.operation("deep").__enter__()
    stack = own_stacks()[threading.get_native_id()]
    for _ in range(70):
        rls.operation("deep").__exit__(None, None, None)
    assert (stack.depth, stack.names) == (70, ("deep",) * 64)


def test_a_stack_read_while_it_changes_is_one_that_was() -> None:
    """Whatever is said to be settled is one of the states the thread goes through."""
    code = """
import rlscope_ebpf.markers as rls
a, b = rls.operation("a"), rls.operation("b")
with a:
    print("ready", flush=True)  # only now has the thread a record
while True:
    with a:
        with b, a:
            pass
"""
    environment = {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout
            process.stdout.readline()
            maps = read_maps(process.pid)
            running, stopped = set(), set()
            for _ in range(20):
                (stack,) = read_thread_stacks(process.pid, maps)
                if stack.settled:
                    running.add(stack.names)
                # It changes faster than it can be read: only a stop between two changes is sure to give good copies.
                process.send_signal(signal.SIGSTOP)
                os.waitid(os.P_PID, process.pid, os.WSTOPPED)
                (stack,) = read_thread_stacks(process.pid, maps)
                if stack.settled:
                    stopped.add(stack.names)
                process.send_signal(signal.SIGCONT)
        finally:
            process.kill()
    assert stopped
    assert running | stopped <= {(), ("a",), ("a", "b"), ("a", "b", "a")}


def test_a_child_keeps_only_the_thread_that_forked() -> None:
    go = threading.Event()
    started = threading.Event()

    def wait() -> None:
        with rls.operation("elsewhere"):
            started.set()
            go.wait(30)

    thread = threading.Thread(target=wait)
    thread.start()
    started.wait(30)
    ours, theirs = os.pipe()
    try:
        with rls.operation("outer"), rls.operation("forked"):
            child = os.fork()
            if child == 0:
                try:
                    os.read(ours, 1)
                finally:
                    os._exit(0)
            stacks = read_thread_stacks(child, read_maps(child))
    finally:
        os.write(theirs, b"x")
        go.set()
        thread.join()
        os.waitpid(child, 0)
        os.close(ours)
        os.close(theirs)
    assert [(stack.tid, stack.names) for stack in stacks] == [(child, ("outer", "forked"))]


def test_a_record_whose_thread_is_gone_serves_the_next() -> None:
    seen: list[ThreadStack] = []

    def run(name: str) -> None:
        with rls.operation(name):
            seen.append(own_stacks()[threading.get_native_id()])
        rls.operation("left open").__enter__()

    for name in ("first", "second", "third"):
        thread = threading.Thread(target=run, args=(name,))
        thread.start()
        thread.join()
        wait_until_gone(seen[-1].tid)
    assert [stack.names for stack in seen] == [("first",), ("second",), ("third",)], "nothing is left of the one before"
    assert len({stack.record_address for stack in seen}) == 1
    assert seen[0].changes < seen[1].changes < seen[2].changes


def test_a_process_without_markers_has_none() -> None:
    with subprocess.Popen(["sleep", "30"]) as process:
        try:
            assert read_thread_stacks(process.pid, read_maps(process.pid)) == []
            assert layout.read_process_markers(process.pid, read_maps(process.pid)) is None
        finally:
            process.kill()


# ---- memory that holds anything ----

BASE = 0x7F00_0000_0000
CHUNK, NAME = BASE + 0x1000, BASE + 0x8000


def memory(records: int = 2) -> bytearray:
    """16 pages: a registry, its first chunk, a name."""
    data = bytearray(0x10000)
    registry = np.zeros(1, layout.REGISTRY_DTYPE)
    registry["magic"] = np.frombuffer(layout.MAGIC, "V8")
    registry["version"], registry["size"] = layout.VERSION, registry.itemsize
    registry["record_size"], registry["names_offset"] = layout.RECORD_DTYPE.itemsize, layout.NAMES_OFFSET
    registry["max_depth"], registry["name_max"] = layout.MAX_DEPTH, layout.NAME_MAX
    registry["first_chunk"], registry["chunk_count"] = layout.FIRST_CHUNK, layout.CHUNKS
    registry["records"], registry["pid"], registry["phase"] = records, 77, NAME
    registry["chunks"][0, 0] = CHUNK
    registry["metadata"][0, 0] = (NAME, NAME)
    data[: registry.nbytes] = registry.tobytes()
    rows = np.zeros(records, layout.RECORD_DTYPE)
    rows["tid"], rows["depth"], rows["changes"] = np.arange(records) + 10, 1, 6
    rows["names"][:, 0] = NAME
    data[0x1000 : 0x1000 + rows.nbytes] = rows.tobytes()
    data[0x8000:0x8005] = b"name\0"
    return data


def reader(data: bytes | bytearray) -> layout.Read:
    def read(address: int, size: int) -> bytes:
        if not BASE <= address < BASE + len(data):
            raise OSError
        return bytes(data[address - BASE : address - BASE + size])

    return read


def test_a_registry_is_read_through_any_reader() -> None:
    first, second = parse_registry(reader(memory()), BASE)
    assert first == ThreadStack(10, 1, 6, ("name",), CHUNK)
    assert second == ThreadStack(11, 1, 6, ("name",), CHUNK + layout.RECORD_DTYPE.itemsize)
    said = parse_process(reader(memory()), BASE)
    assert said
    assert (said.pid, said.phase, said.metadata) == (77, "name", {"name": "name"})


@pytest.mark.parametrize("offset", [0, 8, 16, 20, 24, 32, 36])
def test_an_unknown_layout_is_not_read(offset: int) -> None:
    data = memory()
    data[offset] ^= 0x40
    assert parse_registry(reader(data), BASE) == []
    assert parse_process(reader(data), BASE) is None


def test_a_record_that_never_settles_is_marked() -> None:
    data = memory(1)
    data[0x1000] = 7
    (stack,) = parse_registry(reader(data), BASE)
    assert not stack.settled
    assert stack.names == ("name",)


def test_names_that_cannot_be_read_are_unknown() -> None:
    data = memory(1)
    data[0x1000 + 64 : 0x1000 + 72] = (0xDEAD).to_bytes(8, "little")
    assert parse_registry(reader(data), BASE)[0].names == ("(unknown)",)


def test_names_of_other_threads_are_not_read() -> None:
    data = memory(32)
    for row in range(32):  # a name of its own for every thread
        at = 0x1000 + row * layout.RECORD_DTYPE.itemsize + 64
        data[at : at + 8] = (NAME + 8 * row).to_bytes(8, "little")
    asked = []

    def read(address: int, size: int) -> bytes:
        asked.append(address)
        return reader(data)(address, size)

    (stack,) = parse_registry(read, BASE, {12, 99})
    assert stack.tid == 12
    assert [address for address in asked if address >= NAME] == [NAME + 16]


def test_a_registry_that_is_made_to_delay_is_not_read_to_its_end() -> None:
    """As many records as there can be, all of threads that live, none of which settles, and no name twice."""
    first_chunk, itemsize = layout.FIRST_CHUNK, layout.RECORD_DTYPE.itemsize
    registry = np.frombuffer(memory(), layout.REGISTRY_DTYPE, 1).copy()
    registry["records"] = first_chunk * ((1 << layout.CHUNKS) - 1)
    registry["chunks"][0] = CHUNK
    names = iter(range(NAME, 1 << 62))
    asked = 0

    def read(address: int, size: int) -> bytes:
        nonlocal asked
        asked += 1
        if address == BASE:
            return registry.tobytes()
        if size < itemsize:
            return b"name\0"
        rows = np.zeros(size // itemsize, layout.RECORD_DTYPE)
        rows["tid"], rows["depth"], rows["changes"] = 10, layout.MAX_DEPTH, 1
        low = next(names) * len(rows) * layout.MAX_DEPTH
        rows["names"] = np.arange(low, low + len(rows) * layout.MAX_DEPTH).reshape(len(rows), -1)
        return rows.tobytes()

    assert parse_registry(read, BASE, {10})
    assert asked < 50_000


def test_records_end_where_memory_ends() -> None:
    data = memory(32)[: 0x1000 + 5 * layout.RECORD_DTYPE.itemsize + 100]
    assert [stack.tid for stack in parse_registry(reader(data), BASE)] == [10, 11, 12, 13, 14]


@given(
    st.lists(st.tuples(st.integers(44, 0x1000 + 3 * 576), st.binary(min_size=1, max_size=16)), max_size=12),
    st.integers(0, 0x10000),
)
def test_garbage_never_raises(patches: list[tuple[int, bytes]], end: int) -> None:
    data = memory(3)
    for at, patch in patches:
        data[at : at + len(patch)] = patch
    data = data[:end]
    for stack in parse_registry(reader(data), BASE):
        assert stack.tid != 0
        assert len(stack.names) <= layout.MAX_DEPTH
    parse_process(reader(data), BASE)


def test_the_library_and_the_symbol_are_those_of_the_source() -> None:
    source = (ROOT / "userspace" / "rlscope_markers.c").read_text()
    assert re.search(rf"\b{layout.SYMBOL}\b", source)
    assert ctypes.sizeof(ctypes.c_void_p) == 8
