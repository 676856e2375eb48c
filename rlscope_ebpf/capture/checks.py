"""Every requirement of the profiler on this host: its state, and how to fix it."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from glob import glob
from importlib import metadata
from pathlib import Path
from typing import Literal

from rlscope_ebpf.capture import bcc_import
from rlscope_ebpf.capture.kernel import (
    MINIMUM_KERNEL,
    attach_methods,
    effective_capabilities,
    how_to_get,
    kernel_release,
    kernel_version,
    parse_release,
)
from rlscope_ebpf.capture.pid_namespace import is_own_namespace_initial, proc_is_ours
from rlscope_ebpf.capture.privileges import ACCOUNTS, EFFECTIVE, LOADING
from rlscope_ebpf.capture.tracepoints import TRACEFS
from rlscope_ebpf.errors import ExitStatus, ProfilerError
from rlscope_ebpf.paths import GPU_LIBRARY, MARKER_LIBRARY, PACKAGE, probes_dir

State = Literal["ok", "failed", "warning", "info"]
"""failed: a requirement is not met. warning: it works, with a limit. info: optional, or could not be looked at."""

CAPABILITY_USES: dict[str, str] = {
    "CAP_BPF": "load BPF programs",
    "CAP_PERFMON": "attach probes",
    "CAP_SYS_PTRACE": "look into other users' processes",
    "CAP_DAC_READ_SEARCH": "read their programs and libraries",
}

OPTIONAL_CAPABILITIES: dict[str, str] = {
    "CAP_NET_ADMIN": "times are not compared with the kernel's accounts (TaskStats), and before Linux 6.6 children are "
    "looked for in /proc",
    "CAP_CHECKPOINT_RESTORE": "libraries that were deleted or replaced since they were loaded are not probed",
}
"""And what is lost without them."""

DEPENDENCIES: dict[str, str] = {
    "capstone": "capstone",
    "click": "click",
    "elftools": "pyelftools",
    "msgpack": "msgpack",
    "numpy": "numpy",
    "pandas": "pandas",
    "pyroute2": "pyroute2",
    "rich": "rich",
    "textual": "textual",
    "zstandard": "zstandard",
}
"""Python modules that are imported, and the package that brings each."""

_PROBE_TEXT = """
BPF_ARRAY(hits, u64, 1);
BPF_RINGBUF_OUTPUT(events, 1);
int rls_check(struct pt_regs *ctx)
{
    int zero = 0;
    u64 *count = hits.lookup(&zero);
    if (count)
        __sync_fetch_and_add(count, 1);
    u64 now = bpf_ktime_get_ns();
    events.ringbuf_output(&now, sizeof(now), 0);
    return 0;
}
"""
"""The smallest program that uses what the real ones use: a map, a ring, a uprobe."""


@dataclass(frozen=True, slots=True)
class Check:
    """One requirement and its state. `fix` is a sentence, or empty if nothing needs to be done."""

    group: str
    name: str
    state: State
    detail: str
    fix: str = ""
    status: ExitStatus = ExitStatus.OK  # of the command line, if failed


def check_host() -> list[Check]:
    """Every check of this host. Attaches one probe to this very process, for a moment, if it may."""
    checks = [check_machine(platform.machine()), check_kernel(kernel_release()), check_uprobes(), check_lockdown()]
    checks += [check_btf(), check_paranoid(), check_memlock(), check_scheduler()]
    permissions = check_permissions(os.geteuid(), effective_capabilities())
    checks += permissions
    checks += check_more_permissions(os.geteuid(), effective_capabilities())
    bcc = check_bcc()
    checks += [bcc, check_headers()]
    checks.append(
        check_probe(permitted=all(check.state != "failed" for check in permissions), bcc=bcc.state != "failed")
    )
    checks += [check_dependencies(), check_marker_library(), check_gpu_helper()]
    checks += check_container()
    checks += check_gpu()
    return checks


def exit_status(checks: list[Check]) -> ExitStatus:
    """What `doctor` exits with: OK, or what is hardest to fix among the requirements that are not met."""
    failed = {check.status for check in checks if check.state == "failed"}
    for status in (ExitStatus.USAGE, ExitStatus.UNSUPPORTED, ExitStatus.NOT_PERMITTED, *sorted(failed)):
        if status in failed:
            return status
    return ExitStatus.OK


# The kernel


def check_machine(machine: str) -> Check:
    """The processor's kind."""
    if machine in ("x86_64", "AMD64"):
        return Check("kernel", "processor", "ok", "x86-64")
    return _unsupported("kernel", "processor", machine, "Run the profiler on an x86-64 machine.")


