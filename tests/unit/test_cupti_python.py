"""What cupti-python, NVIDIA's own, says of CUPTI's numbers: those that are written down here must be the same."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

from rlscope_ebpf.model.gpu import COPY_NAMES
from rlscope_ebpf.session import gpu_sentences

ROOT = Path(__file__).resolve().parents[2]
PLACES = {"H": "host", "D": "device", "A": "array", "P": "peer"}

cupti: Any = import_module("cupti.cupti")


def _constants(file: str, pattern: str) -> dict[str, int]:
    text = (ROOT / file).read_text()
    return {name: int(value) for name, value in re.findall(pattern, text)}


def test_kinds_of_copies() -> None:
    theirs = {int(kind): kind.name for kind in cupti.ActivityMemcpyKind if kind.name not in ("UNKNOWN", "FORCE_INT")}
    names = {value: f"{PLACES[name[0]]}_to_{PLACES[name[3]]}" for value, name in theirs.items()}
    assert {**names, 0: "unknown"} == COPY_NAMES
    assert int(cupti.ActivityMemcpyKind.UNKNOWN) == 0


def test_kinds_of_activity_and_errors_of_the_helper() -> None:
    ours = _constants("userspace/cupti_abi.h", r"\bCU_KIND_(\w+) = (\d+)")
    assert len(ours) == 6
    assert ours == {name: int(cupti.ActivityKind[name]) for name in ours}
    assert int(cupti.Result.ERROR_INSUFFICIENT_PRIVILEGES) == gpu_sentences._INSUFFICIENT_PRIVILEGES
    errors = _constants("userspace/cupti_abi.h", r"\bCU_([A-Z_]+) = (\d+),\n")
    known = {
        "MULTIPLE_SUBSCRIBERS": "ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
        "MAX_LIMIT_REACHED": "ERROR_MAX_LIMIT_REACHED",
        "INSUFFICIENT_PRIVILEGES": "ERROR_INSUFFICIENT_PRIVILEGES",
        "NOT_SUPPORTED": "ERROR_NOT_SUPPORTED",
        "INVALID_KIND": "ERROR_INVALID_KIND",
    }
    assert {name: errors[name] for name in known} == {name: int(cupti.Result[key]) for name, key in known.items()}


def test_waits_of_the_host() -> None:
    kinds = cupti.ActivitySynchronizationType
    assert [int(kinds.EVENT_SYNCHRONIZE), int(kinds.STREAM_WAIT_EVENT)] == [1, 2]
    assert [int(kinds.STREAM_SYNCHRONIZE), int(kinds.CONTEXT_SYNCHRONIZE)] == [3, 4]


def test_domains_and_the_simulations_functions() -> None:
    domains = _constants("userspace/cupti_abi.h", r"CU_DOMAIN_(\w+) = (\d+)")
    assert domains == {name: int(cupti.CallbackDomain[f"{name}_API"]) for name in ("DRIVER", "RUNTIME")}
    ids = "kernels_test/simcuda/simcupti_ids.h"
    driver = _constants(ids, r"X\((cu[A-Z]\w+), (\d+)\)")
    assert driver
    assert driver == {name: int(cupti.DriverApiTraceCbid[name]) for name in driver}
    runtime = re.findall(r"X\((cuda\w+), (\d+), (\d+)\)", (ROOT / ids).read_text())
    assert runtime
    for name, version, value in runtime:
        assert int(cupti.RuntimeApiTraceCbid[f"{name}_v{version}"]) == int(value)
