"""`rlscope-ebpf run`: start a command under the profiler."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlscope_ebpf.cli.blas import one_blas_thread
from rlscope_ebpf.cli.options import announce, capture_options, read_capture_options

if TYPE_CHECKING:
    from rlscope_ebpf.capture.launch import LaunchedCommand
    from rlscope_ebpf.cli.recording import Recording
    from rlscope_ebpf.session.options import CaptureOptions

REAP_S = 1.0
"""After the profiler has seen a command's end, its exit status is there within a moment."""


@click.command("run", context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@capture_options
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="CMD ...")
def command(words: tuple[str, ...], **given: Any) -> int:
    """Start a command under the profiler from its first instruction.

    Write `--` before the command. Its exit status becomes that of the profiler (128 + N if signal N ended it). Started
    through sudo, the command runs as the user who called sudo. Its output stays where it is, except while the live UI
    is shown: then it goes to TRACE.log, and its input is empty.
    """
    options = read_capture_options(**given)

    return run_command(words, options)


def run_command(words: Sequence[str], options: CaptureOptions, *, notices: Sequence[str] = ()) -> int:
    """Start a command, profile it to its end, and return its exit status.

    Raises:
        ProfilerError: it could not be started or profiled, or its trace is not complete.
    """
    from rlscope_ebpf.capture.launch import launch, sudo_identity

    with one_blas_thread():
        from rlscope_ebpf.cli.recording import record, trace_path, wants_tui
        from rlscope_ebpf.session.gpu_launch import prepare_environment

    said = list(notices)
    with ExitStack() as stack:
        log = stack.enter_context(_Log(options.output)) if wants_tui(options) else None
        identity = sudo_identity()
        gpu = stack.enter_context(prepare_environment(options.gpu, identity))
        output = None if log is None else log.descriptor
        child = stack.enter_context(launch(words, output=output, identity=identity, environment=gpu.environment))
        announce([child.pid], "the command, ")
        options = replace(options, pids=(child.pid,))
        options = replace(options, output=trace_path(options))
        if log is not None:
            said.append(f"The command's output goes to {log.settle(options)}.")
        if not child.stopped:
            said.append("The command could not be held (ptrace is forbidden), so its first moments are not seen.")
        recording = record(options, command=child, notices=said, launched_gpu=gpu.helper)
        status = _exit_status(child, recording)
    if recording.failure is not None:
        raise recording.failure
    return status


def _exit_status(child: LaunchedCommand, recording: Recording) -> int:
    """The command's exit status. One that was left running on purpose has none: 0."""
    reason = recording.end.reason
    if reason == "duration" or recording.failure is not None:
        with suppress(KeyboardInterrupt):  # the command gets it from the terminal as well
            return child.wait()
    deadline = time.monotonic() + (REAP_S if reason == "exited" or recording.stopped_by == signal.SIGINT else 0)
    while (status := child.poll()) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    if status is None:
        sys.stderr.write(f"The command runs on as process {child.pid}.\n")
        return 0
    return status


class _Log:
    """Where the output of a command goes while the live UI has the terminal. Removed if an error left it empty."""

    def __init__(self, trace: Path | None) -> None:
        folder = Path() if trace is None else trace.parent
        # The final name needs the pid, and the command needs the file before it has one.
        self._path = folder / f".rlscope-run-{os.getpid()}.log"
        self.descriptor = -1

    def __enter__(self) -> _Log:
        from rlscope_ebpf.errors import UsageError
        from rlscope_ebpf.trace.writer import owner_from_sudo

        try:
            self.descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UsageError(
                f"The command's output cannot be written to {self._path.parent}: {(error.strerror or '').lower()}.",
                "Choose a folder that can be written with --output, or run with --no-tui.",
            ) from error
        owner = owner_from_sudo()
        if owner is not None:
            with suppress(OSError):
                os.fchown(self.descriptor, *owner)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None and os.fstat(self.descriptor).st_size == 0:
            self._path.unlink(missing_ok=True)
        os.close(self.descriptor)

    def settle(self, options: CaptureOptions) -> Path:
        """Give it its name, next to the trace."""
        assert options.output is not None
        path = options.output.with_name(options.output.name + ".log")
        os.replace(self._path, path)
        self._path = path
        return path
