"""One capture as a person sees it: progress or the live UI while it runs, the trace, the summary at its end.

The capture runs in a thread of its own; the main thread shows it, listens to signals and, for `run`, to the command.
"""

from __future__ import annotations

import gc
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rlscope_ebpf.cli.progress import Progress
from rlscope_ebpf.errors import ProfilerError
from rlscope_ebpf.live.model import LiveModel
from rlscope_ebpf.model import format as fmt
from rlscope_ebpf.model.session import SessionEnd, SessionInfo
from rlscope_ebpf.model.tables import Batch
from rlscope_ebpf.session.options import CaptureOptions, default_trace_path
from rlscope_ebpf.trace.writer import TraceWriter, owner_from_sudo

if TYPE_CHECKING:
    from rlscope_ebpf.capture.launch import LaunchedCommand
    from rlscope_ebpf.capture.preparation import Preparation
    from rlscope_ebpf.live.snapshot import Snapshot
    from rlscope_ebpf.session.gpu_launch import LaunchedHelper
    from rlscope_ebpf.session.runner import Profiler

TICK_S = 0.1

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

INTERRUPT_GRACE_S = 3.0
"""After Ctrl-C a command of `run`, which gets it from the terminal, too, is still watched for so long as it ends."""

DETACH_PATIENCE_S = 1.0
"""Probes that need longer to go are talked about."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What came of a capture."""

    end: SessionEnd
    final: Snapshot
    trace: Path | None  # None: none was wanted, or nothing of it could be written
    stopped_by: signal.Signals | None  # the signal that ended it
    failure: ProfilerError | None  # why the trace is not complete


class Interruptions:
    """Signals that ask for the end. Before `begin` they abort (KeyboardInterrupt); afterwards they are remembered."""

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.count = 0
        self.listeners: list[Callable[[], None]] = []
        self._begun = False

    def begin(self) -> None:
        """From now on there is something to finish."""
        self._begun = True

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if not self._begun:
            raise KeyboardInterrupt
        if self.first is None:
            self.first = signal.Signals(number)
        for listener in self.listeners:
            listener()

    @contextmanager
    def watched(self) -> Iterator[Interruptions]:
        """Handle the signals inside, and restore what was there before."""
        # nohup has the hangup ignored, and it stays so.
        wanted = (n for n in _STOP_SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN)
        before = {number: signal.signal(number, self._handle) for number in wanted}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class OptionalTrace:
    """The trace as a sink that may fail: the capture goes on without it, and the error is kept."""

    def __init__(self, writer: TraceWriter, on_failure: Callable[[ProfilerError], None]) -> None:
        self.failure: ProfilerError | None = None
        self._writer = writer
        self._on_failure = on_failure

    def start(self, info: SessionInfo) -> None:
        """Write the header."""
        self._try(self._writer.start, info)

    def batch(self, batch: Batch) -> None:
        """Write rows."""
        self._try(self._writer.batch, batch)

    def finish(self, end: SessionEnd) -> None:
        """Write the footer."""
        self._try(self._writer.finish, end)

    def _try(self, call: Callable[[Any], None], value: Any) -> None:
        try:
            call(value)
        except ProfilerError as error:
            if self.failure is None:
                self.failure = error
                self._on_failure(error)


class CaptureThread(threading.Thread):
    """Runs the capture loop to its end, whatever that is."""

    def __init__(self, profiler: Profiler) -> None:
        super().__init__(name="capture", daemon=True)
        self.stop = threading.Event()
        self.end: SessionEnd | None = None
        self.error: Exception | None = None
        self._profiler = profiler

    def run(self) -> None:
        """The thread's body."""
        try:
            self.end = self._profiler.run(self.stop)
        except Exception as error:  # raised again in the main thread
            self.error = error


