"""The writer and the world: existing files, folders, owners, full disks, a kill."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import trace_samples as samples

from rlscope_ebpf.errors import ExitStatus, ProfilerError, UsageError
from rlscope_ebpf.model.tables import Batch
from rlscope_ebpf.trace import writer as writer_module
from rlscope_ebpf.trace.reader import TraceReader
from rlscope_ebpf.trace.writer import TraceWriter, owner_from_sudo

ROOT = Path(__file__).parents[2]


def run(source: str, *arguments: str) -> subprocess.Popen[str]:
    """A Python process with the tests' samples at hand."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source), *arguments],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}"},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.rlscope"
    path.write_text("precious")
    with pytest.raises(UsageError, match="already exists") as error:
        TraceWriter(path).start(samples.INFO)
    assert error.value.status == ExitStatus.USAGE
    assert "--force" in error.value.remedy
    assert path.read_text() == "precious"


def test_force_replaces_a_file_but_not_what_a_link_points_to(tmp_path: Path) -> None:
    path, target = tmp_path / "a.rlscope", tmp_path / "target"
    path.write_text("old")
    target.write_text("precious")
    for _ in range(2):
        writer = TraceWriter(path, force=True)
        writer.start(samples.INFO)
        writer.finish(samples.END)
        assert TraceReader(path).complete
        path.unlink()
        path.symlink_to(target)
    assert target.read_text() == "precious"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "a.rlscope"
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="already exists"):
        TraceWriter(path).open()
    assert not (tmp_path / "elsewhere").exists()


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.touch()
    for path in (tmp_path / "no" / "a.rlscope", blocker / "a.rlscope", tmp_path / ("x" * 300), Path("/proc/a.rlscope")):
        for force in (False, True):
            with pytest.raises(UsageError, match="cannot be created") as error:
                TraceWriter(path, force=force).open()
            assert error.value.problem.endswith(".")
            assert "--output" in error.value.remedy
    with pytest.raises(UsageError):
        TraceWriter(tmp_path, force=True).open()
    assert tmp_path.is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody without rights")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    source = """
        import os, sys
        from rlscope_ebpf.errors import UsageError
        from rlscope_ebpf.trace.writer import TraceWriter
        os.setgid(65534); os.setuid(65534)
        try:
            TraceWriter(sys.argv[1]).open()
        except UsageError as error:
            print(error.problem)
    """
    process = run(source, str(tmp_path / "a.rlscope"))
    assert "permission denied" in process.communicate(timeout=60)[0]


def test_open_before_start_and_discard(tmp_path: Path) -> None:
    path = tmp_path / "a.rlscope"
    writer = TraceWriter(path)
    writer.open()
    assert path.stat().st_size == 0
    writer.discard()
    assert not path.exists()
    writer = TraceWriter(path)
    writer.open()
    writer.batch(Batch(1))  # nothing is written before the header
    writer.start(samples.INFO)
    writer.finish(samples.END)
    assert TraceReader(path).complete


def test_who_called_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert owner_from_sudo({"SUDO_UID": "1000", "SUDO_GID": "1001"}) == (1000, 1001)
    assert owner_from_sudo({"SUDO_UID": "1000"}) is None
    assert owner_from_sudo({"SUDO_UID": "x", "SUDO_GID": "1"}) is None
    assert owner_from_sudo({}) is None
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert owner_from_sudo({"SUDO_UID": "1000", "SUDO_GID": "1001"}) is None


def test_the_file_belongs_to_whoever_called_sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fchown", lambda _, user, group: calls.append((user, group)))
    TraceWriter(tmp_path / "a.rlscope", owner=(1234, 567)).open()
    assert calls == [(1234, 567)]
    TraceWriter(tmp_path / "b.rlscope").open()
    assert len(calls) == 1
    assert stat.S_IMODE((tmp_path / "a.rlscope").stat().st_mode) & 0o133 == 0

    def refuse(*_: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refuse)
    TraceWriter(tmp_path / "c.rlscope", owner=(1234, 567)).open()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_owner_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "a.rlscope"
    TraceWriter(path, owner=(1234, 567)).open()
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 567)


def test_a_full_disk_keeps_whole_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.rlscope"
    clock = samples.Clock()
    session = samples.batches(6, 500)
    real = os.write
    limit = 30_000

    def write(descriptor: int, data: bytes) -> int:
        room = limit - os.fstat(descriptor).st_size
        if room <= 0:
            raise OSError(28, "No space left on device")
        return real(descriptor, data[: min(room, 1000)])

    monkeypatch.setattr(os, "write", write)
    writer = TraceWriter(path, clock=clock)
    writer.start(samples.INFO)
    raised = []
    for batch in session:
        clock.now += 2 * samples.BATCH_NS
        try:
            writer.batch(batch)
        except ProfilerError as error:
            raised.append(error)
    writer.finish(samples.END)
    assert len(raised) == 1
    assert writer.failed == raised[0].problem
    assert "no space left on device" in raised[0].problem
    assert path.stat().st_size == writer.bytes_written <= limit
    reader = TraceReader(path)
    assert len(reader.problems) == 1  # only the footer is missing
    assert 0 < reader.rows["intervals"] < 3000


@pytest.mark.parametrize("room", [0, 10, 200])
def test_a_disk_full_from_the_start_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    path = tmp_path / "a.rlscope"
    real = os.write

    def write(descriptor: int, data: bytes) -> int:
        left = room - os.fstat(descriptor).st_size
        if left <= 0:
            raise OSError(28, "No space left on device")
        return real(descriptor, data[:left])

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(ProfilerError, match="could not be written: no space") as error:
        TraceWriter(path).start(samples.INFO)
    assert error.value.status == ExitStatus.FAILED
    assert not path.exists()


def test_a_file_size_limit(tmp_path: Path) -> None:
    """The same through the kernel: RLIMIT_FSIZE cuts a write short, then refuses it."""
    path = tmp_path / "a.rlscope"
    source = """
        import resource, sys
        import trace_samples as samples
        from rlscope_ebpf.errors import ProfilerError
        from rlscope_ebpf.trace.writer import TraceWriter
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        clock = samples.Clock()
        writer = TraceWriter(sys.argv[1], clock=clock)
        writer.start(samples.INFO)
        for batch in samples.batches(20, 300):
            clock.now += 2 * samples.BATCH_NS
            try:
                writer.batch(batch)
            except ProfilerError as error:
                print("raised", error)
        writer.finish(samples.END)
        print("failed", writer.failed)
    """
    process = run(source, str(path))
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert output.count("raised") == 1
    assert "failed The trace" in output
    assert "file too large" in output
    assert path.stat().st_size <= 20_000
    reader = TraceReader(path)
    assert len(reader.problems) == 1
    assert reader.rows["intervals"] > 0


def test_an_error_of_close_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = TraceWriter(tmp_path / "a.rlscope")
    writer.start(samples.INFO)
    real = os.close

    def close(descriptor: int) -> None:
        real(descriptor)
        raise OSError(122, "Disk quota exceeded")

    monkeypatch.setattr(os, "close", close)
    with pytest.raises(ProfilerError, match="quota"):
        writer.finish(samples.END)
    monkeypatch.undo()
    assert writer.failed is not None
    writer.finish(samples.END)


def test_a_kill_leaves_what_was_flushed(tmp_path: Path) -> None:
    path = tmp_path / "a.rlscope"
    source = """
        import sys, time
        import trace_samples as samples
        from rlscope_ebpf.model.tables import Batch
        from rlscope_ebpf.trace.writer import TraceWriter
        writer = TraceWriter(sys.argv[1])
        writer.start(samples.INFO)
        index = 0
        while True:
            start = samples.START_NS + index * samples.BATCH_NS
            tables = {"intervals": samples.intervals(index, 200, start)}
            writer.batch(Batch(start, samples.definitions() if index == 0 else [], tables))
            index += 1
            print(index, flush=True)
            time.sleep(0.05)
    """
    process = run(source, str(path))
    assert process.stdout is not None
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            handed = int(process.stdout.readline())
            if path.exists() and path.stat().st_size > 5_000 and handed > 10:
                break
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    reader = TraceReader(path)
    assert not reader.complete
    assert reader.problems == ["The trace has no footer: the profiler was killed, or the end of the file is missing."]
    rows = reader.table("intervals")
    flushed = len(rows) // 200
    assert 0 < flushed <= handed + 1
    assert reader.now_ns == samples.START_NS + (flushed - 1) * samples.BATCH_NS
    expected = [samples.intervals(i, 200, samples.START_NS + i * samples.BATCH_NS) for i in range(flushed)]
    assert samples.same_rows(
        rows, samples.session_tables([Batch(0, tables={"intervals": e}) for e in expected])["intervals"]
    )


def test_kills_at_any_moment_of_busy_writing(tmp_path: Path) -> None:
    source = """
        import sys
        import trace_samples as samples
        from rlscope_ebpf.trace.writer import TraceWriter
        session = samples.batches(5, 5000)
        clock = samples.Clock()
        writer = TraceWriter(sys.argv[1], clock=clock)
        writer.start(samples.INFO)
        print("go", flush=True)
        while True:
            for batch in session:
                clock.now += 2 * samples.BATCH_NS
                writer.batch(batch)
    """
    processes = [run(source, str(tmp_path / f"{index}.rlscope")) for index in range(3)]
    for index, process in enumerate(processes):
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.05 * (index + 1))
        process.kill()
        process.wait()
        process.stdout.close()
        reader = TraceReader(tmp_path / f"{index}.rlscope")
        assert not reader.complete
        assert len(reader.table("intervals")) == reader.rows["intervals"]
        assert reader.rows["intervals"] % 5000 == 0


def test_a_flush_leaves_time_for_a_slow_session() -> None:
    assert 1_000_000_000 <= writer_module.FLUSH_NS < 2_000_000_000
