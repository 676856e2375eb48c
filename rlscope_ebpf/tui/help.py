"""Screens over the screen: the keys and words, and everything the profiler had to say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen

from rlscope_ebpf.live.snapshot import Snapshot
from rlscope_ebpf.model import format as fmt
from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.model.pids import PAIR_TITLE
from rlscope_ebpf.tui.bars import FILLS
from rlscope_ebpf.tui.spans import Line, Span
from rlscope_ebpf.tui.table import Lines
from rlscope_ebpf.tui.texts import gpu_sentence, says_gpu

_CATEGORIES = {
    Category.PYTHON: "the interpreter runs, also when native code calls back into Python",
    Category.SIMULATOR: "inside a call of a simulator library, such as MuJoCo",
    Category.BACKEND: "inside a call of an ML library, such as PyTorch",
    Category.CUDA_API: "inside a call of the CUDA driver or runtime, on the CPU",
    Category.OTHER: "none of these: native code, waiting without the interpreter lock",
}
_WORDS = {
    "SELF": "time of the operation without those nested in it; key i: with them (TOTAL)",
    "order (key s)": "operations stay below the one that they are nested in; those side by side are ordered, by total "
    "time: by the time with all that is nested in them, also where SELF is shown",
    "SHARE": "part of all time of the chosen process and phase, all threads together",
    "COUNT": "instances of the operation, also those open now",
    "MEAN": "time per instance",
    "ON CPU": "part of the time in which a thread really ran; else it waited or slept",
    "waits for CPU, NO CPU": "could run, but other threads did: preempted, or just woken",
    "lock, I/O, file, sleep, CUDA call, other wait": "what a thread was blocked for: a lock or condition; a pipe or "
    "socket; a file; for time to pass; in a CUDA call, so for the GPU; anything else",
    "GPU": "time in which a GPU did work that the operation launched, whenever that ran",
    "CPU + GPU, GPU only": "parts of the time in which a GPU worked while threads ran, or slept",
    "(untracked)": "time outside any marked operation",
    "overhead": "what the probes took of the target's wall time, on average since the start (with --max-overhead, what "
    "counts is the last moment)",
    "raw / corrected": "with / without the estimated cost of the probes (key c); the same while not calibrated",
    "≈": "told by samples, not by probes; the line of the chosen operation says by how many points it may be off",
    "CPU, GPU of processes": "time that its threads ran, and that a GPU worked for it, of the time for which it is "
    "known; ▸ stands for all that is folded into it",
    PAIR_TITLE: "the number of a process here, and the one that it has in its container",
    "SINCE": "profiling of the process began so long after the session did",
    "Timeline": "what most of a moment's busy time was: running, waiting for a CPU, or in a call of a library; several "
    "rows of one process are a stack. ▄ busy for less than half of it, ╌ not at all. [ it came, ] it ended",
    "≥": "at least: probes had been taken off, and what they would have counted is missing",
    "PER CALL, PER STEP": "transitions per instance of the operation, per reported step of the training loop",
}


class ScrollingBox(VerticalScroll):
    """A box that says how to see the rest of what does not fit."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("k", "scroll_up", "Up", show=False),
        Binding("j", "scroll_down", "Down", show=False),
        Binding("space", "page_down", "Page down", show=False),
    ]

    def watch_show_vertical_scrollbar(self, shown: bool) -> None:
        """Something does not fit, or all does."""
        self.border_subtitle = "↑ ↓ pgup pgdn scroll · esc closes" if shown else "esc closes"


