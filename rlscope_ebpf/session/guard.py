"""When calls of a target must not get return probes: see docs/design/returns.md."""

from __future__ import annotations

from collections.abc import Sequence

from rlscope_ebpf.capture.maps import MappedObject
from rlscope_ebpf.capture.process import TargetProcess
from rlscope_ebpf.capture.switching import greenlet_is_installed
from rlscope_ebpf.session.target import Target

_INSTEAD = "the ends of calls are watched at the instructions by which functions are left, which costs more."
_CONTEXTS = 1 << 32  # of Engine.loads, from here on: stacks made


def why_switching(target: Target, new: Sequence[MappedObject], *, loads: int = 0, alone: bool = True) -> str | None:
    """A sentence why a target's calls must get no return probes; None if they may have them.

    `new` are the objects that have been mapped since the last look. Not `alone`: nothing keeps return probes off the
    calls that are made between the loading of more and the next look.
    """
    switcher = target.planners[-1].find_switcher(new)
    if switcher is not None:
        return f"{switcher.name} can switch stacks or cancel threads, which is no good with return probes: {_INSTEAD}"
    if loads >= _CONTEXTS:
        return f"{target.process.name} makes stacks to switch to, under which return probes end a program: {_INSTEAD}"
    if not alone and greenlet_is_installed(target.pid, target.watcher.objects.values()):
        return (
            "The target's Python has greenlet installed, which can switch stacks once it is imported, and return "
            f"probes would end the program then: {_INSTEAD}"
        )
    return None


def nests_deeply(process: TargetProcess, method: str) -> bool:
    """Whether the interpreter's frames nest deeper than the kernel keeps return probes: 64.

    In CPython 3.10 every Python call is a native call, too. A session sets return probes only where the category
    changes.
    """
    return method != "session" and process.python_version.startswith("3.10")
