r"""`report --format csv`: one table with a header, one row per process, phase and operation.

Columns are those of `rlscope_ebpf.analysis.breakdown.OPERATION_COLUMNS` (times in ns, `share` from 0 to 1 of the
process's wall time), then one per kind of transition (calls). A cell is empty where there is no value: the share if too
many events were lost, the mean of the untracked time, the time that work waited for a GPU where none was launched.
`pandas.read_csv` reads it as the table that `rlscope_ebpf.open(path).operations()` gives, with the transitions added.
CUDA calls and GPU kernels are in the JSON report.

Names are what the target chose, and no name is lost: `path` is a JSON array of the names from the outermost to the
innermost (`[]` is the untracked time), since a name may be empty or have the slash by which `operation` joins them. In
the other texts, a backslash, a character that cannot be printed, and one at the beginning of a cell that a spreadsheet
takes for a formula (= + - @) are escaped as in a Python or JSON string: `\\`, `\n`, `\u001b`, `\u003d`.
"""

from __future__ import annotations

import csv
import io
import json

from rlscope_ebpf.analysis.breakdown import OPERATION_COLUMNS, TRANSITION_KINDS, Breakdown, operation_record

COLUMNS = (*OPERATION_COLUMNS, *TRANSITION_KINDS)

_FORMULAS = ("=", "+", "-", "@")


def report_text(breakdown: Breakdown) -> str:
    """The whole table, UTF-8 safe, lines ending in a newline."""
    output = io.StringIO()
    writer = csv.DictWriter(output, COLUMNS, restval=0, lineterminator="\n")
    writer.writeheader()
    for process in breakdown.processes:
        for operation in process.operations:
            record = operation_record(process, operation, shares=not breakdown.shares_refused)
            texts = {name: escaped(value) for name, value in record.items() if isinstance(value, str)}
            path = json.dumps(operation.total.path)
            writer.writerow({**record, **texts, "path": path, **operation.total.transitions})
    return output.getvalue()


def escaped(text: str) -> str:
    """`text` as a cell that neither a terminal nor a spreadsheet takes for a command; `unescaped` gives it back."""
    plain = "".join(_escape(char) if char == "\\" or not char.isprintable() else char for char in text)
    return f"\\u{ord(plain[0]):04x}{plain[1:]}" if plain.startswith(_FORMULAS) else plain


def unescaped(cell: str) -> str:
    """The text that a cell stands for."""
    text: str = json.loads('"' + cell.replace('"', '\\"') + '"')
    return text


def _escape(char: str) -> str:
    return json.dumps(char)[1:-1]  # beyond U+FFFF: two escapes, as JSON has it
