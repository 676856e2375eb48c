"""Figures as people read them: the one place that turns nanoseconds, counts and fractions into text.

The terminal UI and the text report share it, so that the same figure reads the same everywhere. Figures have three
significant digits, a space before the unit, and at most `WIDTH` characters (durations below 1000 days).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rlscope_ebpf.model.categories import UNTRACKED, Category
from rlscope_ebpf.model.gpu import SET_NAME
from rlscope_ebpf.model.tables import Counters, Losses

WIDTH = 8
"""The longest text that `duration`, `count` and `percent` return, in characters."""

PATH_SEPARATOR = " > "

NS_PER_S = 1_000_000_000

_DURATION_UNITS: tuple[tuple[float, str], ...] = ((1, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s"))
_COUNT_UNITS: tuple[tuple[float, str], ...] = ((1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"))
_LONG_DURATION_S = 600

CATEGORY_LABELS: dict[Category, str] = {
    Category.PYTHON: "Python",
    Category.SIMULATOR: "simulator",
    Category.BACKEND: "backend",
    Category.CUDA_API: "CUDA API",
    Category.OTHER: "other",
}
"""How a category is written for people."""

ACTIVITY_LABELS: dict[str, str] = {
    "running": "on CPU",
    "runnable": "waits for CPU",
    "lock": "lock",
    "io": "I/O",
    "disk": "file",
    "sleep": "sleep",
    "gpu": "CUDA call",
    "other": "other wait",
}
"""What a thread can be doing (`rlscope_ebpf.model.figures.ACTIVITIES`); from the third on, what it is blocked for."""

LOSS_LABELS: dict[str, tuple[str, str]] = {
    "events": ("event lost", "events lost"),
    "texts": ("name lost", "names lost"),
    "gpu_records": ("GPU record lost", "GPU records lost"),
    "unmatched": ("end without a begin", "ends without a begin"),
    "healed": ("return healed", "returns healed"),
    "threads": ("thread not followed", "threads not followed"),
    "truncated_names": ("name cut", "names cut"),
    "late": ("late event dropped", "late events dropped"),
    "not_followed": ("call not followed", "calls not followed"),
    "gpu_invalid": ("GPU record with impossible times", "GPU records with impossible times"),
    "gpu_unmatched": ("GPU activity without its launch", "GPU activities without their launch"),
    "gpu_late": ("GPU activity known too late", "GPU activities known too late"),
    "samples": ("sample lost", "samples lost"),
    "gpu_launches": ("launch without GPU activity", "launches without GPU activity"),
    "gpu_ambiguous": ("GPU activity of no certain operation", "GPU activities of no certain operation"),
}
"""What each field of `Losses` counts, as it reads behind one and behind any other number."""

_MISPLACED_LOSSES = frozenset({"not_followed"})

HARMLESS_LOSSES = frozenset({"healed", "truncated_names", "samples", "gpu_launches"})
"""Fields of `Losses` that are counted for honesty but take nothing from the figures."""


def _three_digits(value: float) -> str:
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def _scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    """`value` in the largest unit that keeps the number at or above 1, after rounding."""
    for (scale, unit), (next_scale, _) in pairwise(units):
        if value < 999.5 * scale and value < next_scale:
            return f"{_three_digits(value / scale)} {unit}"
    scale, unit = units[-1]
    return f"{_three_digits(value / scale)} {unit}"


def duration(ns: float) -> str:
    """Nanoseconds as "456 ns", "1.23 µs", "12.3 ms", "1.23 s", from ten minutes on "12m 05s", "3h 07m", "2d 04h"."""
    if ns < 0:
        return "-" + duration(-ns)
    if ns == 0:
        return "0 s"
    if ns < 999.5:
        return f"{ns:.0f} ns"
    if ns < _LONG_DURATION_S * NS_PER_S:
        return _scaled(ns, _DURATION_UNITS)
    seconds = round(ns / NS_PER_S)
    if seconds < 3600:
        return f"{seconds // 60}m {seconds % 60:02d}s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60}h {minutes % 60:02d}m"
    hours = round(minutes / 60)
    return f"{hours // 24}d {hours % 24:02d}h"


def clock(ns: float) -> str:
    """Nanoseconds as a running clock: "00:07", "12:05", "1:02:03"."""
    seconds = max(0, int(ns // NS_PER_S))
    hours, minutes, seconds = seconds // 3600, seconds // 60 % 60, seconds % 60
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes:02d}:{seconds:02d}"


def count(n: float) -> str:
    """A number of things as "7", "999", "12.3 k", "4.56 M"; a fraction (a mean) keeps three digits: "2.50"."""
    if n < 0:
        return "-" + count(-n)
    if n < 999.5:
        return f"{n:.0f}" if n == int(n) else _three_digits(n)
    return _scaled(n, _COUNT_UNITS)


def rate(per_s: float, things: str = "") -> str:
    """Things per second: "68.2 k/s", "68.2 k events/s"."""
    number = count(round(per_s) if per_s >= 10 else per_s)
    return f"{number} {things}/s" if things else f"{number}/s"


def size(n: float) -> str:
    """Bytes as "512 B", "1.20 MB" (decimal)."""
    text = count(n)
    return f"{text}B" if " " in text else f"{text} B"


def percent(fraction: float) -> str:
    """A share as "12.3 %"; what is there but rounds to nothing is "<0.1 %", nothing is "0 %"."""
    if fraction == 0:
        return "0 %"
    if fraction < 0:
        return "-" + percent(-fraction)
    if fraction < 0.0005:
        return "<0.1 %"
    return f"{fraction * 100:.0f} %" if fraction >= 0.9995 else f"{fraction * 100:.1f} %"


def about(text: str, sampled: bool) -> str:
    """A figure that samples tell is marked: "≈12.3 %". Exact ones, and nothing at all, are not."""
    return f"≈{text}" if sampled and text != percent(0) else text


def error(fraction: float) -> str:
    """How far a share may be off, in percentage points: "±0.4", "±12"."""
    points = fraction * 100
    return f"±{points:.0f}" if points >= 9.95 else f"±{points:.1f}"


def plural(n: int, noun: str, nouns: str | None = None) -> str:
    """ "1 probe", "12.3 k probes"."""
    return f"{count(n)} {noun if n == 1 else nouns or noun + 's'}"


def plural_exact(n: int, noun: str, nouns: str | None = None) -> str:
    """ "1 probe", "12,345 probes"."""
    return f"{n:,} {noun if n == 1 else nouns or noun + 's'}"


def processes(pids: Sequence[int]) -> str:
    """ "process 7", "processes 7, 8 and 9"."""
    *others, last = map(str, pids)
    return f"processes {', '.join(others)} and {last}" if others else f"process {last}"


def shorten(text: str, width: int) -> str:
    """`text` in at most `width` characters, with an ellipsis at its end if cut."""
    if len(text) <= width:
        return text
    return text[: max(0, width - 1)] + "…" if width > 0 else ""


def printable(text: str) -> str:
    """`text` on one line without control characters.

    Names come from the profiled process, which may belong to somebody else: what it sends must not reach the terminal
    as an escape sequence.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def name(text: str) -> str:
    """An operation's name, `printable`; an empty one is shown as two quotes."""
    return printable(text) or '""'


