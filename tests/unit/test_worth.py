"""What probes that can be spared tell of the target's time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlscope_ebpf.capture.cookie import Action, Group, SiteClass
from rlscope_ebpf.capture.engine import ProbeSite
from rlscope_ebpf.model.categories import Category, ThreadState
from rlscope_ebpf.model.tables import INTERVAL_DTYPE
from rlscope_ebpf.session.worth import Unit, Worth

CALL = ProbeSite(
    path="/lib", library="/lib", symbol="f", offset=0, address=0, category=Category.BACKEND,
    site_class=SiteClass.EMULATED, group=Group.BOUNDARY, action=Action.CALL,
)  # fmt: skip
EXIT = replace(CALL, action=Action.EXIT)
RELEASE = replace(CALL, group=Group.GIL, category=Category.PYTHON, action=Action.GIL_RELEASE)
ACQUIRE = replace(RELEASE, action=Action.GIL_ACQUIRE)
FRAME = replace(CALL, group=Group.REENTRY, category=Category.PYTHON)
MARKER = replace(CALL, group=Group.MARKER, category=Category.OTHER, action=Action.OP_BEGIN)
SITES = (CALL, EXIT, replace(CALL, symbol="g"), RELEASE, ACQUIRE, FRAME, MARKER)  # ids from 1


def row(
    site: int, category: Category, duration_ns: int, overhead_ns: int = 0, state: int = ThreadState.RUNNING
) -> np.void:
    found = np.zeros((), INTERVAL_DTYPE)
    found["site"], found["category"], found["duration_ns"] = site, category, duration_ns
    found["overhead_ns"], found["state"] = overhead_ns, state
    return found[()]


def test_what_a_call_tells_is_its_time_on_a_cpu_without_what_probes_took() -> None:
    worth = Worth()
    worth.add_probes(1, SITES)
    worth.add(np.array([
        row(1, Category.BACKEND, 1_000, 100),
        row(1, Category.BACKEND, 50, 80),  # charged more than there was
        row(1, Category.PYTHON, 9_000),  # after its return
        row(1, Category.BACKEND, 9_000, state=ThreadState.RUNNABLE),
        row(3, Category.BACKEND, 70),
        row(4, Category.OTHER, 500),
        row(5, Category.PYTHON, 9_000),  # Python after the lock was taken: known without that
        row(6, Category.PYTHON, 300),
        row(7, Category.OTHER, 9_000),
        row(99, Category.BACKEND, 9_000),  # a probe that nobody knows
    ]))  # fmt: skip
    assert worth.totals()[:8].tolist() == [0, 900, 0, 70, 500, 0, 300, 0]


def test_what_a_cuda_call_tells_is_also_how_long_it_waits() -> None:
    worth = Worth()
    worth.add_probes(1, (replace(CALL, group=Group.CUDA, category=Category.CUDA_API),))
    worth.add(np.array([row(1, Category.CUDA_API, 10), row(1, Category.CUDA_API, 500, state=ThreadState.BLOCKED)]))
    assert worth.totals()[1] == 510


def test_functions_are_spared_by_themselves_and_groups_together() -> None:
    worth = Worth()
    worth.add_probes(1, SITES)
    cost, told = np.zeros(8), np.zeros(8)
    cost[[1, 4, 5, 6, 7]] = 0.02, 0.1, 0.1, 0.03, 0.5
    told[[1, 4, 6]] = 0.3, 0.01, 0.2
    by_group = np.zeros(len(Group))
    by_group[[Group.BOUNDARY, Group.GIL, Group.REENTRY, Group.MARKER]] = 0.1, 0.25, 0.04, 0.5
    units = worth.units(cost, told, by_group)
    assert units == [
        Unit(Group.GIL, 0, 0.25, pytest.approx(0.01)),
        Unit(Group.REENTRY, 0, 0.04, pytest.approx(0.2)),
        Unit(Group.BOUNDARY, 1, 0.02, 0.3),
    ]
    assert [worth.functions(unit) for unit in units] == [[4, 5], [6], [1]]
