"""The CUPTI helper against the simulated CUPTI: as compiled, in scenarios, and under sanitizers.

What each scenario does and checks is in cupti_scenarios.c; it fails by itself. Here the counters are added up.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from rlscope_ebpf.paths import gpu_library

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
CC = shutil.which("gcc") or "cc"
SOURCES = [*sorted((ROOT / "userspace").glob("cupti_*.c")), ROOT / "userspace" / "rlscope_cupti.c"]
BEGINNING = bytes.fromhex("555dc3")  # push, pop, ret
PROBED = {"rlscope_gpu_records", "rlscope_gpu_name", "rlscope_gpu_status"}
CALLED = {"rlscope_gpu_start", "rlscope_gpu_stop", "InitializeInjection"}
SANITIZERS = {
    "plain": [],
    "address+undefined": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread", "-Wno-tsan"],
}

NO_LIBRARY, WRONG_VERSION = 6, 7
OURS, CALIBRATED = 1, 2

Run = Callable[..., dict[str, Any]]


def _build(folder: Path, flags: list[str]) -> Path:
    """The simulated CUDA and the scenarios, all with the same flags."""
    libraries = [folder / name for name in ("libcuda.so.1", "libcupti.so.12", "libcupti.so.13")]
    make = [
        "make",
        "--silent",
        "-C",
        str(ROOT / "kernels_test"),
        f"OUT={folder}",
        f"EXTRA={' '.join(flags)}",
        f"CC={CC}",
    ]
    subprocess.run([*make, *map(str, libraries)], check=True, timeout=240)
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]
    includes = [f"-I{ROOT / 'userspace'}", f"-I{ROOT / 'kernels_test' / 'simcuda'}"]
    sources = [HERE / "cupti_host.c", HERE / "cupti_scenarios.c", *SOURCES]
    command = [CC, "-std=gnu11", "-g", "-O1", *warnings, "-pthread", "-fno-lto", *flags, *includes]
    link = [str(libraries[0]), f"-Wl,-rpath,{folder}", "-ldl"]
    subprocess.run([*command, *sources, *link, "-o", str(folder / "scenarios")], check=True, timeout=240)
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function: name of a sanitizer -> folder of what was compiled with it, once."""
    made: dict[str, Path] = {}

    def build(name: str) -> Path:
        if name not in made:
            made[name] = _build(tmp_path_factory.mktemp(f"cupti-{name.partition('+')[0]}"), SANITIZERS[name])
        return made[name]

    return build


