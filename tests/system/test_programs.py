"""The BPF programs: compiled once, kept, loaded by each session; compiled anew where what was kept will not do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from rlscope_ebpf.capture import compiler
from rlscope_ebpf.capture.image import Image, Program
from rlscope_ebpf.capture.kernel import attach_methods, kernel_version
from rlscope_ebpf.paths import STATE_VARIABLE

pytestmark = pytest.mark.system

METHODS = attach_methods(kernel_version())
NONSENSE = Program(bytes((0x95, *bytes(7))), {})  # an exit without a result: refused


def _load(method: str) -> set[str]:
    programs = compiler.compile_programs(method)
    maps = set(programs.maps)
    programs.close()
    return maps


@pytest.fixture
def compilations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Image]:
    """What has been compiled, with nothing kept at first."""
    made: list[Image] = []
    compile_image = compiler._compile

    def compile_and_note(text: str, flags: Sequence[str], programs: Sequence[str]) -> Image:
        made.append(compile_image(text, flags, programs))
        return made[-1]

    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(compiler, "_compile", compile_and_note)
    return made


@pytest.mark.parametrize("method", METHODS)
def test_compiled_once(method: str, compilations: list[Image]) -> None:
    first = _load(method)
    assert len(compilations) == 1
    assert _load(method) == first
    assert len(compilations) == 1
    assert {"events", "texts", "targets", "counters"} <= first


def test_what_the_kernel_refuses_is_compiled_anew(compilations: list[Image], monkeypatch: pytest.MonkeyPatch) -> None:
    _load(METHODS[0])
    (good,) = compilations
    refused = Image(good.maps, dict.fromkeys(good.programs, NONSENSE))
    for image in (refused, Image((), good.programs), Image(good.maps, {})):
        monkeypatch.setattr(compiler.kept_images, "load", lambda _key, image=image: image)
        _load(METHODS[0])
    assert len(compilations) == 4


def test_a_kernel_that_refuses_all_is_an_error(compilations: list[Image], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Program, "linked", lambda _self, _maps: NONSENSE.instructions)
    with pytest.raises(compiler.UnsupportedError, match=r"could not be loaded.*R0") as found:
        _load(METHODS[0])
    assert "doctor" in found.value.remedy
