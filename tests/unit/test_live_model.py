"""The live model: what a snapshot says, how fast, and from any thread."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import report_samples as samples

from rlscope_ebpf.cli.summary import render
from rlscope_ebpf.live.model import MAX_NOTICES, LiveModel
from rlscope_ebpf.live.snapshot import OperationRow, Snapshot
from rlscope_ebpf.model.categories import DEFAULT_PHASE, Category, Opened, ThreadState
from rlscope_ebpf.model.session import SessionEnd
from rlscope_ebpf.model.tables import (
    INTERVAL_DTYPE,
    SPAN_DTYPE,
    Batch,
    Counters,
    ImportantNotice,
    Losses,
    PathInfo,
    ProcessInfo,
    StringInfo,
    ThreadInfo,
)

SECOND = 1_000_000_000


def started() -> LiveModel:
    model = LiveModel()
    model.start(samples.INFO)
    return model


def row(snapshot: Snapshot, phase: str, *path: str) -> OperationRow:
    (found,) = (each for each in snapshot.operations if (each.phase, each.path) == (phase, path))
    return found


def test_a_training_run() -> None:
    model = started()
    model.batch(samples.training_batch())
    snapshot = model.snapshot()
    assert snapshot.info == samples.INFO
    assert snapshot.elapsed_ns == 2_500_000_000
    assert snapshot.phases == (DEFAULT_PHASE, "evaluation")
    step = row(snapshot, DEFAULT_PHASE, "rollout", "env.step")
    assert step.count == samples.ITERATIONS
    assert step.open_now == 0
    assert step.category_ns == (180_000_000, 460_000_000, 0, 0, 0)
    assert step.corrected_ns == step.category_ns
    assert step.state_ns == (600_000_000, 40_000_000, 0)
    assert step.resources_ns == {"cpu_only": 640_000_000, "cpu_gpu": 0, "gpu_only": 0, "idle": 0}
    assert step.transitions == {"python_to_simulator": 20, "simulator_to_python": 20}
    assert (step.name, step.gpu_ns) == ("env.step", 0)
    for each in snapshot.operations:
        assert sum(each.resources_ns.values()) == each.wall_ns == sum(each.state_ns)
    assert sum(each.wall_ns for each in snapshot.operations) == 5 * SECOND
    assert snapshot.overhead_fraction == pytest.approx(0.036)
    (call,) = snapshot.cuda_calls
    assert (call.name, call.count, call.total_ns) == ("cuStreamSynchronize", 25, 150_000_000)
    assert call.p50_ns == pytest.approx(6_000_000, rel=0.02)
    (process,) = snapshot.processes
    assert (process.pid, process.name, process.alive, process.threads) == (100, "train.py", True, 2)
    assert (process.phase, process.steps, process.step, process.total_steps) == ("evaluation", 25, 25, 25)
    assert process.end_ns == snapshot.now_ns == samples.END_NS


def test_a_process_that_ended() -> None:
    model = started()
    model.batch(samples.training_batch())
    ended = ProcessInfo(100, 1, "train.py", ("python",), samples.START_NS, end_ns=samples.END_NS - 5, exit_status=0)
    model.batch(Batch(samples.END_NS + SECOND, [ended]))
    (process,) = model.snapshot().processes
    assert (process.alive, process.end_ns) == (False, samples.END_NS - 5)


@pytest.mark.parametrize("end_ns", [None, samples.END_NS - 5])
def test_a_process_never_ends_before_it_begins(end_ns: int | None) -> None:
    """Time is handed out a little late, and a process may have begun since."""
    model = started()
    begun = ProcessInfo(200, 100, "worker.py", ("python",), samples.END_NS + 15_000_000, end_ns=end_ns)
    model.batch(Batch(samples.END_NS, [begun]))
    (process,) = model.snapshot().processes
    assert process.end_ns == process.start_ns
    assert "-" not in render(model.snapshot()).splitlines()[0]


def interval(start: int, duration: int, path: int, opened: Opened) -> np.ndarray:
    table = np.zeros(1, INTERVAL_DTYPE)
    table["thread"], table["path"], table["start_ns"], table["duration_ns"] = 1, path, start, duration
    table["opened"] = opened
    return table


def test_what_is_open_shows_while_it_is_open() -> None:
    model = started()
    definitions = [
        ProcessInfo(100, 1, "train.py", (), 0),
        ThreadInfo(1, 100, 100, ""),
        StringInfo(1, "rollout"),
        StringInfo(2, "step"),
        PathInfo(1, 0, 1),
        PathInfo(2, 1, 2),
    ]
    # The thread was inside "rollout" when the profiler came.
    model.batch(Batch(10, definitions, {"intervals": interval(0, 10, 1, Opened.CONTINUED)}))
    outer = row(model.snapshot(), DEFAULT_PHASE, "rollout")
    assert (outer.count, outer.open_now) == (1, 1)
    model.batch(Batch(20, [], {"intervals": interval(10, 10, 2, Opened.OP_BEGIN)}))
    inner = row(model.snapshot(), DEFAULT_PHASE, "rollout", "step")
    assert (inner.count, inner.open_now) == (1, 1)
    spans = np.array([(1, 2, 0, 0, 10, 20)], SPAN_DTYPE)
    model.batch(Batch(30, [], {"intervals": interval(20, 10, 1, Opened.OP_END), "spans": spans}))
    snapshot = model.snapshot()
    inner, outer = row(snapshot, DEFAULT_PHASE, "rollout", "step"), row(snapshot, DEFAULT_PHASE, "rollout")
    assert [(each.count, each.open_now) for each in (inner, outer)] == [(1, 0), (1, 1)]


def test_events_per_second_is_an_average_over_two_seconds() -> None:
    model = started()
    assert model.snapshot().events_per_s == 0
    received = 0
    for tenth in range(1, 101):  # 1,000 events/s for 5 s, then 3,000 events/s
        received += 100 if tenth <= 50 else 300
        model.batch(Batch(samples.START_NS + tenth * SECOND // 10, counters=Counters(received=received)))
        if tenth == 50:
            assert model.snapshot().events_per_s == pytest.approx(1_000)
        if tenth == 60:
            assert model.snapshot().events_per_s == pytest.approx(2_000)
    assert model.snapshot().events_per_s == pytest.approx(3_000)
    for second in range(11, 15):  # nothing happens any more
        model.batch(Batch(samples.START_NS + second * SECOND, counters=Counters(received=received)))
    assert model.snapshot().events_per_s == 0


def test_losses_and_counters_are_the_latest() -> None:
    model = started()
    model.batch(Batch(1, losses=Losses(events=1), counters=Counters(received=10)))
    model.batch(Batch(2, losses=Losses(events=3), counters=Counters(received=20)))
    snapshot = model.snapshot()
    assert (snapshot.losses.events, snapshot.counters.received) == (3, 20)


def test_finish() -> None:
    model = started()
    model.batch(samples.training_batch())
    assert not model.snapshot().finished
    model.finish(SessionEnd("", samples.END_NS + 7, "detached"))
    snapshot = model.snapshot()
    assert (snapshot.finished, snapshot.now_ns, snapshot.events_per_s) == (True, samples.END_NS + 7, 0)


def test_notices_keep_their_order_and_do_not_pile_up() -> None:
    model = LiveModel()
    for number in (1, 2, 1):
        model.notice(f"Sentence {number}.")
    assert model.snapshot().notices == ("Sentence 1.", "Sentence 2.")
    for number in range(2 * MAX_NOTICES):
        model.notice(f"More {number}.")
    assert len(model.snapshot().notices) == MAX_NOTICES
    assert model.snapshot().notices[-1] == f"More {2 * MAX_NOTICES - 1}."


def test_notices_come_with_batches() -> None:
    model = started()
    model.batch(Batch(1, notices=["One."]))
    model.batch(Batch(2, notices=[ImportantNotice("Two."), "One."]))
    notices = model.snapshot().notices
    assert notices == ("One.", "Two.")
    assert [isinstance(text, ImportantNotice) for text in notices] == [False, True]


def test_a_snapshot_before_the_start_is_empty() -> None:
    snapshot = LiveModel().snapshot()
    assert (snapshot.operations, snapshot.processes, snapshot.elapsed_ns, snapshot.overhead_fraction) == ((), (), 0, 0)


def large_batch(operations: int) -> Batch:
    definitions = [ProcessInfo(100, 1, "train.py", (), 0), ThreadInfo(1, 100, 100, "")]
    definitions += [StringInfo(number, f"operation {number}") for number in range(1, operations + 1)]
    definitions += [PathInfo(number, number // 3, number) for number in range(1, operations + 1)]
    rows = np.zeros(operations * 40, INTERVAL_DTYPE)
    random = np.random.default_rng(0)
    rows["thread"] = 1
    rows["path"] = np.arange(len(rows)) % operations + 1
    rows["category"] = random.integers(0, len(Category), len(rows))
    rows["origin"] = random.integers(0, len(Category), len(rows))
    rows["state"] = random.integers(0, len(ThreadState), len(rows))
    rows["opened"] = Opened.CALL
    rows["duration_ns"] = 1_000
    return Batch(SECOND, definitions, {"intervals": rows})


def test_a_snapshot_of_200_operations_costs_little() -> None:
    """Some milliseconds on a fast machine; measured against Python itself, so that the machine does not matter."""
    model = started()
    model.batch(large_batch(200))
    snapshots, loops = [], []
    for _ in range(100):  # the best of many: the machine may be busy with something else
        begin = time.thread_time()
        snapshot = model.snapshot()
        middle = time.thread_time()
        sum(number * number for number in range(10_000))
        snapshots.append(middle - begin)
        loops.append(time.thread_time() - middle)
    assert len(snapshot.operations) == 200
    assert min(snapshots) < 15 * min(loops)


def test_snapshots_are_consistent_while_batches_come() -> None:
    model = started()
    batch = large_batch(20)
    model.batch(batch)
    whole = int(batch.tables["intervals"]["duration_ns"].sum())
    again = replace(batch, definitions=[])
    stop = threading.Event()
    wrong: list[int] = []

    def look() -> None:
        while not stop.is_set():
            wall = sum(each.wall_ns for each in model.snapshot().operations)
            if wall % whole:
                wrong.append(wall)

    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(100):
        model.batch(again)
    stop.set()
    thread.join()
    assert wrong == []
    assert sum(each.wall_ns for each in model.snapshot().operations) == 101 * whole


def test_gpu_activity_reaches_the_snapshot() -> None:
    model = LiveModel()
    model.start(samples.INFO)
    batch = samples.training_batch()
    batch.definitions += [info for info in samples.gpu_training().strings.values() if info not in batch.definitions]
    model.batch(batch)
    assert not model.snapshot().uses_gpu
    model.batch(Batch(batch.now_ns, tables={"gpu": samples.gpu_rows()}))
    snapshot = model.snapshot()
    assert snapshot.uses_gpu
    runs = samples.ITERATIONS + samples.EVALUATIONS
    assert [(row.pid, row.index, row.busy_ns) for row in snapshot.gpu_devices] == [
        (100, 0, runs * 53 * samples.MS // 2)
    ]
    assert {row.name: row.count for row in snapshot.gpu_kernels} == {
        samples.KERNELS[0]: runs, samples.KERNELS[1]: 3 * runs,
    }  # fmt: skip
    assert {row.direction for row in snapshot.gpu_copies} == {"host_to_device", "device_to_host", "set"}
    inference = [row for row in snapshot.operations if row.path == ("rollout", "inference")]
    assert sum(row.gpu_ns for row in inference) == runs * 4 * samples.MS
    assert sum(row.gpu_activities for row in inference) == sum(row.queued for row in inference) == 3 * runs
    assert all(sum(row.resources_ns.values()) == row.wall_ns for row in snapshot.operations)


def test_the_number_in_the_container_reaches_the_snapshot() -> None:
    model = started()
    model.batch(
        Batch(
            samples.INFO.start_ns + SECOND,
            definitions=[
                ProcessInfo(100, 1, "python3", ("python3",), samples.INFO.start_ns, namespace_pids=(40, 7)),
                ProcessInfo(101, 1, "python3", ("python3",), samples.INFO.start_ns),
            ],
        )
    )
    first, second = model.snapshot().processes
    assert (first.namespace_pids, first.pid_text, first.pid_pair) == ((40, 7), "100 (7 in its container)", "100 (7)")
    assert (second.namespace_pids, second.pid_text, second.pid_pair) == ((), "101", "101")
