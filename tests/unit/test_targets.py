"""The target programs without a profiler: their truth adds up, and the comparison finds what is wrong."""

from __future__ import annotations

import copy
import glob
import importlib.util
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ROOT / "tests" / "targets"


def load(name: str) -> types.ModuleType:
    """A module of the targets' folder, which is no package: its files run as scripts under other interpreters."""
    spec = importlib.util.spec_from_file_location(f"rlscope_targets_{name}", TARGETS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


build: Any = load("build")
compare: Any = load("compare")
recorder: Any = load("truth_recorder")

Note = recorder.Note
CATEGORY_IDS = {name: number for number, name in recorder.CATEGORIES.items()}
PYTHON_ID, SIMULATOR_ID, BACKEND_ID, OTHER_ID = (
    CATEGORY_IDS[name] for name in ("python", "simulator", "backend", "other")
)


def interpreters() -> list[str]:
    """One interpreter of each supported version that this machine has, the running one, and the distribution's."""
    found = {os.path.realpath(sys.executable): sys.executable}
    patterns = ("~/.pyenv/versions/3.*/bin/python3", "/opt/python/*/bin/python3", "/usr/bin/python3")
    for path in sorted(path for pattern in patterns for path in glob.glob(os.path.expanduser(pattern))):
        version = subprocess.run([path, "-V"], capture_output=True, text=True, check=False).stdout
        if re.match(r"Python 3\.1[0-3]\.", version):
            found.setdefault(os.path.realpath(path), path)
    return list(found.values())


def talk_to(command: list[str], *, python_path: bool = False) -> dict[str, Any]:
    """Runs a target through its protocol and returns its truth."""
    environment = os.environ | ({"PYTHONPATH": str(ROOT)} if python_path else {})
    done = subprocess.run(
        command, input="go\n", capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    ready, truth = done.stdout.splitlines()
    pid = int(ready.removeprefix("READY "))
    result: dict[str, Any] = json.loads(truth.removeprefix("TRUTH "))
    assert result["pid"] == pid
    return result


# -- the known-truth program ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("python", interpreters(), ids=lambda path: path.strip("/").replace("/", "-"))
def test_truth_adds_up(python: str) -> None:
    options = ["--seconds", "0.4", "--rate", "3000", "--late-wait", "0.01"]
    truth = talk_to([python, str(TARGETS / "truth.py"), *options], python_path=True)
    operations = {tuple(row["path"]): row for row in truth["operations"]}
    for part in (truth["operations"], *(thread["operations"] for thread in truth["threads"])):
        for row in part:
            if row["path"] != ["(untracked)"]:
                assert sum(row["cpu_ns"].values()) == row["wall_ns"]
                assert row["wall_ns"] == pytest.approx(row["spans_ns"], rel=0.002)  # categories against span ends

    for category in ("simulator", "backend"):  # what functions measured of themselves against what they were asked for
        spent = sum(row["cpu_ns"][category] for row in truth["operations"])
        assert spent >= truth["requested_ns"][category] > 0

    for number in range(8):
        assert operations[f"worker-{number}",]["cpu_ns"]["other"] > 0
    assert operations["self", "self", "self"]["count"] == operations["self",]["count"]
    assert operations["failing", "deeper"]["count"] > 0
    assert operations["open_before",]["count"] == operations["open_at_end",]["count"] == 1
    assert operations["callback_ctypes", "again"]["transitions"]["simulator_to_python"] > 0
    rounds = operations["backend_uses_simulator",]["count"]
    assert operations["backend_uses_simulator",]["transitions"] == {
        "python_to_backend": rounds,
        "backend_to_simulator": rounds,
    }
    scenarios = {path[0] for path in operations}
    expected = {"cffi", "pybind11", "nanobind"}
    if python == sys.executable:
        assert expected <= scenarios
        assert truth["skipped"] == {}
    else:  # whatever is not run is named
        assert {name.removesuffix("11") for name in expected - scenarios} == set(truth["skipped"])


def test_truth_does_the_same_work_again() -> None:
    command = [sys.executable, str(TARGETS / "truth.py"), "--seconds", "0.3", "--scenario", "ctypes_held"]
    first, again = (talk_to(command, python_path=True) for _ in range(2))
    assert first["requested_ns"] == again["requested_ns"]
    counts = [[(row["path"], row["count"]) for row in truth["operations"]] for truth in (first, again)]
    assert counts[0] == counts[1]


def test_rate_multiplies_calls() -> None:
    calls = []
    for rate in ("1000", "10000"):
        options = ["--seconds", "0.5", "--scenario", "ctypes_held", "--rate", rate]
        truth = talk_to([sys.executable, str(TARGETS / "truth.py"), *options], python_path=True)
        calls.append(sum(sum(row["transitions"].values()) for row in truth["operations"]))
    assert calls[1] / calls[0] == pytest.approx(10, rel=0.5)


def test_truth_gives_up_when_nobody_says_go() -> None:
    command = [sys.executable, str(TARGETS / "truth.py")]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stdout.startswith("READY ")


# -- the replay of the logs, against sums made by hand -----------------------------------------------------------------


def replay(entries: list[tuple[int, int, Any]], base: int = 0, since: int = 0, until: int = 100) -> dict[Any, Any]:
    """Path → (count, self wall, categories, transitions)."""
    sums = recorder.Replay(base=base, phases=[], since_ns=since, until_ns=until).run(entries)
    return {
        "/".join(path): (
            each.count,
            each.spans_ns,
            {recorder.CATEGORIES[category]: ns for category, ns in each.cpu_ns.items()},
            dict(each.transitions),
        )
        for (path, _), each in sums.items()
    }


def test_replay_of_nested_operations_and_a_callback() -> None:
    entries = [
        (10, Note.BEGIN, "a"),
        (12, Note.ENTER, SIMULATOR_ID),
        (20, Note.ENTER, PYTHON_ID),
        (25, Note.BEGIN, "b"),
        (30, Note.ENTER, BACKEND_ID),
        (34, Note.LEAVE, None),
        (37, Note.WAITED, None),
        (40, Note.END, None),
        (41, Note.LEAVE, None),
        (50, Note.LEAVE, None),
        (60, Note.END, None),
    ]
    result = replay(entries)
    assert result["a"] == (
        1,
        35,
        {"python": 2 + 5 + 1 + 10, "simulator": 8 + 9},
        {"python_to_simulator": 1, "simulator_to_python": 1},
    )
    assert result["a/b"] == (1, 15, {"python": 5 + 3, "backend": 4, "other": 3}, {"python_to_backend": 1})


@pytest.mark.parametrize("slept", [False, True])
def test_replay_is_unsure_of_a_return_that_took_long_without_a_wait(slept: bool) -> None:
    stall = 50 * recorder.SURE_NS
    entries = [
        (10, Note.BEGIN, "a"),
        (20, Note.ENTER, SIMULATOR_ID),
        (30, Note.UNWIND, 0),
        (30 + stall, Note.WAITED, slept),
        (40 + stall, Note.END, None),
    ]
    sums = recorder.Replay(PYTHON_ID, [], 0, 100 + stall).run(iter(entries))
    assert sums[("a",), ""].cpu_ns[OTHER_ID] == stall
    assert sums[("a",), ""].unsure_ns == (0 if slept else stall)


def test_replay_unwinds_and_cuts() -> None:
    entries = [
        (5, Note.BEGIN, "early"),
        (20, Note.ENTER, SIMULATOR_ID),
        (22, Note.ENTER, SIMULATOR_ID),
        (30, Note.UNWIND, 0),
        (40, Note.BEGIN, "open"),
    ]
    result = replay(entries, since=10)
    assert result["early"] == (1, 30, {"python": 10 + 10, "simulator": 10}, {"python_to_simulator": 1})
    assert result["early/open"] == (1, 60, {"python": 60}, {})


def test_replay_of_a_native_thread() -> None:
    result = replay([(1, Note.ENTER, BACKEND_ID), (4, Note.LEAVE, None)], base=OTHER_ID, until=4)
    assert result[""] == (0, 0, {"backend": 3}, {"other_to_backend": 1})


# -- the comparison --------------------------------------------------------------------------------------------------


def times(**cpu_ns: int) -> dict[str, Any]:
    categories = dict.fromkeys(("python", "simulator", "backend", "cuda_api", "other"), 0) | cpu_ns
    return {"wall_ns": sum(categories.values()), "cpu_ns": categories}


def pair() -> tuple[dict[str, Any], dict[str, Any]]:
    """A truth and a report that agrees with it."""
    exact = {"wall": True, "count": True, "categories": ["python", "simulator", "backend", "cuda_api", "other"]}
    loose = {"wall": False, "count": False, "categories": ["simulator"]}
    truth = {
        "schema": "rlscope-ebpf.truth/1",
        "pid": 7,
        "operations": [
            {"path": ["step"], "phase": "one", "count": 3, **times(python=600, simulator=400), "exact": exact}
            | {"transitions": {"python_to_simulator": 5}},
            {"path": ["early"], "phase": None, "count": 1, **times(python=10, simulator=1000), "exact": loose}
            | {"transitions": {"python_to_simulator": 1}},
        ],
    }
    row = {"name": "step", "path": ["step"], "phase": "one", "count": 3}
    early = {"name": "early", "path": ["early"], "count": 1, "transitions": {}}
    report = {
        "schema": "rlscope-ebpf.report/1",
        "losses": {"events": 0, "gpu_records": 0, "unmatched": 0, "healed": 9},
        "processes": [
            {"pid": 6, "operations": []},
            {
                "pid": 7,
                "operations": [
                    row
                    | {"raw": times(python=610, simulator=390), "corrected": times(python=600, simulator=400)}
                    | {"transitions": {"python_to_simulator": 2, "other_to_simulator": 3}},
                    early
                    | {"phase": "(default)", "raw": times(python=5000), "corrected": times(python=5000)}
                    | {"transitions": {"python_to_simulator": 1}},
                    early | {"phase": "one", "raw": times(simulator=990), "corrected": times(simulator=990)},
                    row
                    | {"name": "(untracked)", "path": ["(untracked)"], "transitions": {}}
                    | {"raw": times(other=10**6), "corrected": times(other=10**6)},
                ],
            },
        ],
    }
    return truth, report


def whats(truth: dict[str, Any], report: dict[str, Any], **options: Any) -> list[tuple[str, str]]:
    return [(each.where, each.what) for each in compare.compare(truth, report, **options)]


def test_agreement() -> None:
    truth, report = pair()
    assert compare.compare(truth, report) == []
    assert compare.compare(truth, report, times="corrected", tolerance=0.011) == []


def test_two_percent_is_the_limit() -> None:
    truth, report = pair()
    operations = report["processes"][1]["operations"]
    operations[0]["raw"] = times(python=620, simulator=380)
    assert whats(truth, report) == []
    operations[0]["raw"] = times(python=621, simulator=379)
    assert whats(truth, report) == [("step [one]", "cpu_ns.python"), ("step [one]", "cpu_ns.simulator")]
    assert whats(truth, report, times="corrected") == []
    operations[0]["raw"] = times(python=615, simulator=385, other=21)
    assert whats(truth, report) == [("step [one]", "wall_ns"), ("step [one]", "cpu_ns.other")]
    mismatch = compare.compare(truth, report)[0]
    assert (mismatch.expected, mismatch.actual, mismatch.allowed) == (1000, 1021, 20)
    assert str(mismatch) == "step [one]: wall_ns is 1,021, expected 1,000 ± 20"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda r: r["losses"].update(events=1), [("(report)", "losses.events")]),
        (lambda r: r["processes"].pop(1), [("(report)", "process 7")]),
        (lambda r: r["processes"][1]["operations"].pop(0), [("step [one]", "missing")]),
        (lambda r: r["processes"][1]["operations"][0].update(count=4), [("step [one]", "count")]),
        (
            lambda r: r["processes"][1]["operations"][0].update(phase="two"),
            [("step [one]", "missing"), ("step [two]", "unexpected")],
        ),
        (
            lambda r: r["processes"][1]["operations"][0]["transitions"].update(python_to_simulator=1),
            [("step [one]", "transitions.python_to_simulator")],
        ),
        (
            lambda r: r["processes"][1]["operations"][0]["transitions"].update(simulator_to_python=5),
            [("step [one]", "transitions.simulator_to_python")],
        ),
        (lambda r: r["processes"][1]["operations"][0]["raw"].update(wall_ns=1001), [("step [one]", "sum of cpu_ns")]),
        (
            lambda r: r["processes"][1]["operations"][2]["raw"].update(times(simulator=979)),
            [("early", "cpu_ns.simulator")],
        ),
    ],
)
def test_finds_what_is_wrong(change: Any, expected: list[tuple[str, str]]) -> None:
    truth, report = pair()
    change(report)
    assert whats(truth, report) == expected


