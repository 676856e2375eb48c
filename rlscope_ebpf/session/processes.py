"""The processes of a session: they come, load libraries, execute other programs, and end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rlscope_ebpf.capture.cookie import Group
from rlscope_ebpf.capture.maps import MappedObject, MapsWatcher
from rlscope_ebpf.capture.placement import Setting
from rlscope_ebpf.capture.plan import Plan, Planner
from rlscope_ebpf.capture.process import inspect, inspect_forked, open_pidfd
from rlscope_ebpf.errors import ProfilerError
from rlscope_ebpf.model.tables import ProcessInfo
from rlscope_ebpf.session.background import BackgroundPlan
from rlscope_ebpf.session.budget import Budget
from rlscope_ebpf.session.context import SETTLE_NS, Context
from rlscope_ebpf.session.delivery import Delivery
from rlscope_ebpf.session.lateness import late_markers, lateness
from rlscope_ebpf.session.probing import Probing, groups_of
from rlscope_ebpf.session.returns import ReturnProbes
from rlscope_ebpf.session.sample_clock import SampleClock
from rlscope_ebpf.session.seeding import Seeding
from rlscope_ebpf.session.target import Attachment, Target, monotonic_ns, read_image

FORGET_NS = 1_000_000_000
"""A followed process that has ended is remembered for so long: what it sent may still be in the ring."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """A process whose probes are being set, in the background."""

    target: Target
    plans: list[Plan] = field(default_factory=list)
    alike: list[Setting] = field(default_factory=list)  # those of its parent
    attachments: list[Attachment] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether they are all set."""
        return all(setting.done for setting in self._settings)

    def when_done(self, call: Callable[[], None]) -> None:
        """Call that, from any thread, each time some more are set."""
        for setting in self._settings:
            setting.when_done(call)

    @property
    def _settings(self) -> list[Setting]:
        return [*self.alike, *(attachment.setting for attachment in self.attachments)]


