"""The options of attach and run: what they accept, and what they say to what they do not."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlscope_ebpf.errors import UsageError
from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.session import options as opt


def test_library_forms() -> None:
    library = opt.parse_library("simulator=*/libsim.so*")
    assert library == opt.LibraryPattern(Category.SIMULATOR, "*/libsim.so*")
    assert opt.parse_library("Backend= *numpy* ").category is Category.BACKEND
    assert opt.parse_library("backend=/a=b/*.so").pattern == "/a=b/*.so"
    assert str(library) == "simulator=*/libsim.so*"


def test_library_matches_whole_path_or_file_name() -> None:
    by_path = opt.parse_library("simulator=*/libsim.so*")
    assert by_path.matches("/opt/x/libsim.so.1")
    assert not by_path.matches("/opt/x/libother.so")
    by_name = opt.parse_library("simulator=libsim.so*")
    assert by_name.matches("/opt/x/libsim.so.1")
    assert not by_name.matches("/opt/x/libsimilar.so")
    assert not opt.parse_library("simulator=x/libsim.so").matches("/opt/y/libsim.so")


def test_a_path_means_the_file_that_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is relative, or a symbolic link, as libraries without their version number are."""
    file = tmp_path / "libsim.so.1"
    file.touch()
    (tmp_path / "libsim.so").symlink_to(file.name)
    monkeypatch.chdir(tmp_path)
    for pattern in ("./libsim.so", str(tmp_path / "libsim.so"), str(file)):
        library, marker = opt.parse_library(f"simulator={pattern}"), opt.parse_marker(f"step={pattern}:step")
        assert library.file == marker.file == str(file)
        assert library.matches(str(file))
        assert marker.matches(str(file))
        assert str(library) == f"simulator={pattern}"
    for pattern in ("libsim.so", "*/libsim.so", str(tmp_path), "/no/such/libsim.so"):
        assert opt.parse_library(f"simulator={pattern}").file == ""


@pytest.mark.parametrize("text", ["", "backend", "backend=", "=*.so", "gpu=*.so", "python=*"])
def test_bad_libraries(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        opt.parse_library(text)
    assert caught.value.problem.endswith(".")
    assert caught.value.remedy.endswith(".")


def test_marker_forms() -> None:
    marker = opt.parse_marker("physics step=libmujoco.so*:mj_step")
    assert marker == opt.NativeMarker("physics step", "libmujoco.so*", "mj_step")
    assert marker.matches("/venv/mujoco/libmujoco.so.4.0.0")
    assert not marker.matches("/lib/libm.so.6")
    assert opt.parse_marker("a=/opt/l.so:_ZN3foo3barEv").matches("/opt/l.so")


@pytest.mark.parametrize("text", ["", "a", "a=b", "a=b:", "=b:c", "a=:c", "a=b:f(int)", "a=b:f g", "é" * 64 + "=b:c"])
def test_bad_markers(text: str) -> None:
    with pytest.raises(UsageError):
        opt.parse_marker(text)


@given(st.text(max_size=60))
def test_any_text_parses_or_is_refused(text: str) -> None:
    for parse in (opt.parse_library, opt.parse_marker):
        with contextlib.suppress(UsageError):  # anything else would be a traceback
            assert str(parse(text))


def test_pids() -> None:
    assert opt.parse_pids([3, 5, 3]) == (3, 5)
    for bad in ([], [0], [-4]):
        with pytest.raises(UsageError):
            opt.parse_pids(bad)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_durations(value: float) -> None:
    with pytest.raises(UsageError):
        opt.parse_duration(value)


def test_durations_and_budgets() -> None:
    assert opt.parse_duration(None) is None
    assert opt.parse_duration(0.5) == 0.5
    assert opt.parse_max_overhead(0) == 0
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError):
            opt.parse_max_overhead(bad)


def test_default_name() -> None:
    moment = time.struct_time((2026, 11, 30, 4, 5, 6, 0, 334, 0))
    assert (
        str(opt.default_trace_path("python train/x", 7, moment)) == "rlscope-python_train_x-7-20261130-040506.rlscope"
    )
    assert str(opt.default_trace_path("../..", 7, moment)) == "rlscope-process-7-20261130-040506.rlscope"
    assert len(opt.default_trace_path("n" * 400, 4194304).name) < 255


def test_as_dict_is_plain() -> None:
    options = opt.CaptureOptions(
        pids=(1, 2), libraries=(opt.parse_library("backend=*np*"),), markers=(opt.parse_marker("a=b:c"),)
    )
    plain = options.as_dict()
    assert msgpack.unpackb(msgpack.packb(plain)) == plain
    assert plain["libraries"] == ["backend=*np*"]
    assert plain["markers"] == ["a=b:c"]