def check_kernel(release: str) -> Check:
    """The kernel's version, and which attach method it means."""
    methods = attach_methods(parse_release(release))
    if methods:
        return Check("kernel", "kernel", "ok", f"{release}; attach method {methods[0]}")
    floor = ".".join(map(str, MINIMUM_KERNEL))
    return _unsupported("kernel", "kernel", release, f"Upgrade to Linux {floor} or newer.")


def check_uprobes(pmu: Path = Path("/sys/bus/event_source/devices/uprobe")) -> Check:
    """CONFIG_UPROBE_EVENTS."""
    if pmu.is_dir():
        return Check("kernel", "uprobes", "ok", "supported")
    return _unsupported(
        "kernel", "uprobes", f"{pmu} does not exist", "Use a kernel built with CONFIG_UPROBE_EVENTS, and mount /sys."
    )


def check_lockdown(file: Path = Path("/sys/kernel/security/lockdown")) -> Check:
    """Kernel lockdown: "confidentiality" keeps BPF from reading any memory."""
    try:
        match = re.search(r"\[(\w+)\]", file.read_text())
    except OSError:
        return Check("kernel", "lockdown", "ok", "not in use")
    mode = match.group(1) if match else "none"
    if mode == "confidentiality":
        return _unsupported(
            "kernel",
            "lockdown",
            "confidentiality: BPF may not read memory",
            "Boot with lockdown=integrity, or with Secure Boot off.",
        )
    return Check("kernel", "lockdown", "ok", mode)


def check_btf(file: Path = Path("/sys/kernel/btf/vmlinux")) -> Check:
    """Type information of the kernel, which makes attaching to tracepoints robust but is not needed."""
    if os.path.exists(file):
        return Check("kernel", "BTF", "ok", "present")
    return Check("kernel", "BTF", "info", "not present; the probes do without")


def check_paranoid(file: Path = Path("/proc/sys/kernel/perf_event_paranoid")) -> Check:
    """Restriction of perf events, which CAP_PERFMON lifts."""
    try:
        level = file.read_text().strip()
    except OSError:
        return Check("kernel", "perf_event_paranoid", "info", "cannot be read")
    return Check("kernel", "perf_event_paranoid", "ok", f"{level}; does not apply with CAP_PERFMON")


