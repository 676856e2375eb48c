"""The Python mirrors of probes/abi.h and probes/cookie.h say what the C headers say."""

from __future__ import annotations

import json
import re
import subprocess
from enum import IntEnum
from pathlib import Path

import numpy as np
import pytest

from rlscope_ebpf.capture import counters
from rlscope_ebpf.capture.cookie import MAX_SITE, Action, CookieFlag, Group, SiteClass, make_cookie
from rlscope_ebpf.model import events
from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.model.events import EVENT_DTYPE, TEXT_DTYPE, EventFlag, EventKind, TextKind
from rlscope_ebpf.paths import probes_dir

ENUMS: dict[str, tuple[str, type[IntEnum]]] = {
    "RLS_CAT_": ("rls_category", Category),
    "RLS_EV_": ("rls_event_kind", EventKind),
    "RLS_TEXT_": ("rls_text_kind", TextKind),
    "RLS_ACT_": ("rls_action", Action),
    "RLS_GROUP_": ("rls_group", Group),
    "RLS_CLASS_": ("rls_site_class", SiteClass),
}
RENAMED = {"from": "origin"}  # a Python keyword


def c_values(folder: Path, expressions: dict[str, str]) -> dict[str, int]:
    """The values of C expressions, as the compiler sees the headers."""
    lines = "\n".join(
        f'    printf("%s\\"{name}\\": %llu", n++ ? ", " : "", (unsigned long long)({text}));'
        for name, text in expressions.items()
    )
    source = folder / "values.c"
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n"
        f'#include "{probes_dir()}/abi.h"\n#include "{probes_dir()}/cookie.h"\n'
        f'int main(void) {{ int n = 0; printf("{{");\n{lines}\n    printf("}}\\n"); return 0; }}\n'
    )
    subprocess.run(["cc", "-Wall", "-Werror", "-o", folder / "values", source], check=True)
    values: dict[str, int] = json.loads(subprocess.run([folder / "values"], check=True, capture_output=True).stdout)
    return values


def header(name: str) -> str:
    return (probes_dir() / name).read_text()


@pytest.mark.parametrize(("struct", "dtype"), [("rls_event", EVENT_DTYPE), ("rls_text", TEXT_DTYPE)])
def test_records(tmp_path: Path, struct: str, dtype: np.dtype[np.void]) -> None:
    body = re.search(rf"struct {struct} \{{(.*?)\n\}};", header("abi.h"), re.S)
    assert body
    code = re.sub(r"/\*.*?\*/", "", body.group(1), flags=re.S)
    fields = re.findall(r"(\w+)(?:\[\w+\])?;", code)
    assert [RENAMED.get(field, field) for field in fields] == list(dtype.names or ())
    expressions = {"size": f"sizeof(struct {struct})"}
    for field in fields:
        expressions[f"{field}.offset"] = f"offsetof(struct {struct}, {field})"
        expressions[f"{field}.size"] = f"sizeof(((struct {struct} *)0)->{field})"
    values = c_values(tmp_path, expressions)
    assert values["size"] == dtype.itemsize
    for field in fields:
        mirror, offset = dtype.fields[RENAMED.get(field, field)][:2]  # type: ignore[index]
        assert (values[f"{field}.offset"], values[f"{field}.size"]) == (offset, mirror.itemsize), field


@pytest.mark.parametrize("prefix", ENUMS)
def test_enumerations(tmp_path: Path, prefix: str) -> None:
    enum, mirror = ENUMS[prefix]
    body = re.search(rf"enum {enum} \{{(.*?)\n\}};", header("abi.h") + header("cookie.h"), re.S)
    assert body
    names = [name for name in re.findall(rf"\b{prefix}(\w+)\s*=", body.group(1)) if name != "COUNT"]
    assert names == [member.name for member in mirror]
    values = c_values(tmp_path, {name: prefix + name for name in names})
    assert values == {member.name: int(member) for member in mirror}


def test_flags_and_sizes(tmp_path: Path) -> None:
    values = c_values(
        tmp_path,
        {flag.name or "": f"RLS_F_{flag.name}" for flag in EventFlag}
        | {"text": "RLS_TEXT_MAX", "operations": "RLS_OPEN_OPS_MAX", "counters": "RLS_N_COUNTERS"}
        | {"returns": "RLS_N_RETURNS", "hits": "RLS_N_HITS"},
    )
    for flag in EventFlag:
        assert values[flag.name or ""] == flag
    assert (values["text"], values["operations"]) == (events.TEXT_MAX, events.OPEN_OPS_MAX)
    assert values["counters"] == counters.COUNTERS
    totals = counters.parse_counters(np.arange(counters.COUNTERS, dtype=np.uint64))
    assert int(totals.returns[0]) == values["returns"]
    assert int(totals.hits[0, 0]) == values["hits"]


def test_cookies(tmp_path: Path) -> None:
    flags = CookieFlag.FROM_PYTHON | CookieFlag.OPERATION
    cookie = make_cookie(MAX_SITE, Category.BACKEND, SiteClass.STEPPED, Group.REENTRY, Action.METADATA, flags, 9)
    values = c_values(
        tmp_path,
        {part: f"RLS_COOKIE_{part}({cookie}ULL)" for part in ("SITE", "CATEGORY", "CLASS", "GROUP", "ACTION", "PUSHED")}
        | {flag.name or "": f"RLS_COOKIE_{flag.name} & {cookie}ULL" for flag in CookieFlag},
    )
    assert values == {
        "SITE": MAX_SITE,
        "CATEGORY": Category.BACKEND,
        "CLASS": SiteClass.STEPPED,
        "GROUP": Group.REENTRY,
        "ACTION": Action.METADATA,
        "PUSHED": 9,
        "FROM_PYTHON": CookieFlag.FROM_PYTHON,
        "REENTRY": 0,
        "OPERATION": CookieFlag.OPERATION,
        "RETURNS": 0,
    }


@pytest.mark.parametrize("site", [0, -1, MAX_SITE + 1])
def test_probe_ids_that_no_cookie_holds(site: int) -> None:
    with pytest.raises(ValueError, match="probe id"):
        make_cookie(site, 0, SiteClass.NOP5, Group.MARKER, Action.CALL)
