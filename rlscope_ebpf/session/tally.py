"""How many probes are set, armed and taken off."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rlscope_ebpf.capture.cookie import Group
from rlscope_ebpf.model.tables import ProbeInfo


class ProbeTally:
    """Counts probes as they come, are taken off, put back and taken away for good."""

    def __init__(self) -> None:
        self.attached = 0
        self.armed = 0
        self.sparable: dict[int, ProbeInfo] = {}
        """Probes that may be taken off one by one, with their exits, by id."""
        self._off: set[int] = set()  # of these, those that are
        self._by_group: dict[str, tuple[int, int]] = {}  # attached, of these armed

    @property
    def off(self) -> int:
        """How many are taken off."""
        return len(self._off)

    def add(self, probes: Sequence[ProbeInfo]) -> None:
        """Probes that can be hit from now on."""
        self.attached += len(probes)
        self.armed += sum(probe.armed for probe in probes)
        for probe in probes:
            attached, armed = self._by_group.get(probe.group, (0, 0))
            self._by_group[probe.group] = attached + 1, armed + probe.armed

    def remove(self, probes: Iterable[ProbeInfo]) -> None:
        """Probes that are gone for good."""
        for probe in probes:
            if probe.group in self._by_group:  # of one that was shed nothing is counted any more
                attached, armed = self._by_group[probe.group]
                is_up = probe.armed and probe.id not in self._off
                self._off.discard(probe.id)
                self._by_group[probe.group] = attached - 1, armed - is_up
                self.attached -= 1
                self.armed -= is_up

    def remove_group(self, group: Group) -> None:
        """All probes of a group are gone for good."""
        attached, armed = self._by_group.pop(group.name.lower(), (0, 0))
        self.attached -= attached
        self.armed -= armed

    def mark(self, numbers: Iterable[int], is_off: bool) -> None:
        """Probes, by id, that are taken off, or put back."""
        for number in numbers:
            probe = self.sparable.get(number)
            if probe is None or (number in self._off) == is_off or probe.group not in self._by_group:
                continue
            (self._off.add if is_off else self._off.discard)(number)
            change = -probe.armed if is_off else probe.armed
            attached, armed = self._by_group[probe.group]
            self._by_group[probe.group] = attached, armed + change
            self.armed += change
