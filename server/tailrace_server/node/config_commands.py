"""``tailrace config``: checks a file of settings, and shows the settings in force."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tailrace.cli.errors import CommandFailed
from tailrace.cli.options import Json
from tailrace.cli.output import make_console, make_table, print_json
from tailrace_server.node.configure import configure, load_settings
from tailrace_server.node.flags import Assignments, ConfigFile, given_flags, with_flags
from tailrace_server.node.settings import Problem, WrongSettings, check, paths, read_file, show_value, value_of

app = typer.Typer(help="Check a file of settings, and show the settings in force.", rich_markup_mode=None)


@app.command("check")
def check_file(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file of settings in TOML.", show_default=False)],
    json: Json = False,
) -> None:
    """Check a file of settings, and name each wrong one.

    The environment does not count. The exit code is 1 if a setting is wrong.
    """
    problems = problems_of(file)
    for problem in problems if not json else ():
        print(problem)
    if json:
        for problem in problems:
            print_json(problem._asdict())
    if problems:
        raise CommandFailed("")
    if not json:
        print(f"{file}: ok")


@app.command()
@with_flags
def show(config: ConfigFile = None, set_: Assignments = None, json: Json = False, **given: Any) -> None:
    """Show all settings, and where each was set: as default, in the file, in the environment, or by an option.

    The options are those of `tailrace serve`.
    """
    loaded = load_settings(config, given_flags(given, set_))
    configure(loaded.settings)
    rows = []
    for path, about in paths().items():
        source = loaded.source_of(path)
        origin, place = ("default", "") if source is None else (source.name, source.place_of(path))
        value = value_of(loaded.settings, path)
        shown = show_value(value, about)
        rows.append((".".join(path), shown if not json or about.secret else value, origin, place))
    if json:
        for name, value, origin, place in rows:
            print_json({"setting": name, "value": value, "source": origin, "place": place})
        return
    columns = [("setting", "left"), ("value", "left"), ("source", "left"), ("place", "left")]
    make_console().print(make_table("", columns, rows))


def problems_of(file: str) -> list[Problem]:
    """Returns what is wrong in a file. Raises OSError."""
    try:
        loaded = check((read_file(file),))
        configure(loaded.settings)
    except WrongSettings as error:
        return list(error.problems)
    except CommandFailed as error:
        return [Problem(file, "", str(error))]
    return []
