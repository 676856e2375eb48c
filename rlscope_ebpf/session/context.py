"""What the parts of a session have in common."""

from __future__ import annotations

from rlscope_ebpf.capture.engine import Engine
from rlscope_ebpf.session.costs import ProbeCosts
from rlscope_ebpf.session.gpu_watch import GpuWatch
from rlscope_ebpf.session.matching import Matcher
from rlscope_ebpf.session.options import CaptureOptions
from rlscope_ebpf.session.target import Target
from rlscope_ebpf.session.trials import Trials
from rlscope_ebpf.session.worth import Worth

SETTLE_NS = 10_000_000
"""Time is handed out only up to this long ago: a program that was preempted may still have an event to send."""


class Context:
    """Options, targets, sentences for the user, and what is there only once the session has come so far."""

    def __init__(self, options: CaptureOptions) -> None:
        self.options = options
        self.notices: list[str] = []
        self.by_pid: dict[int, Target] = {}
        self.costs = ProbeCosts()
        self.worth = Worth()
        self.loaded: Engine | None = None
        self.started: Matcher | None = None
        self.gpu: GpuWatch | None = None
        self.trials: Trials | None = None

    @property
    def engine(self) -> Engine:
        """The BPF programs. Raises RuntimeError before they are loaded."""
        if self.loaded is None:
            raise RuntimeError("attach first")
        return self.loaded

    @property
    def matcher(self) -> Matcher:
        """What makes intervals of events. Raises RuntimeError before all probes are set."""
        if self.started is None:
            raise RuntimeError("attach first")
        return self.started

    @property
    def targets(self) -> tuple[Target, ...]:
        """The profiled processes, as they are now."""
        return tuple(self.by_pid.values())

    @property
    def samples_all(self) -> bool:
        """Whether samples tell what every thread does, whatever is probed."""
        return self.options.mode == "sample"
