"""Samples: which category an address tells, into which interval a sample falls, and what shares are made of them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rlscope_ebpf.capture.catalogue import parse_catalogue
from rlscope_ebpf.capture.code_map import CALL_BYTES, CallSites, Code, CodeMap, follows_call, parse_code_map, tell
from rlscope_ebpf.model.categories import Category, ThreadState
from rlscope_ebpf.model.events import SAMPLE_DTYPE, SAMPLE_WORDS, SampleKind
from rlscope_ebpf.model.sampling import NOT_SAMPLED, Sampled, split, spread_ns, wilson
from rlscope_ebpf.model.tables import INTERVAL_DTYPE, Batch, ProcessInfo, ThreadInfo
from rlscope_ebpf.model.totals import Totals
from rlscope_ebpf.session.options import parse_library
from rlscope_ebpf.session.sampling import Sampler

MAPS = b"""\
00400000-00500000 r-xp 00001000 fd:00 11 /usr/bin/python3.11
00500000-00600000 r--p 00101000 fd:00 11 /usr/bin/python3.11
7f0000000000-7f0000001000 r-xp 00000000 fd:00 12 /usr/lib/libc.so.6
7f0000001000-7f0000002000 r-xp 00000000 fd:00 13 /opt/my sim/libmysim.so (deleted)
7f0000002000-7f0000003000 rw-p 00002000 fd:00 13 /opt/my sim/libmysim.so (deleted)
7f0000003000-7f0000004000 r-xp 00000000 fd:00 14 /v/torch/lib/libtorch_cpu.so
7f0000004000-7f0000005000 r-xp 00000000 fd:00 15 /usr/lib/libcuda.so.1
7f0000005000-7f0000006000 r-xp 00000000 00:00 0 [vdso]
7f0000006000-7f0000007000 r-xp 00000000 00:00 0
7f0000007000-7f0000008000 r-xp 00000000 fd:00 16 /v/other/_other.so
7f0000008000-7f0000009000 r-xp 00000000 fd:00 17 /v/numpy/_core/_umath.so
"""
LOOP = (0x410000, 0x420000)
PYTHON = "/usr/bin/python3.11"


def code_map() -> CodeMap:
    return parse_code_map(MAPS, [parse_library("simulator=*libmysim.so")], PYTHON, LOOP)


@pytest.mark.parametrize(
    ("address", "code"),
    [
        (0, Code.NOTHING),
        (0x3FFFFF, Code.NOTHING),
        (0x400000, Code.INTERPRETER),
        (0x40FFFF, Code.INTERPRETER),
        (0x410000, Code.PYTHON),
        (0x41FFFF, Code.PYTHON),
        (0x420000, Code.INTERPRETER),
        (0x500000, Code.NOTHING),  # its data
        (0x7F0000000010, Code.NOTHING),
        (0x7F0000001000, Code.SIMULATOR),
        (0x7F0000001FFF, Code.SIMULATOR),
        (0x7F0000002000, Code.NOTHING),
        (0x7F0000003010, Code.BACKEND),
        (0x7F0000004010, Code.CUDA_API),
        (0x7F0000005010, Code.NOTHING),
        (0x7F0000006010, Code.NOTHING),
        (2**64 - 1, Code.NOTHING),
    ],
)
def test_what_an_address_tells(address: int, code: Code) -> None:
    assert code_map().codes(np.array([address], np.uint64))[0] == code


def test_an_interpreter_whose_loop_is_not_known_is_python_all_the_same() -> None:
    found = parse_code_map(MAPS, [], PYTHON, None)
    assert found.codes(np.array([0x410000], np.uint64))[0] == Code.INTERPRETER


def test_the_user_s_word_goes_before_the_catalogue_s() -> None:
    found = parse_code_map(MAPS, [parse_library("simulator=*/torch/*")], None, None)
    assert found.codes(np.array([0x7F0000003010], np.uint64))[0] == Code.SIMULATOR


def test_a_process_without_code() -> None:
    assert parse_code_map(b"", [], None, None).codes(np.array([0, 5], np.uint64)).tolist() == [Code.NOTHING] * 2


@st.composite
def ranges(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    edges = sorted(draw(st.sets(st.integers(0, 2000), max_size=20)))
    pairs = list(zip(edges[::2], edges[1::2], strict=False))
    return [(start, end, draw(st.sampled_from(list(Code)))) for start, end in pairs]


@given(ranges(), st.lists(st.integers(0, 2100), max_size=30))
def test_codes_are_those_of_the_range_around(parts: list[tuple[int, int, int]], addresses: list[int]) -> None:
    table = np.array(parts, np.uint64).reshape(-1, 3)
    found = CodeMap(table[:, 0], table[:, 1], table[:, 2].astype(np.uint8)).codes(np.array(addresses, np.uint64))
    expected = [next((code for start, end, code in parts if start <= at < end), Code.NOTHING) for at in addresses]
    assert found.tolist() == expected


@pytest.mark.parametrize(
    ("code", "is_call"),
    [
        ("0000e811223344", True),  # call rel32
        ("0000000000ffd0", True),  # call rax
        ("00000041ffd4", True),  # call r12
        ("00000000ff5010", True),  # call [rax + 0x10]
        ("000000ff542408", True),  # call [rsp + 8]
        ("00ff1522334455", True),  # call [rip + …]
        ("ff942422334455", True),  # call [rsp + …]
        ("0000000000ffe0", False),  # jmp rax
        ("0000e911223344", False),  # jmp rel32
        ("90909090909090", False),
        ("00000000000000", False),
    ],
)
def test_what_is_a_call(code: str, is_call: bool) -> None:
    row = np.frombuffer(bytes.fromhex(code).rjust(CALL_BYTES, b"\x90"), np.uint8)[None, :]
    assert follows_call(row).tolist() == [is_call]


def test_return_addresses_of_a_living_process() -> None:
    code = ctypes.create_string_buffer(bytes.fromhex("90" * 8 + "e8 00000000" + "90" * 8))
    start = ctypes.addressof(code)
    calls = CallSites(os.getpid())
    for _ in range(2):  # asked anew, and remembered
        asked = np.array([start + 13, start + 12, start + 13, 8, 2**64 - 1], np.uint64)
        assert calls.are_returns(asked).tolist() == [True, False, True, False, False]


@pytest.mark.parametrize(
    ("code", "leaves"),
    [
        ("e8 03000000 909090 90", False),  # to the code behind it
        ("e8 03000000 909090 ff2500000000", True),  # to a stub that jumps through a table
        ("e8 03000000 909090 f30f1efaf2ff2500000000", True),
        ("ff1500000000", True),  # through a table
    ],
)
def test_which_calls_may_leave_their_library(code: str, leaves: bool) -> None:
    text = ctypes.create_string_buffer(bytes.fromhex("90" * 8 + code + "90" * 8))
    end = ctypes.addressof(text) + 8 + (5 if code.startswith("e8") else 6)
    calls = CallSites(os.getpid())
    assert calls.are_returns(np.array([end], np.uint64)).tolist() == [True]
    assert calls.leave_library(np.array([end], np.uint64)).tolist() == [leaves]


class AnyCall(CallSites):
    """Every address but some is a return address."""

    def __init__(self, *others: int) -> None:
        super().__init__(0)
        self._others = np.array(others, np.uint64)

    def are_returns(self, addresses: NDArray[np.uint64]) -> NDArray[np.bool_]:
        return ~np.isin(addresses, self._others)

    def leave_library(self, addresses: NDArray[np.uint64]) -> NDArray[np.bool_]:
        return self.are_returns(addresses)


def sample(ip: int, stack: Sequence[int] = (), **fields: int) -> NDArray[np.void]:
    row = np.zeros(1, SAMPLE_DTYPE)
    row["ip"], row["words"] = ip, len(stack)
    row["stack"][0, : len(stack)] = stack
    for name, value in fields.items():
        row[name] = value
    return row


SIM, TORCH, LIBC, IN_LOOP, IN_PYTHON = 0x7F0000001100, 0x7F0000003100, 0x7F0000000100, 0x410100, 0x400100
FOREIGN, NUMPY = 0x7F0000007100, 0x7F0000008100


@pytest.mark.parametrize(
    ("ip", "stack", "told"),
    [
        (SIM, [IN_LOOP], Code.SIMULATOR),  # the address itself tells
        (LIBC, [0, 7, SIM, TORCH, IN_LOOP], Code.SIMULATOR),  # the innermost one
        (LIBC, [IN_PYTHON, IN_LOOP, SIM], Code.PYTHON),
        (IN_PYTHON, [TORCH, IN_LOOP], Code.BACKEND),  # a library uses the interpreter's functions
        (IN_PYTHON, [], Code.INTERPRETER),
        (LIBC, [LIBC, 12345], Code.NOTHING),
        (0, [], Code.NOTHING),
    ],
)
def test_where_the_address_does_not_tell_the_stack_does(ip: int, stack: list[int], told: Code) -> None:
    assert tell(sample(ip, stack), code_map(), AnyCall()).tolist() == [told]


@pytest.mark.parametrize(
    ("stack", "told"),
    [
        ([TORCH, NUMPY, IN_LOOP], Code.UNRELATED),  # NumPy calls no PyTorch: an earlier call left it there
        ([TORCH, TORCH, NUMPY, IN_LOOP], Code.UNRELATED),
        ([NUMPY, TORCH, IN_PYTHON, IN_LOOP], Code.UNRELATED),  # nor is it called from there
        ([TORCH, IN_LOOP, NUMPY], Code.BACKEND),
        ([SIM, FOREIGN, IN_LOOP], Code.SIMULATOR),  # any other library may be its binding
    ],
)
def test_what_could_not_have_called_it(stack: list[int], told: Code) -> None:
    assert tell(sample(LIBC, stack), code_map(), AnyCall()).tolist() == [told]


def test_a_function_s_address_on_the_stack_is_no_return_address() -> None:
    assert tell(sample(LIBC, [SIM, IN_LOOP]), code_map(), AnyCall(SIM)).tolist() == [Code.PYTHON]


class NearCall(AnyCall):
    """No call leaves its library."""

    def leave_library(self, addresses: NDArray[np.uint64]) -> NDArray[np.bool_]:
        return np.zeros(len(addresses), np.bool_)


@pytest.mark.parametrize(
    ("ip", "stack", "told"),
    [
        (
            IN_PYTHON,
            [TORCH, IN_LOOP],
            Code.PYTHON,
        ),  # it called nothing of the interpreter's: an earlier call left it there
        (FOREIGN, [TORCH, IN_LOOP], Code.PYTHON),
        (LIBC, [FOREIGN, TORCH, IN_LOOP], Code.PYTHON),
        (LIBC, [TORCH, IN_LOOP], Code.BACKEND),  # what it called may have jumped into the C library
        (TORCH, [TORCH, IN_LOOP], Code.BACKEND),
    ],
)
def test_what_an_earlier_call_left_on_the_stack(ip: int, stack: list[int], told: Code) -> None:
    assert tell(sample(ip, stack), code_map(), NearCall()).tolist() == [told]


def test_what_lies_behind_the_words_that_were_read_is_not_looked_at() -> None:
    row = sample(LIBC, [0, SIM])
    row["words"] = 1
    assert tell(row, code_map(), AnyCall()).tolist() == [Code.NOTHING]


ADDRESSES = st.sampled_from([0, 1, LIBC, SIM, TORCH, IN_LOOP, IN_PYTHON, 0x7F0000004001])


@given(st.lists(st.tuples(ADDRESSES, st.lists(ADDRESSES, max_size=SAMPLE_WORDS)), max_size=12))
@settings(deadline=None)
def test_telling_many_is_telling_each(rows: list[tuple[int, list[int]]]) -> None:
    samples = np.concatenate([np.empty(0, SAMPLE_DTYPE), *(sample(ip, stack) for ip, stack in rows)])
    codes = code_map()
    each = [int(tell(samples[at : at + 1], codes, AnyCall(SIM))[0]) for at in range(len(samples))]
    assert tell(samples, codes, AnyCall(SIM)).tolist() == each
    for (ip, stack), told in zip(rows, each, strict=True):
        words = [ip, *(word for word in stack if word != SIM)]
        expected = next(
            (code for code in codes.codes(np.array(words, np.uint64)).tolist() if code < Code.NOTHING), None
        )
        assert told == (expected if expected is not None else codes.codes(np.array([ip], np.uint64))[0])


# -- into which interval -----------------------------------------------------------------------------------------------


RUNNING, RUNNABLE, BLOCKED = ThreadState.RUNNING, ThreadState.RUNNABLE, ThreadState.BLOCKED
PY, OTHER = Category.PYTHON, Category.OTHER


class KnownSampler(Sampler):
    """Its samples tell their category by their ip."""

    def take_known(self, *samples: tuple[int, int, int], kind: SampleKind = SampleKind.CLOCK) -> None:
        """From (time, thread, category)."""
        rows = np.concatenate(
            [sample(0x1000 + told, time_ns=time_ns, tid=tid, pid=1, kind=kind) for time_ns, tid, told in samples]
        )
        self._maps[1] = (
            CodeMap(
                np.arange(0x1000, 0x1005, dtype=np.uint64),
                np.arange(0x1001, 0x1006, dtype=np.uint64),
                np.arange(5, dtype=np.uint8),
            ),
            AnyCall(),
        )
        self.take(rows)


def started(*tids: int, since_ns: int = 0, categories: Sequence[Category] = tuple(Category)) -> KnownSampler:
    sampler = KnownSampler(())
    sampler.define(ThreadInfo(tid * 10, 1, tid, "") for tid in tids)
    sampler.begin(since_ns, categories)
    return sampler


def interval(thread: int, start: int, end: int, state: ThreadState = RUNNING, category: int = PY) -> NDArray[np.void]:
    row = np.zeros(1, INTERVAL_DTYPE)
    row["thread"], row["path"], row["phase"] = thread, start // 100 + 1, 3
    row["start_ns"], row["duration_ns"], row["state"], row["category"] = start, end - start, state, category
    return row


def placed(sampler: Sampler, now_ns: int, *rows: NDArray[np.void]) -> Batch:
    batch = Batch(now_ns, tables={"intervals": np.concatenate(rows)} if rows else {})
    sampler.place(batch, 100.0)
    return batch


def samples_of(batch: Batch) -> list[tuple[int, ...]]:
    return batch.tables["samples"].tolist() if "samples" in batch.tables else []


def test_a_sample_gets_the_operation_of_the_interval_that_it_falls_into() -> None:
    sampler = started(1, 2)
    sampler.take_known((50, 1, 2), (150, 1, 1), (150, 2, 0), (100, 1, 4))
    batch = placed(sampler, 300, interval(10, 0, 100), interval(10, 100, 300), interval(20, 0, 300))
    assert sorted(samples_of(batch)) == [(10, 1, 3, 50, 2), (10, 2, 3, 100, 4), (10, 2, 3, 150, 1), (20, 1, 3, 150, 0)]
    assert batch.tables["intervals"]["sampled"].tolist() == [1, 1, 1]
    assert batch.tables["intervals"]["overhead_ns"].tolist() == [100, 200, 100]


def test_a_sample_waits_for_its_interval_and_is_forgotten_once_that_cannot_come() -> None:
    sampler = started(1)
    sampler.take_known((250, 1, 2), (260, 9, 2))  # thread 9 is not followed
    assert samples_of(placed(sampler, 200, interval(10, 0, 200))) == []
    assert samples_of(placed(sampler, 210)) == []
    assert samples_of(placed(sampler, 400, interval(10, 200, 400))) == [(10, 3, 3, 250, 2)]
    sampler.define([ThreadInfo(90, 1, 9, "")])
    assert samples_of(placed(sampler, 500, interval(90, 200, 500))) == []


def test_nothing_is_marked_before_the_beginning_and_nothing_but_the_chosen_categories() -> None:
    sampler = started(1, since_ns=100, categories=(PY,))
    sampler.take_known((50, 1, 2), (150, 1, 2), (250, 1, 2))
    rows = interval(10, 0, 100), interval(10, 100, 200), interval(10, 200, 300, category=Category.BACKEND)
    batch = placed(sampler, 300, *rows)
    assert batch.tables["intervals"]["sampled"].tolist() == [0, 1, 0]
    assert samples_of(batch) == [(10, 2, 3, 150, 2)]


def test_who_has_only_been_woken_does_not_run_python() -> None:
    parts = (
        interval(10, 0, 100),
        interval(10, 100, 200, BLOCKED, OTHER),
        interval(10, 200, 300, RUNNABLE, OTHER),
        interval(10, 300, 400),
        interval(10, 400, 500, RUNNABLE),
    )
    for cut in range(1, 6):  # in one batch or in two
        sampler = started(1)
        sampler.take_known((100, 1, 0), (400, 1, 0), kind=SampleKind.OFF)
        found = [placed(sampler, 100 * cut, *parts[:cut])] + ([placed(sampler, 500, *parts[cut:])] if cut < 5 else [])
        assert [row for batch in found for row in batch.tables["intervals"]["category"].tolist()] == [
            PY, OTHER, OTHER, PY, PY,
        ]  # fmt: skip


def test_time_off_a_cpu_has_the_category_in_which_the_thread_left_it() -> None:
    sampler = started(1)
    sampler.take_known((100, 1, 2), (300, 1, 0), (500, 1, 0), kind=SampleKind.OFF)
    batch = placed(
        sampler,
        600,
        interval(10, 0, 100),
        interval(10, 100, 200, BLOCKED, OTHER),
        interval(10, 200, 300),
        interval(10, 300, 400, BLOCKED, OTHER),  # who sleeps does not run Python
        interval(10, 400, 500),
        interval(10, 500, 600, RUNNABLE),
    )
    rows = batch.tables["intervals"]
    assert rows["category"].tolist() == [PY, Category.BACKEND, PY, OTHER, PY, PY]
    assert rows["sampled"].tolist() == [1, 0, 1, 0, 1, 0]
    assert samples_of(batch) == []


def test_time_off_a_cpu_may_be_handed_out_in_pieces() -> None:
    sampler = started(1)
    sampler.take_known((100, 1, 1), kind=SampleKind.OFF)
    first = placed(sampler, 200, interval(10, 0, 100), interval(10, 100, 150, BLOCKED), interval(10, 150, 200, BLOCKED))
    second = placed(sampler, 300, interval(10, 200, 300, BLOCKED, OTHER))
    third = placed(sampler, 500, interval(10, 300, 400), interval(10, 400, 500, RUNNABLE))
    assert first.tables["intervals"]["category"].tolist() == [PY, 1, 1]
    assert second.tables["intervals"]["category"].tolist() == [1]
    assert third.tables["intervals"]["category"].tolist() == [PY, PY]
    assert third.tables["intervals"]["sampled"].tolist() == [1, 1]  # nobody saw in what it was preempted


def test_code_that_nobody_knows_is_python_on_a_thread_that_runs_python() -> None:
    sampler = started(1, 2)
    sampler.take_known((10, 1, 0), (20, 1, 5), (20, 2, 5))
    batch = placed(sampler, 100, interval(10, 0, 100), interval(20, 0, 100))
    assert sorted(row[::4] for row in samples_of(batch)) == [(10, 0), (10, 0), (20, 4)]


# -- what shares are made of them --------------------------------------------------------------------------------------


COUNTS = st.lists(st.tuples(*[st.integers(0, 10**6)] * len(Category)), min_size=1, max_size=6)


@given(COUNTS, st.data())
def test_times_are_divided_as_the_samples_are_and_add_up(counts: list[tuple[int, ...]], data: st.DataObject) -> None:
    times = st.lists(st.integers(0, 2**52), min_size=3, max_size=3)
    time_ns = np.array([data.draw(times) for _ in counts], np.int64)
    samples = np.array(counts, np.int64)
    parts = split(time_ns, samples)
    assert (parts.sum(axis=1) == time_ns).all()
    assert (parts >= 0).all()
    of = samples.sum(axis=1)
    for row in range(len(counts)):
        if not of[row]:
            assert (parts[row, Category.OTHER] == time_ns[row]).all()
            continue
        expected = time_ns[row][None, :] * (samples[row] / of[row])[:, None]
        assert np.abs(parts[row] - expected).max() <= 2


@pytest.mark.parametrize(
    ("hits", "of", "low", "high"),
    [(0, 0, 0, 1), (0, 10, 0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1), (500, 1000, 0.4691, 0.5309)],
)
def test_wilson(hits: int, of: int, low: float, high: float) -> None:
    """Figures from published tables of the interval."""
    assert wilson(hits, of) == pytest.approx((low, high), abs=1e-4)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_wilson_holds_the_share_itself(hits: int, others: int) -> None:
    low, high = wilson(hits, hits + others)
    assert 0 <= low <= high <= 1
    if hits + others:
        assert low - 1e-12 <= hits / (hits + others) <= high + 1e-12


def test_errors_of_a_sum_are_smaller_than_the_sum_of_errors() -> None:
    one = Sampled(1_000_000, (50, 50, 0, 0, 0))
    alone = spread_ns([one], PY)
    assert alone == max(one.errors_ns(PY)) > 0
    assert spread_ns([one] * 4, PY) == pytest.approx(2 * alone)
    assert spread_ns([NOT_SAMPLED], PY) == 0
    assert (one + one).samples == (100, 100, 0, 0, 0)


def test_totals_of_a_sampled_operation() -> None:
    totals = Totals()
    sampler = started(1)
    sampler.take_known(*((at, 1, 2 if at < 30 else 0) for at in range(100)))
    batch = placed(sampler, 300, interval(10, 0, 100), interval(10, 100, 150, BLOCKED, OTHER))
    batch.tables["intervals"]["path"] = batch.tables["samples"]["path"] = 0
    batch.definitions = [ProcessInfo(1, 0, "p", (), 0), ThreadInfo(10, 1, 1, "")]
    totals.add(batch)
    (found,) = totals.operations()
    assert found.category_ns == (70, 0, 30, 0, 50)
    assert found.state_ns == (100, 0, 50)
    assert found.sampled == Sampled(100, (70, 0, 30, 0, 0))
    assert found.wall_ns == totals.wall_ns() == 150
    assert totals.running_ns() == 100
    assert sum(found.overhead_ns) == 100 * 100
    low, high = wilson(30, 100)
    assert found.bounds_ns[Category.BACKEND] == (round(100 * low), round(100 * high))
    assert found.bounds_ns[OTHER][0] == 50  # that it slept is no sample's word


def test_the_catalogue_covers_what_a_library_brings_along() -> None:
    text = """
[[library]]
name = "x"
files = ["libx_python.so*"]
covers = ["*/x/lib/*.so*"]
category = "backend"
group = "boundary"
[[library.entry]]
symbols = ["f"]
"""
    (library,) = parse_catalogue(text)
    assert library.covers_path("/v/x/lib/libx_cpu.so")
    assert library.covers_path("/v/libx_python.so.1")
    assert not library.matches_path("/v/x/lib/libx_cpu.so")
    assert not library.covers_path("/v/y/lib/liby.so")
