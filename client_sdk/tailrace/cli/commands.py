"""Finds the commands, runs one of them, and turns its error into one line and an exit code."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, NoReturn

import typer

from tailrace._version import __version__
from tailrace.cli.completion import begin_completion, words_to_complete
from tailrace.cli.errors import FAILED, INTERRUPTED, WRONG_USAGE, CommandFailed, alone, explain

GROUP = "tailrace.commands"
_HELP = """Tailrace, a changefeed service: serve feeds, write to them, follow them.

\b
Examples:
  tailrace serve --data ./data          run a node
  tailrace feed create orders           create a feed
  tailrace put orders key value         write a mutation
  tailrace tail orders                  print all mutations, and wait for new ones

`tailrace COMMAND --help` explains a command.
"""


def run(arguments: Sequence[str], loaded: Callable[[], None] | None = None) -> int:
    """Runs ``tailrace`` with these arguments, and calls ``loaded`` before. Returns the exit code."""
    commands = installed_commands()
    words = words_to_complete()
    called = next((word for word in (arguments if words is None else words) if not word.startswith("-")), None)
    # Only the called command is imported: it must not wait for the libraries of another package.
    if called in commands:
        commands = {called: commands[called]}
    if words is None:
        app = make_app(commands)
        if loaded is not None:
            loaded()
        return invoke(app, arguments)
    begin_completion()
    return invoke(make_app(commands) if called in commands else _names_only(commands), arguments)


def installed_commands() -> dict[str, EntryPoint]:
    """Returns the commands of all installed packages, by name."""
    return {entry.name: entry for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)}


def make_app(commands: dict[str, EntryPoint]) -> typer.Typer:
    """Makes the command line. A command that cannot be imported stays in it, and reports why when it is called."""
    app = typer.Typer(
        name="tailrace",
        help=_HELP,
        invoke_without_command=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_root)
    for name, entry in commands.items():
        try:
            loaded = entry.load()
        except Exception as error:
            # Another package may raise anything while it is imported. Only its own command fails.
            _add_broken(app, name, entry, error)
            continue
        if isinstance(loaded, typer.Typer):
            app.add_typer(loaded, name=name)
        else:
            app.command(name)(loaded)
    return app


def _names_only(commands: dict[str, EntryPoint]) -> typer.Typer:
    """Makes a command line to complete the first word of, which imports no command."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.callback()(_root)
    for name in commands:
        app.command(name)(_nothing)
    return app


def _nothing() -> None:
    # It stands for a command. It has no docstring, since shells would show that beside the name of each command.
    pass


def _print_version(is_given: bool) -> None:
    if is_given:
        typer.echo(f"tailrace {__version__}")
        raise typer.Exit


def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(WRONG_USAGE)


def _add_broken(app: typer.Typer, name: str, entry: EntryPoint, error: Exception) -> None:
    why = f"{type(error).__name__}: {error}" if not isinstance(error, ImportError) else str(error)
    hint = f": pip install 'tailrace[{','.join(entry.extras)}]'" if entry.extras else ""
    message = f"the command {name!r} cannot be loaded ({why}){hint}"

    def broken() -> NoReturn:
        raise CommandFailed(message)

    settings: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(name, help=f"Not available here ({why}).", context_settings=settings)(broken)


def invoke(app: Callable[..., Any], arguments: Sequence[str]) -> int:
    """Calls a typer application. Returns the exit code. Known errors become one line; a bug keeps its traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8 must not end a command
    try:
        code = app(args=list(arguments), prog_name="tailrace", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except typer.Abort:
        return FAILED
    except BrokenPipeError:
        _forget_stdout()
        return FAILED
    except BaseException as error:
        cause = alone(error)
        if isinstance(cause, KeyboardInterrupt):
            return INTERRUPTED
        usage = _usage_line(cause)
        message = explain(cause) if usage is None else usage
        if message is None:
            raise
        if message:
            print(f"tailrace: {message}", file=sys.stderr)
        return int(getattr(cause, "exit_code", FAILED))


def _usage_line(error: BaseException) -> str | None:
    """Returns the parser's error in one line; None if the error is of another kind."""
    # It is recognized by its methods, because its class has moved between versions of typer.
    format_message = getattr(error, "format_message", None)
    if format_message is None:
        return None
    message = " ".join(format_message().split()).replace(": Value error, ", ": ")  # words of a library below typer
    context = getattr(error, "ctx", None)
    command = "tailrace" if context is None else context.command_path
    return f"{message.rstrip('.')}; see `{command} --help`"


def _forget_stdout() -> None:
    """Redirects stdout, whose reader is gone, so that the buffered rest does not fail at the interpreter's exit."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
