"""A profiling session: attach to processes, turn what their probes send into batches, hand them to the sinks."""

from __future__ import annotations

import os
import platform
import select
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf import __version__
from rlscope_ebpf.capture.cookie import Action, Group
from rlscope_ebpf.capture.counters import ProbeCounters
from rlscope_ebpf.capture.engine import Engine, ProbeSite, armed_sites
from rlscope_ebpf.capture.gpu import GpuPreparation
from rlscope_ebpf.capture.interpreter import interpreter_loop
from rlscope_ebpf.capture.kernel import choose_attach_method, kernel_release
from rlscope_ebpf.capture.maps import MappedObject, MapsWatcher, expected_object, read_maps
from rlscope_ebpf.capture.markers_layout import read_process_markers, read_thread_stacks
from rlscope_ebpf.capture.objects import C_LIBRARIES
from rlscope_ebpf.capture.package_folders import marker_libraries
from rlscope_ebpf.capture.plan import ALL_GROUPS, Plan, Planner
from rlscope_ebpf.capture.preparation import Preparation
from rlscope_ebpf.capture.probe_sites import probe_sites
from rlscope_ebpf.capture.process import TargetProcess, inspect, inspect_forked, open_pidfd, vanished
from rlscope_ebpf.capture.process_sets import ProcessSet
from rlscope_ebpf.errors import ProfilerError, UnsupportedError
from rlscope_ebpf.model.calibration import Calibration
from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.model.events import OPEN_OPS_MAX, TextKind
from rlscope_ebpf.model.session import SessionEnd, SessionInfo, Sink
from rlscope_ebpf.model.tables import (
    Batch,
    Counters,
    Definition,
    GpuSource,
    ImportantNotice,
    Losses,
    ProbeInfo,
    ProcessInfo,
)
from rlscope_ebpf.paths import marker_library
from rlscope_ebpf.session.accounting import AccountingCheck
from rlscope_ebpf.session.background import BackgroundPlan, keep_what_was_found
from rlscope_ebpf.session.costs import ProbeCosts
from rlscope_ebpf.session.following import Following, parent_of
from rlscope_ebpf.session.governor import FIRST_S, FIRST_TURN_S, WORKS, Decision, Governor
from rlscope_ebpf.session.governor import TURN_S as GOVERNOR_TURN_S
from rlscope_ebpf.session.gpu_launch import LaunchedHelper
from rlscope_ebpf.session.gpu_watch import QUEUED_NS, GpuWatch, expects_gpu
from rlscope_ebpf.session.guard import ReturnGuard, nests_deeply, why_switching
from rlscope_ebpf.session.lateness import late_markers, lateness
from rlscope_ebpf.session.matching import Matcher
from rlscope_ebpf.session.opening import OpenedMeanwhile, Seed
from rlscope_ebpf.session.options import CaptureOptions
from rlscope_ebpf.session.rules import NOTHING_TO_PROBE, QUIET_NS, RuleWatch
from rlscope_ebpf.session.sampling import SAMPLED_FOR, Sampler, cost_of_sample_ns, spent_on_samples_ns
from rlscope_ebpf.session.seeds import process_records, text_records
from rlscope_ebpf.session.shedding import STANDS_IN, ShedNotices
from rlscope_ebpf.session.spending import SilentHits, Spent, read_spent, shares
from rlscope_ebpf.session.tally import ProbeTally
from rlscope_ebpf.session.target import Target, monotonic_ns, read_image, read_names, sleeps, thread_name
from rlscope_ebpf.session.unseen import UnseenThreads
from rlscope_ebpf.session.worth import SPARED_SINGLY, SPARED_TOGETHER, Unit, Worth

TURN_S = 0.25
"""Between two looks at the ring, when little is in it: each takes a few milliseconds of a CPU, whatever it finds."""

BUSY_EVENTS = 1 << 16
"""With more events than this waiting, the next turn follows at once."""

MAPS_TURN_S = 0.3
"""Between two looks for newly loaded libraries."""

LOADING_TURN_S = 0.05
"""The same while a target is loading: at its start, and for `LOADING_S` after each new library."""

LOADING_S = 1.0

FORGET_NS = 1_000_000_000
"""A followed process that has ended is remembered for so long: what it sent may still be in the ring."""

ACCOUNTING_NS = 1_000_000_000
"""After so long the kernel's accounts are read for the first time: not while an attach wants all the time there is."""

SETTLE_NS = 10_000_000
"""Time is handed out only up to this long ago: a program that was preempted may still have an event to send."""

_TELL_NOTHING = (Action.CATCH, Action.LONGJMP, Action.LOADED, Action.SWITCHES)
"""Probes that only end what others began, or guard the target."""

_FIRST = frozenset({Group.MARKER, Group.GATE})

ALONE_OF_LIMIT, BESIDE_OF_LIMIT = 0.5, 0.25
"""Part of the limit that samples may take where they tell everything, and where they stand in for probes: if they would
take more, there are fewer of them."""

_MOMENTS = 5
"""How often the counters are read at the end of a session, for once without an interruption."""

_DRAIN_LOOKS = 50
"""How often the end of a session looks for an event that a preempted thread has not finished."""