def path(names: Sequence[str]) -> str:
    """A nesting of operations on one line: "train > backprop"; the empty path is the untracked time."""
    return PATH_SEPARATOR.join(map(name, names)) if names else UNTRACKED


def transition(kind: str) -> str:
    """ "python_to_cuda_api" as "Python → CUDA API"; an unknown kind is returned as it is."""
    origin, separator, target = kind.partition("_to_")
    labels = {category.name.lower(): label for category, label in CATEGORY_LABELS.items()}
    if not separator or origin not in labels or target not in labels:
        return kind
    return f"{labels[origin]} → {labels[target]}"


def kernel(name: str) -> str:
    """A kernel's name without return type, namespaces and parameters, for people: "fill_kernel<at::Half>"."""
    name = _without_parameters(name.removeprefix("void "))
    depth = begin = 0
    for at, letter in enumerate(name):
        depth += (letter in "<(") - (letter in ">)")
        if not depth and name[at : at + 2] == "::" and at + 2 < len(name):
            begin = at + 2
    return name[begin:]


def _without_parameters(name: str) -> str:
    if not name.endswith(")"):
        return name
    depth = 0
    for at in range(len(name) - 1, -1, -1):
        depth += (name[at] == ")") - (name[at] == "(")
        if not depth:
            return name if at == 0 or name[at - 1] in ": " else name[:at]
    return name


def direction(name: str) -> str:
    """ "host_to_device" as "host → device", "set" as "memory filled"."""
    if name == SET_NAME:
        return "memory filled"
    return name.replace("_to_", " → ").replace("_", " ")


def probes(counters: Counters) -> str:
    """How many probes there are: "1,663 of 1,678 probes armed, 15 taken off"."""
    text = f"{counters.probes_armed:,} of {plural_exact(counters.probes_attached, 'probe')} armed"
    return f"{text}, {counters.probes_shed:,} taken off" if counters.probes_shed else text


def loss_label(name: str, number: int) -> str:
    """What a field of `Losses` counts, to follow its number."""
    one, several = LOSS_LABELS.get(name, (name, name))
    return one if number == 1 else several


def overhead(fraction: float, plausible: bool) -> str:
    """The probes' estimated share of the target's wall time, or that the estimate cannot be right."""
    share = f"{percent(fraction)} of the target's wall time"
    return f"about {share}" if plausible else f"estimated at {share}, which cannot be right"


def consequence(totals: Losses) -> str:
    """A sentence on what the losses that matter do to the figures."""
    names = {name for name, number in totals.as_dict().items() if number} - HARMLESS_LOSSES
    if names == {"gpu_ambiguous"}:
        return "Their time counts as that of no operation."
    if names <= _MISPLACED_LOSSES:
        return "Their time counts as their caller's."
    return "These are missing in every figure."


def losses(totals: Losses, *, harmless: bool = False) -> str:
    """What is missing: "12 events lost, 3 late events dropped"; empty if nothing is.

    `harmless` adds what was counted but takes nothing from the figures (`HARMLESS_LOSSES`).
    """
    return ", ".join(
        f"{count(number)} {loss_label(name, number)}"
        for name, number in totals.as_dict().items()
        if number and (harmless or name not in HARMLESS_LOSSES)
    )