def check_memlock(version: tuple[int, ...] | None = None) -> Check:
    """Locked memory: since 5.11 BPF maps are charged to the memory cgroup instead."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft >> 10} KiB"
    if (kernel_version() if version is None else version) >= (5, 11):
        return Check("kernel", "memlock", "ok", f"{limit}; does not limit BPF on this kernel")
    return Check("kernel", "memlock", "warning", limit, "Raise it with `ulimit -l unlimited`.")


# Permissions


def check_permissions(euid: int, held: frozenset[str]) -> list[Check]:
    """Root, or the capabilities that stand for it."""
    # CAP_SYS_ADMIN includes the two that were split off it.
    if "CAP_SYS_ADMIN" in held:
        held |= {"CAP_BPF", "CAP_PERFMON"}
    missing = [name for name in CAPABILITY_USES if name not in held]
    if euid != 0 and len(missing) == len(CAPABILITY_USES):
        cannot = ", ".join(CAPABILITY_USES.values())
        return [_forbidden("root", f"user {euid} may not {cannot}", "Run as root, for example with sudo.")]
    who = "root" if euid == 0 else f"user {euid}"
    checks = []
    for name, use in CAPABILITY_USES.items():
        if name not in missing:
            checks.append(Check("permissions", name, "ok", f"{who} may {use}"))
        else:
            checks.append(_forbidden(name, f"{who} may not {use}", how_to_get(name, euid=euid, held=held)))
    return checks


def check_more_permissions(euid: int, held: frozenset[str]) -> list[Check]:
    """What the profiler does without, and what it does not do then; and what it keeps once it is attached."""
    if "CAP_SYS_ADMIN" in held:
        held |= {"CAP_CHECKPOINT_RESTORE"}
    checks = [
        Check("permissions", name, "info", f"missing: {lost}", how_to_get(name, euid=euid, held=held))
        for name, lost in OPTIONAL_CAPABILITIES.items()
        if name not in held
    ]
    kept = [name for name in EFFECTIVE if name in held]
    if not kept:
        return checks
    reserve = [name for name in sorted(ACCOUNTS | LOADING) if name in held]
    detail = f"only {', '.join(kept)} are used"
    if reserve:
        detail += f"; in reserve for single threads: {', '.join(reserve)}"
    return [*checks, Check("permissions", "once attached", "ok", detail)]


def check_scheduler(roots: Iterable[Path] = TRACEFS, held: frozenset[str] | None = None) -> Check:
    """The tracepoints that tell when threads run and wait."""
    for root in roots:
        with suppress(OSError):
            if (root / "events" / "sched" / "sched_switch" / "id").read_text():
                return Check("kernel", "scheduler events", "ok", f"in {root}")
    if "CAP_SYS_ADMIN" in (effective_capabilities() if held is None else held):
        return Check("kernel", "scheduler events", "ok", "tracefs is not mounted, but can be for a moment")
    return Check(
        "kernel",
        "scheduler events",
        "warning",
        "tracefs cannot be read: waiting threads show as running",
        "Mount it as root with `mount -t tracefs tracefs /sys/kernel/tracing`, or add CAP_SYS_ADMIN.",
    )


def check_container(
    root: Path = Path("/"),
    initial: Callable[[], bool] = is_own_namespace_initial,
    proc_is_ours: Callable[[], bool] = proc_is_ours,
) -> list[Check]:
    """Whether this is a container, and what that means."""
    marker = next((name for name in (".dockerenv", "run/.containerenv") if (root / name).exists()), None)
    if not proc_is_ours():
        return [
            Check(
                "environment",
                "pid namespace",
                "failed",
                "/proc is missing, or is that of another pid namespace: no process can be found by its number",
                "Mount one of its own with `mount -t proc proc /proc`, or run on the host.",
                ExitStatus.UNSUPPORTED,
            )
        ]
    if not initial():
        return [
            Check(
                "environment",
                "pid namespace",
                "warning",
                "this container's own: its processes can be profiled, but not those of containers inside of it, "
                "and new children are looked for in /proc fifty times a second",
                "Run on the host, or share its processes with this container (--pid=host).",
            )
        ]
    detail = f"the host's, seen from a container (/{marker})" if marker else "the host's"
    return [Check("environment", "pid namespace", "ok", detail)]


# BCC


def check_bcc(find: Callable[[], list[bcc_import.BccCandidate]] = bcc_import.find_candidates) -> Check:
    """BCC's Python module, its version and its library."""
    try:
        module = bcc_import.load_bcc()
    except ProfilerError as error:
        return _unsupported("BCC", "bcc", error.problem.rstrip("."), error.remedy)
    folder = Path(str(module.__file__)).parent
    ignored = [str(candidate.folder) for candidate in find() if not candidate.genuine]
    detail = f"{getattr(module, '__version__', 'unknown version')} in {folder}"
    if ignored:
        detail += f"; PyPI's unrelated package in {ignored[0]} is ignored"
    if not bcc_import.accepts_attach_type(module) and attach_methods(kernel_version())[:1] not in ((), ("perf",)):
        return Check(
            "BCC",
            "bcc",
            "warning",
            f"{detail}; too old for this kernel's better attach methods, so perf is used",
            "Upgrade to BCC 0.21 or newer for cheaper probes.",
        )
    return Check("BCC", "bcc", "ok", detail)


def check_headers(folder: Path | None = None) -> Check:
    """The BPF sources and the few header lines that replace the kernel's headers."""
    place = _probes_folder() if folder is None else folder
    if place is None:
        return _unsupported(
            "BCC", "probe sources", "not found", "Install the profiler again; its files are incomplete."
        )
    if list(place.glob("*.bpf.c")) and (place / "include" / "linux").is_dir():
        return Check("BCC", "probe sources", "ok", f"{place}; no kernel headers needed")
    return _unsupported(
        "BCC", "probe sources", f"incomplete in {place}", "Install the profiler again; its files are incomplete."
    )


