"""The annotation module: what it opens and closes, with the extension, through ctypes, and with nothing at all."""

from __future__ import annotations

import asyncio
import functools
import inspect
import pickle
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rlscope_ebpf.markers as rls
from rlscope_ebpf import _markers_fallback as fallback
from rlscope_ebpf.capture.maps import read_maps
from rlscope_ebpf.capture.markers_layout import ProcessMarkers, read_process_markers

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def balanced() -> Iterator[None]:
    before = rls.stack()
    yield
    assert rls.stack() == before


@pytest.fixture(params=["extension", "ctypes"])
def api(request: pytest.FixtureRequest) -> Any:
    """The module's functions by either implementation; both write to the same library."""
    assert rls.BACKEND == "extension"
    return rls if request.param == "extension" else fallback


def said() -> ProcessMarkers:
    """What a profiler would read of this process."""
    import os

    markers = read_process_markers(os.getpid(), read_maps(os.getpid()))
    assert markers is not None
    return markers


def test_operations_nest_also_in_themselves(api: Any) -> None:
    with api.operation("outer"):
        with api.operation("inner"), api.operation("inner"):
            assert api.stack() == ("outer", "inner", "inner")
        assert api.stack() == ("outer",)
    assert api.stack() == ()


def test_an_exception_closes_the_operation_and_passes(api: Any) -> None:
    with pytest.raises(KeyError), api.operation("x"):
        raise KeyError("k")
    assert api.stack() == ()


def test_as_gives_the_operation(api: Any) -> None:
    with api.operation("x") as opened:
        assert opened.name == "x"
    assert repr(opened) == "operation('x')"


def test_threads_have_stacks_of_their_own(api: Any) -> None:
    seen: list[tuple[str, ...]] = []

    def run() -> None:
        with api.operation("thread"):
            seen.append(api.stack())

    with api.operation("main"):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert api.stack() == ("main",)
    assert seen == [("thread",)]


def test_the_same_name_gives_the_same_operation(api: Any) -> None:
    assert api.operation("again") is api.operation("ag" + "ain"[:3])


def test_names_that_c_cannot_hold_are_replaced(api: Any) -> None:
    with api.operation("a\0b"), api.operation("c\ud800d"), api.operation(""):
        assert api.stack() == ("a\ufffdb", "c\ufffdd", "")


def test_long_names_are_cut_between_characters_and_counted(api: Any) -> None:
    before = said().counters["truncated_names"]
    with api.operation("w" * 125 + "€uro"):
        assert api.stack() == ("w" * 125,)
    assert said().counters["truncated_names"] > before


def test_a_subclass_of_str_is_a_name(api: Any) -> None:
    class Odd(str):
        __slots__ = ()

        def __hash__(self) -> int:
            raise AssertionError

    with api.operation(Odd("odd")):
        assert api.stack() == ("odd",)


@pytest.mark.parametrize("name", [None, 3, b"bytes", len])
@pytest.mark.parametrize("function", ["operation", "phase", "process_name"])
def test_names_that_are_no_text_raise(api: Any, function: str, name: object) -> None:
    with pytest.raises(TypeError, match="must be a str, not"):
        getattr(api, function)(name)


def test_phase_progress_metadata_and_process_name_reach_the_registry(api: Any) -> None:
    before = said().progress_reports
    api.phase("évaluation")
    api.progress(7)
    api.progress(np.int64(8), total=np.uint16(100))
    api.metadata(algorithm="PPO", layers=2, missing=None, text=Path("a/b"))
    api.process_name("selfplay-03")
    after = said()
    assert after.phase == "évaluation"
    assert (after.progress_reports - before, after.step, after.total) == (2, 8, 100)
    wanted = {"algorithm": "PPO", "layers": "2", "missing": "None", "text": "a/b", "process_name": "selfplay-03"}
    assert wanted.items() <= after.metadata.items()
    api.progress(9, None)
    assert said().total == 0
    api.progress(2**64 - 1)
    assert said().step == 2**64 - 1


@pytest.mark.parametrize("step", [-1, 2**64])
def test_steps_out_of_range_raise(api: Any, step: int) -> None:
    with pytest.raises(ValueError, match="step must be from 0"):
        api.progress(step)
    with pytest.raises(ValueError, match="total must be from 0"):
        api.progress(1, step)


@pytest.mark.parametrize("step", [1.5, "1", None])
def test_steps_that_are_no_integers_raise(api: Any, step: object) -> None:
    with pytest.raises(TypeError):
        api.progress(step)


def test_metadata_takes_keywords_only(api: Any) -> None:
    with pytest.raises(TypeError):
        api.metadata("PPO")


