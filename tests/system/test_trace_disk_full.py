"""A really full disk: a small tmpfs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

import trace_samples as samples

from rlscope_ebpf.errors import ExitStatus, ProfilerError
from rlscope_ebpf.trace.reader import TraceReader
from rlscope_ebpf.trace.writer import TraceWriter

pytestmark = pytest.mark.system


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_the_trace_is_valid_up_to_the_last_whole_object(small_disk: Path) -> None:
    path = small_disk / "a.rlscope"
    clock = samples.Clock()
    writer = TraceWriter(path, clock=clock)
    writer.start(samples.INFO)
    errors = []
    for batch in samples.batches(30, 2000):
        clock.now += 2 * samples.BATCH_NS
        try:
            writer.batch(batch)
        except ProfilerError as error:
            errors.append(error)
    writer.finish(samples.END)
    assert len(errors) == 1
    assert errors[0].status == ExitStatus.FAILED
    assert "no space left on device" in errors[0].problem
    assert writer.failed == errors[0].problem
    reader = TraceReader(path)
    assert len(reader.problems) == 1  # no footer; nothing half-written
    assert reader.rows["intervals"] >= 2000
    assert len(reader.table("intervals")) == reader.rows["intervals"]


def test_a_disk_already_full(small_disk: Path) -> None:
    free = os.statvfs(small_disk)
    (small_disk / "filler").write_bytes(bytes(free.f_bavail * free.f_frsize))
    path = small_disk / "a.rlscope"
    with pytest.raises(ProfilerError):
        TraceWriter(path).start(samples.INFO)
    assert not path.exists()