class Processes:
    """Begins to profile processes and looks after them. Following tells it of those that come and go."""

    def __init__(
        self,
        context: Context,
        probing: Probing,
        returns: ReturnProbes,
        seeding: Seeding,
        clock: SampleClock,
        delivery: Delivery,
        budget: Budget,
    ) -> None:
        self._context = context
        self._probing = probing
        self._returns = returns
        self._seeding = seeding
        self._clock = clock
        self._delivery = delivery
        self._budget = budget
        self.loaded_ns = 0
        """When one of them last loaded something."""
        self.last_end_ns = 0
        """When the last of those ended that were forgotten."""

    # Told by Following

    def prepare_process(self, pid: int, parent: int, *, executed: bool) -> Beginning | None:
        """Begin to set the probes of one more process. None if it has ended or cannot be profiled."""
        older = self._context.by_pid.get(pid)
        if older is not None:
            if not older.has_ended() or pid in self._context.options.pids:
                return None
            self._reuse(older)
        origin = self._context.by_pid.get(parent)
        if executed or origin is None or origin.image != read_image(pid):
            origin = None  # it runs a program of its own
        try:
            process = inspect(pid) if origin is None else inspect_forked(pid, origin.process)
            target = Target(process, MapsWatcher(pid), open_pidfd(process), parent=parent)
        except ProfilerError:
            return None
        if origin is not None and origin.image != target.image:
            origin = None
        self._context.engine.watch_loads(pid)
        try:
            return self._begin_other(target) if origin is None else self._begin_alike(target, origin)
        except ProfilerError:  # it ends at this moment
            target.close()
            self._context.engine.remove_target(pid)
            return None

    def begin_process(self, beginning: Beginning) -> int:
        """Profile a process from now on, once its probes are set; when it began to be."""
        target = beginning.target
        for setting in beginning.alike:
            self._context.engine.finish_alike(setting)
        self._context.by_pid[target.pid] = target
        self._probing.finish(target, beginning.attachments)
        self.loaded_ns = target.start_ns = monotonic_ns()
        found = target.unplanned
        self.let_through(target, beginning.plans)
        target.unplanned = found + target.unplanned
        target.planning = BackgroundPlan(target.planners[-1], target.take_unplanned())
        self._clock.look(target)
        return target.start_ns

    def has_process(self, pid: int) -> bool:
        """Whether a process is being profiled."""
        return pid in self._context.by_pid and not self._context.by_pid[pid].has_ended()

    def note_process(self, info: ProcessInfo) -> None:
        """Let the sinks know of a process of which nothing was seen."""
        if info.pid not in self._context.by_pid:
            self._context.matcher.add_process(info)

    def process_executed(self, pid: int) -> None:
        """A process runs another program."""
        target = self._context.by_pid.get(pid)
        if target is not None and target.end_ns is None and target.has_executed():
            self._renew(target)

    def process_ended(self, pid: int, time_ns: int, status: int | None) -> None:
        """The main thread of a process has ended."""
        target = self._context.by_pid.get(pid)
        if target is None:
            return
        target.exit_status = status
        if target.has_ended():  # or threads go on without the main thread
            target.exit_ns = time_ns
        if target.end_ns is not None:  # seen before this was told
            target.end_ns = min(target.end_ns, max(time_ns, target.start_ns))
            self._context.matcher.update_process(target.info())

    # Beginning

    def let_through(self, target: Target, plans: Sequence[Plan]) -> None:
        """Begin to profile a target whose probes are set."""
        process, engine = target.process, self._context.engine
        self._context.matcher.add_process(target.info())
        self._delivery.unseen.begin(target.pid)
        if target.has_ended():
            # What its threads did is not to be guessed.
            self._context.notices.append(
                f"Process {target.pid} ended while its probes were being set: nothing is known of it."
            )
            return
        loads = engine.loads(target.pid)  # before the look, so that nothing is missed
        target.polled_ns = monotonic_ns()
        target.unplanned = target.watcher.poll() or []
        self._probing.check_expected(target, target.unplanned)
        self._returns.look(target, target.unplanned, loads)
        self._returns.guard(target)
        known = self._seeding.look(target, target.start_ns)
        follows_gil = target.follows_gil = target.follows_gil or Group.GIL in groups_of(plans)
        engine.add_target(target.pid, is_python=process.is_python, assume_held=process.is_python and not follows_gil)
        self._seeding.look_again(target, known)
        self._clock.follow_interpreter(target, target.watcher.objects.values())
        if self._context.gpu:
            self._context.gpu.look(target, target.watcher.objects.values())

    def _begin_alike(self, target: Target, origin: Target) -> Beginning:
        """Set the probes that the one has of whom it was forked. Raises ProfilerErrors if it ends."""
        setting = self._context.engine.attach_alike(target.pid, origin.pid)
        target.planners = _without_returns(tuple(planner.forked(target.pid) for planner in origin.planners))
        target.replan = True
        target.watcher.objects.update(origin.watcher.objects)
        target.follows_gil = origin.follows_gil
        return Beginning(target, alike=[setting])

    def _begin_other(self, target: Target) -> Beginning:
        """Set what a process of another program needs at once; the rest is left. Raises ProfilerErrors if it ends."""
        target.unplanned = target.watcher.poll() or []
        target.planners = _without_returns(self._probing.planners(target.process, self._context.engine.method))
        plan = target.planners[0].plan(target.unplanned)
        target.replan = True
        return Beginning(target, [plan], attachments=self._probing.begin_planned(target, [plan]))

    def _reuse(self, target: Target) -> None:
        """The id of a process that has ended is that of another one by now."""
        if target.end_ns is None:
            target.end(monotonic_ns())
        self._context.matcher.update_process(target.info())
        self._delivery.catch_up(monotonic_ns() - SETTLE_NS)
        self._forget(target)
        self._context.notices.append(
            f"Two processes had the id {target.pid}, one after the other: their figures are added together."
        )

    # Looking

    def look(self, now_ns: int, between: Callable[[], None] = lambda: None) -> None:
        """Find ended targets and newly loaded libraries. `between` is called after each of them."""
        for target in self._context.targets:
            if target.end_ns is None:
                self._look_at(target, now_ns)
                between()
        self._forget_ended(now_ns)

    def look_at_threads(self, target: Target, now_ns: int, *, last: bool = False) -> None:
        """See what its threads have used, if it is time or the `last` look."""
        tells = self._context.samples_all or target.is_told_of
        self._delivery.unseen.look(target.pid, now_ns, tells=tells, last=last)

    def _look_at(self, target: Target, now_ns: int) -> None:
        engine = self._context.engine
        ended = target.has_ended()
        self.look_at_threads(target, now_ns, last=ended)
        if not ended and target.has_executed():
            self._renew(target)
        loads = engine.loads(target.pid)  # before the look, so that nothing is missed
        since_ns, target.polled_ns = target.polled_ns, monotonic_ns()
        new = None if ended else target.watcher.poll()
        if new is None:
            target.end(now_ns)
            self._context.matcher.update_process(target.info())
            return
        if new:
            self.loaded_ns = now_ns
            if not target.process.is_python:
                self._look_again(target)
        unexpected = self._probing.check_expected(target, new)
        self._clock.follow_interpreter(target, new)
        if new:
            self._clock.look(target)
        if self._context.gpu:
            self._context.gpu.look(target, new)
        self._returns.look(target, new, loads)
        if target.attaching and all(attachment.setting.done for attachment in target.attaching):
            self._finish_attaching(target)
        new += target.take_unplanned()
        if target.planning is not None:
            if not target.planning.done:
                target.unplanned = new
                return
            attachment = self._probing.begin(target, target.planning.result())
            target.attaching += [attachment] if attachment is not None else []
            target.planning = None
        plans = self._plan(target, new)
        took_ns = monotonic_ns() - since_ns
        self._context.notices += filter(None, (lateness(unexpected, plans, took_ns), late_markers(plans, took_ns)))

    def _plan(self, target: Target, new: list[MappedObject]) -> list[Plan]:
        """Plan for newly mapped objects and set the probes, or let it be planned for a followed process."""
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
                    self._delivery.catch_up(moment)  # what is in the ring came before
                    self._seeding.look(target, moment)
                self._probing.attach(target, plan)
        target.replan = False
        return plans

    def _finish_attaching(self, target: Target) -> None:
        """Count what has been attached in the background; waits for what has not."""
        attaching, target.attaching = target.attaching, []
        self._probing.finish(target, attaching)

    def _renew(self, target: Target) -> None:
        """A target runs another program: plan for that. What its old program did has ended, as the kernel told."""
        self._finish_attaching(target)
        image = read_image(target.pid)
        if image is None or not self._look_again(target):
            return
        target.image = image  # as before the look: what it executes meanwhile is noticed next time
        target.watcher = MapsWatcher(target.pid)
        older = target.planners
        target.planners = self._probing.planners(target.process, self._context.engine.method)
        for planner, old in zip(target.planners, older, strict=True):
            if target.planning is not None and old is older[-1]:  # what it has found will not be attached any more
                planner.avoid_returns()
            else:
                planner.take_over(old)
        target.planning = None
        self._probing.expect(target, ())  # the new program may be another interpreter, with other packages
        moment = monotonic_ns() - SETTLE_NS
        self._delivery.catch_up(moment)  # what is in the ring came before
        if self._context.samples_all or target.is_told_of:
            self._context.matcher.seed_thread(target.pid, target.pid, (), moment)

    def _look_again(self, target: Target) -> bool:
        """See what a target is now; whether it can be seen."""
        try:
            target.process = inspect(target.pid)
        except ProfilerError:  # it ends, or executes another program, at this moment
            return False
        self._context.matcher.update_process(target.info())
        is_python = target.process.is_python
        assume_held = is_python and Group.GIL in self._probing.off
        self._context.engine.add_target(target.pid, is_python=is_python, assume_held=assume_held)
        return True

    # Ending

    def _forget_ended(self, now_ns: int) -> None:
        """Let go of followed processes that have ended a while ago, so that their number costs nothing."""
        for target in self._context.targets:
            wanted = target.pid in self._context.options.pids
            if target.end_ns is not None and not wanted and now_ns - target.end_ns >= FORGET_NS:
                self._forget(target)

    def _forget(self, target: Target) -> None:
        del self._context.by_pid[target.pid]
        self._context.engine.remove_target(target.pid)
        target.close()
        self._budget.forget(target)
        self.last_end_ns = max(self.last_end_ns, target.end_ns or 0)


def _without_returns(planners: tuple[Planner, ...]) -> tuple[Planner, ...]:
    for planner in planners:
        planner.avoid_returns()
    return planners