class TextScreen(ModalScreen[None]):
    """Some lines in a box; escape, enter, q or the key that opened it closes it."""

    AUTO_FOCUS = "ScrollingBox"

    DEFAULT_CSS = """
    TextScreen { align: center middle; background: $background 60%; }
    TextScreen > ScrollingBox {
        width: 96; max-width: 100%; height: auto; max-height: 100%;
        border: round $accent; background: $background; padding: 0 1;
        scrollbar-size-vertical: 1;
    }
    TextScreen Lines { background: $background; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark,e", "dismiss", "Close", id="text.close", tooltip="Back to the figures."),
    ]

    def __init__(self, title: str, lines: Sequence[Line]) -> None:
        super().__init__()
        self._title = title
        self._text = list(lines)

    def compose(self) -> ComposeResult:
        """A scrolling box."""
        with ScrollingBox() as box:
            box.border_title = self._title
            box.border_subtitle = "esc closes"
            yield Lines(lambda width: wrapped(self._text, width), margin=0)


def wrapped(lines: Iterable[Line], width: int) -> list[Line]:
    """The lines with their last span broken at blanks, indented to where it begins."""
    found: list[Line] = []
    for line in lines:
        head, last = line[:-1], line[-1] if line else Span("")
        margin = sum(len(span.text) for span in head)
        now = list(head)
        used = margin
        for word in last.text.split(" "):
            blank = " " if used > margin else ""
            if blank and used + 1 + len(word) > width:
                found.append(now)
                now, used, blank = [Span(" " * margin)], margin, ""
            now.append(Span(blank + word, last.role))
            used += len(blank) + len(word)
        found.append(now)
    return found


def help_lines(groups: dict[str, list[tuple[str, str]]]) -> list[Line]:
    """Keys by group, as (keys, what they do), then the vocabulary."""
    lines: list[Line] = []
    for title, keys in groups.items():
        lines.append([Span(title, "heading")])
        lines += [[Span(f"  {key:<16}", "key"), Span(text, "text")] for key, text in keys]
        lines.append([])
    lines.append([Span("Categories: at any moment a thread is in exactly one", "heading")])
    for category, text in _CATEGORIES.items():
        label = fmt.CATEGORY_LABELS[category]
        lines.append(
            [
                Span("  "),
                Span(FILLS[category] * 3, f"bar-{category.name}"),
                Span(f" {label:<12}", f"ink-{category.name}"),
                Span(text, "text"),
            ]
        )
    lines += [[], [Span("Words", "heading")]]
    lines += [[Span(f"  {word:<20}", "strong"), Span(text, "text")] for word, text in _WORDS.items()]
    return lines


def message_lines(snapshot: Snapshot | None) -> list[Line]:
    """Notices, oldest first, and everything that is counted as missing."""
    lines: list[Line] = [[Span("What the profiler had to say", "heading")]]
    notices = snapshot.notices if snapshot else ()
    lines += [[Span("  ! ", "warning"), Span(fmt.printable(text), "text")] for text in notices]
    if snapshot and says_gpu(snapshot):
        lines.append([Span("  - ", "dim"), Span(gpu_sentence(snapshot.info) + ".", "text")])
    elif not notices:
        lines.append([Span("  nothing", "dim")])
    lines += [[], [Span("What is missing or was mended", "heading")]]
    totals = snapshot.losses.as_dict() if snapshot else {}
    for name, number in totals.items():
        role = "dim" if not number else "text" if name in fmt.HARMLESS_LOSSES else "error"
        lines.append([Span(f"  {number:>14,} ", role), Span(fmt.loss_label(name, number), role)])
    if snapshot:
        counters = snapshot.counters
        lines += [[], [Span("What was done", "heading")]]
        for number, thing, what in (
            (counters.hits, "probe hit", ""),
            (counters.sent, "event", " sent by the probes"),
            (counters.received, "event", " received"),
            *(((counters.samples, "sample", " of running threads"),) if counters.samples else ()),
            *(
                (
                    (counters.gpu_records, "GPU record", " received"),
                    (counters.gpu_matched, "GPU activity", " whose launch was found"),
                    (counters.gpu_early, "GPU activity", " launched before recording began"),
                    (counters.gpu_inherited, "GPU activity", " launched for a thread that waited"),
                )
                if counters.gpu_records
                else ()
            ),
            (counters.probes_attached, "probe", " attached"),
            (counters.probes_armed, "probe", " armed"),
            (counters.probes_shed, "probe", " taken off to stay in the overhead budget"),
        ):
            things = thing if number == 1 else thing.removesuffix("y") + ("ies" if thing.endswith("y") else "s")
            lines.append([Span(f"  {number:>14,} ", "text"), Span(things + what, "dim")])
    return lines
