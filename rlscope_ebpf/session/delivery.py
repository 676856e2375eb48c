"""From the rings to the sinks: events become batches, with all that was lost and what the session did."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from rlscope_ebpf.capture.counters import ProbeCounters
from rlscope_ebpf.capture.engine import MAX_READ
from rlscope_ebpf.model.in_place import as_counts
from rlscope_ebpf.model.session import Sink
from rlscope_ebpf.model.tables import Batch, Counters, Losses
from rlscope_ebpf.session.accounting import AccountingCheck
from rlscope_ebpf.session.context import SETTLE_NS, Context
from rlscope_ebpf.session.probing import Probing
from rlscope_ebpf.session.sample_clock import SampleClock
from rlscope_ebpf.session.seeding import Seeding
from rlscope_ebpf.session.target import monotonic_ns
from rlscope_ebpf.session.unseen import UnseenThreads

_MOMENTS = 5
"""How often the counters are read at the end of a session, for once without an interruption."""


class Delivery:
    """Takes what is in the rings, has it matched, and hands it to the sinks."""

    def __init__(
        self, context: Context, probing: Probing, seeding: Seeding, clock: SampleClock, sinks: Sequence[Sink]
    ) -> None:
        self._context = context
        self._probing = probing
        self._seeding = seeding
        self._clock = clock
        self._sinks = sinks
        self.accounting = AccountingCheck()
        self.unseen = UnseenThreads()
        self.follows_scheduler = True
        self.start_ns = 0
        """Of the session: no earlier time is handed out."""
        self._received = 0
        self._notices_given = 0
        self._final: ProbeCounters | None = None  # as the session ended

    def turn(self, now_ns: int, end_ns: int | None = None, limit: int = MAX_READ) -> None:
        """Take what is in the rings, up to `limit` events, match it, hand it out.

        What happened after `end_ns` is left out.
        """
        engine, matcher, costs = self._context.engine, self._context.matcher, self._context.costs
        events = engine.read_events(limit)
        self._received += len(events)
        if engine.pending_events():
            # More is waiting, perhaps behind an event that is still being written: time is handed out only as far as
            # it has been read.
            now_ns = min(now_ns, int(events["time_ns"].max(initial=0)) - SETTLE_NS)
        if end_ns is not None:
            events = events[events["time_ns"] <= end_ns]
        costs.observe(events)
        counters = self.read_counters()
        costs.watch(counters)  # so that already these events are charged what such hits cost
        self._clock.take()
        self._seeding.take_texts(engine.read_texts())
        self._seeding.take_events(events)
        for names in self._probing.take_names():
            matcher.add_texts(names)
        self._hand_out_early(counters)
        events = self._seeding.with_later(events)
        self._hand_out(matcher.process(events, max(now_ns, self.start_ns)), counters)

    def catch_up(self, now_ns: int, end_ns: int | None = None, patience: int = 1) -> None:
        """Take all that is in the ring now, however much. `patience`: looks at an event that is still being written."""
        everything = self._received + self._context.engine.pending_events()  # but for what comes from now on
        while patience:
            before = self._received
            self.turn(now_ns, end_ns)
            if self._received >= everything:
                break
            if self._received == before:
                patience -= 1
                time.sleep(SETTLE_NS / 1e9)

    def read_counters(self) -> ProbeCounters:
        """What the programs have counted so far, or had as the session ended."""
        counters = self._context.engine.counters()
        if self._final is not None:  # what is hit while the rings are being emptied is no longer of the session
            final = self._final
            counters = replace(counters, hits=final.hits, returns=final.returns, samples=final.samples)
        return counters

    def end_counting(self) -> int:
        """The end of the session is now, whatever is hit later: when that was, as exactly as it can be had.

        Reading the counters takes a tenth of a millisecond, or more if others are at work.
        """
        looks: list[tuple[int, int, ProbeCounters]] = []
        for _ in range(_MOMENTS):
            before = monotonic_ns()
            counters = self._context.engine.counters()
            now = monotonic_ns()
            looks.append((now - before, now, counters))
        _, now, self._final = min(looks, key=lambda look: look[0])
        return now

    def hand_out_early(self) -> None:
        """Hand out what was matched in looks at targets and has not been yet."""
        self._hand_out_early(self.read_counters())

    def finish(self, end_ns: int, queued_since_ns: int | None) -> None:
        """Close what is open, and hand out the last batch. `queued_since_ns`: see `GpuWatch.advance`."""
        last = self._context.matcher.finish(end_ns)
        self._hand_out(last, self.read_counters(), last=True, queued_since_ns=queued_since_ns)

    def _hand_out_early(self, counters: ProbeCounters) -> None:
        for batch in self._seeding.take_early():
            self._hand_out(batch, counters)

    def _hand_out(
        self, batch: Batch, counters: ProbeCounters, *, last: bool = False, queued_since_ns: int | None = None
    ) -> None:
        context = self._context
        batch.definitions.extend(self._probing.take_definitions())
        self._clock.place(batch, counters)
        batch.losses = _losses(batch.losses, counters)
        self.accounting.add(batch)
        self.unseen.add(batch)
        batch.counters = self._work(counters)
        if last:
            batch.counters = self.accounting.compare(batch.counters)
            context.notices += self.unseen.said(certain=self.follows_scheduler and not batch.losses.events)
        if context.gpu:
            context.gpu.advance(batch, last=last, queued_since_ns=queued_since_ns)
        if "intervals" in batch.tables:
            context.worth.add(batch.tables["intervals"])
        if context.trials is not None:
            context.trials.add(batch, context.costs.ratios())
        batch.notices = context.notices[self._notices_given :]
        self._notices_given += len(batch.notices)
        for sink in self._sinks:
            sink.batch(batch)

    def _work(self, counters: ProbeCounters) -> Counters:
        hits = counters.hits.sum(axis=0)
        tally = self._probing.tally
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
            estimated_overhead_ns=self._context.costs.spent_ns(counters) + self._clock.spent_ns(counters),
            samples=counters.samples,
            probes_attached=tally.attached,
            probes_armed=tally.armed,
            probes_shed=tally.off,
            in_place=as_counts(self._context.trials.costs().values()) if self._context.trials is not None else {},
        )


def _losses(matched: Losses, counters: ProbeCounters) -> Losses:
    return replace(
        matched,
        events=counters.lost_events,
        not_followed=counters.not_followed,
        texts=counters.lost_texts,
        threads=counters.lost_threads,
        samples=counters.lost_samples,
        healed=matched.healed + counters.healed,
    )