@pytest.fixture
def run(built: Callable[[str], Path]) -> Run:
    """A function that runs a scenario and returns the helper's state and counters at its end."""

    def run(scenario: str, number: int | None = None, *, sanitizer: str = "plain", major: int = 13, **env: str) -> Any:
        folder = built(sanitizer)
        library = str(folder / f"libcupti.so.{major}")
        arguments = [] if number is None else [str(number)]
        environment = {**os.environ, "RLSCOPE_LIBCUPTI": library, **env}
        done = subprocess.run(
            [folder / "scenarios", scenario, *arguments], capture_output=True, text=True, env=environment, timeout=200
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


# Those that are quick also run under both sanitizers. A fork or a limit on memory is nothing that these can do.
EVERYWHERE = {
    "everything": 60,
    "wrapped_correlation": 20,
    "foreign": 20,
    "errors": 5,
    "listener_dies": 20,
    "nobody": 20,
    "listener_comes_late": 20,
    "again": 4,
    "finalize": 2,
    "started_while_leaving": 2,
    "many_threads": 200,
}
PLAIN = {"failed_launches": 999, "no_memory": 500, "forks": 5, "again": 20, "flood": 60_000, "names_flood": 33_000}


@pytest.mark.parametrize("sanitizer", ["address+undefined", "thread"])
@pytest.mark.parametrize("scenario", EVERYWHERE)
def test_scenario_under_a_sanitizer(run: Run, scenario: str, sanitizer: str) -> None:
    counted = run(scenario, EVERYWHERE[scenario], sanitizer=sanitizer)
    assert counted["simulated"] == 1


@pytest.mark.parametrize("scenario", {**EVERYWHERE, **PLAIN})
def test_scenario(run: Run, scenario: str) -> None:
    run(scenario, PLAIN.get(scenario, EVERYWHERE.get(scenario)))


@pytest.mark.parametrize("major", [12, 13])
def test_both_versions_of_the_records(run: Run, major: int) -> None:
    counted = run("everything", 20, major=major)
    assert counted["cupti_version"] == {12: 18, 13: 130001}[major]
    assert counted["clock"] == OURS
    assert counted["records"] == counted["heard"] == 8 * 20 * (3 + 2 + 1 + 5 + 2 + 7) + 1


@pytest.mark.parametrize(
    ("misbehaviour", "counter"), [("zero", "zero_time"), ("reversed", "reversed_time"), ("future", "out_of_range")]
)
def test_impossible_times_are_counted_and_not_handed_out(run: Run, misbehaviour: str, counter: str) -> None:
    counted = run("launches", 1000, SIMCUPTI=f"{misbehaviour}=10")
    assert (counted["kernels"], counted[counter], counted["launches"]) == (900, 100, 1000)
    assert counted["heard"] == 900 + 1000 + 1  # kernels, launches, one synchronisation
    others = {"zero_time", "reversed_time", "out_of_range", "unfinished", "dropped", "errors"} - {counter}
    assert {name: counted[name] for name in others} == dict.fromkeys(others, 0)


def test_other_damage_is_counted(run: Run) -> None:
    counted = run("launches", 1000, SIMCUPTI="unknown=4")
    assert (counted["kernels"], counted["unknown_kind"]) == (750, 250)
    counted = run("launches", 1000, SIMCUPTI="nameless=4")
    assert (counted["kernels"], counted["nameless"], counted["heard_names"]) == (1000, 250, 3)
    counted = run("launches", 1000, SIMCUPTI="drop=8")
    assert counted["kernels"] + counted["syncs"] + counted["dropped"] == 1001
    assert counted["dropped"] == pytest.approx(1001 / 8, abs=1)
    counted = run("launches", 1000, SIMCUPTI="broken=100")  # of each buffer, 99 records can be read
    assert counted["broken"] >= 1
    assert counted["kernels"] <= 99 * counted["broken"]
    assert (counted["error"], counted["errors"]) == (21, counted["broken"])


def test_records_in_any_order(run: Run) -> None:
    counted = run("everything", 50, SIMCUPTI="unordered=1")
    assert counted["kernels"] == 8 * 50 * 8


def test_no_callback_for_the_time(run: Run) -> None:
    """CUPTI's own clock is not ours: the difference is measured, also while the clock is running."""
    counted = run("launches", 1000, SIMCUPTI="fail.cuptiActivityRegisterTimestampCallback=27")
    assert counted["clock"] == CALIBRATED
    assert (counted["kernels"], counted["out_of_range"], counted["errors"]) == (1000, 0, 1)


def test_the_last_records_of_a_program_that_ends(run: Run) -> None:
    counted = run("at_exit", 500)
    assert (counted["heard"], counted["kernels"], counted["launches"]) == (1001, 500, 500)


def test_no_libcupti_and_one_of_a_version_that_is_not_known(run: Run, tmp_path: Path) -> None:
    counted = run("cannot", NO_LIBRARY, RLSCOPE_LIBCUPTI=str(tmp_path / "libcupti.so.13"))
    assert (counted["state"], counted["starts"], counted["cupti_version"]) == (NO_LIBRARY, 0, 0)
    for version in (17, 140000):
        counted = run("cannot", WRONG_VERSION, SIMCUPTI=f"version={version}")
        assert (counted["state"], counted["starts"], counted["cupti_version"]) == (WRONG_VERSION, 0, version)


def test_what_the_library_exports_and_how_it_begins() -> None:
    found = {}
    with gpu_library().open("rb") as file:
        elf = ELFFile(file)
        tags = {tag.entry.d_tag: tag for tag in elf.get_section_by_name(".dynamic").iter_tags()}
        for symbol in elf.get_section_by_name(".dynsym").iter_symbols():
            if symbol["st_shndx"] == "SHN_UNDEF" or not symbol.name:
                continue
            section = elf.get_section(symbol["st_shndx"])
            start = symbol["st_value"] - section["sh_addr"]
            found[symbol.name] = (symbol["st_value"], section.data()[start : start + 3])
        needed = [tag.needed for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")]
    assert set(found) == {*PROBED, *CALLED, "rlscope_gpu_state"}
    assert {name: found[name][1] for name in PROBED} == dict.fromkeys(PROBED, BEGINNING)
    assert tags["DT_FLAGS_1"].entry.d_val & 0x8  # DF_1_NODELETE: CUPTI may call it at any time
    assert {name.split(".so")[0] for name in needed} <= {"libc", "libdl", "libpthread"}  # no CUDA


def test_loaded_where_there_is_no_cuda_it_says_so_and_does_nothing() -> None:
    script = """
import ctypes, os, sys, time
helper = ctypes.CDLL(sys.argv[1])
threads = lambda: len(os.listdir("/proc/self/task"))
assert threads() == 1
helper.rlscope_gpu_start(2, 0)  # at once
state = (ctypes.c_uint32 * 5).in_dll(helper, "rlscope_gpu_state")
while state[4] == 1 or threads() > 1:
    time.sleep(0.001)
print(state[4])
"""
    environment = {**os.environ, "RLSCOPE_LIBCUPTI": "/nowhere/libcupti.so.13"}
    python = shutil.which("python3") or "python3"
    done = subprocess.run(
        [python, "-c", script, gpu_library()], capture_output=True, text=True, env=environment, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{NO_LIBRARY}\n", "")
