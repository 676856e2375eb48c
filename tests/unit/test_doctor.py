"""The doctor: every check in every state, made-up hosts, and what it prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from rlscope_ebpf.capture import checks
from rlscope_ebpf.capture.checks import Check
from rlscope_ebpf.capture.kernel import CAPABILITIES, effective_capabilities
from rlscope_ebpf.cli import doctor
from rlscope_ebpf.errors import ExitStatus

REPOSITORY = Path(__file__).resolve().parents[2]
MAIN = "import sys; from rlscope_ebpf.cli import main; sys.exit(main())"
ALL = frozenset(CAPABILITIES)


def run_doctor(*words: str, code: str = MAIN, **extra: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), **extra}
    return subprocess.run(
        [sys.executable, "-c", code, "doctor", *words], env=env, capture_output=True, text=True, timeout=60, check=False
    )


def states(found: list[Check]) -> dict[str, str]:
    return {check.name: check.state for check in found}


@pytest.mark.parametrize(
    ("release", "state", "says"),
    [
        ("6.18.44", "ok", "session"),
        ("6.8.0-45-generic", "ok", "multi"),
        ("5.15.0-100-generic", "ok", "perf"),
        ("5.10.0-30-amd64", "failed", "5.10.0"),
        ("4.18.0-553.el8", "failed", "4.18"),
    ],
)
def test_kernel(release: str, state: str, says: str) -> None:
    check = checks.check_kernel(release)
    assert check.state == state
    assert says in check.detail
    assert (check.status == ExitStatus.UNSUPPORTED) == (state == "failed")


def test_machine() -> None:
    assert checks.check_machine("x86_64").state == "ok"
    assert checks.check_machine("aarch64").status == ExitStatus.UNSUPPORTED


def test_kernel_files(tmp_path: Path) -> None:
    assert checks.check_uprobes(tmp_path).state == "ok"
    assert checks.check_uprobes(tmp_path / "no").state == "failed"
    lockdown = tmp_path / "lockdown"
    assert checks.check_lockdown(lockdown).state == "ok"
    lockdown.write_text("none [integrity] confidentiality\n")
    assert checks.check_lockdown(lockdown).state == "ok"
    lockdown.write_text("none integrity [confidentiality]\n")
    assert checks.check_lockdown(lockdown).state == "failed"
    assert checks.check_btf(lockdown).state == "ok"
    assert checks.check_btf(tmp_path / "no").state == "info"
    assert checks.check_paranoid(tmp_path / "no").state == "info"
    assert checks.check_memlock((5, 15)).state == "ok"
    assert checks.check_memlock((5, 10)).state == "warning"


def test_permissions() -> None:
    assert set(states(checks.check_permissions(0, ALL)).values()) == {"ok"}
    nobody = checks.check_permissions(1000, frozenset())
    assert states(nobody) == {"root": "failed"}
    assert "sudo" in nobody[0].fix
    some = checks.check_permissions(1000, frozenset({"CAP_BPF", "CAP_PERFMON"}))
    assert [check.state for check in some] == ["ok", "ok", "failed", "failed"]
    assert checks.exit_status(some) == ExitStatus.NOT_PERMITTED
    assert checks.exit_status(nobody) == ExitStatus.NOT_PERMITTED
    container = checks.check_permissions(0, frozenset({"CAP_SYS_ADMIN", "CAP_DAC_READ_SEARCH"}))
    assert states(container) == {
        "CAP_BPF": "ok", "CAP_PERFMON": "ok", "CAP_SYS_PTRACE": "failed", "CAP_DAC_READ_SEARCH": "ok",
    }  # fmt: skip
    assert "--cap-add SYS_PTRACE" in next(check.fix for check in container if check.state == "failed")


def test_what_is_done_without() -> None:
    few = frozenset(checks.CAPABILITY_USES)
    rows = {check.name: check for check in checks.check_more_permissions(1000, few)}
    assert states(list(rows.values())) == {
        "CAP_NET_ADMIN": "info", "CAP_CHECKPOINT_RESTORE": "info", "once attached": "ok",
    }  # fmt: skip
    assert all(check.fix for check in rows.values() if check.state == "info")
    assert "reserve" not in rows["once attached"].detail
    (kept,) = checks.check_more_permissions(0, few | {"CAP_NET_ADMIN", "CAP_SYS_ADMIN"})
    assert "reserve" in kept.detail
    assert checks.check_more_permissions(1000, frozenset())[-1].name != "once attached"


def test_scheduler_events(tmp_path: Path) -> None:
    assert checks.check_scheduler((tmp_path,), frozenset()).state == "warning"
    assert checks.check_scheduler((tmp_path,), frozenset({"CAP_SYS_ADMIN"})).state == "ok"
    file = tmp_path / "events" / "sched" / "sched_switch" / "id"
    file.parent.mkdir(parents=True)
    file.write_text("300\n")
    assert checks.check_scheduler((tmp_path / "no", tmp_path), frozenset()).state == "ok"


def test_capabilities_are_read_from_the_right_line(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("CapPrm:\t000001ffffffffff\nCapEff:\t0000008000080000\nCapBnd:\t000001ffffffffff\n")
    assert effective_capabilities(status) == {"CAP_SYS_PTRACE", "CAP_BPF"}


def test_container(tmp_path: Path) -> None:
    assert checks.check_container(tmp_path, lambda: True, lambda: True)[0].state == "ok"
    assert checks.check_container(tmp_path, lambda: False, lambda: True)[0].state == "warning"
    elsewhere = checks.check_container(tmp_path, lambda: True, lambda: False)
    assert elsewhere[0].state == "failed"
    assert checks.exit_status(elsewhere) == ExitStatus.UNSUPPORTED
    (tmp_path / ".dockerenv").touch()
    assert "container" in checks.check_container(tmp_path, lambda: True, lambda: True)[0].detail


def test_probe_sources(tmp_path: Path) -> None:
    assert checks.check_headers().state == "ok"
    assert checks.check_headers(tmp_path).state == "failed"


def test_dependencies() -> None:
    assert checks.check_dependencies().state == "ok"
    missing = checks.check_dependencies({"numpy": "numpy", "no_such_module_here": "no-such-package"})
    assert missing.state == "failed"
    assert "pip install no-such-package" in missing.fix


def test_marker_library(tmp_path: Path) -> None:
    assert checks.check_marker_library(tmp_path).state == "warning"
    (tmp_path / "librlscope_markers.so").touch()
    assert "extension" in checks.check_marker_library(tmp_path).detail
    (tmp_path / "_markers.abi3.so").touch()
    assert checks.check_marker_library(tmp_path).state == "ok"


def test_an_installation_without_the_gpu_helper(tmp_path: Path) -> None:
    assert checks.check_gpu_helper(tmp_path).state == "warning"
    assert "everything else works" in checks.check_gpu_helper(tmp_path).detail
    (tmp_path / "librlscope_cupti.so").touch()
    assert checks.check_gpu_helper(tmp_path).state == "ok"


def test_gpu(tmp_path: Path) -> None:
    assert states(checks.check_gpu(tmp_path)) == {"libcuda": "info"}
    library = tmp_path / "usr/lib/x86_64-linux-gnu/libcuda.so.1"
    library.parent.mkdir(parents=True)
    library.touch()
    driver = tmp_path / "proc/driver/nvidia"
    driver.mkdir(parents=True)
    (driver / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23\n")
    (driver / "params").write_text("ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\n")
    cupti = tmp_path / "usr/local/cuda-13.0/extras/CUPTI/lib64/libcupti.so.13"
    cupti.parent.mkdir(parents=True)
    cupti.touch()
    found = checks.check_gpu(tmp_path)
    assert states(found) == {"libcuda": "ok", "CUPTI": "ok", "GPU profiling": "warning"}
    assert "580.95.05" in found[0].detail
    assert "NVreg_RestrictProfilingToAdminUsers=0" in found[2].fix
    (driver / "params").write_text("RmProfilingAdminOnly: 0\n")
    assert states(checks.check_gpu(tmp_path))["GPU profiling"] == "ok"


def test_complaint_of_a_compiler() -> None:
    talk = "In file included from x:1:\n/virtual/main.c:3:5: error: unknown type name 'u65'\n1 error generated.\n"
    assert checks.first_complaint(talk) == "/virtual/main.c:3:5: error: unknown type name 'u65'"
    assert checks.first_complaint("bpf: Failed to load: Operation not permitted\n\n").endswith("not permitted")
    assert checks.first_complaint("") == ""


def test_what_cannot_be_tried_is_not_called_broken() -> None:
    assert checks.check_probe(permitted=False, bcc=True).state == "info"
    assert checks.check_probe(permitted=True, bcc=False).state == "info"


def test_exit_status() -> None:
    ok = Check("a", "b", "ok", "")
    limited = Check("a", "b", "warning", "")
    forbidden = Check("a", "b", "failed", "", "", ExitStatus.NOT_PERMITTED)
    lacking = Check("a", "b", "failed", "", "", ExitStatus.UNSUPPORTED)
    assert checks.exit_status([ok, limited]) == ExitStatus.OK
    assert checks.exit_status([ok, forbidden]) == ExitStatus.NOT_PERMITTED
    assert checks.exit_status([forbidden, lacking]) == ExitStatus.UNSUPPORTED


def test_list_is_readable_in_a_pipe_and_on_a_narrow_terminal() -> None:
    long = "word " * 40
    found = [
        Check("kernel", "kernel", "ok", "6.18"),
        Check("BCC", "bcc", "failed", long.strip(), "Do it.", ExitStatus.UNSUPPORTED),
        Check("BCC", "evil", "warning", "a\x1b[31mb", "Do that."),
    ]
    piped = doctor.render(found, doctor._MARKS, None)
    assert long.strip() in piped
    assert "\x1b[31mb" not in piped
    narrow = doctor.render(found, doctor._PLAIN_MARKS, 60)
    assert max(len(line) for line in click.unstyle(narrow).splitlines() if "not met" not in line) <= 60
    assert "FAILED  bcc" in click.unstyle(narrow)
    assert "-> Do it." in narrow
    assert "1 requirement not met: bcc." in narrow
    assert "1 limit marked with WARNING" in narrow
    assert narrow.isascii()


def test_json(tmp_path: Path) -> None:
    found = [Check("BCC", "bcc", "failed", "old", "Upgrade.", ExitStatus.UNSUPPORTED)]
    answer = json.loads(doctor.render_json(found, 4))
    assert answer["schema"] == doctor.SCHEMA
    assert (answer["ok"], answer["exit_status"]) == (False, 4)
    assert answer["checks"] == [{"group": "BCC", "name": "bcc", "state": "failed", "detail": "old", "fix": "Upgrade."}]


def test_missing_bcc_is_found_and_named() -> None:
    code = (
        "import sys\nfrom rlscope_ebpf.capture import bcc_import\n"
        "bcc_import.load_bcc.__defaults__ = ((),)\nbcc_import.find_candidates.__defaults__ = ((),)\n" + MAIN
    )
    done = run_doctor("--json", code=code)
    rows = {row["name"]: row for row in json.loads(done.stdout)["checks"]}
    assert done.returncode == ExitStatus.UNSUPPORTED
    assert rows["bcc"]["state"] == "failed"
    assert "apt install python3-bpfcc" in rows["bcc"]["fix"]
    assert rows["a probe that fires"]["state"] == "info"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_without_root() -> None:
    # The first time imports everything: another user may not be able to read this checkout or this Python.
    code = (
        "import contextlib, io, os, sys\nfrom rlscope_ebpf.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()): main(['doctor'])\n"
        "os.setgid(65534)\nos.setuid(65534)\nsys.exit(main())"
    )
    done = run_doctor(code=code)
    assert "may not load BPF programs" in done.stdout
    assert "Run as root, for example with sudo." in done.stdout
    assert done.returncode in (ExitStatus.NOT_PERMITTED, ExitStatus.UNSUPPORTED)
    assert "Traceback" not in done.stderr


def test_pid_that_does_not_exist() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    done = run_doctor("--pid", str(child.pid))
    assert f"no process {child.pid}" in done.stdout
    assert done.returncode == ExitStatus.USAGE


def test_python_process_is_described() -> None:
    code = "import ctypes, sys; ctypes.CDLL(None); print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        done = run_doctor("--pid", str(child.pid), "--json")
        child.kill()
    rows = {row["name"]: row for row in json.loads(done.stdout)["checks"] if row["group"] == "target"}
    assert rows[f"process {child.pid}"]["state"] == "ok"
    assert "CPython " + ".".join(map(str, sys.version_info[:3])) in rows["Python"]["detail"]
    assert rows["seccomp"]["state"] == "ok"
    assert rows["namespaces"]["detail"] == "the same as the profiler's"
    assert "probe sites in" in rows["interpreter lock"]["detail"]


def test_process_without_anything_to_probe_is_told_so() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        done = run_doctor("--pid", str(child.pid), "--json")
        child.kill()
    rows = {row["name"]: row for row in json.loads(done.stdout)["checks"] if row["group"] == "target"}
    assert rows["Python"]["state"] == "info"
    assert rows["probes"]["state"] == "warning"
    assert "--library" in rows["probes"]["fix"]


def test_rules_that_match_nothing_are_named() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        words = ("--library", "simulator=*libmissing*", "--marker", "step=libc.so*:qsort", "--marker", "x=libno.so:f")
        done = run_doctor("--pid", str(child.pid), "--json", *words)
        child.kill()
    rows = [row for row in json.loads(done.stdout)["checks"] if row["name"].startswith("--")]
    assert {(row["name"], row["state"], row["detail"].split()[0]) for row in rows} == {
        ("--library", "warning", "simulator=*libmissing*"),
        ("--marker", "warning", "x=libno.so:f"),
    }


def test_rules_need_a_process() -> None:
    done = run_doctor("--library", "simulator=*libmissing*")
    assert done.returncode == ExitStatus.USAGE
    assert "--pid" in done.stderr
