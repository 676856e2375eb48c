"""What a target said before anyone listened, as the records that its probes would have sent."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlscope_ebpf.capture.markers_layout import ProcessMarkers
from rlscope_ebpf.model.events import EVENT_DTYPE, TEXT_DTYPE, TEXT_MAX, EventKind, TextKind

_keys = itertools.count(1 << 31)
"""Keys of texts made here, each used once: processes say different things. Those that the programs make are hashes, and
a clash is one in billions."""


def text_records(texts: Sequence[tuple[int, TextKind, str]]) -> NDArray[np.void]:
    """TEXT_DTYPE records of (key, kind, text)."""
    records = np.zeros(len(texts), TEXT_DTYPE)
    for index, (key, kind, text) in enumerate(texts):
        data = text.encode()[: TEXT_MAX - 1]
        records[index]["key"], records[index]["kind"], records[index]["length"] = key, kind, len(data)
        records[index]["text"] = data
    return records


def process_records(
    markers: ProcessMarkers, pid: int, time_ns: int, category: int, known: ProcessMarkers | None = None
) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """Texts and events of the phase and the metadata that a process has told so far.

    As if its main thread, which is in `category`, told them at `time_ns`. What is as in `known` is left out.
    """
    texts: list[tuple[int, TextKind, str]] = []
    events: list[tuple[int, int, EventKind]] = []  # arg, site, kind
    if markers.phase and (known is None or known.phase != markers.phase):
        key = next(_keys)
        texts.append((key, TextKind.NAME, markers.phase))
        events.append((key, 0, EventKind.PHASE))
    for name, value in markers.metadata.items():
        if known is not None and known.metadata.get(name) == value:
            continue
        key, value_key = next(_keys), next(_keys)
        texts += [(key, TextKind.NAME, name), (value_key, TextKind.VALUE, value)]
        events.append((key, value_key, EventKind.METADATA))
    records = np.zeros(len(events), EVENT_DTYPE)
    records["time_ns"] = time_ns
    records["pid"] = records["tid"] = pid
    records["category"] = records["origin"] = category
    for index, (arg, site, kind) in enumerate(events):
        records[index]["arg"], records[index]["site"], records[index]["kind"] = arg, site, kind
    return text_records(texts), records
