"""Probes that several processes have: set, taken off, put back, and forgotten with the last of them."""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence

import pytest

from rlscope_ebpf.capture.closing import Closer
from rlscope_ebpf.capture.cookie import Group
from rlscope_ebpf.capture.links import Link
from rlscope_ebpf.capture.placement import Job, Placement, Probe


class FakeLink(Link):
    """Probes that are set somewhere, until it is closed."""

    def __init__(self, kernel: Kernel, pid: int, offsets: list[int]) -> None:
        self._kernel, self._places = kernel, [(pid, offset) for offset in offsets]
        kernel.hit += self._places

    @property
    def probes(self) -> int:
        """How many."""
        return len(self._places)

    def pieces(self) -> list[Link]:
        """Itself."""
        return [self]

    def close(self) -> None:
        """Take them away."""
        for place in self._places:
            self._kernel.hit.remove(place)
        self._places = []


class Kernel:
    """What is set: pid and offset."""

    def __init__(self) -> None:
        self.hit: list[tuple[int, int]] = []
        self.refused: set[int] = set()
        self.paths: set[str] = set()

    def attach(self, job: Job, probes: Sequence[Probe]) -> list[Link]:
        """As the engine does it."""
        if any(probe.offset in self.refused for probe in probes):
            raise OSError(errno.EINVAL, "refused")
        self.paths.add(job.path)
        return [FakeLink(self, job.pid, [probe.offset for probe in probes])]


FILE = "root/lib.so"


def probe(number: int, offset: int, *, is_exit: bool = False, returns: bool = False) -> Probe:
    return Probe(number, FILE, Group.BOUNDARY, returns, offset, number, is_exit)


# Two functions; both end in the instruction at 90, the second one at 91, too.
PROBES = [
    probe(1, 10),
    probe(2, 90, is_exit=True),
    probe(3, 20),
    probe(4, 90, is_exit=True),
    probe(5, 91, is_exit=True),
    probe(6, 30, returns=True),
]


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def closer() -> Closer:
    return Closer()


@pytest.fixture
def placed(kernel: Kernel, closer: Closer) -> Placement:
    placement = Placement(kernel.attach, closer)
    assert _add(placement, 7, PROBES) == {1, 2, 3, 4, 5, 6}
    return placement


def offsets(kernel: Kernel, closer: Closer, pid: int) -> list[int]:
    assert closer.wait(10)
    return sorted(offset for owner, offset in kernel.hit if owner == pid)


def _add(placement: Placement, pid: int, probes: Sequence[Probe]) -> set[int]:
    return placement.finish(placement.begin(pid, probes))


def _add_alike(placement: Placement, pid: int, parent: int) -> int:
    return len(placement.finish(placement.begin_alike(pid, parent)))


def test_a_shared_exit_is_set_once(kernel: Kernel, closer: Closer, placed: Placement) -> None:
    assert offsets(kernel, closer, 7) == [10, 20, 30, 90, 91]
    assert list(placed.exits_of(3)) == [4, 5]


def test_a_forked_process_has_the_same_but_for_returns(kernel: Kernel, closer: Closer, placed: Placement) -> None:
    assert _add_alike(placed, 8, 7) == 4
    assert offsets(kernel, closer, 8) == [10, 20, 90, 91]
    assert kernel.paths == {"/proc/7/root/lib.so", "/proc/8/root/lib.so"}


def test_what_is_taken_off_goes_everywhere_and_comes_back_everywhere(
    kernel: Kernel, closer: Closer, placed: Placement
) -> None:
    _add_alike(placed, 8, 7)
    placed.take_off([3, 6], busy=[1])
    assert offsets(kernel, closer, 7) == [10, 90]
    assert offsets(kernel, closer, 8) == [10, 90]
    _add_alike(placed, 9, 8)  # forked meanwhile
    placed.take_off([1], busy=[])
    assert offsets(kernel, closer, 7) == offsets(kernel, closer, 9) == []
    placed.put_back([1, 3, 6])
    assert offsets(kernel, closer, 7) == [10, 20, 30, 90, 91]
    assert offsets(kernel, closer, 8) == offsets(kernel, closer, 9) == [10, 20, 90, 91]