def test_leaves_out_what_it_is_told_to() -> None:
    truth, report = pair()
    extra = copy.deepcopy(report["processes"][1]["operations"][0])
    report["processes"][1]["operations"].append(extra | {"name": "x", "path": ["noise", "x"]})
    assert whats(truth, report) == [("noise / x [one]", "unexpected")]
    assert whats(truth, report, ignore=["noise"]) == []
    report["processes"][1]["operations"][0]["transitions"] = {}
    assert whats(truth, report, ignore=["noise"], transitions=False) == []


def test_refuses_other_documents() -> None:
    truth, report = pair()
    with pytest.raises(ValueError, match="truth"):
        compare.compare(report, report)
    with pytest.raises(ValueError, match="report"):
        compare.compare(truth, truth)


# -- the other programs ----------------------------------------------------------------------------------------------


def test_storm_keeps_to_its_rate_and_counts() -> None:
    library = str(build.native() / "libtruth_simulator_storm.so")
    storm = [str(build.program("storm")), "--library", library, "--seconds", "1"]
    truth = talk_to([*storm, "--rate", "100000", "--threads", "2"])
    assert truth["events"] == 2 * truth["calls"] == 2 * sum(each["calls"] for each in truth["threads"])
    assert truth["events"] == pytest.approx(100_000, rel=0.2)
    assert talk_to([*storm, "--rate", "0"])["events"] > 1_000_000