def test_an_end_too_many_changes_nothing(api: Any) -> None:
    before = said().counters["unbalanced_ends"]
    api.operation("x").__exit__(None, None, None)
    assert api.stack() == ()
    assert said().counters["unbalanced_ends"] == before + 1


def test_deep_nesting_keeps_the_outer_names(api: Any) -> None:
    opened = [api.operation(str(i)) for i in range(100)]
    for operation in opened:
        operation.__enter__()
    assert api.stack() == tuple(str(i) for i in range(64))
    assert api.depth() == 100
    for operation in opened:
        operation.__exit__(None, None, None)


def test_many_different_names_do_not_grow_the_cache(api: Any) -> None:
    first = api.operation("first")
    for i in range(5000):
        with api.operation(f"step {i}"):
            pass
    assert api.operation("first") is not first, "kept forever"
    with api.operation("first") as again, api.operation("step 4999"):
        assert api.stack() == ("first", "step 4999")
        assert api.operation("first") is again


def test_operations_can_be_pickled(api: Any) -> None:
    assert pickle.loads(pickle.dumps(api.operation("pickled"))) is rls.operation("pickled")


# ---- decorator ----


def test_a_decorated_function_keeps_its_face(api: Any) -> None:
    @api.operation("step")
    def function(a: int, *, b: int = 2) -> tuple[int, int, tuple[str, ...]]:
        """Doc."""
        return a, b, rls.stack()

    assert function(1, b=3) == (1, 3, ("step",))
    assert (function.__name__, function.__doc__) == ("function", "Doc.")
    assert list(inspect.signature(function).parameters) == ["a", "b"]


def test_methods_static_methods_and_callables_can_be_decorated(api: Any) -> None:
    class Agent:
        @api.operation("act")
        def act(self) -> tuple[str, ...]:
            return rls.stack()

        @staticmethod
        @api.operation("static")
        def static() -> tuple[str, ...]:
            return rls.stack()

        def __call__(self) -> tuple[str, ...]:
            return rls.stack()

    assert Agent().act() == ("act",)
    assert Agent.static() == ("static",)
    assert api.operation("call")(functools.wraps(Agent().act)(Agent()))() == ("call",)
    assert api.operation("partial")(functools.partial(Agent.act, Agent()))() == ("partial", "act")
    assert api.operation("builtin")(len)([1]) == 1


@pytest.mark.parametrize("thing", [3, "text", int])
def test_what_is_no_function_is_not_decorated(api: Any, thing: object) -> None:
    with pytest.raises(TypeError, match="decorates functions"):
        api.operation("x")(thing)
    with pytest.raises(TypeError):
        api.operation("x")(len, 1)


def test_a_decorated_generator_is_open_while_it_runs(api: Any) -> None:
    seen: list[tuple[str, ...]] = []

    @api.operation("generator")
    def numbers() -> Iterator[int]:
        with rls.operation("inside"):
            seen.append(rls.stack())
            got = yield 1
            seen.append(rls.stack())
            with pytest.raises(KeyError):
                yield got
            seen.append(rls.stack())
        return 5

    generator = numbers()
    assert inspect.isgenerator(generator)
    with rls.operation("caller"):
        assert next(generator) == 1
        assert rls.stack() == ("caller",)
        assert generator.send(7) == 7
        assert rls.stack() == ("caller",)
        with pytest.raises(StopIteration) as stop:
            generator.throw(KeyError())
        assert stop.value.value == 5
    assert seen == [("caller", "generator", "inside")] * 3


def test_closing_a_decorated_generator_runs_its_cleanup_inside(api: Any) -> None:
    seen = []

    @api.operation("generator")
    def numbers() -> Iterator[int]:
        try:
            yield 1
        finally:
            seen.append(rls.stack())

    generator = numbers()
    next(generator)
    generator.close()
    assert seen == [("generator",)]


def test_decorated_coroutines_do_not_mix_on_one_thread(api: Any) -> None:
    seen: list[tuple[str, tuple[str, ...]]] = []

    def task(name: str) -> Any:
        @api.operation(name)
        async def run() -> str:
            seen.append((name, rls.stack()))
            with rls.operation(name + " inside"):
                for _ in range(3):
                    await asyncio.sleep(0)
                    seen.append((name, rls.stack()))
            return name

        assert inspect.iscoroutinefunction(run)
        return run()

    async def main() -> list[str]:
        result = await asyncio.gather(task("a"), task("b"))
        assert rls.stack() == ()
        return list(result)

    assert asyncio.run(main()) == ["a", "b"]
    assert {name: {s for n, s in seen if n == name} for name in "ab"} == {
        "a": {("a",), ("a", "a inside")},
        "b": {("b",), ("b", "b inside")},
    }


