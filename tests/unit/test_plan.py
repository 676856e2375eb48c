"""Plans for small processes with libraries of known content."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from native_samples import compile_library

from rlscope_ebpf.capture import objects
from rlscope_ebpf.capture.cookie import Action, CookieFlag, Group
from rlscope_ebpf.capture.elf import ElfFile
from rlscope_ebpf.capture.ends import NONE, RET_SITES, RETURN
from rlscope_ebpf.capture.maps import expected_object, read_maps
from rlscope_ebpf.capture.plan import Plan, Planner, ProbeTarget, plan_probes
from rlscope_ebpf.capture.switching import greenlet_is_installed, switches_stacks
from rlscope_ebpf.model.categories import Category

PLAIN = r"""
typedef int callback(int);
int step(int n) { return n + 1; }
int call_back(callback *f, int n) { return f(n) + 1; }
static int internal(int n) { return n * 2; }
int (*pointer)(int) = internal;
__attribute__((visibility("hidden"))) int hidden(int n) { return n; }
"""

THROWING = r"""
#include <stdexcept>
extern "C" {
typedef int callback(int);
int cpp_leaf(int n) { return n * 3; }
int cpp_throws(int n) { if (n > 3) throw std::runtime_error("no"); return n; }
__attribute__((noinline)) int cpp_calls(int n) { return cpp_throws(n) + 1; }
int cpp_call_back(callback *f, int n) { return f(n) + 1; }
}
"""

USER = "int step(int); int use(int n) { return step(n) + 1; }"

TARGET = """
import ctypes, sys
print("ready", flush=True)
for line in sys.stdin:
    ctypes.CDLL(line.strip())
    print("done", flush=True)
