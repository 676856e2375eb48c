"""`rlscope-ebpf doctor`: every requirement, its state and how to fix it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from rlscope_ebpf.cli.options import library_option, marker_option
from rlscope_ebpf.session.options import parse_library, parse_marker

if TYPE_CHECKING:
    from rlscope_ebpf.capture.checks import Check

SCHEMA = "rlscope-ebpf.doctor/1"

_MARKS = {"ok": "✓", "failed": "✗", "warning": "!", "info": "·"}
_PLAIN_MARKS = {"ok": "ok", "failed": "FAILED", "warning": "WARNING", "info": "-"}  # where ✓ cannot be written
_COLOURS = {"ok": "green", "failed": "red", "warning": "yellow", "info": "bright_black"}


@click.command("doctor")
@click.option(
    "--pid", type=int, metavar="N", help="Also look at this process: Python, libraries, probe sites, sandbox."
)
@library_option
@marker_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(pid: int | None, libraries: tuple[str, ...], markers: tuple[str, ...], as_json: bool) -> int:
    """Check every requirement and say how to fix what is missing.

    With --pid, also what would be probed in a process; --library and --marker as for `attach` are then taken in.

    Exit status: 0 if the profiler can work, 2 if there is no such process, 3 if permissions are missing, 4 if something
    else is. Limits (marked as such) do not change it.
    """
    from rlscope_ebpf.capture.checks import check_host, exit_status

    if (libraries or markers) and pid is None:
        raise click.UsageError("--library and --marker are looked for in a process: name it with --pid.")
    rules = [parse_library(text) for text in libraries], [parse_marker(text) for text in markers]
    checks = check_host()
    if pid is not None:
        from rlscope_ebpf.capture.target_checks import check_target

        checks += check_target(pid, *rules)
    status = exit_status(checks)
    click.echo(render_json(checks, int(status)) if as_json else render(checks, _marks(), _width()))
    return status


def render(checks: list[Check], marks: dict[str, str], width: int | None) -> str:
    """A list by group, with a closing sentence. `width` in columns; None: never break a line (for pipes and grep)."""
    import textwrap

    label = max(len(check.name) for check in checks)
    mark_width = max(map(len, marks.values()))
    indent = " " * (2 + mark_width + 1 + label + 2)
    lines: list[str] = []
    group = ""
    for check in checks:
        if check.group != group:
            group = check.group
            lines += ([""] if lines else []) + [click.style(group[0].upper() + group[1:], bold=True)]
        mark = click.style(f"{marks[check.state]:<{mark_width}}", fg=_COLOURS[check.state])
        detail = [_printable(check.detail)] + ([f"→ {_printable(check.fix)}"] if check.fix else [])
        if width is not None:
            room = max(24, width - len(indent))
            detail = [
                line
                for text in detail
                for line in textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
            ]
        lines.append(f"  {mark} {check.name:<{label}}  {detail[0]}")
        lines += [indent + line for line in detail[1:]]
    lines += ["", conclusion(checks, marks["warning"])]
    text = "\n".join(lines)
    return text if marks is not _PLAIN_MARKS else text.replace("→", "->").encode("ascii", "replace").decode()


def conclusion(checks: list[Check], mark: str) -> str:
    """One sentence about the whole. `mark` is that of a warning."""
    failed = [check for check in checks if check.state == "failed"]
    warnings = [check for check in checks if check.state == "warning"]
    limits = f" {_number(len(warnings), 'limit')} marked with {mark} above." if warnings else ""
    if failed:
        names = ", ".join(check.name for check in failed)
        return click.style(f"{_number(len(failed), 'requirement')} not met: {names}.", fg="red") + limits
    return click.style("Everything that is required is there.", fg="green") + limits


def render_json(checks: list[Check], status: int) -> str:
    """The same for programs."""
    import json
    from dataclasses import asdict

    rows = [{key: value for key, value in asdict(check).items() if key != "status"} for check in checks]
    return json.dumps({"schema": SCHEMA, "ok": status == 0, "exit_status": status, "checks": rows}, indent=2)


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "�" for char in text)


def _marks() -> dict[str, str]:
    try:
        "✓✗→�·".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return _PLAIN_MARKS
    return _MARKS


def _width() -> int | None:
    import shutil

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
