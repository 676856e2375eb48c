"""What can be said about a process before it is profiled: the rows that `doctor --pid` adds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rlscope_ebpf.capture.checks import Check
from rlscope_ebpf.capture.cookie import Action, Group
from rlscope_ebpf.capture.maps import MapsWatcher
from rlscope_ebpf.capture.plan import LibraryRule, MarkerRule, Planner, ProbeTarget
from rlscope_ebpf.capture.process import SECCOMP_MODES, TargetProcess, inspect
from rlscope_ebpf.errors import ProfilerError
from rlscope_ebpf.model import format as fmt

GROUP = "target"

JUMPS = "exceptions, jumps"
"""Probes that only end calls which others began: alone they show nothing."""

NEW_CODE = "new libraries"
"""Probes that see code come which return probes must be kept from."""

_PURPOSES: dict[Group, str] = {
    Group.MARKER: "markers",
    Group.GIL: "interpreter lock",
    Group.REENTRY: "calls into Python",
    Group.CATCH: JUMPS,
    Group.GATE: NEW_CODE,
}
"""What the probes of a group are for; those of the other groups are named by their category."""


def check_target(pid: int, libraries: Sequence[LibraryRule] = (), markers: Sequence[MarkerRule] = ()) -> list[Check]:
    """Every check of a process. Attaches nothing and stops nothing; a process that is refused gives one failed row.

    `libraries` and `markers` are what `attach` would be given.
    """
    try:
        target = inspect(pid)
    except ProfilerError as error:
        return [Check(GROUP, f"process {pid}", "failed", error.problem, error.remedy, error.status)]
    command = " ".join(" ".join(target.command).split())[:200]
    threads = fmt.plural_exact(target.threads, "thread")
    return [
        Check(GROUP, f"process {pid}", "ok", f"{target.name}, {threads}: {command}"),
        check_python(target),
        check_seccomp(target),
        check_namespaces(target),
        *check_probes(target, libraries, markers),
    ]


def check_python(target: TargetProcess) -> Check:
    """The interpreter, without which the time in Python is not told from the rest."""
    if target.python is None:
        return Check(GROUP, "Python", "info", "not a Python process: markers and native calls are seen all the same")
    return Check(
        GROUP, "Python", "ok", f"CPython {target.python_version or '(version unknown)'} in {target.python.image}"
    )


def check_seccomp(target: TargetProcess) -> Check:
    """System call filters, which on some kernels deny what a return probe does."""
    mode = SECCOMP_MODES.get(target.seccomp_mode, str(target.seccomp_mode))
    if target.allows_return_probes:
        return Check(GROUP, "seccomp", "ok", mode)
    return Check(
        GROUP,
        "seccomp",
        "warning",
        f"{mode}: on this kernel the filter may end the process at a return probe, so none is used",
        "Upgrade to Linux 6.14 or newer: what takes their place costs more.",
    )


def check_namespaces(target: TargetProcess) -> Check:
    """Whether it lives in a container of its own."""
    parts = []
    if not target.same_mount_namespace:
        parts.append("its own file systems, read through /proc")
    if len(target.namespace_pids) > 1:
        parts.append(f"it knows itself as process {target.namespace_pids[-1]}")
    return Check(GROUP, "namespaces", "ok", "; ".join(parts) or "the same as the profiler's")


def check_probes(
    target: TargetProcess, libraries: Sequence[LibraryRule] = (), markers: Sequence[MarkerRule] = ()
) -> Sequence[Check]:
    """What would be probed: by library, with the category its calls enter; and rules that match nothing."""
    planner = Planner(target.pid, libraries, markers=markers)
    try:
        objects = MapsWatcher(target.pid).poll() or []
        switcher = planner.find_switcher(objects)
        if switcher is not None or not target.allows_return_probes:
            planner.avoid_returns()
        plan = planner.plan(objects)
    except ProfilerError as error:
        return [Check(GROUP, "probes", "failed", error.problem, error.remedy, error.status)]
    sites = Counter((probe.object.path, _purpose(probe)) for probe in plan.targets)
    checks = [
        Check(GROUP, purpose, "ok", f"{fmt.plural_exact(number, 'probe site')} in {path}")
        for (path, purpose), number in sites.most_common()
    ]
    if switcher is not None:
        checks.append(
            Check(
                GROUP,
                "return probes",
                "info",
                f"none on calls, since {switcher.name} can switch stacks or cancel threads: dearer",
            )
        )
    if all(purpose in (JUMPS, NEW_CODE) for _, purpose in sites):
        checks.append(
            Check(
                GROUP,
                "probes",
                "warning",
                "no site found: no markers, no known library and no interpreter",
                "Annotate it with rlscope_ebpf.markers, or name its libraries with --library.",
            )
        )
    checks += [
        Check(
            GROUP,
            "--marker" if rule in markers else "--library",
            "warning",
            f"{rule} matches no file that is loaded now",
            f"/proc/{target.pid}/maps lists what is; a file that comes later is probed within a second.",
        )
        for rule in planner.unmatched()
    ]
    return [*checks, *(Check(GROUP, "note", "info", note) for note in plan.notes)]


def _purpose(probe: ProbeTarget) -> str:
    """What a probe is for, as a person would say."""
    if probe.action == Action.LONGJMP:
        return JUMPS
    return _PURPOSES.get(probe.group) or fmt.CATEGORY_LABELS[probe.category]
