"""What is said when setting the probes on a library took long while the target used it already."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rlscope_ebpf.capture.cookie import Group
from rlscope_ebpf.capture.maps import MappedObject, ObjectKey
from rlscope_ebpf.capture.plan import Plan
from rlscope_ebpf.model import format as fmt
from rlscope_ebpf.model.tables import ImportantNotice

LATE_NS = 1_000_000_000
"""Within so long a library that is loaded after the attach is promised to be probed."""

_CALLS = (Group.BOUNDARY, Group.CUDA)
_NAMED = 3


def lateness(new: Collection[MappedObject], plans: Iterable[Plan], took_ns: int) -> str | None:
    """A sentence on libraries whose calls are probed only now; None if there are none or that is not late.

    `new` are the objects that have come, `took_ns` ago at most, without having been expected; `plans` are attached.
    """
    if took_ns <= LATE_NS:
        return None
    rules: dict[ObjectKey, str] = {}
    for plan in plans:
        rules.update((each.object.key, each.rule) for each in plan.targets if each.group in _CALLS or each.operation)
    late = [mapped for mapped in new if mapped.key in rules]
    if not late:
        return None
    names = ", ".join(mapped.name for mapped in late[:_NAMED])
    more = f" and {len(late) - _NAMED} more" if len(late) > _NAMED else ""
    it, is_it = ("it", "it is") if len(late) == 1 else ("them", "they are")
    remedy = ""
    if any(rules[mapped.key] == "--library" for mapped in late):
        remedy = f" If --library names {it} by a full path, {is_it} probed before being loaded."
    return (
        f"The probes on {names}{more} came up to {fmt.duration(took_ns)} after the target had loaded {it}: "
        f"earlier calls count as their caller's time.{remedy}"
    )


def late_markers(plans: Iterable[Plan], took_ns: int) -> ImportantNotice | None:
    """A sentence on marker libraries that were found once they were loaded, `took_ns` ago at most; None without any.

    `plans` are attached, of files mapped now.
    """
    markers = (each for plan in plans for each in plan.targets if each.group == Group.MARKER and not each.operation)
    paths = dict.fromkeys(each.object.path for each in markers if each.object.segments)
    if not paths:
        return None
    return ImportantNotice(
        f"The markers of {', '.join(paths)} could be heard only up to {fmt.duration(took_ns)} after the target had "
        "loaded them, since they were not expected to lie there: operations before that are missing, and those that "
        "were open then may be without a name."
    )
