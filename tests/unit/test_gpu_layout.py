"""The Python mirrors of userspace/rlscope_cupti.h and probes/gpu.h say what the C headers say."""

from __future__ import annotations

import json
import re
import subprocess
from enum import IntEnum
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlscope_ebpf.capture import gpu_layout
from rlscope_ebpf.capture.gpu_layout import BATCH_DTYPE, COUNTERS, CUPTI_CALLS, STATUS_DTYPE, TEXT_DTYPE, parse_status
from rlscope_ebpf.model.gpu import GPU_RECORD_DTYPE, GpuKind, GpuLaunch
from rlscope_ebpf.paths import probes_dir

USERSPACE = Path(__file__).resolve().parents[2] / "userspace"
HEADERS = (probes_dir() / "gpu.h", USERSPACE / "rlscope_cupti.h", USERSPACE / "cupti_abi.h")
STRUCTS = {
    "rls_gpu_batch": BATCH_DTYPE,
    "rls_gpu_text": TEXT_DTYPE,
    "rlscope_gpu_record": GPU_RECORD_DTYPE,
    "rlscope_gpu_status": STATUS_DTYPE,
}
ENUMS: dict[str, tuple[str, type[IntEnum]]] = {
    "rls_gpu_text_kind": ("RLS_GPU_", gpu_layout.TextKind),
    "rls_gpu_function": ("RLS_GPU_CALLED_", gpu_layout.Function),
    "rlscope_gpu_state_number": ("RLSCOPE_GPU_", gpu_layout.HelperState),
    "rlscope_gpu_kind": ("RLSCOPE_GPU_", GpuKind),
    "rlscope_gpu_launch": ("RLSCOPE_GPU_LAUNCH_", GpuLaunch),
}


def c_values(folder: Path, expressions: list[str]) -> list[int]:
    """The values of C expressions, as the compiler sees the headers."""
    lines = "\n".join(f'printf("%s%lld", n++ ? "," : "", (long long)({text}));' for text in expressions)
    includes = "\n".join(f'#include "{header}"' for header in HEADERS)
    source = folder / "values.c"
    source.write_text(f"#include <stdio.h>\n{includes}\nint main(void) {{ int n = 0;\n{lines}\nreturn 0; }}\n")
    subprocess.run(["cc", "-Wall", "-Werror", "-o", folder / "values", source], check=True)
    done = subprocess.run([folder / "values"], check=True, capture_output=True, text=True)
    values: list[int] = json.loads(f"[{done.stdout}]")
    return values


@pytest.mark.parametrize("struct", STRUCTS)
def test_structures(tmp_path: Path, struct: str) -> None:
    dtype = STRUCTS[struct]
    names = list(dtype.names or ())
    paths = [f"counters.{name}" if struct == "rlscope_gpu_status" and name in COUNTERS else name for name in names]
    expressions = [f"sizeof(struct {struct})"]
    for path in paths:
        expressions += [f"offsetof(struct {struct}, {path})", f"sizeof(((struct {struct} *)0)->{path})"]
    values = c_values(tmp_path, expressions)
    assert values[0] == dtype.itemsize
    fields = [dtype.fields[name] for name in names] if dtype.fields else []
    assert values[1:] == [number for field in fields for number in (field[1], field[0].itemsize)]


@pytest.mark.parametrize("enum", ENUMS)
def test_enumerations(tmp_path: Path, enum: str) -> None:
    prefix, mirror = ENUMS[enum]
    text = "".join(header.read_text() for header in HEADERS)
    body = re.search(rf"enum {enum} \{{(.*?)\}};", text, re.S)
    assert body
    names = re.findall(rf"\b{prefix}(\w+)\s*=", re.sub(r"/\*.*?\*/", "", body.group(1), flags=re.S))
    assert names == [member.name for member in mirror]
    assert c_values(tmp_path, [prefix + name for name in names]) == [int(member) for member in mirror]


def test_constants(tmp_path: Path) -> None:
    names = ["RLS_GPU_BATCH", "RLSCOPE_GPU_BATCH", "RLS_GPU_TEXT_MAX", "RLSCOPE_GPU_MAGIC", "RLSCOPE_GPU_VERSION"]
    batch, text = gpu_layout.BATCH_RECORDS, gpu_layout.TEXT_MAX
    assert c_values(tmp_path, names) == [batch, batch, text, gpu_layout.MAGIC, gpu_layout.VERSION]
    record, name_max = c_values(tmp_path, ["RLS_GPU_RECORD_BYTES", "RLSCOPE_GPU_NAME_MAX"])
    assert record == GPU_RECORD_DTYPE.itemsize
    assert name_max < text
    assert STATUS_DTYPE.itemsize <= text


def test_the_calls_that_may_fail() -> None:
    text = (USERSPACE / "cupti_abi.h").read_text()
    lists = text[text.index("#define CU_REQUIRED") :]
    assert tuple(re.findall(r"X\((cupti\w+),", lists)) == CUPTI_CALLS


def test_a_state_is_read_as_it_was_told() -> None:
    row = np.zeros(1, STATUS_DTYPE)
    row["magic"], row["version"], row["state"] = gpu_layout.MAGIC, gpu_layout.VERSION, 5
    row["error"], row["failed_call"], row["cupti_version"] = 35, 3, 130001
    row["lost_launches"] = 7
    status = parse_status(12, row.tobytes())
    assert status is not None
    assert (status.pid, status.state.name, status.error, status.failed_call) == (12, "FAILED", 35, "cuptiSubscribe")
    assert (status.counters["lost_launches"], sum(status.counters.values())) == (7, 7)
    row["failed_call"] = 99
    changed = parse_status(12, row.tobytes())
    assert changed is not None
    assert changed.failed_call == ""


@given(st.binary(max_size=2 * STATUS_DTYPE.itemsize))
def test_anything_else_is_no_state(data: bytes) -> None:
    assert parse_status(1, data) is None
    row = np.zeros(1, STATUS_DTYPE)
    row["magic"], row["version"] = gpu_layout.MAGIC, gpu_layout.VERSION
    assert parse_status(1, row.tobytes()[:-1]) is None
    row["state"] = 8
    assert parse_status(1, row.tobytes()) is None
