"""The command line: one group, one file per verb, one place where errors become sentences and exit statuses.

A verb's module is imported only when the verb is used, and what the verb works with only when it runs.
"""

from __future__ import annotations

import errno
import importlib
import os
import re
import sys
from collections.abc import Sequence

import click

from rlscope_ebpf.__main__ import INTERRUPTED
from rlscope_ebpf.errors import ExitStatus, ProfilerError

PROGRAM = "rlscope-ebpf"

VERBS: dict[str, str] = {
    "attach": "Attach to running processes.",
    "run": "Start a command under the profiler.",
    "report": "Print the breakdown that a trace holds.",
    "view": "Replay a trace in the live UI.",
    "calibrate": "Measure what probes cost on this host.",
    "doctor": "Check every requirement and say how to fix it.",
    "demo": "Profile a small bundled training loop.",
}
"""Every verb with its line in the help; the module of the same name in this package has it as `command`."""


def _remember_debug(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        context.find_root().ensure_object(dict)["debug"] = True


def _debug_option(hidden: bool) -> click.Option:
    return click.Option(
        ["--debug"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        hidden=hidden,
        callback=_remember_debug,
        help="Show a traceback when something goes wrong.",
    )


class VerbGroup(click.Group):
    """A group that knows its verbs by name and imports the one that is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"{__name__}.{cmd_name}").command
        if not any(parameter.name == "debug" for parameter in command.params):
            # "run again with --debug" should work wherever a person puts it.
            command.params.append(_debug_option(hidden=True))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            close = difflib.get_close_matches(args[0], VERBS, n=1)
            if not close:
                raise
            raise click.UsageError(f"{error.message.rstrip('.')}. Did you mean {close[0]!r}?", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


def _print_version(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        click.echo(f"{PROGRAM} {tool_version()}")
        context.exit()


@click.group(
    cls=VerbGroup,
    params=[
        _debug_option(hidden=False),
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Print the version.",
        ),
    ],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    subcommand_metavar="VERB ...",
)
def group() -> None:
    """Where does the time of a running reinforcement-learning program go?

    Attaches to a process without changing its code and shows, per operation of the training algorithm, the time spent
    in Python, in the simulator, in the ML backend and in the CUDA API, and what a GPU did for it.

    \b
    Start here:
      sudo rlscope-ebpf doctor
      sudo rlscope-ebpf attach --pid 1234
    """


def tool_version() -> str:
    """Version of this program, also from a source tree that is not installed."""
    from importlib import metadata

    try:
        return metadata.version(PROGRAM)
    except metadata.PackageNotFoundError:
        return str(getattr(importlib.import_module("rlscope_ebpf"), "__version__", "unknown"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status (`rlscope_ebpf.errors.ExitStatus`, or that of `run`'s command).

    Errors end here: they become one sentence that says what is wrong and one that says what to do.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    context: click.Context | None = None
    try:
        if not words:
            return _short_help()
        with group.make_context(PROGRAM, words) as context:
            status = group.invoke(context)
        sys.stdout.flush()
        return int(status or ExitStatus.OK)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except BrokenPipeError:
        return _quiet_stdout()
    except (KeyboardInterrupt, click.Abort):
        _say(_INTERRUPTED_WORDS.get(words[0] if words else "", "Interrupted."))
        return INTERRUPTED
    except click.ClickException as error:
        _raise_if_debugging(context)
        _say(*_usage_sentences(error))
        return ExitStatus.USAGE
    except ProfilerError as error:
        _raise_if_debugging(context)
        _say(error.problem, error.remedy)
        return error.status
    except Exception as error:  # the one boundary
        if isinstance(error, OSError) and error.errno == errno.EIO and not _has_terminal():
            return _quiet_stdout()
        _raise_if_debugging(context)
        _say(
            f"Something unexpected went wrong ({type(error).__name__}: {error}).", "Run again with --debug for details."
        )
        return ExitStatus.FAILED


_INTERRUPTED_WORDS = {
    "attach": "Interrupted; the target runs on.",
    "run": "Interrupted before the command was let go; it has been ended.",
}


def _has_terminal() -> bool:
    """Whether the terminal that this was started from, if it was, is still there."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _short_help() -> int:
    """Nothing was asked for: what could be."""
    with group.make_context(PROGRAM, [], resilient_parsing=True) as context:
        click.echo(group.get_help(context), err=True)
    return ExitStatus.USAGE


def _raise_if_debugging(context: click.Context | None) -> None:
    """Print the traceback of the exception being handled, if --debug was given."""
    if context is not None and (context.find_root().obj or {}).get("debug"):
        import traceback

        traceback.print_exc()


_EXTRA_PID = re.compile(r"unexpected extra argument \((\d+)\)")


def _usage_sentences(error: click.ClickException) -> tuple[str, str]:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else PROGRAM
    message = " ".join(error.format_message().split())
    if context is not None and context.info_name == "attach" and (extra := _EXTRA_PID.search(message)):
        return "`attach` takes no bare numbers.", f"Name a process with --pid {extra[1]}."
    stop = "" if message.endswith((".", "?", "!")) else "."
    return message + stop, f"`{path} --help` lists what can be given."


def _say(problem: str, remedy: str = "") -> None:
    """Talk to the person on stderr. Nothing that a target chose (its name, its paths) may steer the terminal."""
    lines = [f"{PROGRAM}: {problem}", *([remedy] if remedy else [])]
    text = "".join(char if char.isprintable() or char == "\n" else "�" for char in "\n".join(lines))
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except OSError:
        pass  # nobody reads it


def _quiet_stdout() -> int:
    """The reader of stdout has gone (`| head`): that is its right, not an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # so that the flush when Python ends finds an open end
    os.close(nowhere)
    return ExitStatus.OK