def check_probe(*, permitted: bool, bcc: bool) -> Check:
    """Compile a program, attach it to a function of this process, and see whether it fires."""
    name = "a probe that fires"
    folder = _probes_folder()
    if not bcc or folder is None:
        return Check("BCC", name, "info", "not tried: something above is missing")
    if not permitted:
        return Check("BCC", name, "info", "not tried: it needs root")
    failures = []
    for method in attach_methods(kernel_version()):
        try:
            hits = _probe_self(method, folder)
        except (ProfilerError, OSError, RuntimeError) as error:
            failures.append(f"{method}: {error}")
            continue
        if hits:
            detail = f"method {method}; clang and libbpf of BCC work"
            if not failures:
                return Check("BCC", name, "ok", detail)
            return Check("BCC", name, "warning", f"{detail}; {failures[0]}", f"Use --attach-method {method}.")
        failures.append(f"{method}: attached, but it did not fire")
    return _unsupported(
        "BCC", name, "; ".join(failures) or "no attach method", "Upgrade BCC and the kernel, or see `dmesg` for why."
    )


def _probe_self(method: str, folder: Path) -> int:
    """Hits of a probe on this process's getppid while it is called once."""
    from rlscope_ebpf.capture.links import ATTACH_TYPES, attach
    from rlscope_ebpf.capture.maps import host_path, read_maps

    bcc = bcc_import.load_bcc()
    os.environ["BCC_KERNEL_SOURCE"] = str(folder)
    function = ctypes.cast(ctypes.CDLL(None).getppid, ctypes.c_void_p).value or 0
    with _captured_stderr() as talk:
        try:
            program = bcc.BPF(text=_PROBE_TEXT, cflags=[f"-I{folder}", "-Wno-macro-redefined"])
        except Exception as error:  # BCC raises bare Exceptions
            raise RuntimeError(f"does not compile ({first_complaint(talk()) or error})") from error
        try:
            extra = {} if method == "perf" else {"attach_type": ATTACH_TYPES[method]}
            descriptor = program.load_func("rls_check", bcc.BPF.KPROBE, **extra).fd
        except Exception as error:
            program.cleanup()
            raise RuntimeError(f"is not accepted by the kernel ({first_complaint(talk()) or error})") from error
    try:
        for mapped in read_maps(os.getpid()):
            for segment in mapped.segments:
                if segment.start <= function < segment.end:
                    path = host_path(os.getpid(), mapped) or mapped.path
                    offset = function - segment.start + segment.offset
                    link = attach(method, descriptor, path, [offset], [0], os.getpid(), returns=False)
                    try:
                        os.getppid()
                        return int(program["hits"][ctypes.c_int(0)].value)
                    finally:
                        link.close()
        raise RuntimeError("libc was not found among this process's mappings")
    finally:
        program.cleanup()


@contextmanager
def _captured_stderr() -> Iterator[Callable[[], str]]:
    """Catch what C code (clang, libbpf) writes to file descriptor 2."""
    saved = os.dup(2)
    with tempfile.TemporaryFile() as file:

        def text() -> str:
            file.seek(0)
            return file.read().decode(errors="replace")

        os.dup2(file.fileno(), 2)
        try:
            yield text
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def first_complaint(talk: str) -> str:
    """The line of a compiler's or verifier's output that says what is wrong; "" if there is none."""
    lines = [line.strip() for line in talk.splitlines() if line.strip()]
    return next((line for line in lines if "error:" in line), lines[-1] if lines else "")


# The installation


def check_dependencies(names: dict[str, str] | None = None) -> Check:
    """The Python packages that the profiler imports."""
    wanted = DEPENDENCIES if names is None else names
    missing = sorted(package for module, package in wanted.items() if importlib.util.find_spec(module) is None)
    if missing:
        return _unsupported(
            "installation",
            "Python packages",
            "missing: " + ", ".join(missing),
            f"Run `{sys.executable or 'python3'} -m pip install {' '.join(missing)}`.",
        )
    versions = [f"{package} {_version_of(package)}" for package in sorted(wanted.values())]
    return Check("installation", "Python packages", "ok", f"Python {platform.python_version()}; " + ", ".join(versions))


