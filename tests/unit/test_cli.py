"""The command line from outside: help, versions, errors, exit statuses, signals, terminals. Uses a fake profiler."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlscope_ebpf import cli
from rlscope_ebpf.errors import ExitStatus, UnsupportedError
from rlscope_ebpf.session.options import ATTACH_METHODS

REPOSITORY = Path(__file__).resolve().parents[2]
REAL = "import sys; from rlscope_ebpf.cli import main; sys.exit(main())"
FOLDER = str(Path(__file__).parent)
FAKE = (
    f"import sys; sys.path.insert(0, {FOLDER!r}); import fake_profiler; fake_profiler.install(); "
    "from rlscope_ebpf.cli import main; sys.exit(main())"
)

HELP_SECONDS = 0.5
ATTEMPTS = 10


def command(*words: str, code: str = FAKE) -> list[str]:
    return [sys.executable, "-c", code, *words]


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), **extra}


def call(*words: str, folder: Path, code: str = FAKE, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words, code=code),
        cwd=folder,
        env=environment(**extra),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture
def target() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", "print(1, flush=True); import time; time.sleep(60)"], stdout=-1
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child
        child.kill()


def talk(stderr: str) -> str:
    """What was said on stderr, without progress lines."""
    return "\n".join(line for line in stderr.splitlines() if "events" not in line and not line.startswith("Attaching"))


# Help


@pytest.mark.parametrize("verb", ["", *cli.VERBS])
def test_help_is_quick_and_needs_nothing(verb: str, tmp_path: Path) -> None:
    times: list[float] = []
    while not times or (min(times) >= HELP_SECONDS and len(times) < ATTEMPTS):  # the machine may be busy
        begin = time.perf_counter()
        done = call(*verb.split(), "--help", folder=tmp_path, code=REAL)
        times.append(time.perf_counter() - begin)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("Usage: rlscope-ebpf")
        assert done.stderr == ""
    assert min(times) < HELP_SECONDS


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; from rlscope_ebpf.cli import main\n"
        "for verb in ('attach', 'run', 'doctor', 'demo'): main([verb, '--help'])\n"
        "print(sorted({'numpy', 'pandas', 'textual', 'rich', 'bcc', 'pyroute2', 'capstone'} & set(sys.modules)))"
    )
    assert call(folder=tmp_path, code=code).stdout.endswith("[]\n")


def test_every_option_of_the_contract_is_there(tmp_path: Path) -> None:
    for verb in ("attach", "run"):
        text = call(verb, "--help", folder=tmp_path, code=REAL).stdout
        for option in (
            "-o, --output", "--force", "--no-trace", "--duration", "--no-tui", "--library", "--marker", "--gpu",
            "--attach-method", "--follow / --no-follow", "--max-overhead",
        ):  # fmt: skip
            assert option in text, (verb, option)
        assert "|".join(ATTACH_METHODS) in text


def test_version(tmp_path: Path) -> None:
    done = call("--version", folder=tmp_path, code=REAL)
    assert done.stdout == f"rlscope-ebpf {cli.tool_version()}\n"


def test_no_verb_shows_the_verbs(tmp_path: Path) -> None:
    done = call(folder=tmp_path, code=REAL)
    assert done.returncode == ExitStatus.USAGE
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0] == "Usage: rlscope-ebpf [OPTIONS] VERB ..."
    assert max(map(len, lines)) <= 80
    assert {line.split()[0] for line in lines if line.startswith("  ")} >= set(cli.VERBS)


def test_help_promises_nothing_that_is_not_there(tmp_path: Path) -> None:
    for verb in ("attach", "run", "demo"):
        text = " ".join(call(verb, "--help", folder=tmp_path, code=REAL).stdout.split())
        assert "told by a helper library in the program" in text  # GPU times are not to be had for nothing


# Errors


@pytest.mark.parametrize(
    "words",
    [
        ("nonsense",),
        ("attach",),
        ("attach", "--pid", "abc"),
        ("attach", "--pid", "-3"),
        ("attach", "--nonsense"),
        ("attach", "--pid", "1", "--duration", "-1"),
        ("attach", "--pid", "1", "--gpu", "maybe"),
        ("attach", "--pid", "1", "--library", "nothing"),
        ("attach", "--pid", "1", "--marker", "nothing"),
        ("attach", "--pid", "1", "--no-trace", "-o", "x.rlscope"),
        ("attach", "--pid", "1", "--max-overhead", "-5"),
        ("run",),
        ("run", "--"),
        ("run", "--", "no-such-program-here"),
        ("--nonsense",),
    ],
)
def test_wrong_usage(words: tuple[str, ...], tmp_path: Path) -> None:
    done = call(*words, folder=tmp_path)
    assert done.returncode == ExitStatus.USAGE, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("rlscope-ebpf: ")
    assert all(line.endswith((".", ". ")) for line in lines)
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_suggestion_keeps_its_question_mark(tmp_path: Path) -> None:
    first, second = call("attach", "--pids", "1", folder=tmp_path).stderr.strip().splitlines()
    assert first == "rlscope-ebpf: No such option '--pids'. Did you mean '--pid'?"
    assert second.endswith(".")


def test_a_verb_that_is_mistyped(tmp_path: Path) -> None:
    first, second = call("atach", "--pid", "1", folder=tmp_path).stderr.strip().splitlines()
    assert first == "rlscope-ebpf: No such command 'atach'. Did you mean 'attach'?"
    assert second.endswith(".")


def test_a_pid_without_its_option(tmp_path: Path) -> None:
    done = call("attach", "4711", folder=tmp_path)
    assert done.returncode == ExitStatus.USAGE
    assert done.stderr.strip().splitlines()[1] == "Name a process with --pid 4711."


WITHOUT_CLICK = "import sys; sys.modules['click'] = None; from rlscope_ebpf.__main__ import entry; sys.exit(entry())"
INTERRUPTED_AT_ONCE = (
    "import sys, types; from unittest.mock import Mock; "
    "sys.modules['rlscope_ebpf.cli'] = types.SimpleNamespace(main=Mock(side_effect=KeyboardInterrupt)); "
    "from rlscope_ebpf.__main__ import entry; sys.exit(entry())"
)


def test_installed_for_targets_only(tmp_path: Path) -> None:
    done = call("doctor", folder=tmp_path, code=WITHOUT_CLICK)
    assert done.returncode == ExitStatus.FAILED
    assert len(done.stderr.splitlines()) == 2
    assert "lacks click" in done.stderr


def test_an_interruption_while_the_command_line_is_loaded(tmp_path: Path) -> None:
    done = call("attach", folder=tmp_path, code=INTERRUPTED_AT_ONCE)
    assert (done.returncode, done.stderr) == (130, "rlscope-ebpf: Interrupted.\n")


def test_no_such_process(tmp_path: Path) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    done = call("attach", "--pid", str(child.pid), folder=tmp_path)
    assert done.returncode == ExitStatus.USAGE
    assert f"no process {child.pid}" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_failed_attach_leaves_no_trace(tmp_path: Path, target: subprocess.Popen[bytes]) -> None:
    done = call("attach", "--pid", str(target.pid), folder=tmp_path, FAKE_ATTACH_ERROR="1")
    assert done.returncode == ExitStatus.UNSUPPORTED
    assert talk(done.stderr) == "rlscope-ebpf: Nothing can be attached.\nTry something else."
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("--debug", "attach"), ("attach", "--debug")])
def test_debug_shows_a_traceback(words: tuple[str, ...], tmp_path: Path, target: subprocess.Popen[bytes]) -> None:
    done = call(*words, "--pid", str(target.pid), folder=tmp_path, FAKE_ATTACH_ERROR="1")
    assert done.returncode == ExitStatus.UNSUPPORTED
    assert "Traceback" in done.stderr
    assert done.stderr.endswith("rlscope-ebpf: Nothing can be attached.\nTry something else.\n")


def test_unexpected_failure(tmp_path: Path, target: subprocess.Popen[bytes]) -> None:
    done = call("attach", "--pid", str(target.pid), folder=tmp_path, FAKE_RUN_ERROR="1")
    assert done.returncode == ExitStatus.FAILED
    assert "Traceback" not in done.stderr
    assert "the ring broke" in done.stderr
    assert "--debug" in done.stderr


def test_names_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise UnsupportedError("Process \x1b[31mevil\x07 is odd.", "Leave it.")

    monkeypatch.setattr(cli.group, "invoke", refuse)
    assert cli.main(["doctor"]) == ExitStatus.UNSUPPORTED
    assert capsys.readouterr().err == "rlscope-ebpf: Process �[31mevil� is odd.\nLeave it.\n"


def test_closed_stdout_is_quiet(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        command("--help", code=REAL), env=environment(), stdout=write_end, stderr=-1, check=False, timeout=60, text=True
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")


# attach


def test_duration_ends_the_capture_and_the_target_runs_on(tmp_path: Path, target: subprocess.Popen[bytes]) -> None:
    trace = tmp_path / "a.rlscope"
    done = call("attach", "--pid", str(target.pid), "--duration", "0.3", "-o", str(trace), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert target.poll() is None
    assert "train" in done.stdout
    assert "backend" in done.stdout
    assert "nothing lost" in done.stdout
    assert "One probe was not armed." in done.stderr
    assert str(trace) in done.stderr
    from rlscope_ebpf.trace.reader import TraceReader

    reader = TraceReader(trace)
    assert reader.complete
    assert [notice.text for notice in reader.notices] == ["One probe was not armed."]
    assert done.stderr.count("One probe was not armed.") == 1


def test_default_trace_name(tmp_path: Path, target: subprocess.Popen[bytes]) -> None:
    assert call("attach", "--pid", str(target.pid), "--duration", "0.1", folder=tmp_path).returncode == 0
    (trace,) = tmp_path.iterdir()
    assert re.fullmatch(rf"rlscope-python[\d.]*-{target.pid}-\d{{8}}-\d{{6}}\.rlscope", trace.name)


def test_no_trace(tmp_path: Path, target: subprocess.Popen[bytes]) -> None:
    done = call("attach", "--pid", str(target.pid), "--duration", "0.1", "--no-trace", folder=tmp_path)
    assert done.returncode == 0
    assert "train" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_trace_is_never_overwritten_without_force(tmp_path: Path, target: subprocess.Popen[bytes]) -> None:
    trace = tmp_path / "a.rlscope"
    trace.write_text("precious")
    words = ("attach", "--pid", str(target.pid), "--duration", "0.1", "-o", str(trace))
    done = call(*words, folder=tmp_path)
    assert done.returncode == ExitStatus.USAGE
    assert "--force" in done.stderr
    assert trace.read_text() == "precious"
    assert call(*words, "--force", folder=tmp_path).returncode == 0
    assert trace.read_bytes() != b"precious"


@pytest.mark.parametrize("verb", ["attach", "run", "demo"])
def test_the_place_of_the_trace_is_looked_at_before_anything_else(
    verb: str, tmp_path: Path, target: subprocess.Popen[bytes]
) -> None:
    started = tmp_path / "started"
    what = {"attach": ("--pid", str(target.pid)), "run": ("touch", str(started)), "demo": ()}[verb]
    (tmp_path / "a.rlscope").write_text("old")
    (tmp_path / "folder").mkdir()
    places = {
        ("-o", "a.rlscope"): "already exists",
        ("-o", "nowhere/a.rlscope"): "no such file or directory",
        ("-o", "/proc/a.rlscope"): "cannot be created",
        ("-o", "folder", "--force"): "is a directory",
        ("-o", "/dev/null", "--force"): "cannot be created",
    }
    for options, problem in places.items():
        done = call(verb, *options, *what, folder=tmp_path)
        assert done.returncode == ExitStatus.USAGE
        assert problem in done.stderr
        assert "Attaching" not in done.stderr
    assert not started.exists()
    assert (tmp_path / "a.rlscope").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.rlscope", "folder"]


def test_looking_at_the_place_of_a_trace_leaves_nothing(tmp_path: Path) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    (tmp_path / "old.rlscope").write_text("old")
    for options in (("-o", "new.rlscope"), ("-o", "old.rlscope", "--force")):
        call("attach", "--pid", str(child.pid), *options, folder=tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_a_folder_that_cannot_be_written(tmp_path: Path, target: subprocess.Popen[bytes]) -> None:
    words = ("attach", "--pid", str(target.pid), "--duration", "1")
    done = call(*words, folder=Path("/proc/self/fdinfo"))
    assert done.returncode == ExitStatus.USAGE
    assert "this folder" in done.stderr
    assert "Attaching" not in done.stderr
    assert call(*words, "--no-trace", folder=Path("/proc")).returncode == 0


def test_full_disk_is_told_and_the_figures_are_printed(tmp_path: Path, target: subprocess.Popen[bytes]) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600)); " + FAKE
    trace = tmp_path / "a.rlscope"
    done = call("attach", "--pid", str(target.pid), "--duration", "20", "-o", str(trace), folder=tmp_path, code=limit)
    assert done.returncode == ExitStatus.FAILED
    assert "could not be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert "train" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_finish_the_trace(number: signal.Signals, tmp_path: Path, target: subprocess.Popen[bytes]) -> None:
    trace = tmp_path / "a.rlscope"
    words = command("attach", "--pid", str(target.pid), "-o", str(trace))
    with subprocess.Popen(words, env=environment(FAKE_LINGER_S="0.3"), stdout=-1, stderr=-1, text=True) as profiler:
        assert profiler.stderr is not None
        assert profiler.stderr.readline() == f"Attaching to process {target.pid}.\n"
        assert profiler.stderr.readline().startswith("Profiling process")
        time.sleep(0.3)
        for _ in range(3):  # impatient
            profiler.send_signal(number)
            time.sleep(0.05)
        output, errors = profiler.communicate(timeout=30)
    assert profiler.returncode == 0, errors
    assert "train" in output
    assert "Traceback" not in errors
    assert target.poll() is None
    from rlscope_ebpf.trace.reader import TraceReader

    reader = TraceReader(trace)
    assert reader.complete
    assert [notice.text for notice in reader.notices] == ["One probe was not armed."]
    assert errors.count("One probe was not armed.") == 1


def test_trace_and_summary_do_not_wait_for_probes_to_go(tmp_path: Path, target: subprocess.Popen[bytes]) -> None:
    trace, gone = tmp_path / "a.rlscope", tmp_path / "gone"
    words = command("attach", "--pid", str(target.pid), "-o", str(trace), "--duration", "0.2")
    with subprocess.Popen(
        words, env=environment(FAKE_DETACHED_FILE=str(gone)), stdout=-1, stderr=-1, text=True
    ) as profiler:
        assert profiler.stderr is not None
        assert profiler.stdout is not None
        try:
            said = next(line for line in profiler.stderr if line.startswith("Taking "))
            assert said == "Taking 7 probes away; the target runs on meanwhile.\n"
            from rlscope_ebpf.trace.reader import TraceReader

            assert TraceReader(trace).complete
            assert f"(process {target.pid})" in profiler.stdout.readline()
            assert profiler.poll() is None
        finally:
            gone.touch()
        _, errors = profiler.communicate(timeout=30)
    assert errors.endswith("All probes are gone.\n")
    assert profiler.returncode == 0


def test_nohup_is_respected(tmp_path: Path, target: subprocess.Popen[bytes]) -> None:
    words = command("attach", "--pid", str(target.pid), "--no-trace", "--duration", "1")
    with subprocess.Popen(["nohup", *words], env=environment(), stdout=-1, stderr=-1, text=True) as profiler:
        assert profiler.stderr is not None
        next(line for line in profiler.stderr if line.startswith("Profiling process"))
        begin = time.monotonic()
        profiler.send_signal(signal.SIGHUP)
        profiler.communicate(timeout=30)
    assert profiler.returncode == 0
    assert time.monotonic() - begin > 0.5


def test_target_that_ends_ends_the_capture(tmp_path: Path, target: subprocess.Popen[bytes]) -> None:
    words = command("attach", "--pid", str(target.pid), "--no-trace")
    with subprocess.Popen(words, env=environment(), stdout=-1, stderr=-1, text=True) as profiler:
        assert profiler.stderr is not None
        next(line for line in profiler.stderr if line.startswith("Profiling process"))
        time.sleep(0.2)
        target.kill()
        assert "train" in profiler.communicate(timeout=30)[0]
    assert profiler.returncode == 0


# run


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_run_has_the_status_of_its_command(script: str, status: int, tmp_path: Path) -> None:
    done = call("run", "--no-trace", "--", "sh", "-c", f"sleep 0.2; echo hello; {script}", folder=tmp_path)
    assert done.returncode == status, done.stderr
    assert done.stdout.startswith("hello\n")
    assert "sh (process" in done.stdout


def test_run_takes_options_of_the_command_without_a_dash_dash(tmp_path: Path) -> None:
    done = call("run", "--no-trace", "sh", "-c", "echo $0", "--duration", folder=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("--duration\n")


def test_run_that_cannot_attach_never_starts_the_command(tmp_path: Path) -> None:
    done = call("run", "--", "touch", "proof", folder=tmp_path, FAKE_ATTACH_ERROR="1")
    assert done.returncode == ExitStatus.UNSUPPORTED
    assert list(tmp_path.iterdir()) == []


def test_run_with_a_duration_waits_for_the_command(tmp_path: Path) -> None:
    done = call("run", "--no-trace", "--duration", "0.1", "--", "sh", "-c", "sleep 0.6; exit 5", folder=tmp_path)
    assert done.returncode == 5


def test_terminated_run_leaves_the_command_alone(tmp_path: Path) -> None:
    words = command("run", "-o", str(tmp_path / "a.rlscope"), "--", "sleep", "60")
    with subprocess.Popen(words, env=environment(), stdout=-1, stderr=-1, text=True) as profiler:
        assert profiler.stderr is not None
        opening = next(line for line in profiler.stderr if line.startswith("Profiling"))
        time.sleep(0.3)
        profiler.terminate()
        # The command holds our pipes open: read no further than the sentence about it.
        lines = iter(profiler.stderr.readline, "")
        said = next(line for line in lines if "runs on" in line)
        assert profiler.wait(timeout=30) == 0
    pid = int(said.split()[-1].rstrip("."))
    assert f"process {pid} " in opening
    os.kill(pid, 0)
    os.kill(pid, signal.SIGKILL)


def test_interrupted_run_waits_for_the_end_of_the_command(tmp_path: Path) -> None:
    # Ctrl-C reaches the whole foreground group, as from a terminal.
    script = "trap 'sleep 0.5; exit 9' INT; echo ready; while :; do sleep 0.05; done"
    words = command("run", "--no-trace", "--", "sh", "-c", script)
    with subprocess.Popen(
        words, env=environment(), stdout=-1, stderr=-1, text=True, start_new_session=True
    ) as profiler:
        assert profiler.stdout is not None
        assert profiler.stdout.readline() == "ready\n"
        os.killpg(profiler.pid, signal.SIGINT)
        output, errors = profiler.communicate(timeout=30)
    assert profiler.returncode == 9, errors
    assert "train" in output


# On a terminal


class Terminal:
    """A command on a pseudo-terminal of 100 by 30."""

    def __init__(self, words: list[str], folder: Path, **extra: str) -> None:
        self.text = ""
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(words[0], words, environment(TERM="xterm-256color", **extra))
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))

    def wait_for(self, text: str, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while text not in self.text:
            assert time.monotonic() < end, self.text[-2000:]
            self._read()

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def wait(self) -> int:
        end = time.monotonic() + 60
        while True:
            pid, raw = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                while self._read():
                    pass
                os.close(self._fd)
                return os.waitstatus_to_exitcode(raw)
            assert time.monotonic() < end, self.text[-2000:]
            self._read()

    def _read(self) -> bool:
        if not select.select([self._fd], [], [], 0.05)[0]:
            return False
        try:
            data = os.read(self._fd, 65536)
        except OSError:
            return False
        self.text += data.decode(errors="replace")
        return bool(data)


ALTERNATE_SCREEN = "\x1b[?1049h"


def test_terminal_ui_and_q(tmp_path: Path, target: subprocess.Popen[bytes]) -> None:
    terminal = Terminal(command("attach", "--pid", str(target.pid), "-o", "a.rlscope"), tmp_path)
    terminal.wait_for(ALTERNATE_SCREEN)
    terminal.wait_for("train")
    terminal.type("q")
    assert terminal.wait() == 0
    assert "The trace is a.rlscope" in terminal.text
    assert target.poll() is None
    from rlscope_ebpf.trace.reader import TraceReader

    assert TraceReader(tmp_path / "a.rlscope").complete


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_terminal_ui_and_signals(number: signal.Signals, tmp_path: Path, target: subprocess.Popen[bytes]) -> None:
    terminal = Terminal(command("attach", "--pid", str(target.pid), "--no-trace"), tmp_path)
    terminal.wait_for("train")
    os.kill(terminal.pid, number)
    assert terminal.wait() == 0
    assert "nothing lost" in terminal.text


def test_terminal_ui_and_duration(tmp_path: Path, target: subprocess.Popen[bytes]) -> None:
    terminal = Terminal(command("attach", "--pid", str(target.pid), "--no-trace", "--duration", "1"), tmp_path)
    assert terminal.wait() == 0
    assert ALTERNATE_SCREEN in terminal.text


def test_terminal_ui_and_failure(tmp_path: Path, target: subprocess.Popen[bytes]) -> None:
    terminal = Terminal(command("attach", "--pid", str(target.pid), "--no-trace"), tmp_path, FAKE_RUN_ERROR="1")
    assert terminal.wait() == ExitStatus.FAILED
    assert "the ring broke" in terminal.text


def test_no_ui_where_stderr_is_a_file(tmp_path: Path, target: subprocess.Popen[bytes]) -> None:
    """It would be drawn there."""
    words = command("attach", "--pid", str(target.pid), "--no-trace", "--duration", "1")
    terminal = Terminal(["sh", "-c", '"$@" 2>errors', "sh", *words], tmp_path)
    assert terminal.wait() == 0
    assert ALTERNATE_SCREEN not in terminal.text
    assert "\x1b[?" not in (tmp_path / "errors").read_text()
    assert "Profiling" in (tmp_path / "errors").read_text()


def test_no_tui_on_a_terminal(tmp_path: Path, target: subprocess.Popen[bytes]) -> None:
    words = command("attach", "--pid", str(target.pid), "--no-trace", "--no-tui", "--duration", "1.3")
    terminal = Terminal(words, tmp_path)
    assert terminal.wait() == 0
    assert ALTERNATE_SCREEN not in terminal.text
    assert "\r00:0" in terminal.text


def test_run_with_the_ui_keeps_the_output_of_the_command_apart(tmp_path: Path) -> None:
    script = "echo hello; cat; sleep 60"
    terminal = Terminal(command("run", "-o", "a.rlscope", "--", "sh", "-c", script), tmp_path)
    terminal.wait_for("train")
    terminal.type("q")
    assert terminal.wait() == 0
    pid = int(terminal.text.split("runs on as process ")[1].split(".")[0])
    os.kill(pid, signal.SIGKILL)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.rlscope", "a.rlscope.log"]
    assert (tmp_path / "a.rlscope.log").read_text() == "hello\n"
