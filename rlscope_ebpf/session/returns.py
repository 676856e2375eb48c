"""Whether calls of the targets get return probes, which not every program survives: see docs/design/returns.md."""

from __future__ import annotations

from collections.abc import Sequence

from rlscope_ebpf.capture.cookie import Group
from rlscope_ebpf.capture.engine import ProbeSite
from rlscope_ebpf.capture.maps import MappedObject
from rlscope_ebpf.session.context import Context
from rlscope_ebpf.session.guard import ReturnGuard, why_switching
from rlscope_ebpf.session.tally import ProbeTally
from rlscope_ebpf.session.target import Target


class ReturnProbes:
    """Allows them as long as nothing that a target has loaded is seen to switch stacks; from then on there are none."""

    def __init__(self, context: Context, tally: ProbeTally) -> None:
        self._context = context
        self._tally = tally
        self._avoided = False
        self._guards: list[ReturnGuard] = []

    def look_first(self, target: Target, method: str) -> None:
        """See what a target had loaded before anything is planned for it."""
        alone = method == "session" and len(self._context.by_pid) == 1
        reason = why_switching(target, target.unplanned, alone=alone)
        if reason:
            self._avoid(reason)

    def look(self, target: Target, new: Sequence[MappedObject], loads: int) -> None:
        """Having looked at what a target has loaded, allow its calls return probes or take them away."""
        target.loads = loads
        if self._avoided or target.parent is not None:  # a followed process never has any
            return
        reason = why_switching(target, new, loads=loads)
        if reason:
            self._avoid(reason)
        else:
            self._context.engine.allow_returns(target.pid, loads)

    def guard(self, target: Target) -> None:
        """Allow them sooner than the next look, where a library that is not loaded yet has them."""
        engine = self._context.engine
        if target.parent is None and target.expects_returns and engine.method == "session" and not self._avoided:
            self._guards.append(ReturnGuard(engine, target.pid))

    def end_guards(self) -> None:
        """Leave it to the looks again. Safe to call twice."""
        for guard in self._guards:
            guard.end()
        self._guards.clear()

    def has_loaded(self) -> bool:
        """Whether a target has loaded something that has not been looked at."""
        return not self._avoided and any(
            self._context.engine.loads(target.pid) != target.loads
            for target in self._context.targets
            if target.end_ns is None
        )

    def _avoid(self, reason: str) -> None:
        """Use no return probes on calls any more.

        In none of the targets: where two of them map the same file, the kernel gives a call in the one a return probe
        for the sake of the other.
        """
        if self._avoided:
            return
        self._avoided = True
        self._context.notices.append(reason)
        engine = self._context.loaded
        for target in self._context.targets:
            for planner in target.planners:
                planner.avoid_returns()
            if engine:
                engine.allow_returns(target.pid, None)
                engine.detach_returns(target.pid)
                self._tally.remove(target.returning)
                target.returning.clear()
                target.expected = [each for each in target.expected if not goes_with_returns(each[0])]
                target.replan = True
        if engine:
            engine.shed(Group.GATE)
            self._tally.remove_group(Group.GATE)


def goes_with_returns(site: ProbeSite) -> bool:
    """Whether Engine.detach_returns takes its probe away."""
    return site.returns and site.group != Group.CUDA
