"""What the governor has decided, told to the user."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from rlscope_ebpf.capture.cookie import Group
from rlscope_ebpf.capture.demangle import demangled
from rlscope_ebpf.model import format as fmt
from rlscope_ebpf.model.tables import ImportantNotice, ProbeInfo
from rlscope_ebpf.session.governor import Decision, Governor
from rlscope_ebpf.session.worth import Unit

GROUP_NAMES: dict[Group, str] = {
    Group.GIL: "the probes on the interpreter lock",
    Group.REENTRY: "the probes on callbacks into Python",
}

WHAT_IS_LOST: dict[Group, str] = {
    Group.GIL: "Native code that runs without the lock now counts as python instead of other",
    Group.REENTRY: "Python code called from native code now counts as part of the native call",
}
"""How the figures change without a group: the beginning of a sentence."""

STANDS_IN = (
    "Samples of the clock stand in for the probes that were taken off from now on: figures that they tell are marked."
)

_NAMED = 3
"""Functions that a notice names."""

_QUIET_S = 30.0
"""Between two notices on functions; what changes meanwhile is told by the next, or at the end."""

_PLAIN = re.compile(r"(?:THP\w+?_)?(\w+)$")


@dataclass(slots=True)
class ShedNotices:
    """Makes sentences of decisions. `probes`: by id, those of functions."""

    governor: Governor
    probes: Mapping[int, ProbeInfo]
    _told_s: float | None = None
    _untold: bool = False
    _share: float = 0.0
    _warned: bool = False
    _warned_of_gpu: bool = False
    _texts: set[str] = field(default_factory=set)

    def tell(self, decision: Decision, now_s: float) -> list[str]:
        """What is to be said of a decision."""
        found: list[str] = [
            ImportantNotice(
                f"{WHAT_IS_LOST[unit.group]}: {GROUP_NAMES[unit.group]} were taken off, since lately all probes "
                f"together took {fmt.percent(decision.share)} of the target's time, over the limit of "
                f"{fmt.percent(self.governor.limit)}."
            )
            for unit in decision.off
            if not unit.function
        ]
        found += [
            ImportantNotice(f"T{GROUP_NAMES[unit.group][1:]} are set again, since there is room for their cost.")
            for unit in decision.back
            if not unit.function
        ]
        if any(unit.function for unit in decision.off):
            self._share = decision.share
        self._untold |= any(unit.function for unit in (*decision.off, *decision.back))
        if self._untold and (self._told_s is None or now_s - self._told_s >= _QUIET_S):
            self._told_s = now_s
            found += self._pending()
        if self.governor.is_crowded and not self._warned_of_gpu:
            self._warned_of_gpu = True
            found.append(
                ImportantNotice(
                    f"Records of the GPU's work alone take about {fmt.percent(self.governor.fixed)} of the target's "
                    f"time, of {fmt.percent(self.governor.limit)} that all may take: most probes have to make way. "
                    "`--gpu off` does without GPU times, and `--max-overhead` sets the limit."
                )
            )
        if decision.stuck and not self._warned:
            self._warned = True
            found.append(
                f"Lately the profiler took {fmt.percent(decision.share)} of the target's time, over the limit of "
                f"{fmt.percent(self.governor.limit)}, and no probes are left that the figures can do without."
            )
        return self._new(found)

    def last_word(self) -> list[str]:
        """What has not been told of functions."""
        return self._new(self._pending())

    def _pending(self) -> list[str]:
        if not self._untold:
            return []
        self._untold = False
        functions = [unit for unit in self.governor.off if unit.function]
        if not functions:
            return [ImportantNotice("All functions whose probes had been taken off are watched again.")]
        return [ImportantNotice(self._functions(functions))]

    def _functions(self, functions: Sequence[Unit]) -> str:
        most = sorted(functions, key=lambda unit: -unit.worth)
        names = [_name(self.probes[unit.function].symbol) for unit in most[:_NAMED]]
        libraries = sorted({PurePath(self.probes[unit.function].library).name for unit in functions})
        more = f" and {len(most) - _NAMED} more" if len(most) > _NAMED else ""
        lost = sum(unit.worth for unit in functions)
        return (
            f"Calls of {', '.join(names)}{more} in {', '.join(libraries)}, about {fmt.percent(lost)} of the target's "
            "time, are not probed any more: where no samples tell it, that time counts as their callers', as a rule "
            f"python. Their probes were taken off, since lately all probes together took {fmt.percent(self._share)} of "
            f"the target's time, over the limit of {fmt.percent(self.governor.limit)}."
        )

    def _new(self, texts: Sequence[str]) -> list[str]:
        """Each sentence once."""
        found = [text for text in texts if text not in self._texts]
        self._texts.update(found)
        return found


def _name(symbol: str) -> str:
    """`torch::autograd::THPVariable_tanh(…)` → `tanh`."""
    plain = demangled(symbol).partition("(")[0].rpartition("::")[2]
    match = _PLAIN.search(plain)
    return match[1] if match else plain
