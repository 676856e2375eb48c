"""A profiling session: attach to processes, turn what their probes send into batches, hand them to the sinks."""

from __future__ import annotations

import gc
import platform
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from types import TracebackType

from rlscope_ebpf import __version__
from rlscope_ebpf.capture.engine import MAX_READ, Engine
from rlscope_ebpf.capture.gpu import GpuPreparation
from rlscope_ebpf.capture.kernel import choose_attach_method, kernel_release
from rlscope_ebpf.capture.maps import MapsWatcher
from rlscope_ebpf.capture.plan import Plan
from rlscope_ebpf.capture.preparation import Preparation
from rlscope_ebpf.capture.priority import come_as_usual, come_first
from rlscope_ebpf.capture.process import inspect, load_what_inspecting_takes, open_pidfd, vanished
from rlscope_ebpf.capture.process_sets import ProcessSet
from rlscope_ebpf.errors import ProfilerError, UnsupportedError
from rlscope_ebpf.model.calibration import Calibration
from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.model.session import SessionEnd, SessionInfo, Sink
from rlscope_ebpf.model.tables import GpuSource
from rlscope_ebpf.session.background import keep_what_was_found
from rlscope_ebpf.session.budget import Budget
from rlscope_ebpf.session.context import SETTLE_NS, Context
from rlscope_ebpf.session.costs import ProbeCosts
from rlscope_ebpf.session.delivery import Delivery
from rlscope_ebpf.session.following import Following, parent_of
from rlscope_ebpf.session.governor import FIRST_S, FIRST_TURN_S
from rlscope_ebpf.session.governor import TURN_S as GOVERNOR_TURN_S
from rlscope_ebpf.session.gpu_launch import LaunchedHelper
from rlscope_ebpf.session.gpu_watch import QUEUED_NS, GpuWatch, expects_gpu
from rlscope_ebpf.session.matching import Matcher
from rlscope_ebpf.session.options import CaptureOptions
from rlscope_ebpf.session.probing import Probing
from rlscope_ebpf.session.processes import Processes
from rlscope_ebpf.session.returns import ReturnProbes
from rlscope_ebpf.session.rules import NOTHING_TO_PROBE, QUIET_NS, RuleWatch
from rlscope_ebpf.session.sample_clock import SampleClock
from rlscope_ebpf.session.seeding import Seeding
from rlscope_ebpf.session.target import Target, monotonic_ns, read_image, thread_name

TURN_S = 0.25
"""Between two looks at the ring, when little is in it: each takes a few milliseconds of a CPU, whatever it finds."""

SHORT_READ = 1 << 14
"""Events that are matched at a time, in a hundredth of a second, where new processes may want their probes."""

MAPS_TURN_S = 0.3
"""Between two looks for newly loaded libraries."""

LOADING_TURN_S = 0.05
"""The same while a target is loading: at its start, and for `LOADING_S` after each new library."""

LOADING_S = 1.0

