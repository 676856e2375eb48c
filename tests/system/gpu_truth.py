"""The simulated GPU's truth beside the profiler's report."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
from harness import ROOT, operations_of, process_of, report

from rlscope_ebpf.report.json import schema

PROGRAM = ROOT / "kernels_test" / "operations.py"
TOLERANCE = 0.02
"""Of GPU time per operation. The simulated GPU is exact, and nothing is lost: this is what the product promises."""


def libcupti() -> str:
    """The simulated libcupti, built if need be."""
    build = [sys.executable, str(ROOT / "kernels_test" / "build.py")]
    folder = subprocess.run(build, capture_output=True, text=True, check=True).stdout.strip()
    return f"{folder}/libcupti.so.13"


def truths(output: str) -> list[dict[str, Any]]:
    """What the program has printed so far."""
    return [json.loads(text) for text in re.findall(r"^TRUTH (.*)$", output, re.MULTILINE)]


def about_gpu(document: dict[str, Any]) -> list[str]:
    """The notices of a report that are about the GPU."""
    return [notice["text"] for notice in document["notices"] if "GPU" in notice["text"] or "CUPTI" in notice["text"]]


def checked_report(trace: Path) -> dict[str, Any]:
    """A trace's report, which keeps to its contract."""
    document = report(trace)
    jsonschema.validate(document, schema())
    return document


def difference(later: dict[str, Any], earlier: dict[str, Any] | None) -> dict[str, Any]:
    """The truth of what came between two of them."""
    if earlier is None:
        return later
    return {
        "pid": later["pid"],
        **{key: later[key] - earlier[key] for key in ("launched", "inherited", "ambiguous")},
        **{
            table: {
                name: {key: value - earlier[table].get(name, {}).get(key, 0) for key, value in row.items()}
                for name, row in later[table].items()
            }
            for table in ("operations", "kernels")
        },
    }


def expect(document: dict[str, Any], truth: dict[str, Any], *, ignore: Sequence[str] = ()) -> None:
    """Every launch is there, with its kernel's name and time, and charged to the operation that made it."""
    assert document["session"]["gpu"] == "simulated", document["session"]["gpu_reason"]
    losses = {name: count for name, count in document["losses"].items() if name.startswith("gpu") and count}
    assert losses == ({"gpu_ambiguous": truth["ambiguous"]} if truth["ambiguous"] else {})
    kernels = {row["name"]: row for row in process_of(document, truth["pid"])["gpu_kernels"]}
    assert {name: row["count"] for name, row in kernels.items()} == {
        name: row["count"] for name, row in truth["kernels"].items()
    }
    for name, row in truth["kernels"].items():
        assert kernels[name]["total_ns"] == row["total_ns"]
    operations = operations_of(document, truth["pid"])
    for path, row in truth["operations"].items():
        if path not in ignore:
            found = operations[path]["raw"]["gpu_ns"]
            assert abs(found - row["gpu_ns"]) <= TOLERANCE * row["gpu_ns"], (path, found, row)
    without = {path for path in operations if path not in truth["operations"]}
    assert "wait" in without
    assert not {path: operations[path]["raw"]["gpu_ns"] for path in without if operations[path]["raw"]["gpu_ns"]}
