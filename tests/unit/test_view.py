"""`view`: a trace played through the live screens."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import trace_samples

from rlscope_ebpf.cli import main
from rlscope_ebpf.errors import ExitStatus
from rlscope_ebpf.live.model import LiveModel
from rlscope_ebpf.live.snapshot import Snapshot
from rlscope_ebpf.model.tables import ImportantNotice
from rlscope_ebpf.trace.reader import TraceReader
from rlscope_ebpf.tui.app import ProfilerApp
from rlscope_ebpf.tui.replay import TraceReplay
from rlscope_ebpf.tui.screenshot import settled, take
from rlscope_ebpf.tui.source import ReplaySource

S = 1_000_000_000


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine reading takes its time; a test that wants parts asks for them."""
    monkeypatch.setattr("rlscope_ebpf.tui.replay.READING_BUDGET_S", 60.0)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Ten seconds of two processes."""
    path = tmp_path / "ten.rlscope"
    # As in a session, no row lies in another batch's time.
    trace_samples.write(path, trace_samples.batches(count=10, rows=60, longest_gap_ns=trace_samples.BATCH_NS // 100))
    return path


def whole(path: Path) -> Snapshot:
    """What the live model showed at the end of the session."""
    reader = TraceReader(path)
    model = LiveModel()
    model.start(reader.info)
    for batch in reader.batches():
        model.batch(batch)
    assert reader.end is not None
    model.finish(reader.end)
    return model.snapshot()


def wall(snapshot: Snapshot) -> int:
    """All time on the screen."""
    return sum(row.wall_ns for row in snapshot.operations)


def test_it_opens_with_the_whole_trace(trace: Path) -> None:
    replay = TraceReplay(TraceReader(trace))
    assert isinstance(replay, ReplaySource)
    assert replay.snapshot() == whole(trace)
    state = replay.state()
    assert state.fraction == 1
    assert state.duration_ns == 10 * S
    assert not state.playing
    assert not state.loading


def test_playing_takes_its_time_and_stops_at_the_end(trace: Path) -> None:
    clock = Clock()
    replay = TraceReplay(TraceReader(trace), clock)
    replay.snapshot()
    replay.play()  # at the end: from the start
    first = replay.snapshot()
    assert replay.state().position_ns == 0
    assert not first.finished
    clock.now += 2
    second = replay.snapshot()
    assert replay.state().position_ns == 2 * S
    assert wall(first) < wall(second) < wall(whole(trace))
    assert second.now_ns <= trace_samples.START_NS + 2 * S
    replay.speed(4)
    clock.now += 1
    replay.snapshot()
    assert replay.state().position_ns == 6 * S
    replay.pause()
    clock.now += 50
    assert replay.state().position_ns == 6 * S
    replay.play()
    clock.now += 50
    last = replay.snapshot()
    assert not replay.state().playing
    assert last.finished
    assert last.operations == whole(trace).operations


def test_seeking_back_gives_what_playing_gave(trace: Path) -> None:
    clock = Clock()
    replay = TraceReplay(TraceReader(trace), clock)
    replay.snapshot()
    replay.seek(0)
    replay.snapshot()
    replay.seek(0.35)
    forward = replay.snapshot()
    replay.seek(1)
    assert replay.snapshot() == whole(trace)
    replay.seek(0.35)
    back = replay.snapshot()
    assert back == forward
    assert wall(back) < wall(whole(trace))
    assert not back.finished


def test_a_long_way_is_gone_in_parts(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlscope_ebpf.tui.replay.READING_BUDGET_S", -1.0)
    clock = Clock()
    replay = TraceReplay(TraceReader(trace), clock)
    replay.seek(0.9)
    parts = [replay.snapshot()]
    assert replay.state().loading
    assert 0 < replay.state().read < 1
    replay.play()
    clock.now += 3  # the replay waits for the reading: no time is skipped
    while replay.state().loading and len(parts) < 1_000:
        parts.append(replay.snapshot())
    assert len(parts) > 5
    assert [part.now_ns for part in parts] == sorted(part.now_ns for part in parts)
    assert replay.state().position_ns == 9 * S
    assert replay.state().playing


def test_a_damaged_trace_says_so(trace: Path) -> None:
    trace.write_bytes(trace.read_bytes()[:-200])
    reader = TraceReader(trace)
    assert not reader.complete
    snapshot = TraceReplay(reader).snapshot()
    said = tuple(notice.sentence for notice in reader.notices)
    assert snapshot.notices == (*reader.problems, *said)
    # Seen on the screen whatever else the profiler had to say later.
    assert all(isinstance(text, ImportantNotice) for text in snapshot.notices[: len(reader.problems)])
    assert said
    assert snapshot.operations


async def test_on_the_screen(trace: Path) -> None:
    app = ProfilerApp(TraceReplay(TraceReader(trace)))
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(app, pilot)
        assert app.snapshot is not None
        assert wall(app.snapshot) == wall(whole(trace))
        await pilot.press("home", "space")
        for _ in range(100):
            await pilot.pause(0.02)
            if wall(app.snapshot) < wall(whole(trace)):
                break
        assert wall(app.snapshot) < wall(whole(trace))
        await pilot.press("end")
        for _ in range(100):
            await pilot.pause(0.02)
            if wall(app.snapshot) == wall(whole(trace)):
                break
        assert wall(app.snapshot) == wall(whole(trace))


async def test_the_picture_for_the_readme(trace: Path) -> None:
    svg = await take(TraceReplay(TraceReader(trace)), size=(100, 30))
    assert svg.startswith("<svg")
    assert "inference" in svg


def test_without_a_terminal(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(trace)]) == ExitStatus.USAGE
    error = capsys.readouterr().err
    assert "needs a terminal" in error
    assert f"rlscope-ebpf report {trace}" in error


def in_terminal(*arguments: str, keys: bytes = b"q", early: bytes = b"") -> tuple[int, str]:
    """Run the command in a terminal of its own; its exit status and what it drew.

    `early` keys come as soon as anything is drawn, `keys` when the figures are there.
    """
    master, slave = pty.openpty()
    code = "import sys; from rlscope_ebpf.cli import main; sys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=slave, stdout=slave, stderr=slave, close_fds=True,
        cwd=Path(__file__).parents[2], env=environment, start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    drawn = b""
    sent = False
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            part = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        if early and not drawn:
            os.write(master, early)
        drawn += part
        if not sent and b"BREAKDOWN" in drawn and b"inference" in drawn:
            os.write(master, keys)
            sent = True
    os.close(master)
    return process.wait(30), drawn.decode(errors="replace")


def test_in_a_terminal(trace: Path) -> None:
    status, drawn = in_terminal("view", str(trace))
    assert status == ExitStatus.OK, drawn[-500:]
    assert "Traceback" not in drawn


def test_something_is_seen_at_once_and_keys_are_not_echoed(trace: Path) -> None:
    status, drawn = in_terminal("view", str(trace), early=b"\x1b[1~u")
    assert status == ExitStatus.OK, drawn[-500:]
    assert drawn.startswith("\r\x1b[KReading the trace")
    assert "^[[1~" not in drawn


def test_a_damaged_trace_in_a_terminal(trace: Path) -> None:
    trace.write_bytes(trace.read_bytes()[:-200])
    status, drawn = in_terminal("view", str(trace), keys=b"\x03")
    assert status == ExitStatus.DAMAGED, drawn[-500:]
    assert "Traceback" not in drawn


def test_no_such_trace_in_a_terminal(tmp_path: Path) -> None:
    status, drawn = in_terminal("view", str(tmp_path / "none.rlscope"))
    assert status == ExitStatus.USAGE
    assert "Traceback" not in drawn
