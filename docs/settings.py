"""Writes the tables of docs/reference/configuration.md: every setting, as the code has it.

.venv/bin/python docs/settings.py
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

from tailrace.model.quantities import Unit, show_quantity
from tailrace_server.node.serve_settings import GROUPS, ServeSettings
from tailrace_server.node.settings import show_value
from tailrace_server.setting import Setting, settings_of

PAGE = Path(__file__).parent / "reference" / "configuration.md"
MARK = "<!-- The tables below are written by docs/settings.py. -->\n"


def reasons(group: type) -> dict[str, str]:
    """Returns the comment of each field of a dataclass, as Markdown."""
    found = {}
    for comment, name in re.findall(r"((?:^    #: .*\n)+)    (\w+):", inspect.getsource(group), re.M):
        text = " ".join(line.strip().removeprefix("#: ") for line in comment.splitlines())
        found[name] = text.replace("``", "`").replace("|", "\\|")
    return found


def table(group: type, prefix: str) -> str:
    """Returns the table of one group of settings."""
    with_flags = group is ServeSettings
    columns = ("option", "default") if with_flags else ("default", "range")
    lines = [f"| setting | {columns[0]} | {columns[1]} | SIGHUP | meaning |", "|---|---|---|---|---|"]
    why, fields = reasons(group), {field.name: field for field in dataclasses.fields(group)}
    for name, about in settings_of(group).items():
        default = _commas(show_value(fields[name].default, about), about)
        middle = f"`{about.flag.name}`" if with_flags and about.flag is not None else _range(about)
        cells = (middle, default) if with_flags else (default, middle)
        reloads = "yes" if about.reloads else "no"
        lines.append(f"| `{prefix}{name}` | {cells[0]} | {cells[1]} | {reloads} | {why[name]} |")
    return "\n".join(lines) + "\n"


def tables() -> str:
    """Returns all tables, with their headings."""
    parts = ["## Above all tables\n", table(ServeSettings, "")]
    for name, group in GROUPS.items():
        parts += [f"## [{name}]\n", table(group, "")]
    return "\n".join(parts)


def _commas(shown: str, about: Setting) -> str:
    """Returns a number as pages show it."""
    return shown.replace("_", ",") if about.unit is Unit.NONE and shown[:1].isdigit() else shown


def _range(about: Setting) -> str:
    ends = [show_quantity(end, about.unit) if end is not None else "" for end in (about.least, about.most)]
    ends = [_commas(end, about) for end in ends]
    return f"{ends[0]} or more" if not ends[1] else f"{ends[0]} to {ends[1]}"


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().partition(MARK)[0] + MARK + "\n" + tables())
