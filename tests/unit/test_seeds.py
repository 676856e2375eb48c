"""What processes have said before anyone listened."""

from __future__ import annotations

import numpy as np

from rlscope_ebpf.capture.markers_layout import ProcessMarkers
from rlscope_ebpf.model.categories import Category
from rlscope_ebpf.model.tables import MarkKind, ProcessInfo, StringInfo
from rlscope_ebpf.session.matching import Matcher
from rlscope_ebpf.session.seeds import process_records

START = 1000


def test_each_process_has_said_something_else() -> None:
    matcher = Matcher(START, thread_name=lambda _pid, tid: f"thread {tid}")
    said = {7: ("selfplay-00", "train"), 8: ("selfplay-01", "play")}
    strings: dict[int, str] = {}
    found: dict[int, list[tuple[int, str, str]]] = {}
    intervals = []
    for pid, (name, phase) in said.items():
        matcher.add_process(ProcessInfo(pid=pid, ppid=None, name="python", command=(), start_ns=START))
        markers = ProcessMarkers(pid, phase, 0, 0, 0, {"process_name": name})
        texts, events = process_records(markers, pid, START, Category.PYTHON)
        matcher.add_texts(texts)
        batch = matcher.process(events, START + 10)
        strings |= {each.id: each.text for each in batch.definitions if isinstance(each, StringInfo)}
        strings[0] = ""
        found[pid] = [(row["kind"], strings[row["a"]], strings[row["b"]]) for row in batch.tables["marks"]]
        intervals.append(batch.tables["intervals"])
    assert found == {
        pid: [(MarkKind.PHASE, phase, ""), (MarkKind.METADATA, "process_name", name)]
        for pid, (name, phase) in said.items()
    }
    assert not np.concatenate(intervals)["site"].any()


def test_a_thread_whose_first_event_is_metadata_is_at_no_probe() -> None:
    matcher = Matcher(START, thread_name=lambda _pid, tid: f"thread {tid}")
    matcher.add_process(ProcessInfo(pid=7, ppid=None, name="python", command=(), start_ns=START))
    texts, events = process_records(ProcessMarkers(7, None, 0, 0, 0, {"seed": "1"}), 7, START, Category.PYTHON)
    matcher.add_texts(texts)
    (interval,) = matcher.process(events, START + 10).tables["intervals"]
    assert (interval["category"], interval["site"]) == (Category.PYTHON, 0)


def test_a_second_look_tells_what_is_new() -> None:
    known = ProcessMarkers(7, "train", 0, 0, 0, {"seed": "1", "name": "a"})
    now = ProcessMarkers(7, "train", 5, 5, 0, {"seed": "1", "name": "b"})
    texts, events = process_records(now, 7, START, Category.PYTHON, known)
    assert [text["text"].tobytes().rstrip(b"\0") for text in texts] == [b"name", b"b"]
    assert len(events) == 1
    assert not len(process_records(known, 7, START, Category.PYTHON, known)[1])
