"""Single functions are taken off and put back while a program calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from harness import Program, build, wait_for

from rlscope_ebpf.capture.cookie import Group
from rlscope_ebpf.capture.engine import Engine, ProbeSite, armed_sites
from rlscope_ebpf.capture.kernel import attach_methods, kernel_version
from rlscope_ebpf.capture.maps import MapsWatcher
from rlscope_ebpf.capture.plan import Planner
from rlscope_ebpf.capture.probe_sites import probe_sites
from rlscope_ebpf.session.options import parse_library

pytestmark = pytest.mark.system

METHOD = attach_methods(kernel_version())[0]


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine(METHOD)
    yield made
    made.close()


def _functions(pid: int) -> list[list[ProbeSite]]:
    """The sites of each function of the library, entry first."""
    rule = parse_library("simulator=*truth_simulator*")
    plan = Planner(pid, [rule], groups={Group.BOUNDARY}, avoid_returns=True).plan(MapsWatcher(pid).poll() or [])
    return [list(probe_sites(target, allow_returns=False)) for target in plan.targets if target.rule == "--library"]


def test_a_function_goes_with_its_exits_and_comes_back(start_target: Callable[..., Program], engine: Engine) -> None:
    target = start_target(build.program("storm"), "--library", "libtruth_simulator_storm.so")
    functions = _functions(target.pid)
    assert functions
    entry, *exits = functions[0]
    assert exits
    sites = [entry, *exits]
    first = engine.next_probe
    engine.attach(target.pid, sites)
    second = engine.next_probe
    engine.attach(target.pid, sites)  # as if another function ended there

    def armed() -> list[bool]:
        return [bool(up) for up in armed_sites(target.pid, sites)]

    assert all(armed())
    engine.take_off([first])
    assert engine.wait_until_detached(30)
    assert all(armed())  # for the other one's sake
    engine.take_off([second])
    wait_for(lambda: not any(armed()), 30, "the instructions as they were")
    engine.put_back([first])
    assert all(armed())
    engine.take_off([first])
    wait_for(lambda: not any(armed()), 30, "the instructions as they were")
