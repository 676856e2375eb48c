"""The clock whose samples tell what threads do, in place of probes or beside them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from rlscope_ebpf.capture.counters import ProbeCounters
from rlscope_ebpf.capture.interpreter import interpreter_loop
from rlscope_ebpf.capture.maps import MappedObject
from rlscope_ebpf.errors import UnsupportedError
from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.model.tables import Batch
from rlscope_ebpf.session.context import Context
from rlscope_ebpf.session.sampling import Sampler, cost_of_sample_ns, spent_on_samples_ns
from rlscope_ebpf.session.target import Target

ALONE_OF_LIMIT, BESIDE_OF_LIMIT = 0.5, 0.1
"""Part of the limit that samples may take where they tell everything, and where they stand in for probes: if they would
take more, there are fewer of them."""


class SampleClock:
    """Starts the clock, and brings its samples to the intervals into which they fell."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._sampler = Sampler(context.options.libraries, follows_all=context.samples_all)
        self.runs = context.samples_all
        """Whether it is running, or is to run from the start."""

    def begin(self, since_ns: int, categories: Iterable[Category]) -> None:
        """Let samples tell, from a moment on, the time that probes take for these categories.

        Raises:
            UnsupportedError: the kernel gives no such clock.
        """
        everything = self._context.samples_all
        try:
            limit = self._context.options.max_overhead / 100
            part = ALONE_OF_LIMIT if everything else BESIDE_OF_LIMIT
            self._context.engine.sample(follow=everything, most=part * limit if limit else 1.0)
        except OSError as error:
            raise UnsupportedError(
                f"The clock for sampling cannot be had: {error.strerror}.", "Use --mode trace, which needs none."
            ) from error
        self.runs = True
        for target in self._context.targets:
            self._sampler.look(target.pid)
        self._sampler.begin(since_ns, categories)

    def look(self, target: Target) -> None:
        """See what a target has loaded."""
        if self.runs:
            self._sampler.look(target.pid)

    def follow_interpreter(self, target: Target, objects: Iterable[MappedObject]) -> None:
        """Look by the clock which threads run Python, if the interpreter is among `objects`."""
        image = target.process.python.image if target.process.python else None
        loop = interpreter_loop(target.pid, [mapped for mapped in objects if mapped.path == image])
        if loop is None:
            return
        self._sampler.find_interpreter(target.pid, str(image), loop)
        with suppress(OSError):  # then a thread that never releases the interpreter lock is `other`
            self._context.engine.follow_interpreter(target.pid, *loop)

    def take(self) -> None:
        """Take what is in the ring. After the events, so that every sample is there whose time is handed out."""
        if self.runs:
            self._sampler.take(self._context.engine.read_samples())

    def place(self, batch: Batch, counters: ProbeCounters) -> None:
        """Put the samples of a batch where they belong. Call with every batch that is handed out."""
        if self.runs:
            self._sampler.place(batch, cost_of_sample_ns(counters, self._context.engine.interrupt_ns))
        else:
            self._sampler.define(batch.definitions)

    def spent_ns(self, counters: ProbeCounters) -> int:
        """What all samples have taken of the targets' time."""
        return spent_on_samples_ns(counters, self._context.engine.interrupt_ns)