"""


@dataclass(frozen=True)
class Rule:
    """Stands in for what --library gives."""

    category: Category
    pattern: str

    def matches(self, path: str) -> bool:
        return fnmatchcase(path, self.pattern)


@dataclass(frozen=True)
class Marker:
    """Stands in for what --marker gives."""

    name: str
    symbol: str
    pattern: str

    def matches(self, path: str) -> bool:
        return fnmatchcase(path, self.pattern)


class Target:
    """A Python process that loads libraries by ctypes."""

    def __init__(self, code: str = TARGET) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        self.pid = self.process.pid

    def load(self, path: Path) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"


@contextmanager
def target(*libraries: Path, code: str = TARGET) -> Iterator[Target]:
    running = Target(code)
    try:
        for library in libraries:
            running.load(library)
        yield running
    finally:
        running.process.communicate()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plan")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Path:
    return compile_library(folder, "libplain.so", PLAIN, "-Wl,-soname,libplain.so")


@pytest.fixture(scope="module")
def throwing(folder: Path) -> Path:
    return compile_library(folder, "libthrowing.so", THROWING, suffix=".cc")


def of_library(plan: Plan, name: str) -> dict[str, ProbeTarget]:
    return {found.symbol: found for found in plan.targets if found.object.name == name}


def of_group(plan: Plan, group: Group) -> set[str]:
    return {found.symbol for found in plan.targets if found.group == group}


BACKEND = Rule(Category.BACKEND, "*/libplain.so")


def test_a_plain_library_called_by_ctypes(plain: Path) -> None:
    with target(plain) as running:
        plan = plan_probes(running.pid, read_maps(running.pid), [BACKEND])
    found = of_library(plan, "libplain.so")
    assert set(found) == {"step", "call_back", "internal"}
    assert {(t.action, t.category, t.group) for t in found.values()} == {
        (Action.CALL, Category.BACKEND, Group.BOUNDARY)
    }
    # What is called back may throw, whoever it is and whenever it comes: nothing of C++ is here yet.
    assert {name: t.exits for name, t in found.items()} == {
        "step": RETURN,
        "call_back": RET_SITES,
        "internal": RETURN,
    }
    assert all(t.address for t in found.values())
    # Only ctypes can come back from it to Python, and does so through its import stubs.
    assert "_PyEval_EvalFrameDefault" not in of_group(plan, Group.REENTRY)
    reentry = [t for t in plan.targets if t.group == Group.REENTRY]
    assert {t.object.name.partition(".")[0] for t in reentry} == {"_ctypes"}
    assert "PyObject_Vectorcall" in {t.symbol for t in reentry} or "PyObject_CallObject" in {t.symbol for t in reentry}
    assert all(t.flags & CookieFlag.REENTRY for t in reentry)
    assert {"PyEval_SaveThread", "PyEval_RestoreThread"} <= of_group(plan, Group.GIL)


def test_what_an_exception_may_leave_gets_no_return_probe(throwing: Path) -> None:
    rule = Rule(Category.SIMULATOR, "*/libthrowing.so")
    with target(throwing) as running:
        plan = plan_probes(running.pid, read_maps(running.pid), [rule])
    found = of_library(plan, "libthrowing.so")
    assert found["cpp_leaf"].exits == RETURN
    for name in ("cpp_throws", "cpp_calls", "cpp_call_back"):
        assert found[name].exits == RET_SITES, name
        assert found[name].exit_offsets, name
        code = Path(found[name].object.path).read_bytes()
        assert {code[offset] for offset in found[name].exit_offsets} <= {0xC3, 0xE9, 0xEB, 0xFF}
    assert of_group(plan, Group.CATCH) == {"__cxa_begin_catch"}


def test_a_c_library_used_by_cpp_may_pass_exceptions(plain: Path, folder: Path) -> None:
    source = (
        'extern "C" int call_back(int (*)(int), int); int f(int n) { throw n; } int g() { return call_back(f, 1); }'
    )
    user = compile_library(folder, "libcppuser.so", source, str(plain), "-Wl,-rpath,$ORIGIN", suffix=".cc")
    with target(user) as running:
        plan = plan_probes(running.pid, read_maps(running.pid), [BACKEND])
    found = of_library(plan, "libplain.so")
    assert found["call_back"].exits == RET_SITES
    assert found["step"].exits == RETURN


def test_a_library_loaded_later_and_nothing_twice(plain: Path) -> None:
    with target() as running:
        planner = Planner(running.pid, [BACKEND])
        first = planner.plan(read_maps(running.pid))
        assert of_library(first, "libplain.so") == {}
        assert of_group(first, Group.GIL)
        running.load(plain)
        second = planner.plan(read_maps(running.pid))
        assert set(of_library(second, "libplain.so")) == {"step", "call_back", "internal"}
        assert of_group(second, Group.GIL) == set()
        assert planner.plan(read_maps(running.pid)) == Plan()
        assert not planner.incomplete


def test_a_library_is_planned_before_it_is_loaded(plain: Path) -> None:
    with target() as running:
        planner = Planner(running.pid, [BACKEND], markers=[Marker("stepping", "step", "*/libplain.so")])
        planner.plan(read_maps(running.pid))
        expected = expected_object(running.pid, str(plain))
        assert expected is not None
        early = of_library(planner.plan([expected]), "libplain.so")
        assert set(early) == {"step", "call_back", "internal"}
        assert not any(found.address for found in early.values())
        assert len(planner.unmatched()) == 2  # it may never be loaded
        running.load(plain)
        later = planner.plan(read_maps(running.pid))
        assert of_library(later, "libplain.so") == {}
        assert planner.unmatched() == []
        # What its functions do is known as well as if it had been there.
        whole = of_library(plan_probes(running.pid, read_maps(running.pid), [BACKEND]), "libplain.so")
        assert {name: found.exits for name, found in early.items()} == {
            name: found.exits for name, found in whole.items()
        }


@pytest.mark.parametrize("same", [True, False], ids=["another name for it", "another file"])
def test_an_expected_file_that_comes_under_another_identity(
    same: bool, plain: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On overlayfs and btrfs the maps may have another device than stat; or the file was replaced meanwhile."""
    mapped_file = plain if same else Path(shutil.copy(plain, folder / "libcopy.so"))
    with target() as running:
        planner = Planner(running.pid, [BACKEND])
        expected = expected_object(running.pid, str(plain))
        assert expected is not None
        assert of_library(planner.plan([expected]), "libplain.so")
        running.load(plain)
        monkeypatch.setattr(objects, "host_path", lambda _pid, _mapped: str(mapped_file))
        (mapped,) = [mapped for mapped in read_maps(running.pid) if mapped.path == str(plain)]
        later = of_library(planner.plan([replace(mapped, key=(0, 99, 7))]), "libplain.so")
    assert set(later) == (set() if same else {"step", "call_back", "internal"})


def test_an_expected_module_waits_for_its_interpreter(folder: Path) -> None:
    source = "extern int Py_IsInitialized(void); int ask(void) { return Py_IsInitialized(); }"
    module = compile_library(folder, "libmodule.so", source)
    with target() as running:
        planner = Planner(running.pid, [Rule(Category.BACKEND, "*/libmodule.so")])
        expected = expected_object(running.pid, str(module))
        assert expected is not None
        assert planner.plan([expected]).targets == []
        assert set(of_library(planner.plan(read_maps(running.pid)), "libmodule.so")) == {"ask"}


def test_a_file_that_is_not_there_is_not_expected(tmp_path: Path) -> None:
    assert expected_object(os.getpid(), str(tmp_path / "libnone.so")) is None


