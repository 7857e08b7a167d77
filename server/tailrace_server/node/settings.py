"""Reads the settings of a node: options win over the environment, it wins over the file, and the file over defaults.

pydantic-settings reads the file and the environment, and pydantic checks all values. The model is made of the
dataclasses that have the settings, so a setting is written once (serve_settings.py).
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import types
import typing
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, create_model
from pydantic_settings import BaseSettings, EnvSettingsSource, NoDecode, TomlConfigSettingsSource

from tailrace.model.quantities import Unit, quantity, show_quantity
from tailrace_server.node.serve_settings import GROUPS, ServeSettings, Settings
from tailrace_server.node.toml_lines import line_of
from tailrace_server.setting import Setting, settings_of

PREFIX = "TAILRACE_"
# Names of the environment that are no settings, but other parts of Tailrace read them.
OTHER_NAMES = frozenset(
    {f"{PREFIX}{name}" for name in ("URL", "TOKEN", "CONFIG", "TLS_CA", "TLS_CLIENT_CERT", "TLS_CLIENT_KEY")}
)
# How alike two names are, from 0 to 1, for one to be proposed for the other.
_ALIKE = 0.7
_HIDDEN = "***"

Path = tuple[str, ...]
# The values of one source, by the name at the top level; those of a group are in a dictionary.
Values = Mapping[str, Any]


class Problem(NamedTuple):
    """What is wrong with one setting.

    Attributes:
        place: Where it was set: a file with a line, a name of the environment, or an option.
        key: The name of the setting, such as ``limits.feeds_max``; "" if the file cannot be read.
        what: What is wrong.
    """

    place: str
    key: str
    what: str

    def __str__(self) -> str:
        return f"{self.place}: {self.key} {self.what}" if self.key else f"{self.place}: {self.what}"


class WrongSettings(Exception):
    """Settings are wrong. ``problems`` has all of them."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(map(str, self.problems)))


class Source(NamedTuple):
    """One source of settings: its name in ``config show``, and its values."""

    name: str
    values: Values
    file: str = ""
    text: str = ""

    def has(self, path: Path) -> bool:
        """Returns whether the source sets ``path``, or something in it."""
        values: Any = self.values
        for part in path:
            if not isinstance(values, Mapping) or part not in values:
                return False
            values = values[part]
        return True

    def place_of(self, path: Path) -> str:
        """Returns the place of a setting in this source."""
        if self.name == "environment":
            return PREFIX + "_".join(path).upper()
        if self.name == "flag":
            return flag_of(path)
        line = line_of(self.text, path)
        return f"{self.file}:{line}" if line else self.file


class Loaded(NamedTuple):
    """The settings in force, and the sources that were read, the strongest first."""

    settings: Settings
    sources: tuple[Source, ...]

    def source_of(self, path: Path) -> Source | None:
        """Returns the source of a setting; None: it has its default."""
        return next((source for source in self.sources if source.has(path)), None)


def load(file: str | None, flags: Values) -> Loaded:
    """Returns the settings of ``file`` (None: there is none), the environment and ``flags``.

    Raises:
        WrongSettings: A setting is unknown or wrong, or the file is no TOML.
        OSError: The file cannot be read.
    """
    files = () if file is None else (read_file(file),)
    return check((Source("flag", flags), Source("environment", _environment()), *files))


def read_file(file: str) -> Source:
    """Returns the values in a file. Raises OSError, WrongSettings if it is no TOML."""
    with open(file, encoding="utf-8") as opened:
        try:
            text = opened.read()
            return Source("file", TomlConfigSettingsSource(_model(), file)(), file, text)
        except ValueError as error:  # of TOML, or no UTF-8
            raise WrongSettings([Problem(file, "", f"is no TOML: {error}")]) from None


def check(sources: tuple[Source, ...]) -> Loaded:
    """Returns the settings of all sources, of which the first wins. Raises WrongSettings."""
    merged: dict[str, Any] = {}
    for source in reversed(sources):
        for name, value in source.values.items():
            before = merged.get(name)
            is_table = isinstance(before, dict) and isinstance(value, dict)
            merged[name] = before | value if is_table else value
    problems = [
        Problem(source.place_of((name,)), name, "belongs to one start: give the option")
        for source in sources
        for name, about in settings_of(ServeSettings).items()
        if source.name != "flag" and about.flag is not None and about.flag.only and source.has((name,))
    ]
    if problems:
        raise WrongSettings(problems)
    try:
        model = _model().model_validate(merged)
    except ValidationError as error:
        raise WrongSettings(_problems(error, sources)) from None
    top = ServeSettings(**{name: getattr(model, name) for name in settings_of(ServeSettings)})
    groups = {name: group(**dict(getattr(model, name))) for name, group in GROUPS.items()}
    return Loaded(Settings(top, **groups), sources)


def paths() -> dict[Path, Setting]:
    """Returns all settings, by their path."""
    top = {(name,): about for name, about in settings_of(ServeSettings).items()}
    return top | {(table, name): about for table, group in GROUPS.items() for name, about in settings_of(group).items()}