class LiveSource:
    """The live model as the UI wants it, and the notices as the progress lines do. Raises the capture's error."""

    def __init__(self, model: LiveModel, notices: Sequence[str], thread: CaptureThread) -> None:
        self._model = model
        self._notices = notices
        self._thread = thread
        self._passed_on = 0
        self.on_snapshot: Callable[[], None] = lambda: None

    def new_notices(self) -> list[str]:
        """Notices that came since the last time. The model gets them with the batches."""
        new = list(self._notices[self._passed_on :])
        self._passed_on += len(new)
        return new

    def snapshot(self) -> Snapshot:
        """The figures now."""
        if self._thread.error is not None:
            raise self._thread.error
        self.on_snapshot()
        return self._model.snapshot()


def wants_tui(options: CaptureOptions) -> bool:
    """Whether the live UI is shown: on a terminal, unless told otherwise. It is drawn on stderr."""
    return options.tui and all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def trace_path(options: CaptureOptions) -> Path:
    """Where the trace goes: as told, or named after the first process. Raises ProfilerErrors of `inspect`."""
    from rlscope_ebpf.capture.process import inspect

    if options.output is not None:
        return options.output
    return default_trace_path(inspect(options.pids[0]).name, options.pids[0])


def record(
    options: CaptureOptions,
    *,
    command: LaunchedCommand | None = None,
    preparation: Preparation | None = None,
    notices: Sequence[str] = (),
    launched_gpu: LaunchedHelper | None = None,
) -> Recording:
    """Capture until it ends, and print the summary on stdout and the trace's name on stderr.

    Args:
        options: with the pids filled in.
        command: a held command to let go once the probes are attached; its end ends the capture.
        preparation: what has been made ready for the capture already.
        notices: sentences to show, in addition to those of the profiler.
        launched_gpu: how the GPU helper gets into the command.

    Raises:
        ProfilerError: nothing was captured.
    """
    from rlscope_ebpf.calibration.in_passing import calibration_for
    from rlscope_ebpf.capture.privileges import drop_privileges
    from rlscope_ebpf.session.runner import Profiler

    interruptions = Interruptions()
    with interruptions.watched():
        writer = None
        if options.write_trace:
            writer = TraceWriter(trace_path(options), force=options.force, owner=owner_from_sudo())
            writer.open()
        try:
            with Profiler(options) as profiler:
                profiler.patient = command is not None
                profiler.notices.extend(notices)
                profiler.preparation = preparation
                profiler.launched_gpu = launched_gpu
                profiler.calibrate = lambda engine: calibration_for(engine, profiler.notices.append)
                profiler.attach()
                gc.enable()  # if it was put off until now
                interruptions.begin()
                drop_privileges(loads_into_gpu_programs=options.gpu != "off")
                recording = _conduct(profiler, writer, command, interruptions)
                _print_summary(recording)
                _show_detaching(profiler)
        except BaseException:
            if writer is not None:
                writer.close() if writer.bytes_written else writer.discard()
            raise
    return recording


def _conduct(
    profiler: Profiler, writer: TraceWriter | None, command: LaunchedCommand | None, interruptions: Interruptions
) -> Recording:
    model = LiveModel()
    thread = CaptureThread(profiler)
    source = LiveSource(model, profiler.notices, thread)
    with_tui = wants_tui(profiler.options)

    def on_trace_failure(error: ProfilerError) -> None:
        profiler.notices.append(f"{error.problem} {error.remedy}")
        if not with_tui:
            thread.stop.set()  # nobody looks, and nothing is kept: there is no point in going on

    trace = OptionalTrace(writer, on_trace_failure) if writer is not None else None
    profiler.sinks += [model, *([trace] if trace is not None else [])]
    try:
        thread.start()
        if command is not None:
            command.release()
        show = _show_tui if with_tui else _show_progress
        show(source, thread, command, interruptions, profiler.options)
    finally:
        thread.stop.set()
        _join(thread)
    if thread.error is not None:
        raise thread.error
    assert thread.end is not None  # it ended without an error
    kept = writer.path if writer is not None and writer.bytes_written else None
    failure = trace.failure if trace is not None else None
    return Recording(thread.end, model.snapshot(), kept, interruptions.first, failure)