def test_bindings_between_python_and_the_library_need_frames(plain: Path, folder: Path) -> None:
    source = USER + " extern int Py_IsInitialized(void); int ask(void) { return Py_IsInitialized(); }"
    glue = compile_library(folder, "libglue.so", source, str(plain), "-Wl,-rpath,$ORIGIN")
    with target(glue) as running:
        planner = Planner(running.pid, [BACKEND])
        plan = planner.plan(read_maps(running.pid))
        assert [found.name for found in planner.glue()] == ["libglue.so"]
    assert of_group(plan, Group.REENTRY) == {"_PyEval_EvalFrameDefault"}
    assert of_library(plan, "libglue.so") == {}


def test_native_operations(plain: Path) -> None:
    markers = [Marker("stepping", "step", "*/libplain.so"), Marker("nothing", "no_such", "*/libplain.so")]
    with target(plain) as running:
        plan = plan_probes(running.pid, read_maps(running.pid), markers=markers)
    (found,) = of_library(plan, "libplain.so").values()
    assert (found.symbol, found.operation, found.group) == ("step", "stepping", Group.MARKER)
    assert found.flags & CookieFlag.OPERATION
    (note,) = [note for note in plan.notes if "no_such" in note]
    assert "nothing" in note


def test_a_marker_without_its_function_is_noted_once(plain: Path) -> None:
    """By planners that share a process, and not at all if one of several files that the pattern matches has it."""
    markers = [Marker("nothing", "no_such", "*/libplain.so"), Marker("stepping", "step", "*.so*")]
    with target(plain) as running:
        planners = [
            Planner(running.pid, markers=markers, groups=groups)
            for groups in ([Group.MARKER], set(Group) - {Group.MARKER})
        ]
        notes = [note for planner in planners for note in planner.plan(read_maps(running.pid)).notes]
    assert [note for note in notes if "--marker" in note] == [
        f"--marker nothing sees no call: {plain} has no function no_such."
    ]


def test_rules_that_match_no_file_are_known(plain: Path) -> None:
    rules = [Rule(Category.BACKEND, "*/libplain.so"), Rule(Category.BACKEND, "*/libplane.so")]
    markers = [Marker("stepping", "step", "*/libplain.so"), Marker("typo", "step", "*/libplane.so")]
    with target(plain) as running:
        planner = Planner(running.pid, rules, markers=markers, groups=[Group.MARKER])
        assert planner.unmatched() == [*rules, *markers]
        planner.plan(read_maps(running.pid))
    assert planner.unmatched() == [rules[1], markers[1]]


def test_groups_can_be_left_out(plain: Path) -> None:
    with target(plain) as running:
        plan = plan_probes(running.pid, read_maps(running.pid), [BACKEND], groups=[Group.BOUNDARY])
    assert {found.group for found in plan.targets} == {Group.BOUNDARY}


def test_a_damaged_library_is_noted_and_nothing_else(plain: Path, folder: Path) -> None:
    copy = folder / "libdamaged.so"
    copy.write_bytes(plain.read_bytes())
    with target(copy) as running:
        objects = read_maps(running.pid)
        with copy.open("r+b") as file:  # the very file that is mapped
            file.seek(0x20)
            file.write(b"\xff" * 16)
        plan = plan_probes(running.pid, objects, [Rule(Category.BACKEND, "*/libdamaged.so")])
    assert of_library(plan, "libdamaged.so") == {}
    assert of_group(plan, Group.GIL)
    assert any("libdamaged.so" in note for note in plan.notes)


def test_a_process_that_is_gone_gives_an_empty_plan(plain: Path) -> None:
    with target(plain) as running:
        objects = read_maps(running.pid)
    running.process.wait()
    plan = plan_probes(running.pid, objects, [BACKEND])
    assert plan.targets == []
    assert any("libplain.so" in note for note in plan.notes)


