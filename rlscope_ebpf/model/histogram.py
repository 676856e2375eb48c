"""Log-linear histograms of durations: percentiles without keeping the durations.

Durations below 64 ns have a bin each. Above, every power of two is cut into 32 bins of equal width, so a bin is at
most 1/32 of its lower bound wide. A percentile is given as the middle of its bin: off by at most 1/64 (1.6 %). The
last bin takes everything from 2^48 ns (78 hours) on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.model.keys import Ints

_BITS = 5  # 2^5 bins per power of two
_PER_OCTAVE = 1 << _BITS
_EXACT = 2 * _PER_OCTAVE
_TOP_BITS = 48

BINS = _EXACT + (_TOP_BITS - _BITS - 1) * _PER_OCTAVE
"""Number of bins."""

RELATIVE_ERROR = 1 / (2 * _PER_OCTAVE)
"""Bound of the relative error of a percentile (below 2^48 ns; half a nanosecond comes on top from rounding)."""


def bins_of(duration_ns: NDArray[Any]) -> Ints:
    """Bin of every duration (non-negative integers)."""
    values: Ints = np.minimum(duration_ns.astype(np.int64), (1 << _TOP_BITS) - 1)
    # frexp's exponent of v is floor(log2 v) + 1, exact for integers below 2^53.
    exponent: Ints = np.frexp(values.astype(np.float64))[1].astype(np.int64)
    shift: Ints = np.maximum(exponent - (_BITS + 1), 0)
    return shift * _PER_OCTAVE + (values >> shift)


def _middles() -> Ints:
    index = np.arange(BINS)
    shift = np.maximum(index // _PER_OCTAVE - 1, 0)
    low: Ints = (index - shift * _PER_OCTAVE) << shift
    return low + ((1 << shift) - 1) // 2


MIDDLES: Ints = _middles()
"""The duration that stands for each bin, ns."""


def percentiles(histogram: NDArray[Any], fractions: tuple[float, ...]) -> tuple[int, ...]:
    """Nearest-rank percentiles of a histogram (counts by bin), ns; zeros if it is empty."""
    running = np.cumsum(histogram)
    total = int(running[-1])
    if not total:
        return (0,) * len(fractions)
    ranks = np.maximum(np.ceil(np.array(fractions) * total), 1)
    return tuple(int(value) for value in MIDDLES[np.searchsorted(running, ranks)])
