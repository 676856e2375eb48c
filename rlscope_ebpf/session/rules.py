"""Which of the user's `--library` and `--marker` match nothing: a wrong pattern would otherwise be silent."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rlscope_ebpf.capture.plan import Planner
from rlscope_ebpf.model.tables import ImportantNotice
from rlscope_ebpf.session.options import CaptureOptions, LibraryPattern, NativeMarker

QUIET_NS = 2_000_000_000
"""A target that has loaded nothing for so long is taken to have loaded what it needs."""


NOTHING_TO_PROBE = ImportantNotice(
    "Where the command's time went is not known: it had no interpreter, no markers and no known library of its own to "
    "probe."
)


class RuleWatch:
    """Looks at the planners of all targets, again and again, and says each thing once."""

    def __init__(self, options: CaptureOptions) -> None:
        self._pending: dict[str, LibraryPattern | NativeMarker] = {}  # by the option as it was given
        self._pending.update({f"--library {library}": library for library in options.libraries})
        self._pending.update({f"--marker {marker}": marker for marker in options.markers})
        self._said: set[str] = set()

    def look(self, planners: Iterable[Planner], *, complain: bool, spared: Collection[str] = ()) -> list[str]:
        """Sentences for the user: rules that match nothing yet, if it is time to `complain`, and those that now do.

        `spared` files may have been there without having been seen.
        """
        if not self._pending:
            return []
        unmatched = [planner.unmatched() for planner in planners]
        sentences = []
        for option, rule in list(self._pending.items()):
            if not all(rule in rules for rules in unmatched):
                del self._pending[option]
                if option in self._said:
                    sentences.append(f"{option} matches now: a file of this name has just been loaded.")
            elif complain and option not in self._said and rule.file not in spared:
                self._said.add(option)
                sentences.append(
                    f"{option} matches no file that the target has loaded so far. One that comes later is probed; "
                    "/proc/PID/maps lists what is there."
                )
        return sentences
