"""What is said of libraries whose probes came late."""

from __future__ import annotations

from rlscope_ebpf.capture.cookie import Action, Group
from rlscope_ebpf.capture.maps import MappedObject, Segment
from rlscope_ebpf.capture.plan import Plan, ProbeTarget
from rlscope_ebpf.capture.sites import Site
from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.session.lateness import LATE_NS, late_markers, lateness

LATE = LATE_NS + 500_000_000


def _mapped(name: str, inode: int) -> MappedObject:
    return MappedObject((8, 1, inode), f"/opt/{name}", False, (Segment(0, 4096, 0, "r-xp"),))


def _plan(*functions: tuple[MappedObject, Group, str]) -> Plan:
    return Plan(
        [
            ProbeTarget(
                object=mapped,
                path=mapped.path,
                symbol="f",
                vaddr=0,
                file_offset=0,
                action=Action.CALL,
                category=Category.SIMULATOR,
                group=group,
                site=Site(0, 0, "emulated", frozenset()),
                exits="return",
                rule=rule,
            )
            for mapped, group, rule in functions
        ]
    )


SIM, TORCH = _mapped("libsim.so", 1), _mapped("libtorch.so", 2)


def test_in_time_or_not_expected_to_be_called_is_nothing_to_say() -> None:
    plan = _plan((SIM, Group.BOUNDARY, "--library"))
    assert lateness([SIM], [plan], LATE_NS) is None
    assert lateness([TORCH], [plan], LATE) is None
    assert lateness([SIM], [_plan((SIM, Group.GIL, "python"))], LATE) is None
    assert lateness([], [], LATE) is None


def test_what_is_late_is_named_with_how_late_and_what_helps() -> None:
    said = lateness([SIM], [_plan((SIM, Group.BOUNDARY, "--library"))], LATE)
    assert said == (
        "The probes on libsim.so came up to 1.50 s after the target had loaded it: earlier calls count as their "
        "caller's time. If --library names it by a full path, it is probed before being loaded."
    )
    said = lateness([TORCH], [_plan((TORCH, Group.BOUNDARY, "PyTorch"))], LATE)
    assert said is not None
    assert "--library" not in said


def test_many_are_counted() -> None:
    many = [_mapped(f"lib{number}.so", number) for number in range(5)]
    said = lateness(many, [_plan(*((mapped, Group.BOUNDARY, "PyTorch") for mapped in many))], LATE)
    assert said is not None
    assert "lib0.so, lib1.so, lib2.so and 2 more came" in said


MARKERS = _mapped("librlscope_markers.so", 3)


def test_markers_that_were_loaded_before_they_were_probed_are_named() -> None:
    said = late_markers([_plan((MARKERS, Group.MARKER, "markers"), (SIM, Group.BOUNDARY, "--library"))], 40_000_000)
    assert said is not None
    assert said.startswith("The markers of /opt/librlscope_markers.so could be heard only up to 40.0 ms after ")


def test_markers_that_are_only_expected_are_not_late() -> None:
    expected = MappedObject(MARKERS.key, MARKERS.path, False, ())
    assert late_markers([_plan((expected, Group.MARKER, "markers"), (SIM, Group.BOUNDARY, "--library"))], LATE) is None
