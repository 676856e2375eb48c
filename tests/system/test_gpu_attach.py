"""`attach` to programs that use a (simulated) GPU: the helper comes into them late, leaves, and comes again."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from gpu_truth import PROGRAM, about_gpu, checked_report, difference, expect, libcupti, truths
from harness import Profiler, Program, process_of, report, wait_for

from rlscope_ebpf.capture.gpu import read_status
from rlscope_ebpf.capture.gpu_files import HELPER_PREFIX
from rlscope_ebpf.capture.gpu_layout import HelperState
from rlscope_ebpf.capture.maps import read_maps
from rlscope_ebpf.paths import gpu_library

pytestmark = pytest.mark.system

Attach = Callable[..., tuple[Profiler, Path]]
PATIENCE_S = 60.0
MULTIPLE_SUBSCRIBERS = 39  # CUPTI's error
WAYS = {"frida": "by Frida", "gdb": "by gdb"}


class Trainer:
    """The program, which runs its rounds when told to."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.pid = program.pid

    def rounds(self) -> dict[str, Any]:
        """Run them; the truth since the program's start."""
        before = len(truths(self.program.output))
        self.program.go()
        wait_for(lambda: len(truths(self.program.output)) > before, PATIENCE_S, "the program's rounds")
        return truths(self.program.output)[-1]

    def ask_for_cupti(self) -> int:
        """As another profiler in the program does; the error that it gets."""
        before = self.program.output.count("OTHER ")
        self.program.say("other\n")
        wait_for(lambda: self.program.output.count("OTHER ") > before, PATIENCE_S, "the program's asking for CUPTI")
        return int(self.program.output.rsplit("OTHER ", 1)[1].split()[0])

    def helper_state(self) -> HelperState | None:
        """None: it is not there."""
        mapped = [each for each in read_maps(self.pid) if each.name.startswith(HELPER_PREFIX)]
        status = read_status(self.pid, mapped[0]) if mapped else None
        return status.state if status is not None else None

    def wait_for_helper(self, state: HelperState) -> None:
        """Until it is in this state."""
        wait_for(lambda: self.helper_state() == state, PATIENCE_S, f"the helper's state {state.name}")

    def finish(self) -> None:
        """Its end, which must be a good one."""
        assert self.program.process.stdin is not None
        self.program.process.stdin.close()
        self.program.finish()


@pytest.fixture
def start_trainer(start_target: Callable[..., Program]) -> Callable[..., Trainer]:
    def start(*options: str) -> Trainer:
        environment = {"RLSCOPE_LIBCUPTI": libcupti()}
        return Trainer(start_target(sys.executable, PROGRAM, *options, environment=environment))

    return start