class Profiler:
    """One session. Use as a context manager: `attach`, then `run` until stopped.

    `sinks` and `notices` (sentences for the user, which batches hand on) may be filled before `run`, and notices
    added at any time.
    """

    def __init__(self, options: CaptureOptions) -> None:
        self.options = options
        self.sinks: list[Sink] = []
        self.notices: list[str] = []
        self.info: SessionInfo | None = None
        self.preparation: Preparation | None = None
        """May be set before `attach`, which otherwise makes its own."""
        self.patient = False
        """A target without anything to probe is not refused: it has just been started, and may load or execute it."""
        self.costs = ProbeCosts()
        self.calibrate: Callable[[Engine], Calibration | None] | None = None
        """Tells what probes cost on this host, given an engine that has no targets yet; asked while attaching."""
        self._loaded: Engine | None = None
        self._targets: dict[int, Target] = {}
        self._early: list[Batch] = []  # what was matched while attaching
        self._opened = OpenedMeanwhile()
        self._own_texts: list[NDArray[np.void]] = []  # names that the profiler gives itself
        self._loaded_ns = 0  # when a target last loaded something
        self._tally = ProbeTally()
        self._shed_groups: set[Group] = set()
        self._stands_in = False  # whether samples tell what probes would have told
        self._worth = Worth()
        self._definitions: list[Definition] = []
        self._avoids_returns = False
        self._guards: list[ReturnGuard] = []
        self._received = 0
        self._notices_given = 0
        self._final: ProbeCounters | None = None  # as the session ended
        self._governor = Governor(options.max_overhead / 100)
        self._shed_notices = ShedNotices(self._governor, self._tally.sparable)
        self._rules = RuleWatch(options)
        self._sampler = Sampler(options.libraries, follows_all=self._samples_all)
        self._samples = self._samples_all  # whether the clock is running, or is to run from the start
        self._accounting = AccountingCheck()
        self._unseen = UnseenThreads()
        self._follows_scheduler = True
        self._governor_state: Spent | None = None
        self._worked_ns = 0  # targets' time on a CPU since the governor's first look
        self._is_new = True
        self._silent_hits = SilentHits(lambda probes: self._engine.silent_hits(probes), self._worth)
        self._started: Matcher | None = None
        self.launched_gpu: LaunchedHelper | None = None
        """How the GPU helper gets into a command that was launched; None: the targets were running already."""
        self._gpu: GpuWatch | None = None
        self._gpu_preparation: GpuPreparation | None = None
        self._following: Following | None = None
        # Of followed processes that have ended and been forgotten.
        self._ended_cpu_ns = self._ended_waited_ns = self._last_end_ns = 0

    def __enter__(self) -> Profiler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _engine(self) -> Engine:
        if self._loaded is None:
            raise RuntimeError("attach first")
        return self._loaded

    @property
    def _matcher(self) -> Matcher:
        if self._started is None:
            raise RuntimeError("attach first")
        return self._started

    @property
    def _samples_all(self) -> bool:
        """Whether samples tell what every thread does, whatever is probed."""
        return self.options.mode == "sample"

    @property
    def targets(self) -> tuple[Target, ...]:
        """The profiled processes."""
        return tuple(self._targets.values())

    def _load(self, preparation: Preparation) -> None:
        self._loaded = preparation.engine()
        if self.calibrate is not None:
            self.costs = ProbeCosts(self.calibrate(self._loaded), self._loaded.method)
        try:
            self._loaded.follow_scheduler()
        except OSError as error:
            self._follows_scheduler = False
            self.notices.append(
                f"The scheduler's tracepoints are not available ({error.strerror}): waiting threads show as running."
            )

    def attach(self) -> None:
        """Attach to every process of the options. Raises ProfilerErrors; nothing stays attached then."""
        try:
            self._attach_all()
        except ProfilerError as error:
            # Whatever was missed of it, or in it, was so because it went away meanwhile.
            if self._targets and all(_has_ended(target) for target in self.targets):
                raise vanished(self.targets[0].pid) from error
            raise

    def _attach_all(self) -> None:
        processes = [inspect(pid) for pid in self._roots()]
        if self.options.follow:  # before anything is looked at, so that no child is missed
            wanted = ProcessSet(self.options.names, self.options.cgroups)
            self._following = Following(self, self.notices, wanted=wanted)
            self._following.begin(self.options.pids)
        gpu = self._gpu_preparation = GpuPreparation(
            choose_attach_method(self.options.attach_method),
            self.launched_gpu.listener if self.launched_gpu is not None else None,
        )
        if expects_gpu(self.options.gpu, self.launched_gpu):
            gpu.begin()
        plans: list[tuple[Target, list[Plan]]] = []
        with self.preparation or Preparation(self.options.attach_method) as preparation:
            for process in processes:
                target = self._targets[process.pid] = Target(process, MapsWatcher(process.pid), open_pidfd(process))
                target.unplanned = target.watcher.poll() or []
            self._make_planners()
            plans += [(target, target.plan(target.take_unplanned())) for target in self.targets]
            self._load(preparation)
        for target, planned in plans:
            self._engine.watch_loads(target.pid)
            self._attach_planned(target, planned)
        if not self.patient and not self._samples_all and not any(target.telling for target in self.targets):
            raise UnsupportedError(
                "No probe could be set in the target: it has no interpreter, no markers and no known library.",
                "Annotate it with rlscope_ebpf.markers, or name its libraries with --library.",
            )
        # Setting the probes takes a while. None counts before all are there: with markers but without the calls that
        # they enclose, figures would be wrong.
        self._loaded_ns = start_ns = monotonic_ns()
        self._started = Matcher(start_ns, thread_name=thread_name, costs=self.costs if self.costs.calibrated else None)
        registry = self._started.registry
        self._gpu = GpuWatch(self.options.gpu, gpu, registry, self.notices, self.launched_gpu)
        for target, planned in plans:
            target.start_ns = start_ns
            self._let_through(target, planned)
        if self._samples:
            self._sample(start_ns, Category)
        if self._following:
            self._following.adopt(self._targets)
        self.info = self._session_info(start_ns)

    def _roots(self) -> list[int]:
        """The processes, but for those that another one has forked and that still run its program."""
        pids = self.options.pids
        if not self.options.follow or len(pids) == 1:
            return list(pids)
        images = {pid: read_image(pid) for pid in pids}
        return [pid for pid in pids if images[pid] is None or images.get(parent_of(pid) or 0) != images[pid]]

    def run(self, stop: threading.Event) -> SessionEnd:
        """Capture until `stop` is set, the duration is over or every target has ended. Then finish the sinks.

        Probes are then taken away in the background.
        """
        if self.info is None:
            raise RuntimeError("attach first")
        for sink in self.sinks:
            sink.start(self.info)
        reason = "detached"
        deadline = self.info.start_ns + int(self.options.duration_s * 1e9) if self.options.duration_s else None
        next_maps = next_governor = monotonic_ns()
        while not stop.is_set():
            now = monotonic_ns()
            if deadline and now >= deadline:
                reason = "duration"
                break
            if self._following:
                self._following.turn()
            if now >= next_maps or self._has_loaded():
                self._look_at_targets(now)
                self._look_at_rules(now - self._loaded_ns >= QUIET_NS)
                loading = now - self._loaded_ns < LOADING_S * 1e9
                next_maps = now + int((LOADING_TURN_S if loading else MAPS_TURN_S) * 1e9)
                if self._have_all_ended():
                    reason = "exited"
                    break
            if now - self.info.start_ns >= ACCOUNTING_NS:
                self._accounting.begin(self._targets, now)
            self._turn(now - SETTLE_NS)
            first = self._is_new or now - self.info.start_ns < FIRST_S * 1e9
            if now >= next_governor:
                next_governor = now + int((FIRST_TURN_S if first else GOVERNOR_TURN_S) * 1e9)
                self._govern()
            if self._engine.pending_events() < BUSY_EVENTS:
                turn_s = FIRST_TURN_S if first else TURN_S
                pause = min(turn_s, max(0, min(next_maps, next_governor) - monotonic_ns()) / 1e9)
                if self._following:
                    self._following.wait(pause)
                else:
                    stop.wait(pause)
        end_ns = self._drain(reason)
        end = SessionEnd(ended_at=_rfc3339(), end_ns=end_ns, reason=reason)
        for sink in self.sinks:
            sink.finish(end)
        self._engine.begin_detach()
        if self._gpu:
            self._gpu.close()
        keep_what_was_found()
        return end

    @property
    def probes_to_detach(self) -> int:
        """Probes that are still being taken away once `run` has ended; `close` waits for them."""
        return self._loaded.probes_to_detach if self._loaded else 0

    def wait_until_detached(self, seconds: float) -> bool:
        """Wait until they are gone; whether they are."""
        return self._loaded.wait_until_detached(seconds) if self._loaded else True

    def close(self) -> None:
        """Detach from everything. Safe to call twice."""
        self._end_guards()
        if self._gpu:
            self._gpu.close()
        self._accounting.close()
        if self._gpu_preparation:
            self._gpu_preparation.close()
        if self._following:
            self._following.close()
        if self._loaded:
            self._loaded.close()
            self._loaded = None
        for target in self._targets.values():
            if target.pidfd >= 0:
                os.close(target.pidfd)
                target.pidfd = -1

    # Processes that come and go

    def begin_process(self, pid: int, parent: int, *, executed: bool) -> int | None:
        """Profile one more process; since when. None if it has ended or cannot be profiled."""
        older = self._targets.get(pid)
        if older is not None:
            if not _has_ended(older) or pid in self.options.pids:
                return None
            self._reuse(older)
        origin = self._targets.get(parent)
        alike = origin is not None and not executed and origin.image == read_image(pid)
        try:
            process = inspect_forked(pid, origin.process) if origin is not None and alike else inspect(pid)
            target = Target(process, MapsWatcher(pid), open_pidfd(process), parent=parent)
        except ProfilerError:
            return None
        alike = alike and origin is not None and origin.image == target.image
        plans: list[Plan] = []
        self._engine.watch_loads(pid)
        try:
            if origin is not None and alike:
                self._engine.attach_alike(pid, parent)
                target.planners = tuple(planner.forked(pid) for planner in origin.planners)
                for planner in target.planners:
                    planner.avoid_returns()
                target.replan = True
                target.watcher.objects.update(origin.watcher.objects)
                target.follows_gil = origin.follows_gil
            else:
                target.unplanned = target.watcher.poll() or []
                target.planners = self._planners_of(process, self._engine.method)
                for planner in target.planners:
                    planner.avoid_returns()
                plans = [target.planners[0].plan(target.unplanned)]
                target.replan = True
        except ProfilerError:  # it ends at this moment
            os.close(target.pidfd)
            self._engine.remove_target(pid)
            return None
        self._targets[pid] = target
        if not alike:
            self._attach_planned(target, plans)
        self._loaded_ns = target.start_ns = monotonic_ns()
        found = target.unplanned
        self._let_through(target, plans)
        target.unplanned = found + target.unplanned
        target.planning = BackgroundPlan(target.planners[-1], target.take_unplanned())
        if self._samples:
            self._sampler.look(pid)
        return target.start_ns

    def has_process(self, pid: int) -> bool:
        """Whether a process is being profiled."""
        return pid in self._targets and not _has_ended(self._targets[pid])

    def _reuse(self, target: Target) -> None:
        """The id of a process that has ended is that of another one by now."""
        target.end_ns = target.end_ns or monotonic_ns()
        self._matcher.update_process(target.info())
        self._catch_up(monotonic_ns() - SETTLE_NS)
        self._forget(target, target.end_ns)
        self.notices.append(
            f"Two processes had the id {target.pid}, one after the other: their figures are added together."
        )

    def note_process(self, info: ProcessInfo) -> None:
        """Let the sinks know of a process of which nothing was seen."""
        if info.pid not in self._targets:
            self._matcher.add_process(info)

    def process_executed(self, pid: int) -> None:
        """A process runs another program."""
        target = self._targets.get(pid)
        if target is not None and target.end_ns is None and target.has_executed():
            self._renew(target)

    def process_ended(self, pid: int, time_ns: int, status: int | None) -> None:
        """The main thread of a process has ended."""
        target = self._targets.get(pid)
        if target is None:
            return
        target.exit_status = status
        if _has_ended(target):  # or threads go on without the main thread
            target.exit_ns = time_ns
        if target.end_ns is not None:  # seen before this was told
            target.end_ns = min(target.end_ns, max(time_ns, target.start_ns))
            self._matcher.update_process(target.info())

    def _have_all_ended(self) -> bool:
        if self._following and self._following.waits and not self.patient:
            return False
        wanted = self.options.pids if self.patient else self._targets
        return all(self._targets[pid].end_ns is not None for pid in wanted)

    def _forget_ended(self, now_ns: int) -> None:
        """Let go of followed processes that have ended a while ago, so that their number costs nothing."""
        for target in self.targets:
            if target.end_ns is None or target.pid in self.options.pids or now_ns - target.end_ns < FORGET_NS:
                continue
            self._forget(target, target.end_ns)

    def _forget(self, target: Target, end_ns: int) -> None:
        del self._targets[target.pid]
        self._engine.remove_target(target.pid)
        os.close(target.pidfd)
        target.pidfd = -1
        self._ended_cpu_ns += target.cpu_ns
        self._ended_waited_ns += target.runqueue_ns
        self._last_end_ns = max(self._last_end_ns, end_ns)

    # Attaching

    def _make_planners(self) -> None:
        """Give each target its planners: markers first, which are quickly found and which all figures hang on."""
        method = choose_attach_method(self.options.attach_method)
        for target in self.targets:
            target.planners = self._planners_of(target.process, method)
        for target in self.targets:
            reason = why_switching(target, target.unplanned, alone=method == "session" and len(self._targets) == 1)
            if reason:
                self._avoid_returns(reason)

    def _planners_of(self, process: TargetProcess, method: str) -> tuple[Planner, ...]:
        return tuple(
            Planner(
                process.pid,
                self.options.libraries,
                markers=self.options.markers,
                groups=groups,
                avoid_returns=not process.allows_return_probes,
                avoid_frame_returns=nests_deeply(process, method),
            )
            for groups in ((_FIRST,) if self._samples_all else (_FIRST, ALL_GROUPS - _FIRST))
        )

    def _guard_returns(self, target: Target, new: Sequence[MappedObject], loads: int) -> None:
        """Having looked at what a target has loaded, allow its calls return probes or take them away."""
        target.loads = loads
        if self._avoids_returns or target.parent is not None:  # a followed process never has any
            return
        reason = why_switching(target, new, loads=loads)
        if reason:
            self._avoid_returns(reason)
        else:
            self._engine.allow_returns(target.pid, loads)

    def _end_guards(self) -> None:
        for guard in self._guards:
            guard.end()
        self._guards.clear()

    def _avoid_returns(self, reason: str) -> None:
        """Use no return probes on calls any more.

        In none of the targets: where two of them map the same file, the kernel gives a call in the one a return probe
        for the sake of the other.
        """
        if self._avoids_returns:
            return
        self._avoids_returns = True
        self.notices.append(reason)
        for target in self.targets:
            for planner in target.planners:
                planner.avoid_returns()
            if self._loaded:
                self._loaded.allow_returns(target.pid, None)
                self._loaded.detach_returns(target.pid)
                self._tally.remove(target.returning)
                target.returning.clear()
                target.expected = [each for each in target.expected if not _goes_with_returns(each[0])]
                target.replan = True
        if self._loaded:
            self._loaded.shed(Group.GATE)
            self._tally.remove_group(Group.GATE)

    def _has_loaded(self) -> bool:
        """Whether a target has loaded something that has not been looked at."""
        return not self._avoids_returns and any(
            self._engine.loads(target.pid) != target.loads for target in self.targets if target.end_ns is None
        )

    def _attach_planned(self, target: Target, plans: list[Plan]) -> None:
        """Set a target's probes; their hits are let through later."""
        for plan in plans:
            self._attach(target, plan)
        self._expect(target, plans)

    def _let_through(self, target: Target, plans: list[Plan]) -> None:
        """Begin to profile a target whose probes are set."""
        process = target.process
        self._matcher.add_process(target.info())
        self._unseen.begin(target.pid)
        if _has_ended(target):
            # What its threads did is not to be guessed.
            self.notices.append(f"Process {target.pid} ended while its probes were being set: nothing is known of it.")
            return
        loads = self._engine.loads(target.pid)  # before the look, so that nothing is missed
        target.polled_ns = monotonic_ns()
        target.unplanned = target.watcher.poll() or []
        self._check_expected(target, target.unplanned)
        self._guard_returns(target, target.unplanned, loads)
        if (
            target.parent is None
            and target.expects_returns
            and self._engine.method == "session"
            and not self._avoids_returns
        ):
            self._guards.append(ReturnGuard(self._engine, target.pid))
        known = self._seed(target, target.start_ns)
        follows_gil = target.follows_gil = target.follows_gil or Group.GIL in _groups(plans)
        self._engine.add_target(
            target.pid, is_python=process.is_python, assume_held=process.is_python and not follows_gil
        )
        self._seed_again(target, known)
        self._follow_interpreter(target, target.watcher.objects.values())
        if self._gpu:
            self._gpu.look(target, target.watcher.objects.values())

    def _follow_interpreter(self, target: Target, objects: Iterable[MappedObject]) -> None:
        """Look by the clock which threads run Python, if the interpreter is among `objects`."""
        image = target.process.python.image if target.process.python else None
        loop = interpreter_loop(target.pid, [mapped for mapped in objects if mapped.path == image])
        if loop is None:
            return
        self._sampler.find_interpreter(target.pid, str(image), loop)
        with suppress(OSError):  # then a thread that never releases the interpreter lock is `other`
            self._engine.follow_interpreter(target.pid, *loop)

    def _sample(self, since_ns: int, categories: Iterable[Category]) -> None:
        """Let the clock's samples tell, from a moment on, the time that probes take for these categories."""
        try:
            limit = self.options.max_overhead / 100
            part = ALONE_OF_LIMIT if self._samples_all else BESIDE_OF_LIMIT
            self._engine.sample(follow=self._samples_all, most=part * limit if limit else 1.0)
        except OSError as error:
            raise UnsupportedError(
                f"The clock for sampling cannot be had: {error.strerror}.", "Use --mode trace, which needs none."
            ) from error
        self._samples = True
        for target in self.targets:
            self._sampler.look(target.pid)
        self._sampler.begin(since_ns, categories)

    def _fill_in(self, group: Group, since_ns: int) -> None:
        """Let samples tell what probes of a group would have told, had they not been taken off."""
        categories = SAMPLED_FOR.get(group)
        if self.options.mode != "auto" or not categories:
            return
        try:
            self._sample(since_ns, categories)
        except UnsupportedError as error:
            self.notices.append(f"{error.problem} Nothing stands in for the probes that were taken off.")
            return
        if not self._stands_in:
            self._stands_in = True
            self.notices.append(ImportantNotice(STANDS_IN))

    def _expect(self, target: Target, plans: Sequence[Plan]) -> None:
        """Probe libraries before a target has loaded them: the markers', and those that the user gave the paths of.

        The kernel sets the probes the moment the file is mapped, so that not even the first annotation is missed. (In a
        session, calls with return probes are followed a moment later: see ReturnGuard.)
        """
        paths = [library.file for library in self.options.libraries if library.file]
        paths += [marker.file for marker in self.options.markers if marker.file]
        planners = target.planners if paths else target.planners[:1]
        if paths:
            paths += _c_libraries(target)
        if Group.MARKER not in _groups(plans):
            paths += marker_libraries(target.pid, target.watcher.objects.values())
            with suppress(UnsupportedError):
                paths.append(str(marker_library()))
        known = {mapped.path for mapped in target.watcher.objects.values()}
        expected = [expected_object(target.pid, path) for path in dict.fromkeys(paths) if path not in known]
        files = [mapped for mapped in expected if mapped is not None]
        if files:
            for planner in planners:
                self._attach(target, planner.plan(files))

    def _seed(self, target: Target, time_ns: int) -> set[int]:
        """Tell programs and matcher what the target has said before: phase, metadata, open operations.

        Returns the threads that have used a marker.
        """
        objects = target.watcher.objects.values()
        said = read_process_markers(target.pid, objects)
        if said is not None:
            idle = sleeps(target.pid, target.pid) or not target.process.is_python
            texts, events = process_records(said, target.pid, time_ns, Category.OTHER if idle else Category.PYTHON)
            self._matcher.add_texts(texts)
            # Now, so that the operations seeded below begin in this phase; but what others did up to now has not been
            # read, so none of their time is handed out.
            self._early.append(self._matcher.process(events, 0))
        stacks = {stack.tid: stack for stack in read_thread_stacks(target.pid, objects)}
        for stack in stacks.values():
            self._engine.add_marker_record(target.pid, stack.tid, stack.record_address)
        main = {target.pid} if self._samples_all or target.is_told_of else set()
        for tid in main | {tid for tid, stack in stacks.items() if stack.depth}:
            names = stacks[tid].names if tid in stacks else ()
            # Who sleeps does not run Python, whatever it waits for.
            asleep = sleeps(target.pid, tid)
            category = Category.OTHER if asleep else None
            self._matcher.seed_thread(target.pid, tid, names, time_ns, category, asleep=asleep)
        return set(stacks)

    def _seed_again(self, target: Target, known: set[int]) -> None:
        """The same for threads that have come between the first look and the moment from which on they are heard."""
        stacks = read_thread_stacks(target.pid, target.watcher.objects.values())
        new = [stack for stack in stacks if stack.tid not in known]
        for stack in new:
            self._engine.add_marker_record(target.pid, stack.tid, stack.record_address)
        now = monotonic_ns()
        self._opened.watch(known, [Seed(target.pid, each.tid, each.names, now) for each in new if each.depth], now)

    def _attach(self, target: Target, plan: Plan) -> None:
        """Attach what is planned; of files that are only expected nothing is counted before they are mapped."""
        self.notices += [note for note in plan.notes if note not in self.notices]  # of several targets each says it
        allow_returns = target.process.allows_return_probes
        planned = [
            (site, planned)
            for planned in plan.targets
            if planned.group not in self._shed_groups
            for site in probe_sites(planned, allow_returns=allow_returns)
        ]
        if not planned:
            return
        # Operations by --marker carry the probe's id where others carry the hash of a name.
        first = self._engine.next_probe
        names = [
            (first + index, TextKind.NAME, function.operation)
            for index, (_, function) in enumerate(planned)
            if function.operation
        ]
        if names:
            self._own_texts.append(text_records(names))
        sites = [site for site, _ in planned]
        self.costs.add_probes(first, sites)
        self._worth.add_probes(first, sites)
        probes = self._engine.attach(target.pid, sites)
        self._definitions.extend(probes)
        self._tally.sparable.update(
            (probe.id, probe)
            for site, probe in zip(sites, probes, strict=True)
            if site.group in SPARED_SINGLY or site.group in SPARED_TOGETHER
        )
        here: list[tuple[ProbeSite, ProbeInfo]] = []
        for (site, function), probe in zip(planned, probes, strict=True):
            (here if function.object.segments else target.expected).append((site, probe))
        self._take_in(target, here)

    def _take_in(self, target: Target, probes: Sequence[tuple[ProbeSite, ProbeInfo]]) -> None:
        """Count probes that can be hit."""
        if not target.telling and any(site.action not in _TELL_NOTHING for site, _ in probes):
            target.telling = True
            if target.start_ns and not target.process.is_python and not self._samples_all:
                self._matcher.seed_thread(target.pid, target.pid, (), monotonic_ns() - SETTLE_NS)
        target.returning += [probe for site, probe in probes if _goes_with_returns(site)]
        self._tally.add([probe for _, probe in probes])

    def _session_info(self, start_ns: int) -> SessionInfo:
        capture = self.options.as_dict() | {"attach_method": self._engine.method}
        gpu = self._gpu.source if self._gpu else GpuSource("off")
        return SessionInfo(
            tool_version=__version__,
            host=platform.node(),
            kernel=kernel_release(),
            started_at=_rfc3339(),
            start_ns=start_ns,
            realtime_offset_ns=_realtime_offset_ns(),
            gpu=gpu.mode,
            gpu_reason=gpu.reason,
            capture=capture,
            calibration=self.costs.as_dict(),
        )

    # Turns

    def _turn(self, now_ns: int, end_ns: int | None = None) -> None:
        """Take what is in the rings, match it, hand it out. What happened after `end_ns` is left out."""
        events = self._engine.read_events()
        self._received += len(events)
        if self._engine.pending_events():
            # More is waiting, perhaps behind an event that is still being written: time is handed out only as far as
            # it has been read.
            now_ns = min(now_ns, int(events["time_ns"].max(initial=0)) - SETTLE_NS)
        if end_ns is not None:
            events = events[events["time_ns"] <= end_ns]
        self.costs.observe(events)
        counters = self._read_counters()
        self.costs.watch(counters)  # so that already these events are charged what such hits cost
        if self._samples:  # after the events, so that every sample is there whose time is handed out
            self._sampler.take(self._engine.read_samples())
        self._take_texts(self._engine.read_texts())
        for seed in self._opened.take(events):
            self._matcher.seed_thread(seed.pid, seed.tid, seed.names, seed.time_ns)
        for own in self._own_texts:
            self._matcher.add_texts(own)
        self._own_texts.clear()
        self._hand_out_early(counters)
        now_ns = max(now_ns, self.info.start_ns if self.info else 0)
        self._hand_out(self._matcher.process(events, now_ns), counters)

    def _hand_out_early(self, counters: ProbeCounters) -> None:
        for batch in self._early:
            self._hand_out(batch, counters)
        self._early.clear()

    def _catch_up(self, now_ns: int, end_ns: int | None = None, patience: int = 1) -> None:
        """Take all that is in the ring now, however much. `patience`: looks at an event that is still being written."""
        everything = self._received + self._engine.pending_events()  # but for what comes from now on
        while patience:
            before = self._received
            self._turn(now_ns, end_ns)
            if self._received >= everything:
                break
            if self._received == before:
                patience -= 1
                time.sleep(SETTLE_NS / 1e9)

    def _take_texts(self, texts: NDArray[np.void]) -> None:
        if not len(texts):
            return
        open_operations = texts["kind"] == TextKind.OPEN_OPS
        self._matcher.add_texts(texts[~open_operations])
        for text in texts[open_operations]:  # once per thread that was there at attach
            depth = min(int(text["key"]), OPEN_OPS_MAX)
            addresses = [int(address) for address in np.frombuffer(text["text"].tobytes(), "<u8")[:depth]]
            names = read_names(int(text["pid"]), addresses)
            if all(names):  # or the process has ended meanwhile: what was read of it before stands
                self._matcher.seed_thread(int(text["pid"]), int(text["tid"]), names, int(text["time_ns"]), None)

    def _hand_out(
        self, batch: Batch, counters: ProbeCounters, *, last: bool = False, queued_since_ns: int | None = None
    ) -> None:
        if self._definitions:
            batch.definitions.extend(self._definitions)
            self._definitions.clear()
        if self._samples:
            self._sampler.place(batch, cost_of_sample_ns(counters, self._engine.interrupt_ns))
        else:
            self._sampler.define(batch.definitions)
        batch.losses = self._losses(batch.losses, counters)
        self._accounting.add(batch)
        self._unseen.add(batch)
        batch.counters = self._work(counters)
        if last:
            batch.counters = self._accounting.compare(batch.counters)
            self.notices += self._unseen.said(certain=self._follows_scheduler and not batch.losses.events)
        if self._gpu:
            self._gpu.advance(batch, last=last, queued_since_ns=queued_since_ns)
        if "intervals" in batch.tables:
            self._worth.add(batch.tables["intervals"])
        batch.notices = self.notices[self._notices_given :]
        self._notices_given += len(batch.notices)
        for sink in self.sinks:
            sink.batch(batch)

    def _on_samples_ns(self, counters: ProbeCounters) -> int:
        return spent_on_samples_ns(counters, self._engine.interrupt_ns)

    def _read_counters(self) -> ProbeCounters:
        counters = self._engine.counters()
        if self._final is not None:  # what is hit while the rings are being emptied is no longer of the session
            final = self._final
            counters = replace(counters, hits=final.hits, returns=final.returns, samples=final.samples)
        return counters

    def _losses(self, matched: Losses, counters: ProbeCounters) -> Losses:
        return replace(
            matched,
            events=counters.lost_events,
            not_followed=counters.not_followed,
            texts=counters.lost_texts,
            threads=counters.lost_threads,
            samples=counters.lost_samples,
            healed=matched.healed + counters.healed,
        )

    def _work(self, counters: ProbeCounters) -> Counters:
        hits = counters.hits.sum(axis=0)
        return Counters(
            received=self._received,
            sent=counters.sent,
            hits=counters.total_hits,
            hits_by_class={
                "nop5/entry": int(hits[0]),
                "emulated/entry": int(hits[1]),
                "stepped/entry": int(hits[2]),
                "return": int(counters.returns.sum()),
            },
            estimated_overhead_ns=self.costs.spent_ns(counters) + self._on_samples_ns(counters),
            samples=counters.samples,
            probes_attached=self._tally.attached,
            probes_armed=self._tally.armed,
            probes_shed=self._tally.off,
        )

    def _look_at_targets(self, now_ns: int) -> None:
        """Find ended targets and newly loaded libraries."""
        for target in self.targets:
            if target.end_ns is not None:
                continue
            ended = _has_ended(target)
            self._look_at_threads(target, now_ns, last=ended)
            if not ended and target.has_executed():
                self._renew(target)
            loads = self._engine.loads(target.pid)  # before the look, so that nothing is missed
            since_ns, target.polled_ns = target.polled_ns, monotonic_ns()
            new = None if ended else target.watcher.poll()
            if new is None:
                target.end_ns = now_ns if target.exit_ns is None else target.exit_ns
                self._matcher.update_process(target.info())
                continue
            if new:
                self._loaded_ns = now_ns
                if not target.process.is_python:
                    self._look_again(target)
            unexpected = self._check_expected(target, new)
            self._follow_interpreter(target, new)
            if new and self._samples:
                self._sampler.look(target.pid)
            if self._gpu:
                self._gpu.look(target, new)
            self._guard_returns(target, new, loads)
            new += target.take_unplanned()
            if target.planning is not None:
                if not target.planning.done:
                    target.unplanned = new
                    continue
                self._attach(target, target.planning.result())
                target.planning = None
            plans = []
            for planner in target.planners:
                if new or planner.incomplete or target.replan:
                    if target.parent is not None and planner is not target.planners[0]:
                        target.planning = BackgroundPlan(planner, new)
                        continue
                    plan = planner.plan(new)
                    plans.append(plan)
                    if any(probe.group == Group.MARKER and not probe.operation for probe in plan.targets):
                        moment = monotonic_ns() - SETTLE_NS
                        self._catch_up(moment)  # what is in the ring came before
                        self._seed(target, moment)
                    self._attach(target, plan)
            target.replan = False
            took_ns = monotonic_ns() - since_ns
            self.notices += filter(None, (lateness(unexpected, plans, took_ns), late_markers(plans, took_ns)))
        self._forget_ended(now_ns)

    def _look_at_threads(self, target: Target, now_ns: int, *, last: bool = False) -> None:
        self._unseen.look(target.pid, now_ns, tells=self._samples_all or target.is_told_of, last=last)

    def _renew(self, target: Target) -> None:
        """A target runs another program: plan for that. What its old program did has ended, as the kernel told."""
        image = read_image(target.pid)
        if image is None or not self._look_again(target):
            return
        target.image = image  # as before the look: what it executes meanwhile is noticed next time
        target.watcher = MapsWatcher(target.pid)
        older = target.planners
        target.planners = self._planners_of(target.process, self._engine.method)
        for planner, old in zip(target.planners, older, strict=True):
            if target.planning is not None and old is older[-1]:  # what it has found will not be attached any more
                planner.avoid_returns()
            else:
                planner.take_over(old)
        target.planning = None
        self._expect(target, ())  # the new program may be another interpreter, with other packages
        moment = monotonic_ns() - SETTLE_NS
        self._catch_up(moment)  # what is in the ring came before
        if self._samples_all or target.is_told_of:
            self._matcher.seed_thread(target.pid, target.pid, (), moment)

    def _look_again(self, target: Target) -> bool:
        """See what a target is now; whether it can be seen."""
        try:
            target.process = inspect(target.pid)
        except ProfilerError:  # it ends, or executes another program, at this moment
            return False
        self._matcher.update_process(target.info())
        is_python = target.process.is_python
        assume_held = is_python and Group.GIL in self._shed_groups
        self._engine.add_target(target.pid, is_python=is_python, assume_held=assume_held)
        return True

    def _look_at_rules(self, complain: bool) -> None:
        """Say what the user named and the targets do not have."""
        planners = (target.planners[0] for target in self._targets.values())
        # Between the last look and its end a program may have loaded what is expected of it.
        ended = [target for target in self._targets.values() if target.end_ns is not None]
        spared = {site.library for target in ended for site, _ in target.expected}
        self.notices += self._rules.look(planners, complain=complain, spared=spared)

    def _check_expected(self, target: Target, new: Sequence[MappedObject]) -> list[MappedObject]:
        """Count the probes on expected files that are mapped now. Returns the objects that were not expected."""
        others = []
        for mapped in new:
            came = [(site, probe) for site, probe in target.expected if site.library == mapped.path]
            if came:
                target.expected = [(site, probe) for site, probe in target.expected if site.library != mapped.path]
                came = [(site, probe) for site, probe in came if site.group not in self._shed_groups]
                placed = [replace(site, address=mapped.address(site.offset) or 0) for site, _ in came]
                armed = armed_sites(target.pid, placed)
                probes = [replace(probe, armed=bool(up)) for (_, probe), up in zip(came, armed, strict=True)]
                self._definitions.extend(probes)
                sparable = self._tally.sparable
                sparable.update((probe.id, probe) for probe in probes if probe.id in sparable)
                self._take_in(target, list(zip(placed, probes, strict=True)))
            else:
                others.append(mapped)
        return others

    def _expected_were_hit(self) -> bool:
        """Whether a library was used whose coming was not noticed: the target may have ended first."""
        sites = [site for target in self.targets for site, _ in target.expected]
        groups = {site.group for site in sites if site.action not in _TELL_NOTHING}
        return bool((self._final or self._engine.counters()).hits[list(groups)].any())

    def _govern(self) -> None:
        if not self.options.max_overhead:
            return
        now_ns, counters = monotonic_ns(), self._read_counters()
        sampled_ns = self._on_samples_ns(counters)
        gpu_ns = self._gpu.spent_ns if self._gpu else 0.0
        spent = read_spent(now_ns, self.costs, self._worth, counters, sampled_ns, self._targets.values(), gpu_ns)
        spent = replace(
            spent, cpu_ns=spent.cpu_ns + self._ended_cpu_ns, waited_ns=spent.waited_ns + self._ended_waited_ns
        )
        previous, self._governor_state = self._governor_state, spent
        if previous is None:
            return
        self._look_at_speed(spent.cpu_ns - previous.cpu_ns, spent.time_ns - previous.time_ns)
        found = shares(previous, spent, self._worth, self._engine.ticks_share, silent=self._silent_hits)
        settled = not self._engine.probes_to_detach
        decision = self._governor.decide(
            now_ns / 1e9, found.turn_s, found.whole, found.units, settled=settled, fixed=found.fixed
        )
        self._carry_out(decision)
        self.notices += self._shed_notices.tell(decision, now_ns / 1e9)
        for group in dict.fromkeys(unit.group for unit in decision.off):
            self._fill_in(group, now_ns)

    def _look_at_speed(self, cpu_ns: int, time_ns: int) -> None:
        """Whether the next turns are short ones: until the targets have worked for a while."""
        self._worked_ns += cpu_ns
        self._is_new = self._worked_ns < FIRST_S * 1e9 and cpu_ns > WORKS * time_ns

    def _carry_out(self, decision: Decision) -> None:
        for units, is_off in ((decision.off, True), (decision.back, False)):
            if not units:
                continue
            functions = [function for unit in units for function in self._worth.functions(unit)]
            if is_off:
                self._engine.take_off(functions, busy=np.flatnonzero(self.costs.told_by_probe_ns()).tolist())
            else:
                self._engine.put_back(functions)
            for function in functions:
                self._tally.mark((function, *self._engine.exits_of(function)), is_off)
            for unit in units:
                self._mark_group(unit, is_off)

    def _mark_group(self, unit: Unit, is_off: bool) -> None:
        if unit.function:
            return
        (self._shed_groups.add if is_off else self._shed_groups.discard)(unit.group)
        if unit.group == Group.GIL:
            self._engine.assume_gil(is_off)

    def _at_one_moment(self) -> tuple[int, ProbeCounters]:
        """A time and the counters then. Reading them takes a tenth of a millisecond, or more if others are at work."""
        looks: list[tuple[int, int, ProbeCounters]] = []
        for _ in range(_MOMENTS):
            before = monotonic_ns()
            counters = self._engine.counters()
            now = monotonic_ns()
            looks.append((now - before, now, counters))
        _, now, counters = min(looks, key=lambda look: look[0])
        return now, counters

    def _drain(self, reason: str) -> int:
        """Read what is left, close what is open. Returns the end of the session."""
        # Detaching takes a while, with some methods minutes, and probes go one after the other: the session ends, and
        # its sinks are finished, before the first of them does.
        self._end_guards()
        end_ns, self._final = self._at_one_moment()
        self._accounting.read_end()
        for target in self.targets:
            if target.end_ns is None:
                self._look_at_threads(target, end_ns, last=True)
        if self._following:
            self._following.finish()
        self._look_at_rules(complain=True)
        self.notices += self._shed_notices.last_word()
        told = self._samples_all or any(target.telling for target in self.targets)
        if not told and not self._expected_were_hit():
            self.notices.append(NOTHING_TO_PROBE)
        time.sleep(2 * SETTLE_NS / 1e9)
        self._catch_up(end_ns - SETTLE_NS, end_ns, _DRAIN_LOOKS)
        self._hand_out_early(self._read_counters())
        if self._gpu:
            self._gpu.settle()
        ends = [target.end_ns for target in self._targets.values()]
        if reason == "exited":
            end_ns = max(self._last_end_ns, *(end for end in ends if end is not None))
        for target in self._targets.values():
            if target.end_ns is None:
                target.end_ns = end_ns
            self._matcher.update_process(target.info())
        queued_since_ns = None if reason == "exited" else end_ns - QUEUED_NS
        last = self._matcher.finish(end_ns)
        self._hand_out(last, self._read_counters(), last=True, queued_since_ns=queued_since_ns)
        return end_ns


def _has_ended(target: Target) -> bool:
    return bool(select.select([target.pidfd], [], [], 0)[0])


def _goes_with_returns(site: ProbeSite) -> bool:
    """Whether Engine.detach_returns takes its probe away."""
    return site.returns and site.group != Group.CUDA


def _c_libraries(target: Target) -> list[str]:
    """What the target will have for a C library, which says what its libraries' functions call; none if it has one."""
    if any(mapped.name.startswith(C_LIBRARIES[0]) for mapped in target.watcher.objects.values()):
        return []
    return [mapped.path for mapped in read_maps(os.getpid()) if mapped.name.startswith(C_LIBRARIES)]


def _groups(plans: Sequence[Plan]) -> set[Group]:
    return {probe.group for plan in plans for probe in plan.targets}


def _rfc3339() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def _realtime_offset_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_REALTIME) - monotonic_ns()
