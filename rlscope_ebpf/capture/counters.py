"""The BPF programs' counters: the mirror of `enum rls_counter` in probes/cookie.h."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.capture.cookie import Group, SiteClass

_RETURNS = 11
_HITS = _RETURNS + len(Group)
COUNTERS = _HITS + len(Group) * len(SiteClass)


@dataclass(frozen=True, slots=True)
class ProbeCounters:
    """Running totals over all CPUs."""

    sent: int
    lost_events: int
    lost_texts: int
    lost_threads: int
    healed: int
    not_followed: int
    cut_names: int
    switches: int
    samples: int
    lost_samples: int
    sampled_ns: int
    returns: NDArray[np.uint64]  # (group,)
    hits: NDArray[np.uint64]  # (group, site class)

    @property
    def total_hits(self) -> int:
        """Probe hits of every kind, also those that made no event."""
        return int(self.returns.sum() + self.hits.sum())


def parse_counters(values: NDArray[np.uint64]) -> ProbeCounters:
    """`values`: the counters array summed over CPUs, `COUNTERS` long."""
    head = [int(value) for value in values[:_RETURNS]]
    return ProbeCounters(
        sent=head[0],
        lost_events=head[1],
        lost_texts=head[2],
        lost_threads=head[3],
        healed=head[4],
        not_followed=head[5],
        cut_names=head[6],
        switches=head[7],
        samples=head[8],
        lost_samples=head[9],
        sampled_ns=head[10],
        returns=values[_RETURNS:_HITS].copy(),
        hits=values[_HITS:COUNTERS].reshape(len(Group), len(SiteClass)).copy(),
    )
