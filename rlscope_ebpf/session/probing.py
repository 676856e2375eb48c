"""Setting the probes of targets: what is planned, what is expected to be loaded, and what is there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.capture.cookie import Action, Group
from rlscope_ebpf.capture.counters import ProbeCounters
from rlscope_ebpf.capture.engine import ProbeSite, armed_sites
from rlscope_ebpf.capture.maps import MappedObject, expected_object, read_maps
from rlscope_ebpf.capture.objects import C_LIBRARIES
from rlscope_ebpf.capture.package_folders import marker_libraries
from rlscope_ebpf.capture.plan import ALL_GROUPS, Plan, Planner
from rlscope_ebpf.capture.probe_sites import probe_sites
from rlscope_ebpf.capture.process import TargetProcess
from rlscope_ebpf.errors import UnsupportedError
from rlscope_ebpf.model.events import TextKind
from rlscope_ebpf.model.tables import ProbeInfo
from rlscope_ebpf.paths import marker_library
from rlscope_ebpf.session.context import SETTLE_NS, Context
from rlscope_ebpf.session.guard import nests_deeply
from rlscope_ebpf.session.returns import goes_with_returns
from rlscope_ebpf.session.seeds import text_records
from rlscope_ebpf.session.tally import ProbeTally
from rlscope_ebpf.session.target import Attachment, Target, monotonic_ns
from rlscope_ebpf.session.worth import SPARED_SINGLY, SPARED_TOGETHER

_TELL_NOTHING = (Action.CATCH, Action.LONGJMP, Action.LOADED, Action.SWITCHES)
"""Probes that only end what others began, or guard the target."""

_FIRST = frozenset({Group.MARKER, Group.GATE})


class Probing:
    """Sets probes. What it has set it tells as definitions, and as records of the names that it gives itself."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.tally = ProbeTally()
        self.off: set[Group] = set()
        """Groups that the budget has taken off: new probes of theirs are not set."""
        self._definitions: list[ProbeInfo] = []
        self._names: list[NDArray[np.void]] = []

    def planners(self, process: TargetProcess, method: str) -> tuple[Planner, ...]:
        """A target's planners: markers first, which are quickly found and which all figures hang on."""
        options = self._context.options
        return tuple(
            Planner(
                process.pid,
                options.libraries,
                markers=options.markers,
                groups=groups,
                avoid_returns=not process.allows_return_probes,
                avoid_frame_returns=nests_deeply(process, method),
            )
            for groups in ((_FIRST,) if self._context.samples_all else (_FIRST, ALL_GROUPS - _FIRST))
        )

    def attach_planned(self, target: Target, plans: Sequence[Plan]) -> None:
        """Set a target's first probes; their hits are let through later."""
        self.finish(target, self.begin_planned(target, plans))

    def begin_planned(self, target: Target, plans: Sequence[Plan]) -> list[Attachment]:
        """The same in the background, until `finish`."""
        begun = [self.begin(target, plan) for plan in plans]
        return [*filter(None, begun), *self._begin_expected(target, plans)]

    def attach(self, target: Target, plan: Plan) -> None:
        """Attach what is planned; of files that are only expected nothing is counted before they are mapped."""
        self.finish(target, filter(None, [self.begin(target, plan)]))

    def begin(self, target: Target, plan: Plan) -> Attachment | None:
        """The same in the background, until `finish`; None if there is nothing to attach."""
        notices, engine = self._context.notices, self._context.engine
        notices += [note for note in plan.notes if note not in notices]  # of several targets each says it
        allow_returns = target.process.allows_return_probes
        planned = [
            (site, planned)
            for planned in plan.targets
            if planned.group not in self.off
            for site in probe_sites(planned, allow_returns=allow_returns)
        ]
        if not planned:
            return None
        # Operations by --marker carry the probe's id where others carry the hash of a name.
        first = engine.next_probe
        names = [
            (first + index, TextKind.NAME, function.operation)
            for index, (_, function) in enumerate(planned)
            if function.operation
        ]
        if names:
            self._names.append(text_records(names))
        sites = [site for site, _ in planned]
        self._context.costs.add_probes(first, sites)
        self._context.worth.add_probes(first, sites)
        attaching = engine.begin_attach(target.pid, sites)
        self._definitions.extend(attaching.infos)  # their hits may come before all of them are set
        return Attachment(attaching, [bool(function.object.segments) for _, function in planned])

    def finish(self, target: Target, attachments: Iterable[Attachment]) -> None:
        """Wait until what was begun is there, and count it."""
        for attachment in attachments:
            sites = attachment.attaching.sites
            probes = self._context.engine.finish_attach(attachment.attaching)
            self._definitions.extend(probes)
            self.tally.sparable.update(
                (probe.id, probe)
                for site, probe in zip(sites, probes, strict=True)
                if site.group in SPARED_SINGLY or site.group in SPARED_TOGETHER
            )
            here: list[tuple[ProbeSite, ProbeInfo]] = []
            for site, probe, is_mapped in zip(sites, probes, attachment.mapped, strict=True):
                if site.group in self.off:  # since it was begun
                    continue
                (here if is_mapped else target.expected).append((site, probe))
            self._take_in(target, here)

    def expect(self, target: Target, plans: Sequence[Plan]) -> None:
        """Probe libraries before a target has loaded them: the markers', and those that the user gave the paths of.

        The kernel sets the probes the moment the file is mapped, so that not even the first annotation is missed. (In a
        session, calls with return probes are followed a moment later: see ReturnGuard.)
        """
        self.finish(target, self._begin_expected(target, plans))

    def _begin_expected(self, target: Target, plans: Sequence[Plan]) -> list[Attachment]:
        options = self._context.options
        paths = [library.file for library in options.libraries if library.file]
        paths += [marker.file for marker in options.markers if marker.file]
        planners = target.planners if paths else target.planners[:1]
        if paths:
            paths += _c_libraries(target)
        if Group.MARKER not in groups_of(plans):
            paths += marker_libraries(target.pid, target.watcher.objects.values())
            with suppress(UnsupportedError):
                paths.append(str(marker_library()))
        known = {mapped.path for mapped in target.watcher.objects.values()}
        expected = [expected_object(target.pid, path) for path in dict.fromkeys(paths) if path not in known]
        files = [mapped for mapped in expected if mapped is not None]
        return [*filter(None, (self.begin(target, planner.plan(files)) for planner in planners if files))]

    def check_expected(self, target: Target, new: Sequence[MappedObject]) -> list[MappedObject]:
        """Count the probes on expected files that are mapped now. Returns the objects that were not expected."""
        others = []
        for mapped in new:
            came = [(site, probe) for site, probe in target.expected if site.library == mapped.path]
            if came:
                target.expected = [(site, probe) for site, probe in target.expected if site.library != mapped.path]
                came = [(site, probe) for site, probe in came if site.group not in self.off]
                placed = [replace(site, address=mapped.address(site.offset) or 0) for site, _ in came]
                armed = armed_sites(target.pid, placed)
                probes = [replace(probe, armed=bool(up)) for (_, probe), up in zip(came, armed, strict=True)]
                self._definitions.extend(probes)
                sparable = self.tally.sparable
                sparable.update((probe.id, probe) for probe in probes if probe.id in sparable)
                self._take_in(target, list(zip(placed, probes, strict=True)))
            else:
                others.append(mapped)
        return others

    def expected_were_hit(self, counters: ProbeCounters) -> bool:
        """Whether a library was used whose coming was not noticed: the target may have ended first."""
        sites = [site for target in self._context.targets for site, _ in target.expected]
        groups = {site.group for site in sites if site.action not in _TELL_NOTHING}
        return bool(counters.hits[list(groups)].any())

    def take_definitions(self) -> list[ProbeInfo]:
        """What there is to say of probes since the last time."""
        found, self._definitions = self._definitions, []
        return found

    def take_names(self) -> list[NDArray[np.void]]:
        """The names that were given since the last time, as TEXT_DTYPE records."""
        found, self._names = self._names, []
        return found

    def _take_in(self, target: Target, probes: Sequence[tuple[ProbeSite, ProbeInfo]]) -> None:
        """Count probes that can be hit."""
        if not target.telling and any(site.action not in _TELL_NOTHING for site, _ in probes):
            target.telling = True
            if target.start_ns and not target.process.is_python and not self._context.samples_all:
                self._context.matcher.seed_thread(target.pid, target.pid, (), monotonic_ns() - SETTLE_NS)
        target.returning += [probe for site, probe in probes if goes_with_returns(site)]
        self.tally.add([probe for _, probe in probes])


def groups_of(plans: Sequence[Plan]) -> set[Group]:
    """The groups of all probes that are planned."""
    return {probe.group for plan in plans for probe in plan.targets}


def _c_libraries(target: Target) -> list[str]:
    """What the target will have for a C library, which says what its libraries' functions call; none if it has one."""
    if any(mapped.name.startswith(C_LIBRARIES[0]) for mapped in target.watcher.objects.values()):
        return []
    return [mapped.path for mapped in read_maps(os.getpid()) if mapped.name.startswith(C_LIBRARIES)]