def test_an_exit_stays_for_a_function_that_only_one_process_has(
    kernel: Kernel, closer: Closer, placed: Placement
) -> None:
    _add_alike(placed, 8, 7)
    _add(placed, 8, [probe(7, 40), probe(8, 90, is_exit=True)])
    placed.take_off([1, 3], busy=[])
    assert offsets(kernel, closer, 7) == [30]
    assert offsets(kernel, closer, 8) == [40, 90]


def test_without_returns_they_do_not_come_back(kernel: Kernel, closer: Closer, placed: Placement) -> None:
    placed.remove_returns(7)
    placed.put_back([6])
    assert offsets(kernel, closer, 7) == [10, 20, 90, 91]


def test_who_ends_takes_nothing_from_others(kernel: Kernel, closer: Closer, placed: Placement) -> None:
    _add_alike(placed, 8, 7)
    placed.remove(7)
    assert offsets(kernel, closer, 7) == []
    assert offsets(kernel, closer, 8) == [10, 20, 90, 91]
    placed.take_off([1], busy=[])
    placed.put_back([1])
    assert offsets(kernel, closer, 8) == [10, 20, 90, 91]
    placed.remove(8)
    assert offsets(kernel, closer, 8) == []
    assert list(placed.exits_of(1)) == []  # nobody has it any more, and nothing is remembered
    placed.close()


def test_one_refused_site_costs_no_other(kernel: Kernel, closer: Closer) -> None:
    kernel.refused = {20}
    placement = Placement(kernel.attach, closer)
    assert 3 not in _add(placement, 7, PROBES)
    assert offsets(kernel, closer, 7) == [10, 30, 90, 91]


class SlowKernel(Kernel):
    """Sets nothing before it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()

    def attach(self, job: Job, probes: Sequence[Probe]) -> list[Link]:
        """Once it may."""
        assert self.goes_on.wait(60)
        return super().attach(job, probes)


@pytest.fixture
def slow() -> SlowKernel:
    return SlowKernel()


def test_probes_are_set_in_the_background(slow: SlowKernel, closer: Closer) -> None:
    placement = Placement(slow.attach, closer)
    setting = placement.begin(7, PROBES)
    assert not setting.done
    done = threading.Event()
    setting.when_done(done.set)
    slow.goes_on.set()
    assert done.wait(60)
    assert placement.finish(setting) == placement.finish(setting) == {1, 2, 3, 4, 5, 6}
    placement.close()


def test_what_is_being_set_is_taken_away_as_well(slow: SlowKernel, closer: Closer) -> None:
    placement = Placement(slow.attach, closer)
    setting = placement.begin(7, PROBES)
    threading.Timer(0.05, slow.goes_on.set).start()
    placement.remove(7)
    assert closer.wait(60)
    assert not slow.hit
    assert placement.finish(setting) == {1, 2, 3, 4, 5, 6}  # they were
    placement.close()


def test_a_child_has_what_was_being_set_in_its_parent(slow: SlowKernel, closer: Closer) -> None:
    placement = Placement(slow.attach, closer)
    placement.begin(7, PROBES)
    threading.Timer(0.05, slow.goes_on.set).start()
    assert _add_alike(placement, 8, 7) == 4
    placement.close()


def test_what_is_taken_off_while_it_is_being_set_is_off(slow: SlowKernel, closer: Closer) -> None:
    placement = Placement(slow.attach, closer)
    placement.begin(7, PROBES)
    threading.Timer(0.05, slow.goes_on.set).start()
    placement.take_off([1], ())
    assert closer.wait(60)
    assert (7, 10) not in slow.hit
    assert (7, 20) in slow.hit
    placement.close()