def test_targets_that_mark_from_c() -> None:
    library = next((ROOT / "rlscope_ebpf").glob("librlscope_markers.so"), None)
    assert library is not None, "librlscope_markers.so is not built: pip install -e ."
    truth = talk_to([str(build.program("native_ops")), str(library), "20"])
    outer, inner = truth["operations"]
    assert inner["path"] == ["native_step", "native_simulation"]
    assert outer["wall_ns"] >= 40 * 1_000_000
    assert inner["wall_ns"] >= inner["cpu_ns"]["simulator"] >= 40 * 2_000_000
    assert inner["cpu_ns"]["simulator"] + inner["cpu_ns"]["other"] == inner["wall_ns"]
    storm = [str(build.program("storm")), "--kind", "marker", "--library", str(library), "--seconds", "1"]
    assert talk_to([*storm, "--rate", "10000"])["events"] == pytest.approx(10_000, rel=0.2)


def test_zombie_is_one_while_it_is_looked_at() -> None:
    with subprocess.Popen(
        [build.program("zombie")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pid = process.stdout.readline().removeprefix("READY ").strip()
        assert Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        process.communicate("\n", timeout=60)
    assert process.returncode == 0


def test_brief_exits_as_told() -> None:
    done = subprocess.run([build.program("brief"), "5", "3"], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stdout.startswith("READY ")


def test_elf32_is_a_32_bit_process() -> None:
    program = build.program("elf32")
    assert program.read_bytes()[:5] == b"\x7fELF\x01"
    done = subprocess.run([program], input="", capture_output=True, text=True, check=True)
    assert re.fullmatch(r"READY \d+\n", done.stdout)
