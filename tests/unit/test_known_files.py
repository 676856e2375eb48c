"""What is known of files is kept between sessions, for as long as they stay the same; it comes back whole, or not."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from native_samples import compile_library

from rlscope_ebpf.capture import known_files
from rlscope_ebpf.capture.cookie import Group
from rlscope_ebpf.capture.elf import ElfFile
from rlscope_ebpf.capture.known_files import Exits, Facts, identity_of, keep_facts, known_facts, remember
from rlscope_ebpf.capture.maps import read_maps
from rlscope_ebpf.capture.plan import Plan, Planner
from rlscope_ebpf.capture.process import identify_python
from rlscope_ebpf.capture.sites import Chosen, Site
from rlscope_ebpf.paths import STATE_VARIABLE

ADDRESSES = st.integers(0, 2**64 - 1)
NAMES = st.text(max_size=8)
FACTS = st.builds(
    Facts,
    identity=st.tuples(*[st.integers(0, 2**63)] * 5),
    needed=st.lists(NAMES).map(tuple),
    soname=st.none() | NAMES,
    imports=st.frozensets(NAMES),
    python_api=st.booleans(),
    uses_cxx=st.booleans(),
    switches=st.none() | st.booleans(),
    defines=st.dictionaries(NAMES, st.booleans()),
    chosen=st.dictionaries(
        NAMES,
        st.lists(st.builds(Chosen, NAMES, ADDRESSES, ADDRESSES, st.booleans(), st.booleans(), st.booleans())),
    ),
    sites=st.dictionaries(
        st.tuples(ADDRESSES, st.booleans()),
        st.none()
        | st.tuples(
            st.builds(Site, ADDRESSES, st.integers(0, 64), NAMES, st.frozensets(NAMES), st.integers(0, 15)), ADDRESSES
        ),
    ),
    exits=st.dictionaries(
        st.tuples(ADDRESSES, st.booleans(), NAMES),
        st.builds(Exits, NAMES, st.lists(ADDRESSES).map(tuple), st.frozensets(NAMES)),
    ),
)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state"))
    _new_session()
    return tmp_path / "state"


def _new_session() -> None:
    known_files._files.clear()


def _some(path: Path, **more: bool) -> Facts:
    return Facts(identity_of(path.stat()), ("libc.so.6",), None, frozenset({"step"}), False, False, **more)


@pytest.fixture
def old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that was changed so long ago that another change would show."""
    path = tmp_path / "old"
    path.write_bytes(b"x")
    time.sleep(0.05)
    monkeypatch.setattr(known_files, "_SETTLED_NS", 0)
    return path


@given(FACTS)
def test_facts_come_back(facts: Facts) -> None:
    assert Facts.unpacked(facts.packed()) == facts


@given(FACTS, st.data())
def test_damaged_facts_are_none(facts: Facts, data: st.DataObject) -> None:
    packed = bytearray(facts.packed())
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ValueError):
        Facts.unpacked(bytes(packed))


@given(st.binary(max_size=64))
def test_anything_else_is_none(data: bytes) -> None:
    with pytest.raises(ValueError):
        Facts.unpacked(data)


def test_names_that_are_no_text_come_back() -> None:
    odd = os.fsdecode(b"\xff\xfe")
    facts = Facts((1, 2, 3, 4, 5), (odd,), odd, frozenset({odd}), False, False)
    assert Facts.unpacked(facts.packed()) == facts


def _touched(path: Path) -> None:
    os.utime(path)


def _rewritten(path: Path) -> None:
    status = path.stat()
    path.write_bytes(b"y")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # as unpackers do


def _replaced(path: Path) -> None:
    shutil.copy2(path, path.with_name("copy"))
    os.replace(path.with_name("copy"), path)


@pytest.mark.parametrize("change", [_touched, _rewritten, _replaced])
def test_kept_until_the_file_changes(change: Callable[[Path], None], state: Path, old_file: Path) -> None:
    path = old_file
    facts = _some(path)
    remember("old", facts)
    keep_facts()
    _new_session()
    assert known_facts(identity_of(path.stat()), "old") == facts
    assert known_facts(identity_of(path.stat()), "another name") is None
    change(path)
    assert known_facts(identity_of(path.stat()), "old") is None


def test_a_file_that_has_just_been_changed_is_not_kept(state: Path, tmp_path: Path) -> None:
    path = tmp_path / "new"
    path.write_bytes(b"x")
    remember("new", _some(path))
    keep_facts()
    assert not list(state.rglob("*.facts"))


def test_more_is_kept_only_where_there_is_more(state: Path, old_file: Path) -> None:
    path = old_file
    remember("old", _some(path))
    keep_facts()
    (place,) = state.rglob("*.facts")
    os.utime(place, (1, 1))
    _new_session()
    facts = known_facts(identity_of(path.stat()), "old")
    assert facts is not None
    keep_facts()
    assert place.stat().st_mtime == 1
    facts.switches = True
    keep_facts()
    _new_session()
    again = known_facts(identity_of(path.stat()), "old")
    assert again is not None
    assert again.switches is True


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_what_others_can_write_is_not_believed(mode: int, state: Path, old_file: Path) -> None:
    path = old_file
    remember("old", _some(path))
    keep_facts()
    (place,) = state.rglob("*.facts")
    place.chmod(mode)
    _new_session()
    assert known_facts(identity_of(path.stat()), "old") is None


def test_what_lies_under_another_files_name_is_not_believed(state: Path, old_file: Path) -> None:
    path = old_file
    remember("old", _some(path))
    keep_facts()
    (place,) = state.rglob("*.facts")
    other = _some(path)
    other.identity = (1, 2, 3, 4, 5)
    place.write_bytes(other.packed())
    _new_session()
    assert known_facts(identity_of(path.stat()), "old") is None


def test_a_folder_that_cannot_be_written_costs_only_time(
    state: Path, old_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STATE_VARIABLE, str(old_file))
    remember("old", _some(old_file))
    keep_facts()


def test_plans_from_what_was_kept_are_the_same(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no file is opened for them."""
    compile_library(tmp_path, "libplain.so", "int step(int n) { return n + 1; }")
    objects = list(read_maps(os.getpid()))
    first = _plan(objects)
    assert len(first.targets) > 5
    keep_facts()
    assert list(state.rglob("*.facts"))
    _new_session()

    def refuse(self: ElfFile, path: str) -> None:
        raise AssertionError(f"{path} is opened")

    monkeypatch.setattr(ElfFile, "__init__", refuse)
    assert _plan(objects) == first


def _plan(objects: list[object]) -> Plan:
    return Planner(os.getpid(), groups=frozenset(Group)).plan(objects)  # type: ignore[arg-type]


def test_the_version_of_python_is_kept(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlscope_ebpf.capture.process._known_versions", {})
    files = [mapped.path for mapped in read_maps(os.getpid())]
    version = identify_python(os.getpid(), sys.executable, files)
    assert version is not None
    assert version.version.startswith(f"{sys.version_info.major}.{sys.version_info.minor}")
    monkeypatch.setattr("rlscope_ebpf.capture.process._known_versions", {})
    monkeypatch.setattr("rlscope_ebpf.capture.process._exported_python_version", None)
    assert identify_python(os.getpid(), sys.executable, files) == version
