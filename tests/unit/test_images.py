"""Compiled programs kept between sessions: they come back whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlscope_ebpf.capture import kept_images
from rlscope_ebpf.capture.bpf import MapSpec
from rlscope_ebpf.capture.image import Image, Program
from rlscope_ebpf.paths import STATE_VARIABLE

LOAD_MAP = bytes((0x18, 0x11, 0, 0)) + (7).to_bytes(4, "little") + bytes(8)
EXIT = bytes((0x95, *bytes(7)))
MAPS = (MapSpec("events", 27, 0, 0, 4096, 0), MapSpec("targets", 1, 4, 16, 64, 0))
IMAGE = Image(MAPS, {"rls_entry": Program(EXIT + LOAD_MAP + EXIT, {1: "targets"}), "rls_tick": Program(EXIT, {})})


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path))
    return tmp_path


def _file(state: Path) -> Path:
    (found,) = state.rglob("*.image")
    return found


def test_instructions_get_the_descriptors_of_this_session() -> None:
    linked = IMAGE.programs["rls_entry"].linked({"targets": 0x1234, "events": 9})
    assert linked == EXIT + LOAD_MAP[:4] + (0x1234).to_bytes(4, "little") + bytes(8) + EXIT


def test_an_image_comes_back(state: Path) -> None:
    assert kept_images.load("a") is None
    kept_images.save("a", IMAGE)
    assert kept_images.load("a") == IMAGE
    assert kept_images.load("b") is None
    assert os.listdir(_file(state).parent) == [_file(state).name]  # and nothing else is left there
    kept_images.forget("a")
    assert kept_images.load("a") is None


@given(data=st.data())
def test_a_damaged_image_is_none(data: st.DataObject) -> None:
    packed = bytearray(IMAGE.packed())
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ValueError):
        Image.unpacked(bytes(packed[: data.draw(st.integers(at + 1, len(packed)))]))


def test_a_cut_file_is_none(state: Path) -> None:
    kept_images.save("a", IMAGE)
    whole = _file(state).read_bytes()
    for length in range(len(whole)):
        _file(state).write_bytes(whole[:length])
        assert kept_images.load("a") is None


@given(st.binary(max_size=64))
def test_anything_else_is_none(data: bytes) -> None:
    with pytest.raises(ValueError):
        Image.unpacked(data)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_what_others_can_write_is_not_believed(mode: int, state: Path) -> None:
    kept_images.save("a", IMAGE)
    _file(state).chmod(mode)
    assert kept_images.load("a") is None


def test_nor_what_lies_where_others_can_write(state: Path) -> None:
    kept_images.save("a", IMAGE)
    _file(state).parent.chmod(0o777)
    assert kept_images.load("a") is None


def test_nor_what_lies_elsewhere(state: Path) -> None:
    kept_images.save("a", IMAGE)
    place = _file(state)
    place.rename(state / "elsewhere")
    place.symlink_to(state / "elsewhere")
    assert kept_images.load("a") is None


def test_only_the_latest_are_kept(state: Path) -> None:
    for number in range(kept_images.MOST + 3):
        kept_images.save(str(number), IMAGE)
        os.utime(state / "programs" / f"{number}.image", (number, number))
    assert len(list(state.rglob("*.image"))) == kept_images.MOST
    assert kept_images.load("0") is None
    assert kept_images.load(str(kept_images.MOST)) == IMAGE


def test_a_folder_that_cannot_be_written_costs_only_time(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (state / "file").write_text("")
    monkeypatch.setenv(STATE_VARIABLE, str(state / "file"))
    kept_images.save("a", IMAGE)
    assert kept_images.load("a") is None
    kept_images.forget("a")
