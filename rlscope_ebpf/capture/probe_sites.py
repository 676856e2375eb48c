"""From planned functions to the instructions that the engine probes."""

from __future__ import annotations

from collections.abc import Iterator

from rlscope_ebpf.capture.cookie import Action, SiteClass
from rlscope_ebpf.capture.ends import RET_SITES, RETURN
from rlscope_ebpf.capture.engine import ProbeSite
from rlscope_ebpf.capture.plan import ProbeTarget

_CLASSES = {"nop5": SiteClass.NOP5, "emulated": SiteClass.EMULATED, "stepped": SiteClass.STEPPED}


def probe_sites(target: ProbeTarget, *, allow_returns: bool) -> Iterator[ProbeSite]:
    """The sites of one function: its entry and, where they are probed, its exits.

    Without `allow_returns` (a seccomp filter may forbid what return probes do) ends of calls are found by the stack
    pointer.
    """
    yield ProbeSite(
        path=target.path,
        library=target.object.path,
        symbol=target.symbol,
        offset=target.file_offset,
        address=target.address,
        category=target.category,
        site_class=_CLASSES[target.site.site_class],
        group=target.group,
        action=target.action,
        flags=target.flags,
        returns=allow_returns and target.exits == RETURN,
        pushed=target.site.pushed,
    )
    if target.exits != RET_SITES:
        return
    own = [(target.object, target.path, offset) for offset in target.exit_offsets]
    for mapped, path, offset in own + [(site.object, site.path, site.offset) for site in target.far_exits]:
        yield ProbeSite(
            path=path,
            library=mapped.path,
            symbol=target.symbol,
            offset=offset,
            address=mapped.address(offset) or 0,
            category=target.category,
            site_class=SiteClass.STEPPED,
            group=target.group,
            action=Action.EXIT,
        )