@pytest.fixture
def without_frida(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the profiler: as if it could not be used."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "frida.py").write_text("raise ImportError('not in this test')")
    monkeypatch.setenv("PYTHONPATH", str(folder))


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """What loads the helper, as sentences name it."""
    if request.param == "gdb":
        request.getfixturevalue("without_frida")
    return WAYS[str(request.param)]


def _says(profiler: Profiler, words: str) -> bool:
    return words in profiler.stderr


def test_kernels_are_charged_and_a_second_attach_works(
    way: str, start_trainer: Callable[..., Trainer], attach: Attach
) -> None:
    trainer = start_trainer()
    before = trainer.rounds()
    for times in range(2):
        profiler, trace = attach(trainer, "--gpu", "cupti", libraries=())
        trainer.wait_for_helper(HelperState.ACTIVE)
        wait_for(partial(_says, profiler, way), PATIENCE_S, "the sentence that says so")
        after = trainer.rounds()
        assert profiler.stop() == 0, profiler.stderr
        document = checked_report(trace)
        expect(document, difference(after, before))
        assert len(about_gpu(document)) == 1 + (way == WAYS["gdb"] and "stands still" in profiler.stderr)
        assert ("started again" in profiler.stderr) == bool(times)
        trainer.wait_for_helper(HelperState.DORMANT)
        before = trainer.rounds()
        assert not any(before["cupti"].values())
    trainer.finish()


def test_a_librarys_thread_launches_for_the_thread_that_waits_for_it(
    start_trainer: Callable[..., Trainer], attach: Attach
) -> None:
    # Calls made while a library is being loaded are not followed: the helper is there before.
    trainer = start_trainer("--worker", "--helper", str(gpu_library()))
    trainer.wait_for_helper(HelperState.STARTING)
    profiler, trace = attach(trainer, libraries=("--library", "backend=*/libworker.so"))
    wait_for(lambda: b"simulated" in trace.read_bytes(), PATIENCE_S, "the trace's word of it")
    truth = trainer.rounds()
    assert profiler.stop() == 0, profiler.stderr
    document = checked_report(trace)
    assert truth["inherited"]
    assert truth["ambiguous"]
    expect(document, truth)
    assert document["session"]["gpu_records_inherited"] == truth["inherited"]
    trainer.finish()


def test_a_profiler_that_was_there_first_is_left_alone(start_trainer: Callable[..., Trainer], attach: Attach) -> None:
    trainer = start_trainer()
    assert trainer.ask_for_cupti() == 0
    profiler, trace = attach(trainer, libraries=())
    wait_for(partial(_says, profiler, "Another profiler"), PATIENCE_S, "the sentence that says so")
    truth = trainer.rounds()
    assert truth["cupti"]["subscribers"] == 1
    assert truth["cupti"]["kinds"] == 0
    assert profiler.stop() == 0, profiler.stderr
    document = checked_report(trace)
    assert document["session"]["gpu"] == "unavailable"
    assert "it is left alone" in document["session"]["gpu_reason"]
    trainer.finish()


def test_a_profiler_that_comes_later_is_told_of(start_trainer: Callable[..., Trainer], attach: Attach) -> None:
    trainer = start_trainer("--helper", str(gpu_library()))
    profiler, trace = attach(trainer, libraries=())
    wait_for(lambda: b"simulated" in trace.read_bytes(), PATIENCE_S, "the trace's word of it")

    def told() -> bool:
        assert trainer.ask_for_cupti() == MULTIPLE_SUBSCRIBERS
        return _says(profiler, "asked for CUPTI")

    wait_for(told, PATIENCE_S, "the sentence that says so")
    trainer.rounds()
    assert profiler.stop() == 0, profiler.stderr
    document = checked_report(trace)
    (notice,) = [each for each in document["notices"] if "asked for CUPTI" in each["text"]]
    assert notice["important"]
    assert process_of(document, trainer.pid)["gpu_kernels"]
    trainer.finish()


def test_what_nvml_reports_stands_beside_the_busy_time(
    start_trainer: Callable[..., Trainer], attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = start_trainer("--helper", str(gpu_library()))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(Path(libcupti()).parent))
    monkeypatch.setenv("SIMNVML", "utilization=97")
    profiler, trace = attach(trainer, libraries=())
    wait_for(lambda: b"Simulated GPU" in trace.read_bytes(), PATIENCE_S, "NVML's word in the trace")
    trainer.rounds()
    assert profiler.stop() == 0, profiler.stderr
    (device,) = process_of(checked_report(trace), trainer.pid)["gpu_devices"]
    assert device["reported_utilization"] == 0.97
    assert 0 < device["busy_ns"] < device["reported_ns"]
    trainer.finish()


def test_a_profiler_that_is_killed_leaves_a_helper_that_goes_to_sleep(
    start_trainer: Callable[..., Trainer], attach: Attach
) -> None:
    trainer = start_trainer()
    profiler, trace = attach(trainer, libraries=())
    trainer.wait_for_helper(HelperState.ACTIVE)
    trainer.rounds()
    wait_for(lambda: b"simulated" in trace.read_bytes(), PATIENCE_S, "the trace's word of it")
    profiler.signal(signal.SIGKILL)
    profiler.process.wait()
    trainer.wait_for_helper(HelperState.DORMANT)
    truth = trainer.rounds()
    assert not any(truth["cupti"].values())
    trainer.finish()
    assert report(trace, status=5)["session"]["gpu"] == "simulated"


def test_cuda_that_comes_after_the_attach(start_trainer: Callable[..., Trainer], attach: Attach) -> None:
    trainer = start_trainer("--late")
    profiler, trace = attach(trainer, libraries=())
    before = trainer.rounds()
    trainer.wait_for_helper(HelperState.ACTIVE)
    after = trainer.rounds()
    assert profiler.stop() == 0, profiler.stderr
    expect(checked_report(trace), difference(after, before))
    trainer.finish()


def test_auto_never_stops_a_program_to_load_the_helper(
    without_frida: None, start_trainer: Callable[..., Trainer], attach: Attach
) -> None:
    trainer = start_trainer()
    profiler, trace = attach(trainer, libraries=())
    wait_for(partial(_says, profiler, "could not be loaded"), PATIENCE_S, "the sentence that says so")
    trainer.rounds()
    assert profiler.stop() == 0, profiler.stderr
    document = checked_report(trace)
    assert document["session"]["gpu"] == "unavailable"
    assert "Frida failed" in document["session"]["gpu_reason"]
    assert process_of(document, trainer.pid)["gpu_kernels"] == []
    assert trainer.helper_state() is None
    trainer.finish()


def test_off_loads_nothing(start_trainer: Callable[..., Trainer], attach: Attach) -> None:
    trainer = start_trainer()
    profiler, trace = attach(trainer, "--gpu", "off", libraries=())
    trainer.rounds()
    assert profiler.stop() == 0, profiler.stderr
    assert checked_report(trace)["session"]["gpu"] == "off"
    assert trainer.helper_state() is None
    trainer.finish()
