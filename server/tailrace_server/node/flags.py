"""The options of ``tailrace serve``, made of the settings that have one."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import typer

from tailrace.cli.errors import WrongUsage
from tailrace_server.node.serve_settings import ServeSettings
from tailrace_server.setting import Flag, Setting, settings_of

_F = TypeVar("_F", bound=Callable[..., Any])

ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config", metavar="FILE", envvar="TAILRACE_CONFIG", help="A file of settings in TOML. Options win over it."
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any setting, such as limits.feeds_max=100 or storage.flush_age_s='5 min'. Can be repeated.",
    ),
]


def with_flags(function: _F) -> _F:
    """Gives a command the options of all settings, in place of its ``**given``. An option that is not given is None."""
    signature, hints = inspect.signature(function), typing.get_type_hints(function, include_extras=True)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    flags = _flags()
    parameters = [p.replace(annotation=hints[p.name], kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in flags.items()
    ]
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {**{p.name: hints[p.name] for p in own}, **flags, "return": None}
    return function


def given_flags(given: Mapping[str, Any], assignments: list[str] | None) -> dict[str, Any]:
    """Returns the settings that options give: those that are not None, and those of ``--set``. Raises WrongUsage."""
    values: dict[str, Any] = {}
    for assignment in assignments or ():
        name, separator, text = assignment.partition("=")
        table, _, key = name.strip().rpartition(".")
        if not separator or not key:
            raise WrongUsage(f"--set {assignment}: write NAME=VALUE, such as limits.feeds_max=100")
        (values.setdefault(table, {}) if table else values)[key] = text.strip()
    return values | {name: value for name, value in given.items() if value is not None and value != []}


def _flags() -> dict[str, Any]:
    """Returns the annotation of each option, by the name of its setting."""
    hints = typing.get_type_hints(ServeSettings)
    fields = {field.name: field for field in dataclasses.fields(ServeSettings)}
    return {
        name: _annotation(hints[name], about, about.flag, fields[name].default)
        for name, about in settings_of(ServeSettings).items()
        if about.flag is not None
    }


def _annotation(hint: Any, about: Setting, flag: Flag, default: Any) -> Any:
    kinds = [kind for kind in typing.get_args(hint) or (hint,) if kind is not type(None)]
    kind: Any = list[str] if hint == tuple[str, ...] else kinds[0]
    bounds: dict[str, Any] = {"min": about.least, "max": about.most} if kind in (int, float) else {}
    shown = flag.default or (str(default) if default else False)
    option = typer.Option(flag.name, metavar=flag.metavar or None, help=flag.help, show_default=shown, **bounds)
    return Annotated[kind | None, option]
