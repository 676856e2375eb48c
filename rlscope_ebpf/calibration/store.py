"""Where a host's calibration is kept, and whether it still holds."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from pathlib import Path

from rlscope_ebpf.capture.compiler import SOURCES
from rlscope_ebpf.capture.kernel import kernel_release
from rlscope_ebpf.capture.state_files import replace_file
from rlscope_ebpf.errors import NotPermittedError, ProfilerError
from rlscope_ebpf.model.calibration import Calibration, MethodCosts, method_costs
from rlscope_ebpf.paths import STATE_VARIABLE, probes_dir, state_dir

FORMAT = "rlscope-ebpf.calibration/1"

FRESH = timedelta(days=30)
"""A host's clock speed, firmware and load change; so its costs are taken again now and then."""

FRESH_SHORT = timedelta(days=1)
"""The short form is measured beside a program that is at work."""

_NAME = "calibration.json"
_SHORT_NAME = "calibration-short.json"


def calibration_path() -> Path:
    """The file in which this host's calibration is kept."""
    return state_dir() / _NAME


def short_calibration_path() -> Path:
    """The file for what attaches measure in passing: a full calibration that is out of date stays where it is."""
    return state_dir() / _SHORT_NAME


def this_host(methods: Mapping[str, MethodCosts], now: datetime | None = None, *, short: bool = False) -> Calibration:
    """A calibration with what describes this host, now."""
    moment = (now or datetime.now(timezone.utc)).isoformat(timespec="seconds")
    return Calibration(platform.node(), kernel_release(), _cpu(), _programs(), moment, short, methods)


def save(calibration: Calibration, path: Path | None = None) -> Path:
    """Keep a calibration, in place of an older one. Raises ProfilerErrors."""
    target = path or calibration_path()
    document = {
        "format": FORMAT,
        "host": calibration.host,
        "kernel": calibration.kernel,
        "cpu": calibration.cpu,
        "programs": calibration.programs,
        "measured_at": calibration.measured_at,
        "short": calibration.short,
        "ns_per_hit": {method: costs.as_dict() for method, costs in calibration.methods.items()},
    }
    try:
        replace_file(target, json.dumps(document, indent=1).encode(), 0o644)
    except OSError as error:
        kind = NotPermittedError if isinstance(error, PermissionError) else ProfilerError
        raise kind(
            f"The calibration cannot be written to {target}: {error.strerror or error}.",
            f"Set {STATE_VARIABLE} to a folder that can be written.",
        ) from error
    return target


def load(path: Path | None = None) -> Calibration | None:
    """The calibration that is kept; None if there is none that can be read."""
    try:
        document = json.loads((path or calibration_path()).read_text())
        if document["format"] != FORMAT:
            return None
        texts = [document[name] for name in ("host", "kernel", "cpu", "programs", "measured_at")]
        if not all(isinstance(text, str) for text in texts):
            return None
        host, kernel, cpu, programs, measured_at = texts
        methods = {str(name): method_costs(values) for name, values in document["ns_per_hit"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Calibration(host, kernel, cpu, programs, measured_at, document.get("short") is True, methods)


def why_stale(calibration: Calibration, now: datetime | None = None) -> str | None:
    """What has changed since a calibration was made, as the end of a sentence; None if it holds."""
    here = this_host({}, now)
    if calibration.cpu != here.cpu or calibration.host != here.host:
        return "it was made on another machine"
    if calibration.kernel != here.kernel:
        return f"it was made under kernel {calibration.kernel}"
    if calibration.programs != here.programs:
        return "the probes' programs have changed since"
    try:
        age = datetime.fromisoformat(here.measured_at) - datetime.fromisoformat(calibration.measured_at)
    except (ValueError, TypeError):
        return "it does not say when it was made"
    if age > (FRESH_SHORT if calibration.short else FRESH):
        return f"it is {age.days} days old"
    return None


@lru_cache(maxsize=1)
def _programs() -> str:
    digest = hashlib.sha256()
    for name in (*SOURCES, "abi.h", "cookie.h"):
        digest.update((probes_dir() / name).read_bytes())
    return digest.hexdigest()[:16]


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()