def _join(thread: threading.Thread) -> None:
    """Wait for the end of the capture. Signals are only counted meanwhile: nothing may tear the trace's end off."""
    while thread.is_alive():
        thread.join(TICK_S)


class _Patience:
    """When an interruption ends the capture: at once, or, for a command that got the signal as well, with its end."""

    def __init__(self, command: LaunchedCommand | None, interruptions: Interruptions) -> None:
        self._command = command
        self._interruptions = interruptions
        self._deadline: float | None = None

    def is_over(self) -> bool:
        """Whether to stop now."""
        if self._interruptions.first is None:
            return False
        if self._command is None or self._interruptions.first != signal.SIGINT or self._interruptions.count > 1:
            return True
        if self._deadline is None:
            self._deadline = time.monotonic() + INTERRUPT_GRACE_S
        return time.monotonic() >= self._deadline


def _show_progress(
    source: LiveSource,
    thread: CaptureThread,
    command: LaunchedCommand | None,
    interruptions: Interruptions,
    options: CaptureOptions,
) -> None:
    progress = Progress(sys.stderr)
    patience = _Patience(command, interruptions)
    progress.say(_opening(options, command))
    while thread.is_alive():
        thread.join(TICK_S)
        for notice in source.new_notices():
            progress.say(notice)
        if thread.error is None and progress.is_due():
            progress.show(source.snapshot())
        if patience.is_over():
            break
    progress.close()
    if thread.is_alive():
        progress.say("Finishing.")
        thread.stop.set()
        _join(thread)
    for notice in source.new_notices():
        progress.say(notice)


def _show_detaching(profiler: Profiler) -> None:
    """Wait until all probes are gone. What was captured is safe by then; some kernels need minutes for many probes."""
    if profiler.wait_until_detached(DETACH_PATIENCE_S):
        return
    progress = Progress(sys.stderr)
    progress.say(f"Taking {fmt.plural_exact(profiler.probes_to_detach, 'probe')} away; the target runs on meanwhile.")
    while not profiler.wait_until_detached(TICK_S):
        if progress.is_due():
            progress.show_line(f"{fmt.plural_exact(profiler.probes_to_detach, 'probe')} left")
    progress.say("All probes are gone.")


def _opening(options: CaptureOptions, command: LaunchedCommand | None) -> str:
    verb, end = ("Profiling the command,", "until it ends") if command is not None else ("Profiling", "until Ctrl-C")
    end = f"for {options.duration_s:g} s" if options.duration_s else end
    return f"{verb} {fmt.processes(options.pids)} {end}."


def _show_tui(
    source: LiveSource,
    thread: CaptureThread,
    command: LaunchedCommand | None,
    interruptions: Interruptions,
    options: CaptureOptions,
) -> None:
    from rlscope_ebpf.tui.app import ProfilerApp
    from rlscope_ebpf.tui.terminal import is_gone

    app = ProfilerApp(source, exit_when_finished=options.duration_s is not None)

    def leave_if_asked() -> None:
        # Only whoever the terminal controls is sent a signal when it is closed.
        if interruptions.first is not None or is_gone(sys.__stdin__):
            app.stop()

    interruptions.listeners.append(app.stop)
    source.on_snapshot = leave_if_asked  # also for a signal that came before the screen was there
    app.run()
    interruptions.listeners.clear()
    if app.failure is not None and thread.error is None:
        raise app.failure


def _print_summary(recording: Recording) -> None:
    from rlscope_ebpf.cli.summary import render

    sys.stdout.write(render(recording.final))
    sys.stdout.flush()
    if recording.trace is not None:
        name = str(recording.trace)
        sys.stderr.write(f"The trace is {name}; `rlscope-ebpf report {shlex.quote(name)}` reads it.\n")
