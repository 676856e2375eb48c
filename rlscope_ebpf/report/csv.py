"""`report --format csv`: one table with a header, one row per process, phase and operation.

Columns are those of `rlscope_ebpf.analysis.breakdown.OPERATION_COLUMNS` (times in ns, `share` from 0 to 1 of the
process's wall time), then one per kind of transition (calls). A cell is empty where there is no value: the share if too
many events were lost, the mean of the untracked time. Control characters in names are replaced: they have no place in
a table, nor on the terminal that shows it. `pandas.read_csv` reads it as the table that
`rlscope_ebpf.open(path).operations()` gives, with the transitions added. CUDA calls are in the JSON report.
"""

from __future__ import annotations

import csv
import io

from rlscope_ebpf.analysis.breakdown import OPERATION_COLUMNS, TRANSITION_KINDS, Breakdown, operation_record
from rlscope_ebpf.model import format as fmt

COLUMNS = (*OPERATION_COLUMNS, *TRANSITION_KINDS)


def report_text(breakdown: Breakdown) -> str:
    """The whole table, UTF-8 safe, lines ending in a newline."""
    output = io.StringIO()
    writer = csv.DictWriter(output, COLUMNS, restval=0, lineterminator="\n")
    writer.writeheader()
    for process in breakdown.processes:
        for operation in process.operations:
            record = operation_record(process, operation, shares=not breakdown.shares_refused)
            texts = {name: fmt.printable(value) for name, value in record.items() if isinstance(value, str)}
            writer.writerow({**record, **texts, **operation.total.transitions})
    return output.getvalue()
