"""What the user named and no target has is said, once and not before it may have been loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlscope_ebpf.session.options import CaptureOptions, parse_library, parse_marker
from rlscope_ebpf.session.rules import RuleWatch

LIBRARY = parse_library("simulator=*libsim*")
MARKER = parse_marker("step=libsim.so:step")


@dataclass
class Unmatched:
    """Stands in for a planner."""

    rules: list[Any]

    def unmatched(self) -> list[Any]:
        return self.rules


def look(watch: RuleWatch, *unmatched: list[Any], complain: bool = True) -> list[str]:
    return watch.look([Unmatched(rules) for rules in unmatched], complain=complain)  # type: ignore[misc]


def test_what_matches_nothing_is_said_once_and_not_too_early() -> None:
    watch = RuleWatch(CaptureOptions(libraries=(LIBRARY,), markers=(MARKER,)))
    assert look(watch, [LIBRARY, MARKER], complain=False) == []
    first, second = look(watch, [LIBRARY, MARKER])
    assert first.startswith("--library simulator=*libsim* matches no file")
    assert second.startswith("--marker step=libsim.so:step matches no file")
    assert look(watch, [LIBRARY, MARKER]) == []


def test_what_comes_later_takes_it_back() -> None:
    watch = RuleWatch(CaptureOptions(libraries=(LIBRARY,)))
    look(watch, [LIBRARY])
    (note,) = look(watch, [], complain=False)
    assert note.startswith("--library simulator=*libsim* matches now")
    assert look(watch, [LIBRARY]) == []


def test_one_of_several_processes_is_enough() -> None:
    watch = RuleWatch(CaptureOptions(libraries=(LIBRARY,)))
    assert look(watch, [LIBRARY], []) == []


def test_nothing_is_complained_of_that_may_have_been_there(tmp_path: Path) -> None:
    """A command that has ended may have loaded a library that was probed beforehand, between two looks."""
    (tmp_path / "libsim.so").touch()
    library = parse_library(f"simulator={tmp_path / 'libsim.so'}")
    watch = RuleWatch(CaptureOptions(libraries=(library,)))
    planners = [Unmatched([library])]
    assert watch.look(planners, complain=True, spared={library.file}) == []  # type: ignore[arg-type]
    (sentence,) = watch.look(planners, complain=True, spared={"/opt/libother.so"})  # type: ignore[arg-type]
    assert "matches no file" in sentence