def test_calling_a_decorated_coroutine_function_opens_nothing_yet(api: Any) -> None:
    @api.operation("x")
    async def run() -> tuple[str, ...]:
        return rls.stack()

    coroutine = run()
    assert rls.stack() == ()
    assert asyncio.run(coroutine) == ("x",)


def test_cancelling_and_failing_coroutines_close_their_operation(api: Any) -> None:
    cleaned = []

    @api.operation("x")
    async def run() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append(rls.stack())

    @api.operation("y")
    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError

    async def main() -> None:
        task = asyncio.ensure_future(run())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(KeyError):
            await fail()
        assert rls.stack() == ()

    asyncio.run(main())
    assert cleaned == [("x",)]


def test_decorated_asynchronous_generators(api: Any) -> None:
    seen: list[tuple[str, ...]] = []

    @api.operation("stream")
    async def stream() -> AsyncIterator[int]:
        try:
            with rls.operation("inside"):
                for i in range(4):
                    await asyncio.sleep(0)
                    seen.append(rls.stack())
                    yield i
        finally:
            await asyncio.sleep(0)
            seen.append(rls.stack())

    async def main() -> None:
        assert inspect.isasyncgen(stream())
        items = []
        async for item in stream():
            assert rls.stack() == ()
            items.append(item)
        assert items == [0, 1, 2, 3]
        broken = stream()
        async for _ in broken:
            break
        await broken.aclose()
        assert rls.stack() == ()
        failing = stream()
        await failing.__anext__()
        with pytest.raises(KeyError):
            await failing.athrow(KeyError())

    asyncio.run(main())
    inside, cleanup = ("stream", "inside"), ("stream",)
    assert seen == [inside] * 4 + [cleanup] + [inside, cleanup] + [inside, cleanup]


def test_an_asynchronous_generator_takes_what_is_sent(api: Any) -> None:
    @api.operation("echo")
    async def echo() -> Any:
        got = yield "ready"
        while True:
            got = yield got

    async def main() -> None:
        generator = echo()
        assert await generator.asend(None) == "ready"
        assert await generator.asend(3) == 3
        await generator.aclose()

    asyncio.run(main())


# ---- without the extension, without the library ----


def run_python(code: str, *, path: Path = ROOT, python: str = sys.executable) -> str:
    # Without site-packages, where an editable installation makes the checkout's files found everywhere.
    result = subprocess.run(
        [python, "-S", "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(path)}, cwd="/", timeout=60
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_importing_the_markers_imports_nothing_heavy() -> None:
    code = (
        "import sys; before = set(sys.modules); import rlscope_ebpf.markers; "
        "new = {m.partition('.')[0] for m in set(sys.modules) - before}; "
        "print(sorted(new - set(sys.stdlib_module_names)), 'asyncio' in new, 'inspect' in new, 'ctypes' in new)"
    )
    assert run_python(code) == "['rlscope_ebpf'] False False False"


def copy_without(tmp_path: Path, *missing: str) -> Path:
    package = tmp_path / "rlscope_ebpf"
    package.mkdir()
    for name in ("__init__.py", "markers.py", "_markers_fallback.py", "_markers.abi3.so", "librlscope_markers.so"):
        if name not in missing:
            (package / name).write_bytes((ROOT / "rlscope_ebpf" / name).read_bytes())
    return tmp_path


PROGRAM = """
import rlscope_ebpf.markers as rls
with rls.operation("a"):
    @rls.operation("b")
    def f(): return rls.stack()
    inner = f()
rls.phase("p"); rls.progress(1, 2); rls.metadata(k="v"); rls.process_name("n")
print(rls.BACKEND, inner, rls.stack())
"""


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        ([], "extension ('a', 'b') ()"),
        (["_markers.abi3.so"], "ctypes ('a', 'b') ()"),
        (["librlscope_markers.so"], "none () ()"),
        (["_markers.abi3.so", "librlscope_markers.so"], "none () ()"),
    ],
)
def test_markers_do_what_they_can_with_what_is_there(tmp_path: Path, missing: list[str], expected: str) -> None:
    assert run_python(PROGRAM, path=copy_without(tmp_path, *missing)) == expected


def test_a_library_that_is_damaged_does_not_matter(tmp_path: Path) -> None:
    path = copy_without(tmp_path)
    (path / "rlscope_ebpf" / "librlscope_markers.so").write_bytes(b"not a library")
    assert run_python(PROGRAM, path=path) == "none () ()"


def test_without_the_library_arguments_are_checked_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "_library", None)
    bad: Any = SimpleNamespace()
    for function in (fallback.operation, fallback.phase, fallback.process_name, fallback.progress):
        with pytest.raises(TypeError):
            function(bad)
