"""How long GPUs worked, for whom, and their pauses: against a simple count, and case by case."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlscope_ebpf.model.device_use import DeviceUse, DeviceUses
from rlscope_ebpf.model.gpu import GPU_DTYPE, GpuKind
from rlscope_ebpf.model.tables import DeviceInfo

Activity = tuple[int, int, int, int, int]  # pid, device, start, duration, kind
SLAB = 500_000_000


def rows(activities: Sequence[Activity]) -> np.ndarray:
    found = np.zeros(len(activities), GPU_DTYPE)
    for row, (pid, device, start, duration, kind) in zip(found, activities, strict=True):
        row["pid"], row["device"], row["start_ns"], row["duration_ns"], row["kind"] = pid, device, start, duration, kind
    return found


def info(pid: int, index: int, uuid: str) -> DeviceInfo:
    return DeviceInfo(1, pid, index, "GPU", 0, 1, 1, 1, uuid)


def simple(activities: Sequence[Activity]) -> DeviceUse:
    """The same, activity by activity."""
    busy = pause = end = 0
    for _, _, start, duration, _ in sorted(activities, key=lambda each: each[2]):
        if not duration:
            continue
        if end and start > end:
            pause = max(pause, start - end)
        busy += max(0, start + duration - max(start, end))
        end = max(end, start + duration)
    return DeviceUse(busy, pause, sum(kind == GpuKind.KERNEL for *_, kind in activities))


ACTIVITIES = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.integers(0, 1),
        st.integers(1, 6 * SLAB),
        st.one_of(st.just(0), st.integers(1, SLAB)),
        st.sampled_from([GpuKind.KERNEL, GpuKind.COPY]),
    ),
    max_size=30,
)


@given(ACTIVITIES, st.integers(1, 8), st.booleans())
def test_agrees_with_a_simple_count(activities: list[Activity], parts: int, late: bool) -> None:
    uses = DeviceUses(window_ns=SLAB)
    activities.sort(key=lambda each: each[2])
    if late:  # all of it before anything is settled, in another order
        for part in range(parts):
            uses.add_rows(rows(activities[part::parts]))
            uses.sums()
        uses.advance(8 * SLAB)
        uses.advance(16 * SLAB)
    else:  # settled as it comes
        for activity in activities:
            uses.advance(activity[2])
            uses.add_rows(rows([activity]))
    for key, found in uses.by_process().items():
        assert found == simple([each for each in activities if each[:2] == key])
    for gpu in uses.gpus():
        assert gpu.use == simple([each for each in activities if each[1] == gpu.index])
        assert set(gpu.devices) == {each[:2] for each in activities if each[1] == gpu.index}


K = GpuKind.KERNEL


@pytest.mark.parametrize("known_before", [False, True])
def test_the_same_number_is_another_gpu_for_another_process(known_before: bool) -> None:
    uses = DeviceUses()
    infos = [info(7, 0, "A"), info(8, 0, "B"), info(9, 1, "A")]
    activities = [(7, 0, 100, 10, K), (8, 0, 105, 10, K), (9, 1, 130, 10, K)]
    if known_before:
        for each in infos:
            uses.define(each)
    uses.add_rows(rows(activities))
    if not known_before:
        assert [gpu.use.busy_ns for gpu in uses.gpus()] == [15, 10]  # numbers are all that is known
        for each in infos:
            uses.define(each)
    assert [(gpu.devices, gpu.use) for gpu in uses.gpus()] == [
        (((7, 0), (9, 1)), DeviceUse(20, 20, 2)),
        (((8, 0),), DeviceUse(10, 0, 1)),
    ]


def test_a_gpu_whose_name_comes_late_is_still_one() -> None:
    uses = DeviceUses()
    uses.add_rows(rows([(7, 0, 100, 10, K), (8, 0, 105, 10, K)]))
    uses.define(info(8, 0, "A"))
    uses.define(info(7, 0, "A"))
    uses.add_rows(rows([(9, 0, 120, 10, K)]))  # nothing is known of what this one means
    (gpu,) = uses.gpus()
    assert gpu.use == DeviceUse(25, 5, 3)


def test_without_activity_there_is_none() -> None:
    uses = DeviceUses()
    uses.advance(1)
    assert uses.gpus() == []
    assert uses.by_process() == {}