def value_of(settings: Settings, path: Path) -> Any:
    """Returns the value of a setting."""
    group = settings.serve if len(path) == 1 else getattr(settings, path[0])
    return getattr(group, path[-1])


def show_value(value: Any, about: Setting) -> str:
    """Returns the value for people; a secret is hidden."""
    if about.secret and value:
        return _HIDDEN
    if value is None:
        return about.flag.default if about.flag is not None else "off"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    return show_quantity(value, about.unit) if isinstance(value, int | float) else str(value)


def flag_of(path: Path) -> str:
    """Returns the option that sets a setting."""
    about = paths().get(path)
    return about.flag.name if about is not None and about.flag is not None else f"--set {'.'.join(path)}"


def unknown_names() -> dict[str, str]:
    """Returns names of the environment that look like a setting's and are none, with the setting's name."""
    known = {PREFIX + "_".join(path).upper() for path in paths()}
    found = {}
    for name in sorted(os.environ):
        if name.upper().startswith(PREFIX) and name.upper() not in known | OTHER_NAMES:
            alike = difflib.get_close_matches(name.upper(), known, 1, 0.9)
            found.update({name: alike[0]} if alike else {})
    return found


def _environment() -> Values:
    source = EnvSettingsSource(
        _model(), env_prefix=PREFIX, env_nested_delimiter="_", env_nested_max_split=1, env_ignore_empty=True
    )
    return source()


def _model() -> type[BaseSettings]:
    """Makes the model of all settings."""
    global _made
    if _made is None:
        forbid = ConfigDict(extra="forbid")
        tables = {name: create_model(name, __config__=forbid, **_fields(group)) for name, group in GROUPS.items()}
        groups = {name: (table, Field(default_factory=table)) for name, table in tables.items()}
        top = create_model("Settings", __base__=BaseSettings, **_fields(ServeSettings), **groups)  # type: ignore[call-overload]
        top.model_config.update(forbid, validate_default=False)
        top.model_rebuild(force=True)
        _made = top
    return _made


_made: type[BaseSettings] | None = None


def _fields(group: type) -> dict[str, Any]:
    hints = typing.get_type_hints(group)
    fields = {field.name: field for field in dataclasses.fields(group)}
    return {
        name: (_type_of(hints[name], about), Field(default=fields[name].default))
        for name, about in settings_of(group).items()
    }


def _type_of(hint: Any, about: Setting) -> Any:
    if hint == tuple[str, ...]:
        return Annotated[hint, NoDecode, BeforeValidator(_split)]
    if hint is bool or not _is_number(hint):
        return hint
    bounds = Field(ge=about.least, le=about.most)
    if type(None) in typing.get_args(hint):
        number = next(kind for kind in typing.get_args(hint) if kind is not type(None))
        return Annotated[Annotated[number, bounds] | None, BeforeValidator(partial(_number_or_off, about.unit))]
    return Annotated[hint, bounds, BeforeValidator(partial(_number, about.unit))]


def _is_number(hint: Any) -> bool:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return any(kind in (int, float) for kind in kinds)


def _number(unit: Unit, value: Any) -> Any:
    return quantity(value, unit)


def _number_or_off(unit: Unit, value: Any) -> Any:
    return None if value is None or value == "off" else quantity(value, unit)


def _split(value: Any) -> Any:
    """Returns the parts of a list, or of a text with commas."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"is {value!r:.100}, and has to be a list of texts")
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


def _problems(error: ValidationError, sources: tuple[Source, ...]) -> Iterable[Problem]:
    known = paths()
    for detail in error.errors():
        path: Path = tuple(str(part) for part in detail["loc"])
        path = path if path in known or detail["type"] == "extra_forbidden" else path[: 2 if path[0] in GROUPS else 1]
        source = next((source for source in sources if source.has(path)), sources[0])
        yield Problem(source.place_of(path), ".".join(path), _what(detail, path, known.get(path, Setting())))


def _what(detail: Any, path: Path, about: Setting) -> str:
    kind, given = detail["type"], _HIDDEN if about.secret else detail["input"]
    if kind == "extra_forbidden":
        return f"is no setting{_proposal(path)}"
    if kind == "greater_than_equal":
        assert about.least is not None
        return f"is {given!r:.100}, and has to be {show_quantity(about.least, about.unit)} or more"
    if kind == "less_than_equal":
        assert about.most is not None
        return f"is {given!r:.100}, and has to be {show_quantity(about.most, about.unit)} or less"
    if kind == "enum":
        return f"is {given!r:.100}, and has to be {detail['ctx']['expected']}"
    if kind == "value_error":
        return str(detail["ctx"]["error"])
    return f"is {given!r:.100}: {detail['msg']}"


def _proposal(path: Path) -> str:
    """Returns the setting that was probably meant."""
    known = paths()
    elsewhere = [other for other in known if other[-1] == path[-1] and other != path]
    if elsewhere:
        table = elsewhere[0][:-1]
        return f": it belongs to [{table[0]}]" if table else ": it belongs above all tables"
    names = {".".join(other) for other in known} | (set(GROUPS) if len(path) == 1 else set())
    alike = difflib.get_close_matches(".".join(path), names, 1, _ALIKE)
    return f"; did you mean {alike[0]}?" if alike else ""
