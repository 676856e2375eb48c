"""The overhead budget: what probes take is looked at again and again, and what is decided is done."""

from __future__ import annotations

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
from rlscope_ebpf.session.spending import SilentHits, Spent, read_spent, shares
from rlscope_ebpf.session.target import Target, monotonic_ns
from rlscope_ebpf.session.worth import Unit


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
        self._worked_ns = 0  # targets' time on a CPU since the first look
        self.is_new = bool(context.options.max_overhead)
        """Whether the next turns are short ones: until the targets have worked for a while."""
        self._gone_cpu_ns = self._gone_waited_ns = 0  # of followed processes that have ended and been forgotten

    def turn(self) -> None:
        """Look what was taken since the last turn, and keep to the limit."""
        context = self._context
        if not context.options.max_overhead:
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
        found = shares(previous, spent, context.worth, context.engine.ticks_share, silent=self._silent_hits)
        settled = not context.engine.probes_to_detach
        decision = self._governor.decide(
            now_ns / 1e9, found.turn_s, found.whole, found.units, settled=settled, fixed=found.fixed
        )
        self._carry_out(decision)
        context.notices += self._notices.tell(decision, now_ns / 1e9)
        for group in dict.fromkeys(unit.group for unit in decision.off):
            self._fill_in(group, now_ns)

    def forget(self, target: Target) -> None:
        """A process that has ended is one of the targets no more: the time that it took stays in the sums."""
        self._gone_cpu_ns += target.cpu_ns
        self._gone_waited_ns += target.runqueue_ns

    def finish(self) -> None:
        """Tell what has not been told."""
        self._context.notices += self._notices.last_word()

    def _look_at_speed(self, cpu_ns: int, time_ns: int) -> None:
        self._worked_ns += cpu_ns
        self.is_new = self._worked_ns < FIRST_S * 1e9 and cpu_ns > WORKS * time_ns

    def _carry_out(self, decision: Decision) -> None:
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
            for function in functions:
                self._probing.tally.mark((function, *engine.exits_of(function)), is_off)
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