NUMPY = """
import numpy, sys
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_large_module_of_python_types() -> None:
    with target(code=NUMPY) as running:
        objects = read_maps(running.pid)
        start = time.perf_counter()
        plan = plan_probes(running.pid, objects, [Rule(Category.BACKEND, "*/_multiarray_umath*")])
        seconds = time.perf_counter() - start
    found = [t for t in plan.targets if t.rule == "--library"]
    assert len(found) > 200
    assert not [t for t in found if t.exits == NONE]
    assert all(t.exits == RETURN for t in found if t.flags & CookieFlag.FROM_PYTHON)
    names = {t.symbol for t in found}
    if "array_add" in names:  # not stripped
        # A slot, a method, a subscript; and universal functions, which stand in no table.
        assert {"array_matrix_multiply", "array_dot", "array_subscript", "ufunc_generic_vectorcall"} <= names
        assert "array_dealloc" not in names
    assert seconds < 4  # about 0.3 s on an idle machine


ENDING = "int ending(int n); int calls_last(int n) { return ending(n + 1); }"


def test_a_function_that_ends_in_another_file_is_followed_there(folder: Path) -> None:
    ending = compile_library(folder, "libending.so", "int ending(int n) { return n > 3 ? n : 7; }")
    calling = compile_library(folder, "libcalling.so", ENDING, str(ending), "-Wl,-rpath,$ORIGIN", "-O2")
    with target(calling) as running:
        plan = plan_probes(running.pid, read_maps(running.pid), [Rule(Category.BACKEND, "*/libcalling.so")])
    found = of_library(plan, "libcalling.so")["calls_last"]
    assert (found.exits, found.exit_offsets) == (RET_SITES, ())
    assert {site.object.name for site in found.far_exits} == {"libending.so"}
    code = ending.read_bytes()
    assert {code[site.offset] for site in found.far_exits} == {0xC3}


SWITCHING = """
#include <ucontext.h>
int leave(ucontext_t *from, ucontext_t *to) { return swapcontext(from, to); }
"""


def test_return_probes_are_given_up_when_something_comes_that_switches_stacks(plain: Path, folder: Path) -> None:
    switching = compile_library(folder, "libswitching.so", SWITCHING)
    with target(plain) as running:
        planner = Planner(running.pid, [BACKEND])
        first = planner.plan(read_maps(running.pid))
        assert planner.find_switcher() is None
        running.load(switching)
        switcher = planner.find_switcher(read_maps(running.pid))
        assert switcher is not None
        assert switcher.name == "libswitching.so"
        planner.avoid_returns()
        second = planner.plan()
        assert planner.plan() == Plan()
    had = {name for name, t in of_library(first, "libplain.so").items() if t.exits == RETURN}
    assert had
    assert {name: t.exits for name, t in of_library(second, "libplain.so").items()} == dict.fromkeys(had, RET_SITES)
    # Import stubs have no end that could be probed: the interpreter's frames have.
    assert of_group(second, Group.REENTRY) == {"_PyEval_EvalFrameDefault"}
    assert all(t.exits == RET_SITES for t in second.targets if t.action == Action.CALL)


def test_cuda_calls_keep_their_return_probes(folder: Path) -> None:
    """They run nothing of the program's; but where return probes are forbidden, they have none either."""
    cuda = compile_library(folder, "libcuda.so.1", "int cuLaunchKernel(int n) { return n > 3 ? n : 7; }")
    with target(cuda) as running:
        planner = Planner(running.pid)
        assert of_library(planner.plan(read_maps(running.pid)), "libcuda.so.1")["cuLaunchKernel"].exits == RETURN
        planner.avoid_returns()
        assert of_library(planner.plan(), "libcuda.so.1") == {}
        plan = Planner(running.pid, avoid_returns=True).plan(read_maps(running.pid))
        assert of_library(plan, "libcuda.so.1")["cuLaunchKernel"].exits == RET_SITES


@pytest.mark.parametrize(
    "source",
    [
        "void jump_fcontext(void) {}",
        "static __attribute__((used)) void slp_switch(void) {}",
        "int setcontext(void *); int resume(void *c) { return setcontext(c); }",
        "int pthread_cancel(unsigned long); int stop(unsigned long t) { return pthread_cancel(t); }",
        '__asm__(".text; stmxcsr (%rsp); fnstcw 4(%rsp)");',
    ],
)
def test_what_can_switch_stacks(source: str, tmp_path: Path) -> None:
    path = compile_library(tmp_path, "libunknown.so", source)
    with ElfFile(str(path)) as elf:
        assert switches_stacks(elf, path.name)


def test_openssl_and_the_c_library_do_not_switch_stacks_by_being_there(tmp_path: Path) -> None:
    switches = "makecontext(c, 0, 0); setcontext(c); swapcontext(c, c);"
    source = f"#include <ucontext.h>\nvoid start(ucontext_t *c) {{ {switches} }}"
    path = compile_library(tmp_path, "libcrypto.so", source)
    with ElfFile(str(path)) as elf:
        assert not switches_stacks(elf, path.name)
    (libc,) = [mapped for mapped in read_maps(os.getpid()) if mapped.name.startswith("libc.so")]
    with ElfFile(libc.path) as elf:
        assert not switches_stacks(elf, libc.name)


def test_greenlet_is_found_where_python_would_find_it(tmp_path: Path) -> None:
    """By the variable PYTHONPATH; nothing else of this process names a folder."""
    (tmp_path / "with" / "greenlet").mkdir(parents=True)
    for path, found in ((tmp_path, False), (tmp_path / "with", True)):
        process = subprocess.Popen(
            ["cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PYTHONPATH": str(path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"started\n")
        process.stdin.flush()
        process.stdout.readline()  # before that its environment may not be there
        assert greenlet_is_installed(process.pid, ()) is found
        process.communicate()
    with target() as running:
        assert greenlet_is_installed(running.pid, ())  # it is one of the packages for these tests
