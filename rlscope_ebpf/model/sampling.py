"""From counts of samples to times: an operation's sampled time, divided as its samples are, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.categories import Category

CONFIDENCE = 0.95
_Z = 1.959964  # of the normal distribution, for CONFIDENCE

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sampled:
    """The part of an operation's time whose categories were told apart by samples."""

    time_ns: int
    samples: tuple[int, ...]  # [Category]

    def __add__(self, other: Sampled) -> Sampled:
        samples = tuple(a + b for a, b in zip(self.samples, other.samples, strict=True))
        return Sampled(self.time_ns + other.time_ns, samples)

    def errors_ns(self, category: int) -> tuple[float, float]:
        """By how much a category's time may be less, and more, than its share of the samples says.

        Wilson's interval of a share, with `CONFIDENCE`, as if samples knew nothing of each other. They come in equal
        steps of time, so that they are spread more evenly than that, and the real error is smaller as long as the
        program does not keep step with them.
        """
        low, high = wilson(self.samples[category], sum(self.samples))
        of = sum(self.samples)
        share = self.samples[category] / of if of else float(category == Category.OTHER)
        return max(0.0, share - low) * self.time_ns, max(0.0, high - share) * self.time_ns


NOT_SAMPLED = Sampled(0, (0,) * len(Category))


def wilson(hits: int, of: int) -> tuple[float, float]:
    """Wilson's interval of a share that was seen `hits` times in `of` samples; (0, 1) of none."""
    if of <= 0:
        return 0.0, 1.0
    share, square = hits / of, _Z * _Z
    middle = share + square / (2 * of)
    spread = _Z * sqrt(share * (1 - share) / of + square / (4 * of * of))
    scale = 1 + square / of
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def split(time_ns: Ints, samples: Ints) -> Ints:
    """Times by category: (n, k) ns divided as (n, Category) samples are, to (n, Category, k); each adds up again.

    Where there is no sample all is `Category.OTHER`. Times below 2^53 ns.
    """
    upto = np.cumsum(samples, axis=1)
    of = upto[:, -1:]
    share = upto / np.maximum(of, 1)
    share[of[:, 0] == 0, Category.OTHER :] = 1.0
    reached = np.floor(time_ns[:, None, :] * share[:, :, None]).astype(np.int64)
    parts: Ints = np.diff(reached, axis=1, prepend=np.int64(0))
    return parts


def spread_ns(parts: Sequence[Sampled], category: int) -> float:
    """How far the sum of a category's times may be off: squares of independent errors add up."""
    return sqrt(sum(max(part.errors_ns(category)) ** 2 for part in parts if part.time_ns))
