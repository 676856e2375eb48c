"""The overhead budget: what probes take is looked at again and again, and what is decided is done."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from rlscope_ebpf.capture.cookie import Group
from rlscope_ebpf.errors import UnsupportedError
from rlscope_ebpf.model.tables import ImportantNotice
from rlscope_ebpf.session.context import Context
from rlscope_ebpf.session.delivery import Delivery
from rlscope_ebpf.session.governor import FIRST_S, WORKS, Decision, Governor
from rlscope_ebpf.session.probing import Probing
from rlscope_ebpf.session.sample_clock import SampleClock
from rlscope_ebpf.session.sampling import SAMPLED_FOR
from rlscope_ebpf.session.shedding import STANDS_IN, ShedNotices
from rlscope_ebpf.session.spending import IN_PLACE, SilentHits, Spent, read_spent, shares
from rlscope_ebpf.session.target import Target, monotonic_ns
from rlscope_ebpf.session.trials import PART_OF_LIMIT, STANDS_FOR, Trials
from rlscope_ebpf.session.worth import Unit

MOST_TARGETS = 8
"""With more processes no costs are tried out: to set and take off their probes would take too long."""


class Budget:
    """Takes probes off and puts them back so that the targets are slowed down by no more than the user allows."""

    def __init__(self, context: Context, probing: Probing, clock: SampleClock, delivery: Delivery) -> None:
        self._context = context
        self._delivery = delivery
        self._probing = probing
        self._clock = clock
        self._governor = Governor(context.options.max_overhead / 100)
        self._notices = ShedNotices(self._governor, probing.tally.sparable)
        self._silent_hits = SilentHits(lambda probes: context.engine.silent_hits(probes), context.worth)
        self._stands_in = False  # whether samples tell what probes would have told
        self._spent: Spent | None = None
        # Since the latest window: without a look between them costs would never be kept to the limit.
        self._looked = False
        self._worked_ns = 0  # targets' time on a CPU since the first look
        self.is_new = bool(context.options.max_overhead)
        """Whether the next turns are short ones: until the targets have worked for a while."""
        self._absurd: set[Group] = set()
        self._gone_cpu_ns = self._gone_waited_ns = 0  # of followed processes that have ended and been forgotten

    def begin(self, now_ns: int) -> None:
        """The session begins: what hits cost in the targets may be tried out from now on."""
        options, engine = self._context.options, self._context.engine
        if options.max_overhead and engine.method != "perf":  # whose probes take minutes to come and go
            limit = options.max_overhead / 100
            self._context.trials = Trials(limit, self._switch, lambda: not engine.probes_to_detach, now_ns / 1e9)
            self._governor.reserved = PART_OF_LIMIT

    def turn(self) -> None:
        """Look what was taken since the last turn, and keep to the limit."""
        context = self._context
        if not context.options.max_overhead or (context.trials is not None and context.trials.is_open):
            return
        now_ns, counters = monotonic_ns(), self._delivery.read_counters()
        sampled_ns = self._clock.spent_ns(counters)
        gpu_ns = context.gpu.spent_ns if context.gpu else 0.0
        spent = read_spent(now_ns, context.costs, context.worth, counters, sampled_ns, context.targets, gpu_ns)
        spent = replace(
            spent, cpu_ns=spent.cpu_ns + self._gone_cpu_ns, waited_ns=spent.waited_ns + self._gone_waited_ns
        )
        previous, self._spent = self._spent, spent
        if previous is None:
            return
        self._look_at_speed(spent.cpu_ns - previous.cpu_ns, spent.time_ns - previous.time_ns)
        usual = context.costs.ratios(IN_PLACE) / context.costs.ratios()
        found = shares(previous, spent, context.worth, context.engine.ticks_share, usual, self._silent_hits)
        settled = not context.engine.probes_to_detach
        decision = self._governor.decide(
            now_ns / 1e9, found.turn_s, found.whole, found.units, settled=settled, fixed=found.fixed
        )
        self._looked = True
        self._carry_out(decision)
        context.notices += self._notices.tell(decision, now_ns / 1e9)
        for group in dict.fromkeys(unit.group for unit in decision.off):
            self._fill_in(group, now_ns)

    @property
    def trial_due_s(self) -> float:
        """When `try_out` has something to do."""
        return self._context.trials.due_s() if self._context.trials is not None else math.inf

    def try_out(self, now_ns: int) -> None:
        """Set probes that are off for a moment, if it is time for that, or go on with it.

        Everything up to now has been handed out.
        """
        context, now_s = self._context, now_ns / 1e9
        trials = context.trials
        if trials is None:
            return
        if not trials.is_open:
            if self._looked and len(context.by_pid) <= MOST_TARGETS and trials.wants(now_s, self._governor.off):
                trials.begin(monotonic_ns() / 1e9, self._governor.off)
            return
        if not trials.turn(now_s):
            return
        self._spent, self._looked = None, False  # nothing is compared with what was before or within the window
        found = {group: cost.in_force for switched, cost in trials.costs().items() for group in STANDS_FOR[switched]}
        if found:
            context.costs.set_ratios(found, self._delivery.read_counters())
        for switched, cost in trials.costs().items():
            if cost.is_absurd and switched not in self._absurd:
                self._absurd.add(switched)
                context.notices.append(
                    f"Hits of {switched.name.lower()} probes seemed to cost {cost.measured:.1f} times what they cost "
                    f"in a loop, which cannot be: {cost.in_force:.1f} times is charged."
                )
        self.turn()  # what is spent from now on is looked at in the next

    def forget(self, target: Target) -> None:
        """A process that has ended is one of the targets no more: the time that it took stays in the sums."""
        self._gone_cpu_ns += target.cpu_ns
        self._gone_waited_ns += target.runqueue_ns

    def finish(self) -> None:
        """Tell what has not been told."""
        if self._context.trials is not None:
            self._context.trials.end()
        self._context.notices += self._notices.last_word()

    def _look_at_speed(self, cpu_ns: int, time_ns: int) -> None:
        self._worked_ns += cpu_ns
        self.is_new = self._worked_ns < FIRST_S * 1e9 and cpu_ns > WORKS * time_ns

    def _carry_out(self, decision: Decision) -> None:
        engine, worth = self._context.engine, self._context.worth
        self._switch(decision)
        for units, is_off in ((decision.off, True), (decision.back, False)):
            for function in (function for unit in units for function in worth.functions(unit)):
                self._probing.tally.mark((function, *engine.exits_of(function)), is_off)

    def _switch(self, decision: Decision) -> None:
        engine, worth = self._context.engine, self._context.worth
        for units, is_off in ((decision.off, True), (decision.back, False)):
            if not units:
                continue
            functions = [function for unit in units for function in worth.functions(unit)]
            if is_off:
                busy = np.flatnonzero(self._context.costs.told_by_probe_ns()).tolist()
                engine.take_off(functions, busy=busy)
            else:
                engine.put_back(functions)
            for unit in units:
                self._mark_group(unit, is_off)

    def _mark_group(self, unit: Unit, is_off: bool) -> None:
        if unit.function:
            return
        (self._probing.off.add if is_off else self._probing.off.discard)(unit.group)
        if unit.group == Group.GIL:
            self._context.engine.assume_gil(is_off)

    def _fill_in(self, group: Group, since_ns: int) -> None:
        """Let samples tell what probes of a group would have told, had they not been taken off."""
        categories = SAMPLED_FOR.get(group)
        if self._context.options.mode != "auto" or not categories:
            return
        try:
            self._clock.begin(since_ns, categories)
        except UnsupportedError as error:
            self._context.notices.append(f"{error.problem} Nothing stands in for the probes that were taken off.")
            return
        if not self._stands_in:
            self._stands_in = True
            self._context.notices.append(ImportantNotice(STANDS_IN))
