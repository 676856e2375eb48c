"""How fast the machine is from moment to moment: told by a piece of work that no probe touches.

A virtual machine's cores are shared with others, and run at half their speed for seconds at a time: more than what is
to be measured. A program that measures itself therefore does a little work of its own all the time, always the same,
and its own work is compared with the speed that this had in the same moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter, thread_time

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_TURNS = 60
_NEIGHBOURS = 5
"""Beats whose median counts: one alone may have met an interrupt, which is not the machine's speed."""

_LARGEST_EXPONENT = 1.5
"""Little work suffers more than twice as much as a beat; where its speed hardly changes, any line would fit."""

_FITS = 5
_SURE = 2.5
"""Chunks further from the line than so many times their spread do not shape it."""


class _Work:
    """Attribute access, a call, arithmetic and a dictionary, as training loops have them between native calls."""

    def __init__(self) -> None:
        self.one = 1

    def low(self, number: int) -> int:
        return (number * self.one) & 255


class Metronome:
    """`beat` as often as convenient, some thousand times a second; `chunk` after a piece of work that recurs."""

    def __init__(self) -> None:
        self._work = [_Work() for _ in range(_TURNS)]
        self.restart()

    def restart(self) -> None:
        """A new stretch begins."""
        self._beats: list[tuple[float, float]] = []  # when, and how long
        self._own_s = 0.0
        self.chunks: list[tuple[float, float]] = []
        """CPU time of the work without the beats, and what a beat took meanwhile: s."""
        self._begun = thread_time()

    def beat(self) -> None:
        """Take the machine's speed."""
        before = perf_counter()
        low: dict[int, int] = {}
        for number, work in enumerate(self._work):
            low[number] = work.low(number)
        seconds = perf_counter() - before
        self._beats.append((before, seconds))
        self._own_s += seconds

    def chunk(self) -> None:
        """A piece of work is done."""
        now = thread_time()
        if len(self._beats) > _NEIGHBOURS:
            self.chunks.append((now - self._begun - self._own_s, _usual_beat(self._beats)))
            self._begun, self._own_s = thread_time(), 0.0
            self._beats.clear()


def _usual_beat(beats: Sequence[tuple[float, float]]) -> float:
    """What a beat takes on average over time: each stands for the time until the next."""
    when, took = np.array(beats).T
    gaps = np.diff(when, append=2 * when[-1] - when[-2])
    around = np.lib.stride_tricks.sliding_window_view(np.pad(took, _NEIGHBOURS // 2, mode="edge"), _NEIGHBOURS)
    return float((gaps * np.median(around, axis=1)).sum() / gaps.sum())


@dataclass(frozen=True, slots=True)
class Pace:
    """What each chunk of a stretch takes where a beat takes so long: a power of it: not all work suffers alike."""

    log_s: Floats
    """By the number of the chunk in its stretch, shape (chunks,): all stretches do the same."""
    exponent: float

    def expected_s(self, chunks: Floats) -> float:
        """A stretch, shape (chunks, 2), without a profiler."""
        return float(np.exp(self.log_s + self.exponent * np.log(chunks[:, 1])).sum())


def pace(stretches: Floats) -> Pace:
    """What stretches without a profiler say, shape (stretches, chunks, 2).

    Chunks that met something else, an interrupt or a reset, do not shape it; it is then scaled so that all stretches
    together take as long as it says.
    """
    took, beat = np.log(stretches[..., 0]), np.log(stretches[..., 1])
    near = np.ones(took.shape, np.bool_)
    exponent = 1.0
    for _ in range(_FITS):
        usual = np.median(took - exponent * beat, axis=0)
        off = took - exponent * beat - usual
        near = np.abs(off) <= _SURE * 1.4826 * np.median(np.abs(off))
        exponent = float(np.clip(np.polyfit(beat[near], (took - usual)[near], 1)[0], 0.0, _LARGEST_EXPONENT))
    usual = np.median(took - exponent * beat, axis=0)
    found = Pace(usual, exponent)
    scale = float(stretches[..., 0].sum()) / sum(found.expected_s(stretch) for stretch in stretches)
    return Pace(usual + np.log(scale), exponent)