ACCOUNTING_NS = 1_000_000_000
"""After so long the kernel's accounts are read for the first time: not while an attach wants all the time there is."""

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
        self.info: SessionInfo | None = None
        self.preparation: Preparation | None = None
        """May be set before `attach`, which otherwise makes its own."""
        self.patient = False
        """A target without anything to probe is not refused: it has just been started, and may load or execute it."""
        self.calibrate: Callable[[Engine], Calibration | None] | None = None
        """Tells what probes cost on this host, given an engine that has no targets yet; asked while attaching."""
        self.launched_gpu: LaunchedHelper | None = None
        """How the GPU helper gets into a command that was launched; None: the targets were running already."""
        context = self._context = Context(options)
        self.notices = context.notices
        self._rules = RuleWatch(options)
        self._clock = SampleClock(context)
        self._seeding = Seeding(context)
        self._probing = Probing(context)
        self._returns = ReturnProbes(context, self._probing.tally)
        self._delivery = Delivery(context, self._probing, self._seeding, self._clock, self.sinks)
        self._budget = Budget(context, self._probing, self._clock, self._delivery)
        self._processes = Processes(
            context, self._probing, self._returns, self._seeding, self._clock, self._delivery, self._budget
        )
        self._gpu_preparation: GpuPreparation | None = None
        self._following: Following | None = None
        self._comes_first = False

    def __enter__(self) -> Profiler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def targets(self) -> tuple[Target, ...]:
        """The profiled processes."""
        return self._context.targets

    @property
    def costs(self) -> ProbeCosts:
        """What probes cost; known once attached."""
        return self._context.costs

    # Attaching

    def attach(self) -> None:
        """Attach to every process of the options. Raises ProfilerErrors; nothing stays attached then."""
        if self.options.follow:  # new processes are to be profiled soon
            self._comes_first = come_first()
        try:
            self._attach_all()
        except ProfilerError as error:
            # Whatever was missed of it, or in it, was so because it went away meanwhile.
            if self.targets and all(target.has_ended() for target in self.targets):
                raise vanished(self.targets[0].pid) from error
            raise

    def _attach_all(self) -> None:
        context = self._context
        processes = [inspect(pid) for pid in self._roots()]
        if self.options.follow:  # before anything is looked at, so that no child is missed
            wanted = ProcessSet(self.options.names, self.options.cgroups)
            self._following = Following(self._processes, self.notices, wanted=wanted)
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
                target = context.by_pid[process.pid] = Target(process, MapsWatcher(process.pid), open_pidfd(process))
                target.unplanned = target.watcher.poll() or []
            self._make_planners()
            plans += [(target, target.plan(target.take_unplanned())) for target in self.targets]
            self._load(preparation)
        for target, planned in plans:
            context.engine.watch_loads(target.pid)
            self._probing.attach_planned(target, planned)
        if not self.patient and not context.samples_all and not any(target.telling for target in self.targets):
            raise UnsupportedError(
                "No probe could be set in the target: it has no interpreter, no markers and no known library.",
                "Annotate it with rlscope_ebpf.markers, or name its libraries with --library.",
            )
        # Setting the probes takes a while. None counts before all are there: with markers but without the calls that
        # they enclose, figures would be wrong.
        self._processes.loaded_ns = start_ns = monotonic_ns()
        costs = self.costs if self.costs.calibrated else None
        matcher = context.started = Matcher(start_ns, thread_name=thread_name, costs=costs)
        context.gpu = GpuWatch(self.options.gpu, gpu, matcher.registry, self.notices, self.launched_gpu)
        for target, planned in plans:
            target.start_ns = start_ns
            self._processes.let_through(target, planned)
        if self._clock.runs:
            self._clock.begin(start_ns, Category)
        if self._following:
            self._following.adopt(context.by_pid)
        self._delivery.start_ns = start_ns
        self.info = self._session_info(start_ns)

    def _roots(self) -> list[int]:
        """The processes, but for those that another one has forked and that still run its program."""
        pids = self.options.pids
        if not self.options.follow or len(pids) == 1:
            return list(pids)
        images = {pid: read_image(pid) for pid in pids}
        return [pid for pid in pids if images[pid] is None or images.get(parent_of(pid) or 0) != images[pid]]

    def _make_planners(self) -> None:
        method = choose_attach_method(self.options.attach_method)
        for target in self.targets:
            target.planners = self._probing.planners(target.process, method)
        for target in self.targets:
            self._returns.look_first(target, method)

    def _load(self, preparation: Preparation) -> None:
        engine = self._context.loaded = preparation.engine()
        if self.calibrate is not None:
            self._context.costs = ProbeCosts(self.calibrate(engine), engine.method)
        try:
            engine.follow_scheduler()
        except OSError as error:
            self._delivery.follows_scheduler = False
            self.notices.append(
                f"The scheduler's tracepoints are not available ({error.strerror}): waiting threads show as running."
            )

    def _session_info(self, start_ns: int) -> SessionInfo:
        capture = self.options.as_dict() | {"attach_method": self._context.engine.method}
        gpu = self._context.gpu.source if self._context.gpu else GpuSource("off")
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

    # Running

    def run(self, stop: threading.Event) -> SessionEnd:
        """Capture until `stop` is set, the duration is over or every target has ended. Then finish the sinks.

        Probes are then taken away in the background.
        """
        if self.info is None:
            raise RuntimeError("attach first")
        for sink in self.sinks:
            sink.start(self.info)
        reason = self._capture(self.info.start_ns, stop)
        end_ns = self._drain(reason)
        end = SessionEnd(ended_at=_rfc3339(), end_ns=end_ns, reason=reason)
        for sink in self.sinks:
            sink.finish(end)
        self._context.engine.begin_detach()
        if self._context.gpu:
            self._context.gpu.close()
        keep_what_was_found()
        return end

    def _capture(self, start_ns: int, stop: threading.Event) -> str:
        """Returns why the session is over."""
        # What attaching has made stays. Looking through all of it for garbage, as Python would sooner or later, takes
        # 50 ms, in which a new process would wait for its probes.
        gc.freeze()
        if self._following:
            threading.Thread(target=load_what_inspecting_takes, name="loader", daemon=True).start()
        at_once = SHORT_READ if self._following else MAX_READ
        deadline = start_ns + int(self.options.duration_s * 1e9) if self.options.duration_s else None
        next_maps = next_governor = monotonic_ns()
        self._budget.begin(next_maps)
        while not stop.is_set():
            now = monotonic_ns()
            if deadline and now >= deadline:
                return "duration"
            self._attend()
            if now >= next_maps or self._returns.has_loaded():
                self._processes.look(now, between=self._attend)
                since_load_ns = now - self._processes.loaded_ns
                self._look_at_rules(since_load_ns >= QUIET_NS)
                loading = since_load_ns < LOADING_S * 1e9
                next_maps = now + int((LOADING_TURN_S if loading else MAPS_TURN_S) * 1e9)
                if self._have_all_ended():
                    return "exited"
            if now - start_ns >= ACCOUNTING_NS:
                self._delivery.accounting.begin(self._context.by_pid, now)
            self._attend()
            self._delivery.turn(now - SETTLE_NS, limit=at_once)
            self._attend()
            self._budget.try_out(now)
            first = self._budget.is_new or now - start_ns < FIRST_S * 1e9
            if now >= next_governor:
                next_governor = now + int((FIRST_TURN_S if first else GOVERNOR_TURN_S) * 1e9)
                self._budget.turn()
            if self._context.engine.pending_events() < at_once:  # otherwise the next turn follows at once
                turn_s = FIRST_TURN_S if first else TURN_S
                due_ns = min(next_maps, next_governor, self._budget.trial_due_s * 1e9)
                pause = min(turn_s, max(0.0, due_ns - monotonic_ns()) / 1e9)
                if self._following:
                    self._following.wait(pause)
                else:
                    stop.wait(pause)
        return "detached"

    def _attend(self) -> None:
        """See to processes that come and go: often, since nothing is seen of a new one before."""
        if self._following:
            self._following.turn()

    def _have_all_ended(self) -> bool:
        if self._following and self._following.waits and not self.patient:
            return False
        wanted = self.options.pids if self.patient else self._context.by_pid
        return all(self._context.by_pid[pid].end_ns is not None for pid in wanted)

    def _look_at_rules(self, complain: bool) -> None:
        """Say what the user named and the targets do not have."""
        planners = (target.planners[0] for target in self.targets)
        # Between the last look and its end a program may have loaded what is expected of it.
        ended = [target for target in self.targets if target.end_ns is not None]
        spared = {site.library for target in ended for site, _ in target.expected}
        self.notices += self._rules.look(planners, complain=complain, spared=spared)

    def _drain(self, reason: str) -> int:
        """Read what is left, close what is open. Returns the end of the session."""
        # Detaching takes a while, with some methods minutes, and probes go one after the other: the session ends, and
        # its sinks are finished, before the first of them does.
        context, delivery = self._context, self._delivery
        self._returns.end_guards()
        end_ns = delivery.end_counting()
        delivery.accounting.read_end()
        for target in self.targets:
            if target.end_ns is None:
                self._processes.look_at_threads(target, end_ns, last=True)
        if self._following:
            self._following.finish()
        self._look_at_rules(complain=True)
        self._budget.finish()
        told = context.samples_all or any(target.telling for target in self.targets)
        if not told and not self._probing.expected_were_hit(delivery.read_counters()):
            self.notices.append(NOTHING_TO_PROBE)
        time.sleep(2 * SETTLE_NS / 1e9)
        delivery.catch_up(end_ns - SETTLE_NS, end_ns, _DRAIN_LOOKS)
        delivery.hand_out_early()
        if context.gpu:
            context.gpu.settle()
        ends = [target.end_ns for target in self.targets]
        # Where the command of `run` has ended and something that it started lives on, that was watched up to now.
        if reason == "exited" and None not in ends:
            end_ns = max(self._processes.last_end_ns, *(end for end in ends if end is not None))
        for target in self.targets:
            if target.end_ns is None:
                target.end(end_ns)
            context.matcher.update_process(target.info())
        delivery.finish(end_ns, queued_since_ns=None if reason == "exited" else end_ns - QUEUED_NS)
        return end_ns

    # Ending

    @property
    def probes_to_detach(self) -> int:
        """Probes that are still being taken away once `run` has ended; `close` waits for them."""
        return self._context.loaded.probes_to_detach if self._context.loaded else 0

    def wait_until_detached(self, seconds: float) -> bool:
        """Wait until they are gone; whether they are."""
        return self._context.loaded.wait_until_detached(seconds) if self._context.loaded else True

    def close(self) -> None:
        """Detach from everything. Safe to call twice."""
        self._returns.end_guards()
        if self._context.gpu:
            self._context.gpu.close()
        self._delivery.accounting.close()
        if self._gpu_preparation:
            self._gpu_preparation.close()
        if self._following:
            self._following.close()
        if self._context.loaded:
            self._context.loaded.close()
            self._context.loaded = None
        for target in self.targets:
            target.close()
        gc.unfreeze()
        if self._comes_first:
            self._comes_first = False
            come_as_usual()


def _rfc3339() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def _realtime_offset_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_REALTIME) - monotonic_ns()