def check_marker_library(package: Path | None = None) -> Check:
    """The library for annotated C and C++ programs, and the extension behind `rlscope_ebpf.markers`."""
    folder = PACKAGE if package is None else package
    library, extension = (folder / MARKER_LIBRARY).is_file(), bool(list(folder.glob("_markers*.so")))
    if extension and library:
        return Check("installation", "marker library", "ok", f"built, in {folder}")
    missing = " and ".join(
        name for name, there in (("the Python extension", extension), (MARKER_LIBRARY, library)) if not there
    )
    return Check(
        "installation",
        "marker library",
        "warning",
        f"{missing} not built: operations of programs that use it here are not seen",
        "Install it again with `pip install .` (in a checkout: `make setup`), which compiles and packs it.",
    )


def check_gpu_helper(package: Path | None = None) -> Check:
    """The library that takes GPU records from CUPTI inside the target."""
    folder = PACKAGE if package is None else package
    if (folder / GPU_LIBRARY).is_file():
        return Check("installation", "GPU helper", "ok", f"built, in {folder}")
    return Check(
        "installation",
        "GPU helper",
        "warning",
        f"{GPU_LIBRARY} not built: GPU times cannot be measured, everything else works",
        "Install it again with `pip install .` (in a checkout: `make setup`), which compiles and packs it.",
    )


# The GPU


_LIBRARY_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/cuda/compat", "/usr/lib/wsl/lib")
_CUPTI_FOLDERS = ("/usr/local/cuda*/extras/CUPTI/lib64", "/usr/local/cuda*/targets/*/lib", *_LIBRARY_FOLDERS)


def check_gpu(root: Path = Path("/")) -> list[Check]:
    """What GPU times need; none of it is required."""
    driver = _first_match(root, _LIBRARY_FOLDERS, "libcuda.so*")
    if driver is None:
        return [
            Check("GPU", "libcuda", "info", "not found: no NVIDIA driver, so CUDA calls and GPU times are not seen")
        ]
    version = _driver_version(root / "proc/driver/nvidia/version")
    checks = [Check("GPU", "libcuda", "ok", f"{driver}{version}")]
    cupti = _first_match(root, _CUPTI_FOLDERS, "libcupti.so*") or _cupti_from_packages()
    if cupti is None:
        checks.append(
            Check(
                "GPU", "CUPTI", "warning", "not found here: GPU times need it in the target",
                "Install the CUDA toolkit or the nvidia-cuda-cupti package.",
            )
        )  # fmt: skip
    else:
        checks.append(Check("GPU", "CUPTI", "ok", str(cupti)))
    checks.append(check_profiling_restriction(root / "proc/driver/nvidia/params"))
    return checks


def check_profiling_restriction(params: Path) -> Check:
    """The driver option that keeps CUPTI's counters to administrators."""
    name = "GPU profiling"
    try:
        match = re.search(r"^RmProfilingAdminOnly:\s*(\d)", params.read_text(), re.MULTILINE)
    except OSError:
        return Check("GPU", name, "info", "the driver's options cannot be read")
    if match and match.group(1) == "1":
        return Check(
            "GPU",
            name,
            "warning",
            "restricted to administrators; kernel times still work, counters do not",
            "Set NVreg_RestrictProfilingToAdminUsers=0 for the module nvidia; in a container add --cap-add SYS_ADMIN.",
        )
    return Check("GPU", name, "ok", "open to all users")


def _driver_version(file: Path) -> str:
    try:
        match = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", file.read_text())
    except OSError:
        return ""
    return f", driver {match.group(1)}" if match else ""


def _first_match(root: Path, folders: tuple[str, ...], pattern: str) -> Path | None:
    found = (Path(path) for folder in folders for path in sorted(glob(f"{root}/{folder.lstrip('/')}/{pattern}")))
    return next(found, None)


def _cupti_from_packages() -> Path | None:
    """pip's packages put it into the namespace package `nvidia`."""
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return next((Path(path) for folder in folders for path in sorted(glob(f"{folder}/*/lib/libcupti.so*"))), None)


def _version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "?"


def _probes_folder() -> Path | None:
    try:
        return probes_dir()
    except (ProfilerError, OSError):
        return None


def _unsupported(group: str, name: str, detail: str, fix: str) -> Check:
    return Check(group, name, "failed", detail, fix, ExitStatus.UNSUPPORTED)


def _forbidden(name: str, detail: str, fix: str) -> Check:
    return Check("permissions", name, "failed", detail, fix, ExitStatus.NOT_PERMITTED)
